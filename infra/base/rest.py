"""What nobody waits for yet, as the rest of a decision while its order is on its way, done by another thread.

The result is the same as if it were done at once, since everything that depends on it waits for it.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

SMALLEST = 4096
"""Rows, or samples, below which handing over takes about as long as the work itself."""


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "rest")


os.register_at_fork(after_in_child=_thread.cache_clear)


class LeftOver:
    """At most one piece of work that is not known to be done."""

    def __init__(self) -> None:
        self._left: Future[None] | None = None

    def leave(self, work: Callable[[], None], size: int) -> None:
        """Has work of that size done, here if it is small, otherwise by the other thread; waits for earlier work.

        The work must not call ``wait``.
        """
        self.wait()
        if size < SMALLEST:
            work()
        else:
            self._left = _thread().submit(work)

    def wait(self) -> None:
        """Waits until nothing is left; raises what the work raised."""
        if self._left is not None:
            left, self._left = self._left, None
            left.result()
