"""Forms batches, evenly over the partitions that have events.

A batch holds one range of events per partition: good ones become samples; bad ones accompany them as dead letters and
do not count towards the size. A range ends after its last sample; bad events after that belong to the next batch, or to
this one if it is partial. The same records in the source always form the same batches. Skipped ranges (by the lag
policy, or by retention) belong to the next batch. The size of a batch may grow with the samples in those before it.
"""

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from threading import Event

from ingest.batches.absent import FieldWatch
from ingest.batches.batch import BatchParts
from ingest.batches.counting import count_present
from ingest.batches.feed import EXAMPLES, Feed
from ingest.batches.job import LoaderJob
from ingest.batches.lag import Lag
from ingest.batches.partitions import Partitions
from ingest.errors import SourceUnavailable
from ingest.samples import join_samples
from ingest.streams.position import Position
from ingest.streams.source import Source

POLL_SECONDS = 0.02
"""How often the source is polled when it had nothing."""
REFRESH_SECONDS = 0.5
"""How often new partitions are looked for, positions committed, and the lag measured while the queue is full."""


class BatchFormer:
    """Forms the batches of a job, in order, on one thread of the loader; no other thread uses the source."""

    def __init__(self, source: Source, job: LoaderJob, lag: Lag) -> None:
        self.skip_above = job.skip_above
        """Events that may wait before the loader skips to the newest; None: any number. May be set
        by another thread.
        """
        self._source = source
        self._job = job
        self._lag = lag
        self._partitions = Partitions(source, job)
        self._left = job.limit
        self._seen = job.seen
        self._look_at = job.look_at
        self._refreshed_at = 0.0

    @property
    def start(self) -> dict[int, Position] | None:
        """Where the partitions began that existed at the opening; None: the source has not answered yet."""
        return self._partitions.start

    def batches(self, closed: Event) -> Iterator[BatchParts]:
        """The parts of batches until the limit, the end of a source that is read to its end, or the closing."""
        while not closed.is_set() and not self._partitions.open():
            closed.wait(POLL_SECONDS)
        self._refreshed_at = time.monotonic()
        waiting_since: float | None = None
        while not closed.is_set() and self._left != 0:
            want = self._look_at or self._next_size()
            try:
                feeds, shares = self._fill(want)
            except SourceUnavailable:
                closed.wait(POLL_SECONDS)
                continue
            waits = any(feed.has_something for feed in feeds)
            waiting_since = (waiting_since or time.monotonic()) if waits else None
            is_flooded = any(feed.is_flooded and not feed.is_at_end for feed in feeds)
            is_full = sum(shares) == want and not is_flooded
            if is_full or is_flooded or self._has_lingered(waiting_since):
                if self._look_at:
                    self._check_absent_fields(feeds)
                    continue
                yield self._form(feeds, shares, is_partial=not is_full)
                waiting_since = None
            elif self._job.stop_at_end:
                return
            else:
                closed.wait(POLL_SECONDS)

    def _next_size(self) -> int:
        size = self._job.batch_after(self._seen)
        return size if self._left is None else min(size, self._left)

    def refresh(self) -> None:
        """Measures the lag and commits positions, while batches wait to be taken."""
        self._measure()
        self._source.commit(self._lag.handed_at)

    def _fill(self, want: int) -> tuple[list[Feed], list[int]]:
        """All feeds with the number of samples that each gives: as many together as are available now, at most want."""
        self._look_for_partitions()
        self._skip_if_late()
        feeds = self._partitions.feeds
        for feed in feeds:
            feed.is_at_end = False
        shares = fill(feeds, want)
        self._measure()
        return feeds, shares

    def _look_for_partitions(self) -> None:
        if time.monotonic() - self._refreshed_at >= REFRESH_SECONDS:
            self._refreshed_at = time.monotonic()
            self._source.commit(self._lag.handed_at)
            self._partitions.add_new()

    def _skip_if_late(self) -> None:
        """Skips everything that waits, once it is too much."""
        most = self.skip_above
        if most is None:
            return
        self._measure()
        if self._lag.waiting > most:
            self._partitions.skip_to_end()

    def _has_lingered(self, since: float | None) -> bool:
        """Whether a partial batch that has waited since then must be formed now."""
        return since is not None and (self._job.stop_at_end or time.monotonic() - since >= self._job.linger_seconds)

    def _check_absent_fields(self, feeds: list[Feed]) -> None:
        """Raises AbsentField if enough events wait and none of them has a value of some field."""
        assert self._look_at is not None
        waiting = join_samples([feed.samples for feed in feeds])
        present_S = count_present(waiting, self._job.schema)
        FieldWatch(self._job.schema, self._look_at, "stop").add(len(waiting), present_S, examples_of(feeds))
        self._look_at = None

    def _form(self, feeds: list[Feed], shares: list[int], is_partial: bool) -> BatchParts:
        parts = assemble(feeds, shares, is_partial)
        self._seen += parts.samples
        if self._left is not None:
            self._left -= parts.samples
        self._lag.add_formed(parts.events)
        self._measure()
        return parts

    def _measure(self) -> None:
        self._lag.set_waiting(self._partitions.count_waiting())


def fill(feeds: Sequence[Feed], batch: int) -> list[int]:
    """Reads until the batch is complete or every feed is exhausted; returns how many samples each feed gives."""
    first = sum(feed.position.offset + feed.position.index for feed in feeds) % max(len(feeds), 1)
    while True:
        shares = share([feed.ready if feed.is_exhausted else batch for feed in feeds], batch, first)
        short = [(feed, want) for feed, want in zip(feeds, shares, strict=True) if feed.ready < want]
        if not short:
            return shares
        for feed, want in short:
            feed.fill(want)


def share(ready: Sequence[int], batch: int, first: int) -> list[int]:
    """How many samples each partition gives: evenly, with odd ones from ``first`` on; others fill in for short ones."""
    level = 0
    left = batch
    for place, most in enumerate(sorted(ready)):
        level = left // (len(ready) - place)
        if most > level:
            break
        left -= most
    given = [min(most, level) for most in ready]
    left = batch - sum(given)
    for i in [(first + place) % len(ready) for place in range(len(ready))]:
        odd = min(left, ready[i] - given[i], 1)
        given[i], left = given[i] + odd, left - odd
    return given


def assemble(feeds: Sequence[Feed], shares: Sequence[int], is_partial: bool) -> BatchParts:
    """The parts of a batch: each feed's share and its skipped ranges."""
    skipped = [feed.take_skipped() for feed in feeds]
    taken = [part for feed, count in zip(feeds, shares, strict=True) if (part := feed.take_events(count, is_partial))]
    return BatchParts(
        taken=tuple(taken),
        skipped=tuple(left_out for ranges, _ in skipped for left_out in ranges),
        skipped_events=sum(events for _, events in skipped),
        examples=examples_of(feeds),
    )


def examples_of(feeds: Sequence[Feed]) -> tuple[bytes, ...]:
    return tuple(islice((payload for feed in feeds for payload in feed.examples), EXAMPLES))
