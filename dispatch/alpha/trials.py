"""The same made-up batch assigned now and then by one solver: how much slower it is than at its best.

Its size never changes, so its time says something about the machine alone. On a GPU it is taken by CUDA events on the
solver's own stream: other processes' kernels show, a busy CPU does not. It is felt where nothing can be looked up, and
also while decisions are made elsewhere, so that the way back is known to be free.
"""

from collections import deque
from collections.abc import Callable
from statistics import median

TRIALS = 5
"""at start, the fastest of which counts; one more before them compiles and fills caches"""
RECENT_TRIALS = 3
"""whose median is the slowdown, so that one interruption is none"""
LARGEST_SHARE = 0.01
"""of the time that trials may take"""


class Trial:
    """Times one solver on one problem."""

    def __init__(self, solve_seconds: Callable[[], float]) -> None:
        """solve_seconds: solves the problem and returns how long that took."""
        self._solve_seconds = solve_seconds
        self._next = 0.0
        solve_seconds()
        self.least_seconds = min(solve_seconds() for _ in range(TRIALS))
        """the start-up trial, or a later one that was faster: the machine may have been busy at start"""
        self._recent: deque[float] = deque([self.least_seconds], maxlen=RECENT_TRIALS)

    def look(self, now: float) -> None:
        """Solves it again, unless that would take more than its share of the time."""
        if now < self._next:
            return
        self._solve_seconds()  # other work has left the caches cold since the last trial, which were warm at start
        seconds = self._solve_seconds()
        self._next = now + 2 * seconds / LARGEST_SHARE
        self.least_seconds = min(self.least_seconds, seconds)
        self._recent.append(seconds)

    @property
    def slowdown(self) -> float:
        """Of the latest trials against the fastest one."""
        return median(self._recent) / self.least_seconds
