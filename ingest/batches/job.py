"""What a loader is asked to do."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ingest.schema import Schema
from ingest.streams.position import Position

OutOfRange = Literal["stop", "earliest", "newest"]


@dataclass(frozen=True)
class LoaderJob:
    """Which batches a loader forms, and from where to where."""

    schema: Schema
    batch: int
    """samples of one batch"""
    start: Mapping[int, Position] = field(default_factory=dict)
    """where each partition begins; empty: all at their first retained record; partitions not named begin at 0"""
    linger_seconds: float = 1.0
    """how long a partial batch waits for more events"""
    prefetch: int = 4
    """batches kept ready"""
    limit: int | None = None
    """end after exactly so many samples; None: never"""
    stop_at_end: bool = False
    """end where the source ends now"""
    read_bytes: int = 1 << 20
    """asked of a partition in one read"""
    on_out_of_range: OutOfRange = "stop"
    """where to go on when retention has removed what comes next"""
    look_at: int | None = None
    """before the first batch, see whether so many events have every field (linger_seconds is the longest wait for
    them), and raise AbsentField if not; None: do not look"""
    skip_above: int | None = None
    """leave out what waits in the source once it is more than so many events; None: never"""
