"""What has gone wrong and is not resolved yet."""

from dataclasses import dataclass


@dataclass
class Setbacks:
    """The setbacks of a run."""

    faults: int = 0
    """Faults in a row, without a new step in between."""
    waits: int = 0
    """Waits in a row, for storage or for room on a disk."""
    stalled: str = ""
    """What the run waits for, in words; empty: for nothing that is wrong."""
