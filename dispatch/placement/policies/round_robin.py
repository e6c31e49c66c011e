"""round_robin: samples assigned in turn, skipping workers that are full."""

from dataclasses import dataclass

import numpy as np

from dispatch.placement.arrays import I32, I64
from dispatch.placement.assign.choices import Backend
from dispatch.placement.assign.situation import Assignment, Policy, Situation, check_capacities
from dispatch.placement.policies.spec import PlainSpec


@dataclass(frozen=True)
class RoundRobinSpec(PlainSpec):
    name = form = "round_robin"

    def build(self, seed: int, backend: Backend) -> Policy:
        return RoundRobin()


class RoundRobin:
    """Assigns samples to worker 0, 1, 2 … and round again, whatever rows they hold."""

    def assign(self, situation: Situation) -> Assignment:
        check_capacities(situation)
        capacity_n = np.minimum(situation.capacity_n, situation.samples)
        worker = np.repeat(np.arange(situation.workers, dtype=np.int32), capacity_n)
        # how many places of the same worker come before each place: the round in which it is filled
        turn = np.arange(len(worker)) - np.repeat(np.cumsum(capacity_n) - capacity_n, capacity_n)
        return Assignment(worker[np.argsort(turn, kind="stable")][: situation.samples])


def round_robin_reference(samples: int, capacity_n: I64) -> I32:
    """The same, one sample at a time."""
    left = capacity_n.tolist()
    dealt: list[int] = []
    while len(dealt) < samples:
        for j in range(len(left)):
            if left[j] > 0 and len(dealt) < samples:
                left[j] -= 1
                dealt.append(j)
    return np.array(dealt, dtype=np.int32)
