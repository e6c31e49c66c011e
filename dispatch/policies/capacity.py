"""The check that every policy makes first: the capacities can hold the batch."""

from dispatch.assign.situation import Situation
from dispatch.errors import Infeasible


def check_capacities(situation: Situation) -> None:
    """Raises Infeasible unless there is a place for every sample."""
    capacity_n = situation.capacity_n
    if (capacity_n < 0).any() or int(capacity_n.sum()) < situation.samples:
        raise Infeasible(
            f"Cannot assign {situation.samples} samples of step {situation.step}: capacities are {capacity_n.tolist()}"
            f"; expected none negative and at least {situation.samples} in all. Raise a capacity or shrink the batch."
        )
