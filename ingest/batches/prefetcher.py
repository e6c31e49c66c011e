"""The threads that form batches ahead of training, and the bounded queue that they fill.

One thread reads and decodes events; others join them to batches and number their keys, two batches at a time, while the
first one reads on.
"""

import contextlib
import queue
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait

from ingest.batches.batch import Batch
from ingest.batches.forming import REFRESH_SECONDS, BatchFormer
from ingest.schema import Schema

JOINERS = 2


class _End:
    """The last item of the queue: the stream has ended, or broke with an error."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Prefetcher:
    """Keeps batches ready; stops forming more while the queue is full."""

    def __init__(self, former: BatchFormer, schema: Schema, batches: int) -> None:
        self._former = former
        self._schema = schema
        self._waiting: queue.Queue[Future[Batch] | _End] = queue.Queue(batches)
        """Batches in their order; some may not be joined yet."""
        self._first: Future[Batch] | None = None
        """The one that was taken from the queue before it was joined."""
        self._closed = threading.Event()
        self._over: _End | None = None
        self._joiners = ThreadPoolExecutor(JOINERS, "joiner")
        self._reader = threading.Thread(target=self._read, name="loader", daemon=True)
        self._reader.start()

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
        until = None if timeout is None else time.monotonic() + timeout
        if self._over is None and self._first is None:
            try:
                item = self._waiting.get(timeout=timeout)
            except queue.Empty:
                return None
            if isinstance(item, _End):
                self._over = item
            else:
                self._first = item
        if self._over is None and self._first is not None:
            return self._joined(self._first, until)
        if self._over is not None and self._over.error is not None:
            raise self._over.error
        return None

    def close(self) -> None:
        """Ends the threads; batches that nobody took are dropped."""
        self._closed.set()
        self._over = self._over or _End(None)
        self._empty()  # makes room for a reader that waits to put
        self._reader.join()
        self._joiners.shutdown()
        self._empty()
        self._waiting.put_nowait(_End(None))  # wakes a next() that waits in another thread

    def _joined(self, first: Future[Batch], until: float | None) -> Batch | None:
        """The batch, None if it is not joined in time; raises what joining it raised, and from then on always."""
        wait([first], None if until is None else max(0.0, until - time.monotonic()))
        if not first.done():
            return None
        self._first = None
        if (error := first.exception()) is not None:
            self._over = _End(error)
            raise error
        return first.result()

    def _empty(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._waiting.get_nowait()

    # ── on the reader's thread ────────────────────────────────────────────────────────────────────────────────────────
    def _read(self) -> None:
        error: BaseException | None = None
        try:
            for parts in self._former.batches(self._closed):
                joined = self._joiners.submit(parts.join, self._schema)
                while not self._try_put(joined):
                    self._former.refresh()  # keeps measuring the lag
        except BaseException as caught:  # raised again by next(), in the thread that calls it
            error = caught
        # without using the source: it may be what broke, and next() must report that
        end = _End(error)
        while not self._try_put(end):
            pass

    def _try_put(self, item: Future[Batch] | _End) -> bool:
        """Whether the item is in the queue, or nobody wants it any more."""
        if self._closed.is_set():
            return True
        try:
            self._waiting.put(item, timeout=REFRESH_SECONDS)
        except queue.Full:
            return False
        return True
