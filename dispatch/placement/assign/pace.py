"""How much exact assignment a time budget allows, learnt from the latest steps."""

from collections import deque

from dispatch.placement.assign.situation import Situation

RECENT_STEPS = 8
"""Number of steps over which the time of Opt is measured."""
LEAST_OF_ALPHA = 1 / 8
"""Least share of alpha that a short budget leaves, so that the time of Opt stays known."""


class OptPace:
    """The time that Opt takes per sample."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        """Seconds per sample."""

    def affordable(self, alpha: float, situation: Situation) -> float:
        """The part of alpha that Opt can do within the budget, by the least time per sample in recent steps."""
        wanted = alpha * situation.samples * min(self._seconds, default=0.0)
        if situation.budget_seconds is None or wanted <= situation.budget_seconds:
            return alpha
        return alpha * max(situation.budget_seconds / wanted, LEAST_OF_ALPHA)

    def learn(self, alpha: float, situation: Situation, seconds: float) -> None:
        """Records how long a share alpha of the situation's samples took."""
        if alpha > 0.0 and situation.samples:
            self._seconds.append(seconds / (alpha * situation.samples))
