"""esd: the cost of each sample on each worker, then HybridDis with alpha."""

from collections import deque
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from dispatch.assign.backend import CPU, Opt
from dispatch.assign.cost import cost_matrix
from dispatch.assign.hybrid import Criterion, assign_hybrid
from dispatch.assign.situation import Situation
from dispatch.policies.capacity import check_capacities

RECENT_STEPS = 8
"""over which the time of Opt is known"""


class Esd:
    """alpha 1: all samples by Opt; alpha 0: all by Heu; between: the samples that matter most by Opt."""

    def __init__(self, alpha: float, criterion: Criterion = "min2-min", name: str = "esd", opt: Opt = CPU) -> None:
        self.name = name
        self._alpha = alpha
        self._criterion: Criterion = criterion
        self._opt = opt
        self.was_cut = False
        self._opt_seconds: deque[float] = deque(maxlen=RECENT_STEPS)

    def assign(self, situation: Situation) -> NDArray[np.int32]:
        check_capacities(situation)
        alpha, began = self._affordable(situation), perf_counter()
        self.was_cut = alpha < self._alpha
        if alpha == 1.0:
            at_B = self._opt.assign(situation)
        else:
            cost_Bn = cost_matrix(situation)
            at_B = assign_hybrid(cost_Bn, situation.capacity_n, alpha, self._criterion, self._opt.solve)
        if alpha > 0.0 and situation.samples:
            self._opt_seconds.append((perf_counter() - began) / (alpha * situation.samples))
        return at_B

    def _affordable(self, situation: Situation) -> float:
        """As much of alpha as Opt can do in the time, by the least a sample took lately; at least an eighth."""
        wanted = self._alpha * situation.samples * min(self._opt_seconds, default=0.0)
        if situation.budget_seconds is None or wanted <= situation.budget_seconds:
            return self._alpha
        return self._alpha * max(situation.budget_seconds / wanted, 1 / 8)
