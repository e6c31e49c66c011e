"""random: every sample on any worker with room, drawn from (seed, step) alone."""

import numpy as np
from numpy.typing import NDArray

from dispatch.assign.situation import Situation
from dispatch.policies.capacity import check_capacities


class Random:
    """A uniformly random assignment among those that keep to the capacities."""

    def __init__(self, seed: int) -> None:
        self.name = "random"
        self._seed = seed

    def assign(self, situation: Situation) -> NDArray[np.int32]:
        check_capacities(situation)
        places = np.repeat(np.arange(situation.workers, dtype=np.int32), situation.capacity_n)
        draw = np.random.default_rng([self._seed, situation.step])
        return draw.permutation(places)[: situation.samples]
