"""The prefetching loader: hands out batches that threads have read, decoded and validated ahead of training.

At most ``prefetch`` batches wait in its queue; when it is full, reading stops (back-pressure). Only one of the threads
uses the source. ``next`` raises errors of the threads; a source that cannot answer now is polled until it does.
Batches come out in the order formed, and every event is in exactly one of them or was skipped, so the positions of the
last batch handed out are where to resume.
"""

from ingest.batches.batch import Batch
from ingest.batches.forming import BatchFormer
from ingest.batches.job import LoaderJob
from ingest.batches.lag import Lag
from ingest.batches.prefetcher import Prefetcher
from ingest.streams.position import Position
from ingest.streams.source import Source


class Loader:
    """Hands out the batches of one source, in order."""

    def __init__(self, source: Source, job: LoaderJob) -> None:
        self._source = source
        self._lag = Lag()
        self._former = BatchFormer(source, job, self._lag)
        self._prefetcher = Prefetcher(self._former, job.schema, job.prefetch)

    @property
    def start(self) -> dict[int, Position] | None:
        """Where the partitions began that existed at the opening; None: the source has not answered yet."""
        is_known = self._former.start is not None or self._prefetcher.goes_on
        return self._former.start if is_known else {}

    @property
    def ended(self) -> bool:
        """Whether the last batch has been handed out."""
        return self._prefetcher.ended

    def next(self, timeout: float | None = None) -> Batch | None:
        """The next batch, or None if none came in time or the stream has ended."""
        batch = self._prefetcher.next(timeout)
        if batch is not None:
            self._lag.add_handed(batch)
        return batch

    def skip_above(self, events: int | None) -> None:
        """From the next batch on, skips waiting events once there are more than this; None: never."""
        self._former.skip_above = events

    def lag(self) -> int:
        """Events not yet handed out; unread packed records count with the mean size of those read."""
        return self._lag.events

    def close(self) -> None:
        """Ends the threads; batches not handed out are dropped (their events are still in the source)."""
        self._prefetcher.close()
        self._source.commit(self._lag.handed_at)
