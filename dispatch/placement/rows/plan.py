"""Plans: what the directory decided for one step, grouped by worker and by shard.

A row that the step before did not train may move while that step is still under way: its transfers are *early*. Others
have to wait for the new value: they are *late*. Early pushes that only make room in a cache are *evictions*: they move
at the same time as the early ones, and nobody waits for them in this step; so do rows that are written behind
(dispatch/placement/rows/behind.py). Each list has first its early part, then its late one, then its evictions; within
each part rows are grouped by shard (shards ascending), so that a worker's message to a shard is one slice.

Legend: b samples of a micro-batch, F keys per sample, n workers, s shards, M masks of a row.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dispatch.placement.arrays import F64, I32, I64, U64, Bool
from dispatch.placement.rows.moves import (
    KINDS,
    MOVE_KIND,
    MOVE_ROW,
    MOVE_SLOT,
    MOVE_WORKER,
    OWNED_BEHIND,
    OWNED_EVICT,
    OWNED_FLUSH,
    OWNED_UPDATE,
    PART_EVICT,
    PART_FLUSH,
    PART_UPDATE,
    PULL_KINDS,
    PULLS_COUNT,
    PUSHES_COUNT,
    SETTLED_COUNT,
    SETTLED_MAKES_ROOM,
    SETTLED_ROW,
    WITH_STATE,
    RoundMoves,
    can_wait,
)
from dispatch.placement.rows.states import RowStates, masks_of, step_of
from dispatch.placement.rows.uses import Uses, WorkerUse
from dispatch.placement.traffic import WorkerTraffic, ring_moved
from infra.base.kernels import kernel
from ps.fingerprints import fingerprint_of_row
from ps.phases import EARLY, EVICT, TRAIN

OWNED_KINDS = [OWNED_UPDATE, OWNED_EVICT, OWNED_FLUSH, OWNED_BEHIND]
ROUNDS = 3
"""Rounds of a step, numbered by their phases: EARLY, TRAIN, EVICT."""


@dataclass(frozen=True)
class Moves:
    """Rows and the slots that they leave or enter."""

    rows: I64
    slots: I32
    early: int = 0
    """How many of them, the first ones, may move before the last step has ended."""
    evicted: int = 0
    """How many of them, the last ones, are evictions or written behind."""


NOTHING_MOVES = Moves(np.empty(0, np.int64), np.empty(0, np.int32))
"""One object for all: most members may be parked, and a step should cost little for each of them."""


@dataclass(frozen=True)
class WorkerPlan:
    """One worker's part of a round."""

    push_owned: Moves
    push_parts: Moves
    pull_full: Moves
    """Rows that it alone uses, pulled with their optimizer state."""
    pull_values: Moves
    use: WorkerUse | None
    """What it trains; None in a flush."""
    use_slots: I32
    replicated: int = 0
    """How many of these slots, the last ones, hold replicated rows that the step changes on every worker."""

    @property
    def rows_moved(self) -> int:
        return sum(moves.rows.size for moves in (self.push_owned, self.push_parts, self.pull_full, self.pull_values))

    @property
    def is_empty(self) -> bool:
        """Whether the worker has nothing to train, to move or to sum."""
        has_samples = self.use is not None and self.use.samples.size > 0
        return not (has_samples or self.replicated or self.rows_moved)


@dataclass(frozen=True)
class ShardPlan:
    """One shard's part of a round, in row numbers of that shard."""

    pushers: tuple[int, ...]
    pushed: U64
    """Fingerprint of the rows that each pusher sends, by which the shard checks them."""
    settled: I64
    fresh: I64
    """Rows that are up to date on the shard after the round."""
    fresh_steps: I64
    """The step that last changed each of them."""


class PrunedMoves(NamedTuple):
    """What was missing of the rows moved in a round, because chunks of them are pruned, in whole rows by worker.

    A row without state is taken to lack as much of its value as of all of it. Parts lack nothing.
    """

    full_pull: F64
    value_pull: F64
    """To be multiplied by the value's share of the bytes of a row."""
    owned_push: F64

    def ways(self, value_share: float) -> tuple[F64, F64]:
        """What is missing of all pulls and of all pushes, in whole rows with state."""
        return self.full_pull + value_share * self.value_pull, self.owned_push


@dataclass(frozen=True)
class Traffic:
    """Rows moved in a round: how many, by worker and by reason."""

    lookups: I64
    """Distinct rows used."""
    miss_pull: I64
    full_pull: I64
    """How many of the pulls carry optimizer state."""
    update_push: I64
    update_owned: I64
    """How many of these pushes carry value and state."""
    evict_push: I64
    evict_owned: I64
    """How many of these pushes carry value and state."""
    behind_push: I64
    """Rows written behind, all with value and state."""
    flush_push: I64
    owned_push: I64
    """How many of all pushes carry value and state."""
    reduced: int = 0
    """Replicated rows whose gradients are all-reduced, the same on every worker."""
    replica_pull: int = 0
    """How many of each worker's pulls bring it the hot set: no sample needed them."""
    missing: PrunedMoves | None = None
    """None if all rows are whole."""

    @property
    def hits(self) -> I64:
        return self.lookups - self.miss_pull + self.replica_pull

    @property
    def all_reduce(self) -> I64:
        """Rows that the all-reduce moves over each worker's link, see protocol.ring_moved."""
        n = self.lookups.size
        return np.full(n, ring_moved(n, self.reduced), np.int64)

    @property
    def pushes(self) -> I64:
        return self.update_push + self.evict_push + self.behind_push + self.flush_push

    def whole_rows(self, value_share: float) -> F64:
        """What moves over each worker's link, in whole rows with state; value_share: share of the bytes of a row
        without state.
        """
        rows = self.miss_pull + self.pushes + self.all_reduce
        whole = self.full_pull + self.owned_push
        moved: F64 = whole + value_share * (rows - whole)
        if self.missing is not None:
            missing_down, missing_up = self.missing.ways(value_share)
            moved = moved - (missing_down + missing_up)
        return moved

    def busier_way(self, value_share: float) -> F64:
        """The same in the busier direction: pushes and pulls overlap, so this one determines the time."""
        down: F64 = self.full_pull + value_share * (self.miss_pull - self.full_pull)
        up: F64 = self.owned_push + value_share * (self.pushes - self.owned_push)
        if self.missing is not None:
            missing_down, missing_up = self.missing.ways(value_share)
            down = down - missing_down
            up = up - missing_up
        return np.asarray(np.maximum(up, down) + value_share * self.all_reduce)

    def of(self, worker: int) -> WorkerTraffic:
        """One worker's rows, in the form that is summed over a run."""
        return WorkerTraffic(
            lookups=int(self.lookups[worker]),
            hits=int(self.hits[worker]),
            miss_pulls=int(self.miss_pull[worker]),
            update_pushes=int(self.update_push[worker]),
            evict_pushes=int(self.evict_push[worker]),
            behind_pushes=int(self.behind_push[worker]),
            flush_pushes=int(self.flush_push[worker]),
            all_reduces=int(self.all_reduce[worker]),
        )


@dataclass(frozen=True)
class RoundPlan:
    """Everything that moves in one round."""

    workers: tuple[WorkerPlan, ...]
    early_shards: tuple[ShardPlan, ...]
    """The early round, by shard."""
    shards: tuple[ShardPlan, ...]
    """The late round, by shard; in a flush everything."""
    evict_shards: tuple[ShardPlan, ...]
    """Evictions and rows written behind, by shard."""
    traffic: Traffic

    @property
    def samples(self) -> list[int]:
        """How many samples each worker trains."""
        return [0 if worker.use is None else worker.use.samples.size for worker in self.workers]


def make_round(
    n: int,
    shards: int,
    moves: RoundMoves,
    uses: Uses | None,
    slots: I32,
    rows: RowStates,
    late_from: int = 0,
    sizes_M: F64 | None = None,
) -> RoundPlan:
    """uses: None in a flush. Rows that were last trained in step late_from, or after it, are late.

    sizes_M: bytes of a row by its mask, over those of a whole one; None: all rows are whole.
    """
    pushes = moves.pushes_4[: moves.counts[PUSHES_COUNT]]
    pulls = moves.pulls_4[: moves.counts[PULLS_COUNT]]
    settled_2 = moves.settled_2[: moves.counts[SETTLED_COUNT]]
    push_groups = _grouped(pushes, n, shards, rows, late_from)
    pull_groups = _grouped(pulls, n, shards, rows, late_from)
    bounds = [0] * (n + 1) if uses is None else uses.local_starts.tolist()
    fields = 0 if uses is None else uses.positions.size // max(1, uses.samples.size)
    workers = tuple(
        WorkerPlan(
            push_owned=push_groups[2 * j],
            push_parts=push_groups[2 * j + 1],
            pull_full=pull_groups[2 * j],
            pull_values=pull_groups[2 * j + 1],
            use=uses.of(j, fields) if uses is not None else None,
            use_slots=slots[bounds[j] : bounds[j + 1]],
        )
        for j in range(n)
    )
    early, late, evicted = _shard_plans(n, shards, pushes, settled_2, rows, late_from)
    traffic = _traffic(n, pushes, pulls, np.diff(bounds))
    if sizes_M is not None:
        traffic = replace(traffic, missing=_missing(n, pushes, pulls, 1.0 - sizes_M, rows))
    return RoundPlan(workers, early, late, evicted, traffic)


def _grouped(moves_4: I64, n: int, shards: int, states: RowStates, late_from: int) -> list[Moves]:
    """Moves by (worker, kind of 2, phase, shard), stable; one Moves for each (worker, kind)."""
    rows, slots, starts = _group(moves_4, n, shards, states, late_from)
    bounds = starts[::shards].tolist()
    places = zip(bounds[:-1:ROUNDS], bounds[1::ROUNDS], bounds[2::ROUNDS], bounds[3::ROUNDS], strict=True)
    return [
        Moves(rows[first:end], slots[first:end], late - first, end - evicted) if first < end else NOTHING_MOVES
        for first, late, evicted, end in places
    ]


@kernel
def phase_of(states: RowStates, row: int, late_from: int, may_wait: bool) -> int:
    """EARLY, TRAIN or EVICT; rows that were last trained in step late_from, or after it, are late."""
    if step_of(states, row) >= late_from:
        return TRAIN
    return EVICT if may_wait else EARLY


@kernel
def _group(moves_4: I64, n: int, shards: int, states: RowStates, late_from: int) -> tuple[I64, I32, I64]:
    """A counting sort; the last bit of a move's kind says which of the two it is."""
    size = moves_4.shape[0]
    groups = 2 * ROUNDS * n * shards
    group = np.empty(size, np.int32)
    starts = np.zeros(groups + 1, np.int64)
    for i in range(size):
        row = moves_4[i, MOVE_ROW]
        kind = moves_4[i, MOVE_KIND]
        phase = phase_of(states, row, late_from, can_wait(kind))
        g = ((moves_4[i, MOVE_WORKER] * 2 + (kind & 1)) * ROUNDS + phase) * shards + row % shards
        group[i] = g
        starts[g + 1] += 1
    for g in range(groups):
        starts[g + 1] += starts[g]
    at = starts.copy()
    rows = np.empty(size, np.int64)
    slots = np.empty(size, np.int32)
    for i in range(size):
        place = at[group[i]]
        at[group[i]] += 1
        rows[place] = moves_4[i, MOVE_ROW]
        slots[place] = moves_4[i, MOVE_SLOT]
    return rows, slots, starts


def _shard_plans(
    n: int, shards: int, pushes: I64, settled_2: I64, states: RowStates, late_from: int
) -> list[tuple[ShardPlan, ...]]:
    """The plans of all shards, by phase."""
    pushing, pushed, fresh_2 = _pushed(pushes, settled_2, n, shards, states, late_from)
    fresh, fresh_steps, fresh_starts = _by_shard(fresh_2, states, shards, late_from)
    settled, _, settled_starts = _by_shard(settled_2, states, shards, late_from)
    plans = [
        ShardPlan(
            pushers=tuple(np.flatnonzero(pushing[part]).tolist()),
            pushed=pushed[part][pushing[part]],
            settled=settled[settled_starts[part] : settled_starts[part + 1]],
            fresh=fresh[fresh_starts[part] : fresh_starts[part + 1]],
            fresh_steps=fresh_steps[fresh_starts[part] : fresh_starts[part + 1]],
        )
        for part in range(ROUNDS * shards)
    ]
    return [tuple(plans[phase * shards : (phase + 1) * shards]) for phase in range(ROUNDS)]


@kernel
def _pushed(
    pushes_4: I64, settled_2: I64, n: int, shards: int, states: RowStates, late_from: int
) -> tuple[Bool, U64, I64]:
    """Who pushes to which shard in which phase, and the fingerprint of it; and the rows that will be up to date there.

    These are the owned rows pushed, and settled ones.
    """
    pushing = np.zeros((ROUNDS * shards, n), np.bool_)
    pushed = np.zeros((ROUNDS * shards, n), np.uint64)
    fresh_2 = np.empty((pushes_4.shape[0] + settled_2.shape[0], 2), np.int64)
    count = 0
    for i in range(pushes_4.shape[0]):
        row = pushes_4[i, MOVE_ROW]
        worker = pushes_4[i, MOVE_WORKER]
        kind = pushes_4[i, MOVE_KIND]
        part = row % shards + shards * phase_of(states, row, late_from, can_wait(kind))
        pushing[part, worker] = True
        pushed[part, worker] += fingerprint_of_row(row // shards, kind & 1)
        if not kind & 1:
            fresh_2[count, SETTLED_ROW] = row
            fresh_2[count, SETTLED_MAKES_ROOM] = can_wait(kind)
            count += 1
    for i in range(settled_2.shape[0]):
        fresh_2[count] = settled_2[i]
        count += 1
    return pushing, pushed, fresh_2[:count]


@kernel
def _by_shard(rows_2: I64, states: RowStates, shards: int, late_from: int) -> tuple[I64, I64, I64]:
    """Rows by (phase, shard), stable, in numbers of that shard; the step that changed each; and group starts."""
    starts = np.zeros(ROUNDS * shards + 1, np.int64)
    for i in range(rows_2.shape[0]):
        row = rows_2[i, SETTLED_ROW]
        part = row % shards + shards * phase_of(states, row, late_from, rows_2[i, SETTLED_MAKES_ROOM] != 0)
        starts[part + 1] += 1
    for part in range(ROUNDS * shards):
        starts[part + 1] += starts[part]
    at = starts.copy()
    numbers = np.empty(rows_2.shape[0], np.int64)
    steps = np.empty(rows_2.shape[0], np.int64)
    for i in range(rows_2.shape[0]):
        row = rows_2[i, SETTLED_ROW]
        part = row % shards + shards * phase_of(states, row, late_from, rows_2[i, SETTLED_MAKES_ROOM] != 0)
        numbers[at[part]], steps[at[part]] = row // shards, step_of(states, row)
        at[part] += 1
    return numbers, steps, starts


def _traffic(n: int, pushes: I64, pulls: I64, lookups: I64) -> Traffic:
    pushes_nk = _count_kinds(pushes, n, KINDS)
    pulls_nk = _count_kinds(pulls, n, PULL_KINDS)
    return Traffic(
        lookups=lookups,
        miss_pull=pulls_nk.sum(axis=1),
        full_pull=pulls_nk[:, WITH_STATE],
        update_push=pushes_nk[:, OWNED_UPDATE] + pushes_nk[:, PART_UPDATE],
        update_owned=pushes_nk[:, OWNED_UPDATE],
        evict_push=pushes_nk[:, OWNED_EVICT] + pushes_nk[:, PART_EVICT],
        evict_owned=pushes_nk[:, OWNED_EVICT],
        behind_push=pushes_nk[:, OWNED_BEHIND],
        flush_push=pushes_nk[:, OWNED_FLUSH] + pushes_nk[:, PART_FLUSH],
        owned_push=pushes_nk[:, OWNED_KINDS].sum(axis=1),
    )


@kernel
def _count_kinds(moves_4: I64, n: int, kinds: int) -> I64:
    """How many moves of each kind each worker makes, [n, kinds]."""
    counts_nk = np.zeros((n, kinds), np.int64)
    for i in range(moves_4.shape[0]):
        counts_nk[moves_4[i, MOVE_WORKER], moves_4[i, MOVE_KIND]] += 1
    return counts_nk


def _missing(n: int, pushes: I64, pulls: I64, missing_M: F64, rows: RowStates) -> PrunedMoves:
    """missing_M: what is missing of a row by its mask, in whole rows."""

    def by_worker(moves_4: I64) -> F64:
        missing = missing_M[masks_of(rows, moves_4[:, MOVE_ROW])]
        return np.bincount(moves_4[:, MOVE_WORKER], weights=missing, minlength=n).astype(np.float64, copy=False)

    is_full = pulls[:, MOVE_KIND] == WITH_STATE
    return PrunedMoves(
        full_pull=by_worker(pulls[is_full]),
        value_pull=by_worker(pulls[~is_full]),
        owned_push=by_worker(pushes[np.isin(pushes[:, MOVE_KIND], OWNED_KINDS)]),
    )
