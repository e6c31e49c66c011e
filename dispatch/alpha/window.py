"""The decisions of the latest readings."""

from collections import deque
from statistics import median
from typing import NamedTuple

import numpy as np

from dispatch.placement.assign.worth import Worth

LOOKS = 5
"""Number of readings over whose decisions the 95th percentile is taken."""
COMPARED = 5
"""Latest comparisons that count: a single one may have been interrupted."""


class StepSeconds(NamedTuple):
    """Usual times of the steps that are trained meanwhile; None: not known yet."""

    busy_seconds: float | None = None
    """Time for which a step keeps the workers busy."""
    rows_seconds: float | None = None
    """Time that its rows take on the slowest worker's link."""


class DecisionWindow:
    """Collects decisions and summarises them at every reading."""

    def __init__(self) -> None:
        self._seconds: deque[list[float]] = deque([[]], maxlen=LOOKS)
        """Seconds of the decisions of each reading, those of the next one last."""
        self._cpu_seconds = 0.0
        """Processor seconds of the decisions since the last reading."""
        self.step = StepSeconds()
        self._worths: deque[Worth] = deque(maxlen=COMPARED)

    def note(self, seconds: float, cpu_seconds: float, step: StepSeconds, worth: Worth | None) -> None:
        self._seconds[-1].append(seconds)
        self._cpu_seconds += cpu_seconds
        self.step = step
        if worth is not None:
            self._worths.append(worth)

    @property
    def worth(self) -> Worth | None:
        """Medians of the latest comparisons; None: nothing was compared."""
        if not self._worths:
            return None
        return Worth(*(median(figures) for figures in zip(*self._worths, strict=True)))

    def forget_worth(self) -> None:
        """Drops the comparisons, because nothing will be compared for a while."""
        self._worths.clear()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was decided since the last reading."""
        return not self._seconds[-1]

    def p95_seconds(self) -> float:
        return float(np.percentile([seconds for look in self._seconds for seconds in look], 95))

    def close(self) -> float:
        """Ends the reading; returns the share of processor time in its decisions."""
        share = self._cpu_seconds / max(sum(self._seconds[-1]), 1e-9)
        self._seconds.append([])
        self._cpu_seconds = 0.0
        return min(1.0, share)
