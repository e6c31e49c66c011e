"""The same made-up batch assigned now and then by one solver: how much slower it is than usual in this run.

Its size never changes, so its time says something about the machine alone. On a GPU it is taken by CUDA events on the
solver's own stream: other processes' kernels show, a busy CPU does not. It is felt where nothing can be looked up, and
also while decisions are made elsewhere, so that the way back is known to be free.

Usual is what trials take while the run trains: its own workers use the same processors and the same GPU, and against
an idle machine they alone would look like contention. Trials that are clearly slower do not count as usual, unless they
stay so for minutes: then the run itself has changed.
"""

from collections import deque
from collections.abc import Callable
from statistics import median

import numpy as np

FIRST_LOOKS = 10
"""after which it is known what is usual"""
USUAL_LOOKS = 60
"""that it is known by"""
USUAL_PERCENT = 75
"""percentile of these that is usual: some trials meet the run's own kernels, and some the gaps between them"""
UNUSUAL = 1.7
"""times the usual; slower trials are not learnt from"""
FORGOTTEN_LOOKS = 300
"""unusual ones in a row after which they are usual"""
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
        self._usual: deque[float] = deque(maxlen=USUAL_LOOKS)
        self._recent: deque[float] = deque(maxlen=RECENT_TRIALS)
        self._unusual = 0
        """looks in a row"""
        solve_seconds()  # compiles

    def run_if_due(self, now: float) -> None:
        """Solves it again, unless that would take more than its share of the time."""
        if now < self._next:
            return
        self._solve_seconds()  # other work has left the caches cold since the last trial
        seconds = self._solve_seconds()
        self._next = now + 2 * seconds / LARGEST_SHARE
        self._recent.append(seconds)
        usual = self.usual_seconds
        self._unusual = self._unusual + 1 if usual is not None and seconds >= UNUSUAL * usual else 0
        if self._unusual == 0:
            self._usual.append(seconds)
        elif self._unusual >= FORGOTTEN_LOOKS:
            self._usual.clear()

    @property
    def usual_seconds(self) -> float | None:
        """None: not known yet."""
        return float(np.percentile(self._usual, USUAL_PERCENT)) if len(self._usual) >= FIRST_LOOKS else None

    @property
    def slowdown(self) -> float | None:
        """Of the latest trials against the usual ones; None: not known yet."""
        usual = self.usual_seconds
        return None if usual is None else median(self._recent) / usual
