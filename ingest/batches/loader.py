"""The prefetching loader: a thread that reads, decodes and validates ahead of training.

At most ``prefetch`` batches wait in its queue; when nobody takes them it stops reading (back-pressure). The thread
alone touches the source. What goes wrong in it is raised by ``next``; a source that cannot answer now is asked again,
for as long as it says so. Batches come out in the order formed, every event in exactly one of them or among those left
out, so positions of the last batch handed out are where to start again.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Mapping

from ingest.batches.forming import Batch, Feed, OutOfRange, assemble, fill, form_batch
from ingest.batches.manifest import Position
from ingest.codec.decoder import Decoder
from ingest.errors import SourceUnavailable
from ingest.schema import Schema
from ingest.streams.source import Source

__all__ = ["Batch", "Loader", "form_batch"]

POLL_SECONDS = 0.02
"""How often the source is asked for more when it had nothing."""
REFRESH_SECONDS = 0.5
"""How often new partitions are looked for, positions are shown, and the lag is measured while the queue is full."""


class _End:
    """The last thing in the queue: the stream is over, or broke with an error."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Loader:
    """Hands out batches of one source, from given positions on."""

    def __init__(
        self,
        source: Source,
        schema: Schema,
        batch: int,
        start: Mapping[int, Position],
        linger_seconds: float = 1.0,
        prefetch: int = 4,
        limit: int | None = None,
        stop_at_end: bool = False,
        read_bytes: int = 1 << 20,
        on_out_of_range: OutOfRange = "stop",
        skip_above: int | None = None,
    ) -> None:
        """Without any start every partition begins at its first retained record; with some, others begin at 0.

        limit ends the stream after exactly that many samples; stop_at_end ends it where the source ends; skip_above
        leaves out whatever waits in the source once it is more than that many events.
        """
        self._source, self._schema, self._decoder = source, schema, Decoder(schema)
        self._batch, self._linger_seconds, self._read_bytes = batch, linger_seconds, read_bytes
        self._left, self._stop_at_end = limit, stop_at_end
        self._on_out_of_range, self._skip_above = on_out_of_range, skip_above
        self._feeds: dict[int, Feed] = {}
        self._start = dict(start)
        self._queue: queue.Queue[Batch | _End] = queue.Queue(prefetch)
        self._closed = threading.Event()
        self._over: _End | None = None
        self._handed_at: dict[int, int] = {}
        """per partition the record that batches handed out go up to"""
        self._upstream = 0
        """events in the source, or decoded, that no batch has taken"""
        self._known = self._formed = self._handed = 0
        """events in the source or in formed batches; events in formed batches; events handed out"""
        self._looked_seconds = -REFRESH_SECONDS
        self._thread = threading.Thread(target=self._run, name="loader", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether the last batch has been handed out."""
        return self._over is not None

    def next(self, timeout: float | None = None) -> Batch | None:
        """The next batch, or None if none came in time or the stream has ended."""
        if self._over is None:
            try:
                item = self._queue.get(timeout=timeout)
            except queue.Empty:
                return None
            if isinstance(item, Batch):
                self._handed += _events(item)
                self._handed_at = {**self._handed_at, **{r.partition: r.end.offset for r in item.ranges}}
                return item
            self._over = item
        if self._over.error is not None:
            raise self._over.error
        return None

    def lag(self) -> int:
        """Events not yet handed out; unread packed records count with the mean size of those read."""
        return self._known - self._handed

    def close(self) -> None:
        """Ends the thread; batches not handed out are dropped (their events are still in the source)."""
        self._closed.set()
        self._over = self._over or _End(None)
        with contextlib.suppress(queue.Empty):  # makes room for a thread that waits to put
            while True:
                self._queue.get_nowait()
        self._thread.join()
        self._source.commit(self._handed_at)
        with contextlib.suppress(queue.Full):  # wakes a next() that waits in another thread
            self._queue.put_nowait(_End(None))

    # ── in the thread ─────────────────────────────────────────────────────────────────────────────────────────────────
    def _run(self) -> None:
        error: BaseException | None = None
        try:
            while not self._closed.is_set() and not self._open():
                self._closed.wait(POLL_SECONDS)
            self._form_all()
        except BaseException as caught:  # handed to the thread that calls next()
            error = caught
        self._put(_End(error))

    def _open(self) -> bool:
        """Feeds of the partitions there are at the start; False if the source cannot tell now."""
        try:
            partitions = sorted({*self._source.partitions(), *self._start})
            firsts = {partition: 0 if self._start else self._source.span(partition)[0] for partition in partitions}
        except SourceUnavailable:
            return False
        for partition in partitions:
            self._add(partition, self._start.get(partition, Position(firsts[partition])))
        self._looked_seconds = time.monotonic()
        return True

    def _add(self, partition: int, start: Position) -> None:
        self._feeds[partition] = Feed(
            self._source,
            self._decoder,
            partition,
            start,
            self._read_bytes,
            self._on_out_of_range,
            is_patient=self._stop_at_end,  # or silence would look like the end
        )

    def _form_all(self) -> None:
        waiting_since: float | None = None
        while not self._closed.is_set() and self._left != 0:
            want = self._batch if self._left is None else min(self._batch, self._left)
            try:
                feeds, shares = self._fill(want)
            except SourceUnavailable:
                self._closed.wait(POLL_SECONDS)
                continue
            waits = any(feed.ready or feed.rejected or feed.skipped for feed in feeds)
            waiting_since = (waiting_since or time.monotonic()) if waits else None
            if self._is_flooded(feeds):
                self._hand_over(feeds, shares, is_partial=True)
            elif sum(shares) == want:
                self._hand_over(feeds, shares, is_partial=False)
            elif waits and (self._stop_at_end or self._lingered(waiting_since)):
                self._hand_over(feeds, shares, is_partial=True)
            elif self._stop_at_end:
                return
            else:
                self._closed.wait(POLL_SECONDS)
                continue
            waiting_since = None

    def _fill(self, want: int) -> tuple[list[Feed], list[int]]:
        self._look_for_partitions()
        self._skip_if_late()
        feeds = [self._feeds[partition] for partition in sorted(self._feeds)]
        for feed in feeds:
            feed.is_at_end = False
        shares = fill(feeds, want)
        self._measure()
        return feeds, shares

    def _look_for_partitions(self) -> None:
        if time.monotonic() - self._looked_seconds >= REFRESH_SECONDS:
            self._looked_seconds = time.monotonic()
            self._source.commit(self._handed_at)
            with contextlib.suppress(SourceUnavailable):
                for partition in self._source.partitions():
                    if partition not in self._feeds:
                        self._add(partition, Position(0))

    def _skip_if_late(self) -> None:
        """Leaves out everything that waits, once it is too much."""
        if self._skip_above is None:
            return
        self._measure()
        if self._upstream > self._skip_above:
            for feed in self._feeds.values():
                feed.skip_to(self._source.span(feed.partition)[1])

    def _is_flooded(self, feeds: list[Feed]) -> bool:
        return any(feed.is_exhausted and not feed.is_at_end for feed in feeds)

    def _lingered(self, since: float | None) -> bool:
        return since is not None and time.monotonic() - since >= self._linger_seconds

    def _hand_over(self, feeds: list[Feed], shares: list[int], is_partial: bool) -> None:
        batch = assemble(feeds, shares, is_partial, self._schema)
        if self._left is not None:
            self._left -= len(batch.samples)
        self._formed += _events(batch)
        self._measure()
        self._put(batch)

    def _put(self, item: Batch | _End) -> None:
        while not self._closed.is_set():
            try:
                self._queue.put(item, timeout=REFRESH_SECONDS)
                return
            except queue.Full:
                self._measure()
                self._source.commit(self._handed_at)

    def _measure(self) -> None:
        with contextlib.suppress(SourceUnavailable):  # then the ends that were known stay known
            for feed in self._feeds.values():
                feed.known_end = self._source.span(feed.partition)[1]
        self._upstream = sum(feed.waiting for feed in self._feeds.values())
        self._known = self._upstream + self._formed  # one assignment: lag() may run at any moment


def _events(batch: Batch) -> int:
    return len(batch.samples) + len(batch.dead_letters)
