"""esd: the cost of each sample on each worker, then HybridDis with alpha."""

import numpy as np
from numpy.typing import NDArray

from dispatch.cost import cost_matrix
from dispatch.hybrid import Criterion, Solver, assign_hybrid
from dispatch.policies.capacity import check_capacities
from dispatch.situation import Situation
from dispatch.solver import solve_transport


class Esd:
    """alpha 1: all samples by Opt; alpha 0: all by Heu; between: the samples that matter most by Opt."""

    def __init__(
        self, alpha: float, criterion: Criterion = "min2-min", name: str = "esd", solve: Solver = solve_transport
    ) -> None:
        self.name = name
        self._alpha = alpha
        self._criterion: Criterion = criterion
        self._solve = solve

    def assign(self, situation: Situation) -> NDArray[np.int32]:
        check_capacities(situation)
        cost_Bn = cost_matrix(situation)
        return assign_hybrid(cost_Bn, situation.capacity_n, self._alpha, self._criterion, self._solve)
