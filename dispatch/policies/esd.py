"""esd: the cost of each sample on each worker, then HybridDis with alpha."""

import numpy as np
from numpy.typing import NDArray

from dispatch.backend import CPU, Opt
from dispatch.cost import cost_matrix
from dispatch.hybrid import Criterion, assign_hybrid
from dispatch.policies.capacity import check_capacities
from dispatch.situation import Situation


class Esd:
    """alpha 1: all samples by Opt; alpha 0: all by Heu; between: the samples that matter most by Opt."""

    def __init__(self, alpha: float, criterion: Criterion = "min2-min", name: str = "esd", opt: Opt = CPU) -> None:
        self.name = name
        self._alpha = alpha
        self._criterion: Criterion = criterion
        self._opt = opt

    def assign(self, situation: Situation) -> NDArray[np.int32]:
        check_capacities(situation)
        if self._alpha == 1.0:
            return self._opt.assign(situation)
        cost_Bn = cost_matrix(situation)
        return assign_hybrid(cost_Bn, situation.capacity_n, self._alpha, self._criterion, self._opt.solve)
