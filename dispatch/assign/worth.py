"""What exact solving buys: the cost of an assignment against Heu's for the same situation.

Both are counted for the batch as a whole (dispatch/assign/batch_cost.py), which is what will move, so that the answer
means the same under every policy.
"""

from dispatch.arrays import I32
from dispatch.assign.batch_cost import Placement
from dispatch.assign.cost import cost_matrix
from dispatch.assign.hybrid import assign_hybrid
from dispatch.assign.situation import Situation


def saved_share(situation: Situation, chosen_B: I32) -> float | None:
    """The share of Heu's cost that an assignment saves; below 0 if it is dearer.

    None where nothing was solved exactly, so that nothing can be said, or Heu's costs nothing.
    """
    if situation.alpha == 0.0 or situation.samples == 0:
        return None
    heu_B = assign_hybrid(cost_matrix(situation), situation.capacity_n, alpha=0.0)
    heu_cost = Placement(situation, heu_B).cost()
    return 1.0 - Placement(situation, chosen_B).cost() / heu_cost if heu_cost > 0 else None
