"""Who takes part in a step, and who is parked: taking part has a cost, however few samples a worker gets.

``dispatch/placement/capacity/step_model.py`` models how long a step takes a set of workers. A set stays until another
one is clearly better (MIN_IMPROVEMENT), including hand-overs. The other workers are parked. Now and then they are
tried: they get a few samples for a few steps, so that the run notices when their links or processors have become
faster.

All of this counts steps and uses no clock; without measured times it is a pure function of the sequence of batches.

Legend: n workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar

import numpy as np

from dispatch.placement.arrays import F64, Bool
from dispatch.placement.capacity.step_model import StepModel, sole_of

MIN_IMPROVEMENT = 0.05
"""Share of the step time by which another set must be faster before it is chosen."""
SETTLING_STEPS = 16
"""Steps of a new set in which its caches fill and nobody is parked or called back. A generation begins without them:
while all caches are empty, samples look more expensive than they are, and rather too few workers are parked.
"""
TRY_STEPS = 4
"""Steps of a try: as many transfers as needed to notice a faster link, see
dispatch/placement/capacity/link_costs.py.
"""
TRY_SHARE = 1 / 4
"""Samples of a tried worker, as a share of an equal share of the batch."""
TRY_COST = 0.02
"""Share of the run's time that trying a worker may take, by the model."""
LEAST_WAIT = 64
"""Least number of steps between two tries."""
MOST_WAIT = 4096
"""Most steps between two tries."""


@dataclass(frozen=True)
class SetChange:
    """A new set of workers that take part, and the model's reasons."""

    parked_n: Bool
    model: StepModel
    time: float
    """Time of a step, by the model."""
    time_before: float
    """Time of a step with the set before; infinite if that cannot hold the batch any more, or has not been measured."""
    reason: str = "expected to be faster"

    @property
    def expected(self) -> tuple[float | None, float | None]:
        """Seconds of a step, with this set and with the one before; None: not known."""
        if not self.model.is_in_seconds:
            return None, None
        return self.time, self.time_before if isfinite(self.time_before) else None

    def parked(self, names: Sequence[str]) -> tuple[str, ...]:
        """Names of the parked workers, selected from all names."""
        return tuple(name for name, is_parked in zip(names, self.parked_n, strict=True) if is_parked)

    def facts(self, names: Sequence[str]) -> dict[str, Any]:
        """The change in numbers, for a log."""
        model = self.model
        unit = "seconds" if self.model.is_in_seconds else "rows"
        sole = sole_of(~self.parked_n)
        return {
            "reason": self.reason,
            "parked": self.parked(names),
            "sole": None if sole is None else names[sole],
            f"step_{unit}": float(f"{self.time:.4g}"),
            f"step_{unit}_before": float(f"{self.time_before:.4g}"),
            f"fixed_{unit}": _by_name(names, model.fixed_n if sole is None else model.alone_n),
            f"sample_{unit}": _by_name(names, model.sample_n),
        }


def _by_name(names: Sequence[str], time_n: F64) -> dict[str, float]:
    return {name: float(f"{time:.4g}") for name, time in zip(names, time_n, strict=True)}


class Participation:
    """Chooses who takes part, step after step, by the model alone."""

    goes_by_clock: ClassVar[bool] = False
    try_cost: ClassVar[float] = TRY_COST

    def __init__(self, may_park_n: Bool) -> None:
        self._may_park_n = may_park_n
        self.taking_part_n: Bool = np.full(may_park_n.size, True)
        self.tried_n: Bool = np.full(may_park_n.size, False)
        """Parked workers that get samples in this step."""
        self._settling = 0
        self._idle_n = np.zeros(may_park_n.size, np.int64)
        """Steps since each worker last had samples."""
        self._tries_n = np.zeros(may_park_n.size, np.int64)
        """Steps that are left of each worker's try."""
        self._try_seconds: float | None = None
        """Extra seconds of a step in which parked workers were tried; None: not measured yet."""

    def allow(self, may_park_n: Bool) -> None:
        """Sets who may be parked from now on; the others take part."""
        self._may_park_n = may_park_n
        self.taking_part_n = self.taking_part_n | ~may_park_n

    @property
    def is_settled(self) -> bool:
        """Whether the present set has been chosen, and its steps are like those to come."""
        return not self._settling and not self.tried_n.any()

    def may_skip(self, step: int) -> bool:
        """Whether there is nothing to choose in this step, so that no model is needed; called once per step."""
        return False

    def choose(self, model: StepModel, step: int = 0) -> SetChange | None:
        """Decides about the next step; returns the change if there is one."""
        if not self._may_park_n.any() or not model.samples:
            return None
        self._settling = max(0, self._settling - 1)
        best_n = model.best(self._may_park_n, self.taking_part_n)
        if best_n.all() and self.taking_part_n.all():
            return None
        before = model.time_of(self.taking_part_n)
        after = model.time_after(self.taking_part_n, best_n)
        is_better = after < (1 - MIN_IMPROVEMENT) * before and (not self._settling or before == float("inf"))
        if not is_better:
            self._try_parked(model, before)
            return None
        self.taking_part_n = best_n
        self._settling = SETTLING_STEPS
        self._idle_n[:], self._tries_n[:] = 0, 0
        self.tried_n = np.full(best_n.size, False)
        return SetChange(~best_n, model, model.time_of(best_n), before)

    def measure(self, step: int, seconds: float) -> None:
        """Records how long a step took; choosing by the model alone ignores it."""

    def _try_parked(self, model: StepModel, time: float) -> None:
        """Tries workers that have waited long enough: the more a try costs, the longer."""
        slowed_n = model.fixed_n + TRY_SHARE * model.samples / model.fixed_n.size * model.sample_n
        sole = sole_of(self.taking_part_n)
        hand_overs = 0.0
        if sole is not None:  # a try interrupts it: it returns the dense weights, moves them like others, fetches them
            slowed_n = np.maximum(slowed_n, time + model.fixed_n[sole] - model.alone_n[sole])
            hand_overs = float(model.hand_over_n[sole]) + model.returning(sole)
        slower_n = np.maximum(slowed_n - time, self._slower_by_tries(time))
        wait_n = (TRY_STEPS * slower_n + hand_overs) / (time * self.try_cost)
        is_due_n = ~self.taking_part_n & (self._idle_n >= np.clip(wait_n, LEAST_WAIT, MOST_WAIT))
        if is_due_n.any() and self._could_pay(model, time):
            self._tries_n[is_due_n] = TRY_STEPS
        self.tried_n = self._tries_n > 0
        self._tries_n = np.maximum(self._tries_n - 1, 0)
        self._idle_n = np.where(self.taking_part_n | self.tried_n, 0, self._idle_n + 1)

    def _could_pay(self, model: StepModel, time: float) -> bool:
        """Whether parked workers would be called back if their links and processors had become as fast as any."""
        return True

    def _slower_by_tries(self, time: float) -> float:
        """Seconds that a step with tries takes longer at least; the model alone knows nothing of that."""
        return 0.0


class Everyone(Participation):
    """Parks nobody, whatever the model says."""

    def choose(self, model: StepModel, step: int = 0) -> SetChange | None:
        return None
