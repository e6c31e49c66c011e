"""What has gone wrong and is not mended yet."""

from dataclasses import dataclass


@dataclass
class Setbacks:
    """Of a run."""

    faults: int = 0
    """in a row, without a new step in between"""
    waits: int = 0
    """in a row, for storage or for room on a disk"""
    stalled: str = ""
    """what the run waits for, in words; empty: for nothing that is wrong"""
