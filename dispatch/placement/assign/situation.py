"""What a policy sees when it decides one step, and nothing more.

Legend: B samples, F keys per sample, U distinct rows of the batch, n workers, Q words of 64 workers each.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from dispatch.placement.arrays import F64, I32, I64, U8, U64
from dispatch.placement.errors import Infeasible


@dataclass(frozen=True)
class Situation:
    """One batch, where its rows are, and the cost of moving a row. Arrays are read, never written."""

    step: int
    local_BF: I32
    """Position in the U arrays, per sample and field."""
    state_U: U8
    """CLEAN, OWNED or SPLIT."""
    holders_UQ: U64
    """Bit j%64 of word j//64 is set if worker j is a holder of the row's newest state."""
    row_cost_n: F64
    """Cost of pulling one row with its state over worker j's downlink, in units of one such row over the fastest
    downlink.
    """
    capacity_n: I64
    """How many samples worker j may get; the sum is at least B."""
    value_share: float = 1.0
    """Bytes of a row's value divided by those of value and state: the relative cost of a move without state."""
    size_U: F64 | None = None
    """Bytes of each row, with its state, over those of a whole one; None: all rows are whole. A row without state is
    taken for value_share of that, although its value and its state need not shrink alike. Parts are always whole.
    """
    parts_hold: bool = True
    """Whether part-holders of a split row count as holders in the cost of single samples; each policy decides this."""
    alpha: float = 1.0
    """Share of exact solving, 0 to 1, for the policies that have one; it may change from step to step."""
    budget_seconds: float | None = None
    """How long the policy may take; None: no limit, and its answer does not depend on the clock."""
    up_cost_n: F64 | None = None
    """Cost of pushing one such row over worker j's uplink, in the same unit; None: as much as pulling it."""

    @property
    def samples(self) -> int:
        return int(self.local_BF.shape[0])

    @property
    def workers(self) -> int:
        return int(self.row_cost_n.shape[0])

    @property
    def push_cost_n(self) -> F64:
        """Cost of pushing one row with its state, of each worker, in the unit of row_cost_n."""
        return self.row_cost_n if self.up_cost_n is None else self.up_cost_n


class Assignment(NamedTuple):
    """A policy's answer."""

    worker_B: I32
    was_shortened: bool = False
    """Whether the policy shortened its work to meet the deadline."""


class Policy(Protocol):
    """Maps a situation to a worker per sample; equal situations always get equal answers."""

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
