"""What one worker trained and moved, in numbers that can be summed."""

from operator import add, sub
from typing import Self

import msgspec
from msgspec.structs import astuple


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
    """Distinct rows that its micro-batches used, summed over steps."""
    hits: int = 0
    """Lookups whose row was in the cache and up to date."""
    miss_pulls: int = 0
    update_pushes: int = 0
    evict_pushes: int = 0
    behind_pushes: int = 0
    """Owned rows that were written behind: pushed before anyone needed them, ahead of a flush."""
    flush_pushes: int = 0
    """Rows pushed at a checkpoint or at the end of a generation, not part of any step."""
    all_reduces: int = 0
    """Gradients of replicated rows that crossed its link: in a ring of n, 2(n-1)/n of those summed."""
    pulled_bytes: int = 0
    pushed_bytes: int = 0
    reduced_bytes: int = 0
    dense_up_bytes: int = 0
    """Dense weights or their gradients, sent to shards or to the next worker of a ring."""
    dense_down_bytes: int = 0
    order_bytes: int = 0
    """Orders that the dispatcher sent to it."""
    report_bytes: int = 0

    @property
    def hit_ratio(self) -> float | None:
        return self.hits / self.lookups if self.lookups else None


def ring_moved(workers: int, amount: int) -> int:
    """How much of an all-reduce each worker sends, rounded up; it receives as much at the same time.

    Gloo and NCCL sum in a ring: in 2·(n-1) turns every worker passes on an n-th, first to sum, then to distribute. A
    link carries both directions at once, so the amount sent determines how long the ring keeps it busy.
    """
    return -(-2 * (workers - 1) * amount // workers)
