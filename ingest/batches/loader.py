"""The prefetching loader: hands out batches that threads have read, decoded and validated ahead of training.

At most ``prefetch`` batches wait in its queue; when it is full, reading stops (back-pressure). Only one of the threads
uses the source. ``next`` raises errors of the threads; a source that cannot answer now is polled until it does.
Batches come out in the order formed, and every event is in exactly one of them or was skipped, so the positions of the
last batch handed out are where to resume.
"""

from collections.abc import Sequence
from typing import Protocol

from ingest.batches.batch import Batch
from ingest.batches.forming import BatchFormer
from ingest.batches.job import LoaderJob
from ingest.batches.lag import Lag
from ingest.batches.prefetcher import Prefetcher
from ingest.streams.position import Position, Range
from ingest.streams.source import Source


class BatchLoader(Protocol):
    """Hands out the batches of one source, in order."""

    @property
    def start(self) -> dict[int, Position] | None:
        """Where the partitions began that existed at the opening; None: the source has not answered yet."""

    @property
    def clock(self) -> str:
        """Whose times the records have, as the source says."""

    @property
    def ended(self) -> bool:
        """Whether the last batch has been handed out."""

    def next(self, timeout: float | None = None) -> Batch | None:
        """The next batch, or None if none came in time or the stream has ended."""

    def skip_above(self, events: int | None) -> None:
        """From the next batch on, skips waiting events once there are more than this; None: never."""

    def lag(self) -> int:
        """Events not yet handed out; unread packed records count with the mean size of those read."""

    def close(self) -> None:
        """Batches not handed out are dropped (their events are still in the source)."""


class Loader:
    """Loads on threads of this process. Implements BatchLoader."""

    def __init__(self, source: Source, job: LoaderJob) -> None:
        self._source = source
        self._lag = Lag()
        self._former = BatchFormer(source, job, self._lag)
        self._prefetcher = Prefetcher(self._former, job.schema, job.prefetch)

    @property
    def start(self) -> dict[int, Position] | None:
        is_known = self._former.start is not None or self._prefetcher.goes_on
        return self._former.start if is_known else {}

    @property
    def clock(self) -> str:
        return self._source.clock

    @property
    def ended(self) -> bool:
        return self._prefetcher.ended

    @property
    def known(self) -> int:
        """Events of the stream that are known: handed out, formed into batches, or waiting."""
        return self._lag.known

    def next(self, timeout: float | None = None) -> Batch | None:
        batch = self.ready(timeout)
        if batch is not None:
            self.hand_out(batch.ranges, batch.events)
        return batch

    def ready(self, timeout: float | None = None) -> Batch | None:
        """The next batch, which does not count as handed out yet."""
        return self._prefetcher.next(timeout)

    def hand_out(self, ranges: Sequence[Range], events: int) -> None:
        """Counts a batch as handed out; batches come in their order."""
        self._lag.add_handed(ranges, events)

    def skip_above(self, events: int | None) -> None:
        self._former.skip_above = events

    def lag(self) -> int:
        return self._lag.events

    def close(self) -> None:
        """Ends the threads."""
        self._prefetcher.close()
        self._source.commit(self._lag.handed_at)
