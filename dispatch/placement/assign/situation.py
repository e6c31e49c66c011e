"""What a policy sees when it decides one step, and nothing more.

Legend: B samples, F keys a sample, U distinct rows of the batch, n workers, Q words of 64 workers each.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dispatch.placement.arrays import F64, I32, I64, U8, U64
from dispatch.placement.errors import Infeasible


@dataclass(frozen=True)
class Situation:
    """One batch, where its rows are, and what moving a row costs. Arrays are read, never written."""

    step: int
    local_BF: I32
    """per sample and field: position in the U arrays"""
    state_U: U8
    """CLEAN, OWNED or SPLIT"""
    holders_UQ: U64
    """bit j%64 of word j//64 is set if worker j is a holder of the row's newest state"""
    row_cost_n: F64
    """cost of moving one row with its state over worker j's link, in units of one such row over the fastest link"""
    capacity_n: I64
    """how many samples worker j may get; the sum is at least B"""
    value_share: float = 1.0
    """bytes of a row's value over those of value and state: what a move without state costs of a whole one"""
    parts_hold: bool = True
    """whether part-holders of a split row count as holders in the cost of single samples: the policy's own reading"""
    alpha: float = 1.0
    """share of exact solving, 0 to 1, for the policies that have one; it may change from step to step"""
    budget_seconds: float | None = None
    """how long the policy may take; None: there is no limit, and its answer does not depend on the clock"""

    @property
    def samples(self) -> int:
        return int(self.local_BF.shape[0])

    @property
    def workers(self) -> int:
        return int(self.row_cost_n.shape[0])


class Assignment(NamedTuple):
    """A policy's answer."""

    worker_B: I32
    was_shortened: bool = False
    """whether the policy shortened its work to meet the deadline"""


class Policy(Protocol):
    """Maps a situation to a worker per sample; the same situations always get the same answers."""

    def assign(self, situation: Situation) -> Assignment: ...


def check_capacities(situation: Situation) -> None:
    """Raises Infeasible unless there is a place for every sample."""
    capacity_n = situation.capacity_n
    if (capacity_n < 0).any() or int(capacity_n.sum()) < situation.samples:
        raise Infeasible(
            f"cannot assign {situation.samples} samples of step {situation.step}; capacities are "
            f"{capacity_n.tolist()}; expected none negative and at least {situation.samples} in all; raise a capacity "
            f"or shrink the batch"
        )
