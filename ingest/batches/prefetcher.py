"""The threads that form batches ahead of training, and the bounded queue that they fill.

One thread reads and decodes events; another one joins them to batches and numbers their keys, while the first one
reads on.
"""

import contextlib
import queue
import threading
from typing import TypeVar

from ingest.batches.batch import Batch, BatchParts
from ingest.batches.forming import REFRESH_SECONDS, BatchFormer
from ingest.schema import Schema

Item = TypeVar("Item", Batch, BatchParts)


class _End:
    """The last item of a queue: the stream has ended, or broke with an error."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Prefetcher:
    """Keeps batches ready; stops forming more while the queue is full."""

    def __init__(self, former: BatchFormer, schema: Schema, batches: int) -> None:
        self._former = former
        self._schema = schema
        self._parts: queue.Queue[BatchParts | _End] = queue.Queue(1)
        self._batches: queue.Queue[Batch | _End] = queue.Queue(batches)
        self._closed = threading.Event()
        self._over: _End | None = None
        self._reader = threading.Thread(target=self._read, name="loader", daemon=True)
        self._joiner = threading.Thread(target=self._join, name="joiner", daemon=True)
        self._reader.start()
        self._joiner.start()

    @property
    def ended(self) -> bool:
        """Whether the last batch has been taken."""
        return self._over is not None

    @property
    def goes_on(self) -> bool:
        """Whether events are still read."""
        return self._reader.is_alive()

    def next(self, timeout: float | None) -> Batch | None:
        """The next batch, or None if none came in time or the stream has ended; raises what a thread raised."""
        if self._over is None:
            try:
                item = self._batches.get(timeout=timeout)
            except queue.Empty:
                return None
            if isinstance(item, Batch):
                return item
            self._over = item
        if self._over.error is not None:
            raise self._over.error
        return None

    def close(self) -> None:
        """Ends the threads; batches that nobody took are dropped."""
        self._closed.set()
        self._over = self._over or _End(None)
        _empty(self._batches)  # makes room for threads that wait to put
        _empty(self._parts)
        self._reader.join()
        _empty(self._parts)  # the other thread may have ended by an error, and takes nothing
        self._parts.put_nowait(_End(None))  # wakes it
        self._joiner.join()
        with contextlib.suppress(queue.Full):  # wakes a next() that waits in another thread
            self._batches.put_nowait(_End(None))

    # ── on the threads ────────────────────────────────────────────────────────────────────────────────────────────────
    def _read(self) -> None:
        error: BaseException | None = None
        try:
            for parts in self._former.batches(self._closed):
                while not self._try_put(self._parts, parts):
                    self._former.refresh()  # keeps measuring the lag
        except BaseException as caught:  # raised again by next(), in the thread that calls it
            error = caught
        # without using the source: it may be what broke, and next() must report that
        self._put(self._parts, _End(error))

    def _join(self) -> None:
        try:
            while isinstance(parts := self._parts.get(), BatchParts):
                self._put(self._batches, parts.join(self._schema))
            end = parts
        except BaseException as caught:
            end = _End(caught)
        self._put(self._batches, end)

    def _put(self, items: queue.Queue[Item | _End], item: Item | _End) -> None:
        """Waits for room."""
        while not self._try_put(items, item):
            pass

    def _try_put(self, items: queue.Queue[Item | _End], item: Item | _End) -> bool:
        """Whether the item is in the queue, or nobody wants it any more."""
        if self._closed.is_set():
            return True
        try:
            items.put(item, timeout=REFRESH_SECONDS)
        except queue.Full:
            return False
        return True


def _empty(items: queue.Queue[Item | _End]) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            items.get_nowait()
