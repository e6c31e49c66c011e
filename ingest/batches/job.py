"""The job of a loader."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ingest.schema import Schema
from ingest.streams.position import Position

OutOfRange = Literal["stop", "earliest", "newest"]


@dataclass(frozen=True)
class LoaderJob:
    """Which batches a loader forms, and from which part of the stream."""

    schema: Schema
    batch: int
    """Samples of one batch, once batches have grown."""
    start: Mapping[int, Position] = field(default_factory=dict)
    """Where each partition begins; empty: all at their first retained record. Partitions that are
    not named begin at 0.
    """
    linger_seconds: float = 1.0
    """How long a partial batch waits for more events."""
    prefetch: int = 4
    """Batches kept ready."""
    limit: int | None = None
    """Ends after exactly this many samples; None: never."""
    stop_at_end: bool = False
    """Ends at the current end of the source."""
    read_bytes: int = 1 << 20
    """Bytes requested from a partition in one read."""
    on_out_of_range: OutOfRange = "stop"
    """What to do if retention has removed the next record."""
    look_at: int | None = None
    """Number of events that are checked before the first batch: AbsentField is raised if they lack a field. The check
    waits for them at most linger_seconds. None: no check.
    """
    skip_above: int | None = None
    """Skips waiting events once there are more than this; None: never."""
    first_batch: int = 0
    """Samples of the first batches, which grow from there; 0: every batch has ``batch`` samples."""
    batch_growth: int = 64
    """Samples of earlier batches for each sample of the next one, while batches grow."""
    seen: int = 0
    """Samples of all batches before the first one of this loader."""

    def batch_after(self, seen: int) -> int:
        """Samples of the batch that follows so many samples: a function of their number alone, so a run that is resumed
        forms the batches that it would have formed.
        """
        if not self.first_batch:
            return self.batch
        return min(self.batch, max(self.first_batch, seen // self.batch_growth))
