"""random: every sample on any worker with room, drawn from (seed, step) alone."""

from dataclasses import dataclass

import numpy as np

from dispatch.placement.assign.choices import Backend
from dispatch.placement.assign.situation import Assignment, Policy, Situation, check_capacities
from dispatch.placement.policies.spec import PlainSpec


@dataclass(frozen=True)
class RandomSpec(PlainSpec):
    name = form = "random"

    def build(self, seed: int, backend: Backend) -> Policy:
        return Random(seed)


class Random:
    """A uniformly random assignment among those that keep to the capacities."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def assign(self, situation: Situation) -> Assignment:
        check_capacities(situation)
        places = np.repeat(np.arange(situation.workers, dtype=np.int32), situation.capacity_n)
        draw = np.random.default_rng([self._seed, situation.step])
        return Assignment(draw.permutation(places)[: situation.samples])
