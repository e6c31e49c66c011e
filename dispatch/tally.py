"""What one worker did, in numbers that are added up: what it trained and moved, and how long each phase took it."""

from operator import add, sub
from typing import Literal, Self, get_args

import msgspec
from msgspec.structs import astuple

from infra.base.wire import Seconds

Phase = Literal["push", "pull", "forward", "backward", "reduce", "rows"]
"""of a step, in order; see trainer/worker.py"""
PHASES: tuple[Phase, ...] = get_args(Phase)


class Tally(msgspec.Struct, frozen=True):
    """A record of numbers, added and subtracted field by field."""

    def __add__(self, other: Self) -> Self:
        return type(self)(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: Self) -> Self:
        return type(self)(*map(sub, astuple(self), astuple(other)))


class WorkerTraffic(Tally, frozen=True):
    """What a worker trained and moved; counts are rows unless named otherwise."""

    samples: int = 0
    lookups: int = 0
    """distinct rows its micro-batches used, summed over steps"""
    hits: int = 0
    """lookups whose row was in the cache and up to date"""
    miss_pulls: int = 0
    update_pushes: int = 0
    evict_pushes: int = 0
    behind_pushes: int = 0
    """written behind: owned rows that nobody had asked for, ahead of a flush"""
    flush_pushes: int = 0
    """at a cut or at the end of a generation, not part of any step"""
    all_reduces: int = 0
    """gradients of replicated rows that crossed its link: in a ring of n, 2(n-1)/n of those summed"""
    pulled_bytes: int = 0
    pushed_bytes: int = 0
    reduced_bytes: int = 0
    dense_up_bytes: int = 0
    """dense weights or their gradients, sent to shards or to the next worker of a ring"""
    dense_down_bytes: int = 0
    order_bytes: int = 0
    """orders, sent to it by the dispatcher"""
    report_bytes: int = 0

    @property
    def hit_ratio(self) -> float | None:
        return self.hits / self.lookups if self.lookups else None


class PhaseSeconds(Tally, frozen=True, forbid_unknown_fields=True):
    """Seconds spent in each phase of a step; 0 in phases that a round does not have."""

    push: Seconds
    pull: Seconds
    forward: Seconds
    backward: Seconds
    reduce: Seconds
    rows: Seconds

    @property
    def total(self) -> float:
        return self.push + self.pull + self.forward + self.backward + self.reduce + self.rows

    @property
    def compute(self) -> float:
        """In the other phases a worker waits for links or for other workers."""
        return self.forward + self.backward + self.rows

    def by_phase(self) -> dict[Phase, float]:
        return {phase: getattr(self, phase) for phase in PHASES}

    def __truediv__(self, steps: int) -> "PhaseSeconds":
        """The mean of so many steps."""
        return PhaseSeconds(*(seconds / steps for seconds in astuple(self)))


NO_SECONDS = PhaseSeconds(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
