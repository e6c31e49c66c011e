"""The decisions of the latest looks."""

from collections import deque

import numpy as np

LOOKS = 5
"""over whose decisions the 95th percentile is taken"""


class DecisionWindow:
    """Takes decisions one by one and sums them up at every look."""

    def __init__(self) -> None:
        self._seconds: deque[list[float]] = deque([[]], maxlen=LOOKS)
        """of the decisions of each look, those of the next one last"""
        self._cpu_seconds = 0.0
        """of the decisions since the last look"""
        self.busy_seconds: float | None = None
        self.saved_share: float | None = None

    def note(self, seconds: float, cpu_seconds: float, busy_seconds: float | None, saved_share: float | None) -> None:
        self._seconds[-1].append(seconds)
        self._cpu_seconds += cpu_seconds
        self.busy_seconds = busy_seconds
        self.saved_share = self.saved_share if saved_share is None else saved_share

    @property
    def is_empty(self) -> bool:
        """Whether nothing was decided since the last look."""
        return not self._seconds[-1]

    def p95_seconds(self) -> float:
        return float(np.percentile([seconds for look in self._seconds for seconds in look], 95))

    def close(self) -> float:
        """Ends the look; returns the share of processor time in its decisions."""
        share = self._cpu_seconds / max(sum(self._seconds[-1]), 1e-9)
        self._seconds.append([])
        self._cpu_seconds = 0.0
        return min(1.0, share)
