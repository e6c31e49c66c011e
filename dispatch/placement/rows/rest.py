"""The rest of a decision: what nobody waits for, done by another thread while the order is on its way.

The result is the same as if it were done at once, since everything that depends on it waits for it.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache

SMALLEST = 4096
"""Rows of a batch below which handing over takes about as long as the work itself."""


@cache
def _thread() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "rest-of-decision")


os.register_at_fork(after_in_child=_thread.cache_clear)


class LeftOver:
    """At most one piece of work that is not known to be done."""

    def __init__(self) -> None:
        self._left: Future[None] | None = None

    def leave(self, work: Callable[[], None], rows: int) -> None:
        """Has work on so many rows done, here if they are few, otherwise by the other thread; waits for earlier work.

        The work must not call ``wait``.
        """
        self.wait()
        if rows < SMALLEST:
            work()
        else:
            self._left = _thread().submit(work)

    def wait(self) -> None:
        """Waits until nothing is left; raises what the work raised."""
        if self._left is not None:
            left, self._left = self._left, None
            left.result()
