"""round_robin: samples dealt out in turn, passing over workers that are full."""

import numpy as np
from numpy.typing import NDArray

from dispatch.assign.situation import Situation
from dispatch.policies.capacity import check_capacities


class RoundRobin:
    """Sample after sample to worker 0, 1, 2 … and round again, whatever they hold."""

    def __init__(self) -> None:
        self.name = "round_robin"

    def assign(self, situation: Situation) -> NDArray[np.int32]:
        check_capacities(situation)
        capacity_n = np.minimum(situation.capacity_n, situation.samples)
        worker = np.repeat(np.arange(situation.workers, dtype=np.int32), capacity_n)
        # how many places of the same worker come before each place: the round it is dealt in
        turn = np.arange(len(worker)) - np.repeat(np.cumsum(capacity_n) - capacity_n, capacity_n)
        return worker[np.argsort(turn, kind="stable")][: situation.samples]


def round_robin_reference(samples: int, capacity_n: NDArray[np.int64]) -> NDArray[np.int32]:
    """The same, one sample at a time."""
    left = capacity_n.tolist()
    dealt: list[int] = []
    while len(dealt) < samples:
        for j in range(len(left)):
            if left[j] > 0 and len(dealt) < samples:
                left[j] -= 1
                dealt.append(j)
    return np.array(dealt, dtype=np.int32)
