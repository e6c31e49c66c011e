"""esd: the cost of each sample on each worker, then HybridDis with alpha."""

from collections import deque
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from dispatch.cost import cost_matrix
from dispatch.hybrid import Criterion, Solver, assign_hybrid
from dispatch.policies.capacity import check_capacities
from dispatch.situation import Situation
from dispatch.solver import solve_transport

RECENT_STEPS = 8
"""over which the time of Opt is known"""


class Esd:
    """alpha 1: all samples by Opt; alpha 0: all by Heu; between: the samples that matter most by Opt."""

    def __init__(
        self, alpha: float, criterion: Criterion = "min2-min", name: str = "esd", solve: Solver = solve_transport
    ) -> None:
        self.name = name
        self._alpha = alpha
        self._criterion: Criterion = criterion
        self._solve = solve
        self._opt_seconds: deque[float] = deque(maxlen=RECENT_STEPS)

    def assign(self, situation: Situation) -> NDArray[np.int32]:
        check_capacities(situation)
        began = perf_counter()
        cost_Bn = cost_matrix(situation)
        alpha = self._alpha
        if situation.budget_seconds is not None:
            alpha = self._affordable(situation.samples, situation.budget_seconds - (perf_counter() - began))
        began = perf_counter()
        at_B = assign_hybrid(cost_Bn, situation.capacity_n, alpha, self._criterion, self._solve)
        if alpha > 0.0 and situation.samples:
            self._opt_seconds.append((perf_counter() - began) / (alpha * situation.samples))
        return at_B

    def _affordable(self, samples: int, seconds: float) -> float:
        """As much of alpha as Opt can do in the time, by the least a sample took lately; at least an eighth."""
        wanted = self._alpha * samples * min(self._opt_seconds, default=0.0)
        return self._alpha if wanted <= seconds else self._alpha * max(seconds / wanted, 1 / 8)
