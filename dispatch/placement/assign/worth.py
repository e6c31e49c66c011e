"""What exact solving saves and how long it takes, compared with Heu's assignment for the same situation.

Both costs are those of the batch as a whole (dispatch/placement/assign/batch_cost.py), which is what will move, so that
the answer means the same under every policy.
"""

from time import perf_counter
from typing import NamedTuple

from dispatch.placement.arrays import I32
from dispatch.placement.assign.batch_cost import Placement
from dispatch.placement.assign.cost import cost_matrix
from dispatch.placement.assign.hybrid import assign_hybrid
from dispatch.placement.assign.situation import Situation


class Worth(NamedTuple):
    """The worth of the exact part of one assignment."""

    saved_share: float
    """Share of Heu's cost that it saves; below 0 if it is more expensive."""
    exact_seconds: float
    """How much longer than Heu it takes."""


def weigh(situation: Situation, chosen_B: I32, seconds: float) -> Worth | None:
    """seconds: how long the assignment took.

    None if nothing was solved exactly, or if Heu's assignment costs nothing.
    """
    if situation.alpha == 0.0 or situation.samples == 0:
        return None
    began = perf_counter()
    heu_B = assign_hybrid(cost_matrix(situation), situation.capacity_n, alpha=0.0)
    exact_seconds = max(0.0, seconds - (perf_counter() - began))
    heu_cost = Placement(situation, heu_B).cost()
    return Worth(1.0 - Placement(situation, chosen_B).cost() / heu_cost, exact_seconds) if heu_cost > 0 else None
