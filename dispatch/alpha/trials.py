"""Regular trials: the same synthetic batch assigned by one solver, to see how much slower it is than usual in this run.

Its size never changes, so its time depends on the machine alone. On a GPU it is timed by CUDA events on the solver's
own stream: other processes' kernels show, a busy CPU does not. It works where nothing can be looked up, and also while
decisions are made elsewhere, so that the run knows when the GPU is free again.

Usual is what trials take while the run trains: its own workers use the same processors and the same GPU, and compared
with an idle machine they alone would look like contention. Trials that are clearly slower do not count as usual, unless
they stay so for minutes: then the run itself has changed.
"""

from collections import deque
from collections.abc import Callable
from statistics import median
from time import monotonic

import numpy as np

FIRST_LOOKS = 10
"""Number of trials after which the usual time is known."""
USUAL_LOOKS = 60
"""Number of trials that determine the usual time."""
USUAL_PERCENT = 75
"""Percentile of these that is usual: some trials meet the run's own kernels, and some the gaps between them."""
UNUSUAL = 1.7
"""Multiple of the usual time; slower trials do not count."""
FORGOTTEN_LOOKS = 300
"""Unusual trials in a row after which they become usual."""
RECENT_TRIALS = 3
"""Number of trials whose median is the slowdown, so that one interruption does not count."""
LARGEST_SHARE = 0.01
"""Largest share of the time that trials may take."""


class Trial:
    """Times one solver on one problem."""

    def __init__(self, solve_seconds: Callable[[], float], clock: Callable[[], float] = monotonic) -> None:
        """solve_seconds: solves the problem and returns how long that took."""
        self._solve_seconds = solve_seconds
        self._clock = clock
        self._next = 0.0
        self._usual: deque[float] = deque(maxlen=USUAL_LOOKS)
        self._recent: deque[float] = deque(maxlen=RECENT_TRIALS)
        self._unusual = 0
        """Unusual trials in a row."""
        solve_seconds()  # compiles

    def run_if_due(self, now: float) -> None:
        """Solves the problem again, unless that would take more than its share of the time."""
        if now < self._next:
            return
        began = self._clock()
        self._solve_seconds()  # other work has left the caches cold since the last trial
        seconds = self._solve_seconds()
        # by the clock: a solver on a GPU says how long its kernels ran, and decisions wait for all of it
        self._next = now + (self._clock() - began) / LARGEST_SHARE
        self._recent.append(seconds)
        usual = self.usual_seconds
        self._unusual = self._unusual + 1 if usual is not None and seconds >= UNUSUAL * usual else 0
        if self._unusual == 0:
            self._usual.append(seconds)
        elif self._unusual >= FORGOTTEN_LOOKS:
            self._usual.clear()

    @property
    def usual_seconds(self) -> float | None:
        """The usual time; None: not known yet."""
        return float(np.percentile(self._usual, USUAL_PERCENT)) if len(self._usual) >= FIRST_LOOKS else None

    @property
    def expected_seconds(self) -> float | None:
        """The usual time or, until that is known, the time of the latest trials; None: there were too few of them.

        Trials of a large batch are many seconds apart: whether a solver is fast enough must be known earlier than how
        much it is slower than usual.
        """
        if (usual := self.usual_seconds) is not None:
            return usual
        return median(self._recent) if len(self._recent) == RECENT_TRIALS else None

    @property
    def slowdown(self) -> float | None:
        """Time of the latest trials relative to the usual time; None: not known yet."""
        usual = self.usual_seconds
        return None if usual is None else median(self._recent) / usual
