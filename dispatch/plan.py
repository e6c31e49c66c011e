"""Plans: what the directory decided for one round, grouped by worker and by shard.

Within each list rows are grouped by shard (shards ascending), so that a worker's message to a shard is one slice.

Legend: b samples of a micro-batch, F keys a sample, n workers, s shards.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatch.protocol import ring_moved
from infra.kernels import kernel

Longs = NDArray[np.int64]


@dataclass(frozen=True)
class WorkerUse:
    """Which samples a worker trains and which rows they use."""

    samples: Longs
    """positions in the batch"""
    local: NDArray[np.int32]
    """local numbers of the distinct rows; those no other worker uses come first"""
    positions: NDArray[np.int32]
    """b×F positions in ``local``"""
    alone: int
    """how many rows no other worker uses"""


@dataclass(frozen=True)
class Moves:
    """Rows and the slots they leave or enter."""

    rows: Longs
    slots: NDArray[np.int32]


@dataclass(frozen=True)
class WorkerPlan:
    """One worker's part of a round."""

    push_owned: Moves
    push_parts: Moves
    pull_full: Moves
    """rows it alone uses, pulled with their optimizer state"""
    pull_values: Moves
    use: WorkerUse | None
    """None in a flush"""
    use_slots: NDArray[np.int32]
    replicated: int = 0
    """how many of these slots, the last ones, hold replicated rows that the step changes on every worker"""

    @property
    def rows_moved(self) -> int:
        return sum(moves.rows.size for moves in (self.push_owned, self.push_parts, self.pull_full, self.pull_values))


@dataclass(frozen=True)
class ShardPlan:
    """One shard's part of a round, in row numbers of that shard."""

    pushers: tuple[int, ...]
    settled: Longs
    fresh: Longs
    """rows that are up to date on the shard after the round"""
    fresh_steps: Longs
    """the step that last changed each of them"""


@dataclass(frozen=True)
class Traffic:
    """Rows moved in a round, by worker; the accounting of DESIGN §5."""

    lookups: Longs
    """distinct rows used"""
    miss_pull: Longs
    full_pull: Longs
    """how many of the pulls carry optimizer state"""
    update_push: Longs
    evict_push: Longs
    flush_push: Longs
    owned_push: Longs
    """how many of the pushes carry value and state"""
    reduced: int = 0
    """replicated rows whose gradients are all-reduced, the same on every worker"""
    replica_pull: int = 0
    """how many of each worker's pulls bring it the hot set: no sample asked for them"""

    @property
    def hits(self) -> Longs:
        return self.lookups - self.miss_pull + self.replica_pull

    @property
    def all_reduce(self) -> Longs:
        """Rows that the all-reduce moves over each worker's link, see protocol.ring_moved."""
        n = self.lookups.size
        return np.full(n, ring_moved(n, self.reduced), np.int64)

    @property
    def pushes(self) -> Longs:
        return self.update_push + self.evict_push + self.flush_push


@dataclass(frozen=True)
class RoundPlan:
    """Everything that moves in one round."""

    workers: tuple[WorkerPlan, ...]
    shards: tuple[ShardPlan, ...]
    traffic: Traffic


class Lines(NamedTuple):
    """What the directory's kernels wrote for one round: lines of (worker, row, slot, kind), and the rows it settles."""

    pushes_4: Longs
    pulls_4: Longs
    """kind 0 with state, 1 value only"""
    settled: Longs
    counts: Longs
    """how many pushes, pulls and settled rows have been written"""


def make_round(
    n: int, shards: int, lines: Lines, uses: list[WorkerUse], slots: list[NDArray[np.int32]], changed: Longs
) -> RoundPlan:
    pushes = lines.pushes_4[: lines.counts[0]]
    pulls = lines.pulls_4[: lines.counts[1]]
    settled = lines.settled[: lines.counts[2]]
    push_groups = _grouped(pushes, n, shards)
    pull_groups = _grouped(pulls, n, shards)
    nothing = np.empty(0, np.int32)
    workers = tuple(
        WorkerPlan(
            push_owned=push_groups[2 * j],
            push_parts=push_groups[2 * j + 1],
            pull_full=pull_groups[2 * j],
            pull_values=pull_groups[2 * j + 1],
            use=uses[j] if uses else None,
            use_slots=slots[j] if slots else nothing,
        )
        for j in range(n)
    )
    shard_plans = _shard_plans(n, shards, pushes, settled, changed)
    return RoundPlan(workers, shard_plans, _traffic(n, pushes, pulls, uses))


def _grouped(moves_4: Longs, n: int, shards: int) -> list[Moves]:
    """Moves by (worker, kind of 2, shard), stable; one Moves for each (worker, kind)."""
    rows, slots, starts = _group(moves_4, n, shards)
    cuts = starts[::shards].tolist()
    return [Moves(rows[a:b], slots[a:b]) for a, b in pairwise(cuts)]


@kernel
def _group(moves_4: Longs, n: int, shards: int) -> tuple[Longs, NDArray[np.int32], Longs]:
    """A counting sort; the last bit of a move's kind says which of the two it is."""
    size = moves_4.shape[0]
    group = np.empty(size, np.int32)
    starts = np.zeros(2 * n * shards + 1, np.int64)
    for i in range(size):
        g = (moves_4[i, 0] * 2 + (moves_4[i, 3] & 1)) * shards + moves_4[i, 1] % shards
        group[i] = g
        starts[g + 1] += 1
    for g in range(2 * n * shards):
        starts[g + 1] += starts[g]
    at = starts.copy()
    rows, slots = np.empty(size, np.int64), np.empty(size, np.int32)
    for i in range(size):
        place = at[group[i]]
        at[group[i]] += 1
        rows[place], slots[place] = moves_4[i, 1], moves_4[i, 2]
    return rows, slots, starts


def _shard_plans(n: int, shards: int, pushes: Longs, settled: Longs, changed: Longs) -> tuple[ShardPlan, ...]:
    pushing, fresh = _pushed(pushes, settled, n, shards)
    fresh, fresh_steps, fresh_cuts = _by_shard(fresh, changed, shards)
    settled, _, settled_cuts = _by_shard(settled, changed, shards)
    return tuple(
        ShardPlan(
            pushers=tuple(np.flatnonzero(pushing[shard]).tolist()),
            settled=settled[settled_cuts[shard] : settled_cuts[shard + 1]],
            fresh=fresh[fresh_cuts[shard] : fresh_cuts[shard + 1]],
            fresh_steps=fresh_steps[fresh_cuts[shard] : fresh_cuts[shard + 1]],
        )
        for shard in range(shards)
    )


@kernel
def _pushed(pushes_4: Longs, settled: Longs, n: int, shards: int) -> tuple[NDArray[np.bool_], Longs]:
    """Who pushes to which shard; and the rows that will be up to date there: owned rows pushed, and settled ones."""
    pushing = np.zeros((shards, n), np.bool_)
    fresh = np.empty(pushes_4.shape[0] + settled.shape[0], np.int64)
    count = 0
    for i in range(pushes_4.shape[0]):
        pushing[pushes_4[i, 1] % shards, pushes_4[i, 0]] = True
        if pushes_4[i, 3] & 1 == 0:
            fresh[count] = pushes_4[i, 1]
            count += 1
    for row in settled:
        fresh[count] = row
        count += 1
    return pushing, fresh[:count]


@kernel
def _by_shard(rows: Longs, changed: Longs, shards: int) -> tuple[Longs, Longs, Longs]:
    """Rows grouped by shard, stable, in numbers of that shard; the step that changed each; and where groups begin."""
    cuts = np.zeros(shards + 1, np.int64)
    for row in rows:
        cuts[row % shards + 1] += 1
    for shard in range(shards):
        cuts[shard + 1] += cuts[shard]
    at = cuts.copy()
    numbers, steps = np.empty(rows.shape[0], np.int64), np.empty(rows.shape[0], np.int64)
    for row in rows:
        place = at[row % shards]
        at[row % shards] += 1
        numbers[place], steps[place] = row // shards, changed[row]
    return numbers, steps, cuts


def _traffic(n: int, pushes: Longs, pulls: Longs, uses: list[WorkerUse]) -> Traffic:
    kinds = np.bincount(pushes[:, 0] * 6 + pushes[:, 3], minlength=6 * n).reshape(n, 6)
    return Traffic(
        lookups=np.array([use.local.size for use in uses] or [0] * n, np.int64),
        miss_pull=np.bincount(pulls[:, 0], minlength=n),
        full_pull=np.bincount(pulls[pulls[:, 3] == 0, 0], minlength=n),
        update_push=kinds[:, 0] + kinds[:, 1],
        evict_push=kinds[:, 2] + kinds[:, 3],
        flush_push=kinds[:, 4] + kinds[:, 5],
        owned_push=kinds[:, 0::2].sum(axis=1),
    )
