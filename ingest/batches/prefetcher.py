"""The thread that forms batches ahead of training, and the bounded queue that it fills."""

import contextlib
import queue
import threading

from ingest.batches.batch import Batch
from ingest.batches.forming import REFRESH_SECONDS, BatchFormer


class _End:
    """The last item of the queue: the stream has ended, or broke with an error."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Prefetcher:
    """Keeps batches ready; stops forming more while the queue is full."""

    def __init__(self, former: BatchFormer, batches: int) -> None:
        self._former = former
        self._queue: queue.Queue[Batch | _End] = queue.Queue(batches)
        self._closed = threading.Event()
        self._over: _End | None = None
        self._thread = threading.Thread(target=self._run, name="loader", daemon=True)
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether the last batch has been taken."""
        return self._over is not None

    @property
    def goes_on(self) -> bool:
        """Whether the thread still forms batches."""
        return self._thread.is_alive()

    def next(self, timeout: float | None) -> Batch | None:
        """The next batch, or None if none came in time or the stream has ended; raises what the thread raised."""
        if self._over is None:
            try:
                item = self._queue.get(timeout=timeout)
            except queue.Empty:
                return None
            if isinstance(item, Batch):
                return item
            self._over = item
        if self._over.error is not None:
            raise self._over.error
        return None

    def close(self) -> None:
        """Ends the thread; batches that nobody took are dropped."""
        self._closed.set()
        self._over = self._over or _End(None)
        with contextlib.suppress(queue.Empty):  # makes room for a thread that waits to put
            while True:
                self._queue.get_nowait()
        self._thread.join()
        with contextlib.suppress(queue.Full):  # wakes a next() that waits in another thread
            self._queue.put_nowait(_End(None))

    # ── on the thread ─────────────────────────────────────────────────────────────────────────────────────────────────
    def _run(self) -> None:
        error: BaseException | None = None
        try:
            for batch in self._former.batches(self._closed):
                self._put(batch)
        except BaseException as caught:  # raised again by next(), in the thread that calls it
            error = caught
        self._put_end(_End(error))

    def _put(self, batch: Batch) -> None:
        """Waits for room, and keeps measuring the lag meanwhile."""
        while not self._try_put(batch):
            self._former.refresh()

    def _put_end(self, end: _End) -> None:
        """Waits for room without using the source: it may be what broke, and next() must report that."""
        while not self._try_put(end):
            pass

    def _try_put(self, item: Batch | _End) -> bool:
        """Whether the item is in the queue, or nobody wants it any more."""
        if self._closed.is_set():
            return True
        try:
            self._queue.put(item, timeout=REFRESH_SECONDS)
        except queue.Full:
            return False
        return True
