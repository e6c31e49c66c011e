"""Plans: what the directory decided for one step, grouped by worker and by shard.

A row that the step before did not train may move while that step is still under way: its transfers are *early*. Others
have to wait for the new value: they are *late*. Early pushes that only make room in a cache are *evictions*: they move
at the same time as the early ones, and nobody waits for them in this step; so do rows that are written behind
(dispatch/placement/rows/behind.py). Each list has first its early part, then its late one, then its evictions; within
each part rows are grouped by shard (shards ascending), so that a worker's message to a shard is one slice.

Legend: b samples of a micro-batch, F keys per sample, n workers, w those that move rows, s shards, g groups of a
worker's moves, k kinds of moves, p pairs of a phase and a shard, M masks of a row.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numba import prange

from dispatch.placement.arrays import F64, I32, I64, U64
from dispatch.placement.rows.moves import (
    KINDS,
    MOVE_KIND,
    MOVE_ROW,
    MOVE_SLOT,
    OWNED_BEHIND,
    OWNED_EVICT,
    OWNED_FLUSH,
    OWNED_UPDATE,
    PART_EVICT,
    PART_FLUSH,
    PART_UPDATE,
    PULLS_COUNT,
    PUSHES_COUNT,
    SETTLED_MAKES_ROOM,
    SETTLED_ROW,
    WITH_STATE,
    RoundMoves,
    can_wait,
)
from dispatch.placement.rows.states import RowStates, masks_of, step_of
from dispatch.placement.rows.uses import Uses, WorkerUse
from dispatch.placement.traffic import WorkerTraffic, ring_moved
from infra.base.kernels import kernel, threaded
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

    def whole_rows(self, value_share: float, push_ratio_n: F64 | float = 1.0) -> F64:
        """What moves over each worker's link, in whole rows with state; value_share: share of the bytes of a row
        without state.

        push_ratio_n: how many pulls a push counts as. A ring sends as much as it receives: the dearer of them counts.
        """
        rows = self.miss_pull + self.pushes + self.all_reduce
        whole = self.full_pull + self.owned_push
        moved: F64 = whole + value_share * (rows - whole)
        if self.missing is not None:
            missing_down, missing_up = self.missing.ways(value_share)
            moved = moved - (missing_down + missing_up)
        ring = value_share * self.all_reduce * (np.maximum(push_ratio_n, 1.0) - 1.0)
        return np.asarray(moved + self._up(value_share) * (push_ratio_n - 1.0) + ring)

    def _up(self, value_share: float) -> F64:
        """Whole rows that each worker pushes."""
        up: F64 = self.owned_push + value_share * (self.pushes - self.owned_push)
        return up if self.missing is None else up - self.missing.ways(value_share)[1]

    def busier_way(self, value_share: float, push_ratio_n: F64 | float = 1.0) -> F64:
        """The same in the direction that takes longer: pushes and pulls overlap, so this one determines the time.

        push_ratio_n: how many pulls a push takes over each worker's link; the answer is in pulls. A ring sends as much
        as it receives.
        """
        down: F64 = self.full_pull + value_share * (self.miss_pull - self.full_pull)
        up = self._up(value_share)
        if self.missing is not None:
            down = down - self.missing.ways(value_share)[0]
        ring = value_share * self.all_reduce * np.maximum(push_ratio_n, 1.0)
        return np.asarray(np.maximum(up * push_ratio_n, down) + ring)

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
    pushes, pulls, on_shards = _group_moves(n, shards, moves, rows, late_from)
    pushed = pushes.moves(shards)
    pulled = pulls.moves(shards)
    bounds = [0] * (n + 1) if uses is None else uses.local_starts.tolist()
    fields = 0 if uses is None else uses.positions.size // max(1, uses.samples.size)
    workers = tuple(
        WorkerPlan(
            push_owned=pushed[2 * j],
            push_parts=pushed[2 * j + 1],
            pull_full=pulled[2 * j],
            pull_values=pulled[2 * j + 1],
            use=uses.of(j, fields) if uses is not None else None,
            use_slots=slots[bounds[j] : bounds[j + 1]],
        )
        for j in range(n)
    )
    settled_S2 = moves.settled_S2[: moves.settled_count[0]]
    early, late, evicted = _shard_plans(shards, pushes, on_shards, settled_S2, rows, late_from)
    traffic = _traffic(pushes.kinds_nk, pulls.kinds_nk, np.diff(bounds))
    if sizes_M is not None:
        traffic = replace(traffic, missing=_missing(workers, 1.0 - sizes_M, rows))
    return RoundPlan(workers, early, late, evicted, traffic)


class Grouped(NamedTuple):
    """Moves by (worker, kind of 2, phase, shard); those of a group in the order in which they were decided."""

    rows: I64
    slots: I32
    starts_ng: I64
    """Where each group of a worker begins, and where its last one ends."""
    kinds_nk: I64
    """How many moves of each kind each worker makes."""

    def moves(self, shards: int) -> list[Moves]:
        """One Moves for each (worker, kind of 2)."""
        bounds = self.starts_ng[:, ::shards].tolist()
        return [
            Moves(self.rows[first:end], self.slots[first:end], late - first, end - evicted)
            if first < end
            else NOTHING_MOVES
            for starts in bounds
            for first, late, evicted, end in (starts[: ROUNDS + 1], starts[ROUNDS:])
        ]


class PushesOnShards(NamedTuple):
    """What the shards have to know of the pushes, in their order."""

    numbers: I64
    """Numbers of the rows on their shards."""
    steps: I64
    """The step that last changed each row."""
    fingerprints_np: U64
    """Of what each worker pushes, by (phase, shard)."""


@kernel
def phase_of(states: RowStates, row: int, late_from: int, may_wait: bool) -> int:
    """EARLY, TRAIN or EVICT; rows that were last trained in step late_from, or after it, are late."""
    if step_of(states, row) >= late_from:
        return TRAIN
    return EVICT if may_wait else EARLY


def _group_moves(
    n: int, shards: int, moves: RoundMoves, states: RowStates, late_from: int
) -> tuple[Grouped, Grouped, PushesOnShards]:
    pushes = _room_for(moves.counts_nK[:, PUSHES_COUNT], shards)
    pulls = _room_for(moves.counts_nK[:, PULLS_COUNT], shards)
    on_shards = PushesOnShards(
        np.empty(pushes.rows.size, np.int64),
        np.empty(pushes.rows.size, np.int64),
        np.zeros((n, ROUNDS * shards), np.uint64),
    )
    moving_w = np.flatnonzero(moves.counts_nK[:, [PUSHES_COUNT, PULLS_COUNT]].any(axis=1))
    _group(moving_w.size, moving_w, shards, moves, states, late_from, pushes, pulls, on_shards)
    return pushes, pulls, on_shards


def _room_for(count_n: I64, shards: int) -> Grouped:
    """Room for so many moves of each worker; nothing is filled in but where each worker's begin."""
    starts_ng = np.empty((count_n.size, 2 * ROUNDS * shards + 1), np.int64)
    starts_ng[:] = (np.cumsum(count_n) - count_n)[:, None]
    size = int(count_n.sum())
    kinds_nk = np.zeros((count_n.size, KINDS), np.int64)
    return Grouped(np.empty(size, np.int64), np.empty(size, np.int32), starts_ng, kinds_nk)


@threaded
def _group(
    w: int,
    moving_w: I64,
    shards: int,
    moves: RoundMoves,
    states: RowStates,
    late_from: int,
    pushes: Grouped,
    pulls: Grouped,
    on_shards: PushesOnShards,
) -> None:
    """Fills the room for the w workers that move anything."""
    for k in prange(w):
        worker = moving_w[k]
        pushed = moves.counts_nK[worker, PUSHES_COUNT]
        pulled = moves.counts_nK[worker, PULLS_COUNT]
        _sort(worker, moves.pushes_nP3[worker, :pushed], shards, states, late_from, pushes)
        _sort(worker, moves.pulls_nP3[worker, :pulled], shards, states, late_from, pulls)
        _describe(worker, pushes, shards, states, on_shards)


@kernel
def _sort(worker: int, lines_P3: I64, shards: int, states: RowStates, late_from: int, grouped: Grouped) -> None:
    """A counting sort of one worker's moves; the last bit of a move's kind says which of the two it is."""
    size = lines_P3.shape[0]
    groups = 2 * ROUNDS * shards
    group = np.empty(size, np.int32)
    starts = np.zeros(groups + 1, np.int64)
    kinds = np.zeros(KINDS, np.int64)
    for i in range(size):
        row = lines_P3[i, MOVE_ROW]
        kind = lines_P3[i, MOVE_KIND]
        phase = phase_of(states, row, late_from, can_wait(kind))
        g = ((kind & 1) * ROUNDS + phase) * shards + row % shards
        group[i] = g
        starts[g + 1] += 1
        kinds[kind] += 1
    starts[0] = grouped.starts_ng[worker, 0]
    for g in range(groups):
        starts[g + 1] += starts[g]
    grouped.starts_ng[worker, :] = starts
    grouped.kinds_nk[worker, :] = kinds
    for i in range(size):
        place = starts[group[i]]
        starts[group[i]] += 1
        grouped.rows[place] = lines_P3[i, MOVE_ROW]
        grouped.slots[place] = lines_P3[i, MOVE_SLOT]


@kernel
def _describe(worker: int, pushes: Grouped, shards: int, states: RowStates, on_shards: PushesOnShards) -> None:
    """Fills what the shards have to know of one worker's pushes."""
    parts = on_shards.fingerprints_np.shape[1]
    for g in range(2 * parts):
        fingerprint = np.uint64(0)
        for i in range(pushes.starts_ng[worker, g], pushes.starts_ng[worker, g + 1]):
            number = pushes.rows[i] // shards
            on_shards.numbers[i] = number
            on_shards.steps[i] = step_of(states, pushes.rows[i])
            fingerprint += fingerprint_of_row(number, g // parts)
        on_shards.fingerprints_np[worker, g % parts] += fingerprint


def _shard_plans(
    shards: int, pushes: Grouped, on_shards: PushesOnShards, settled_S2: I64, states: RowStates, late_from: int
) -> list[tuple[ShardPlan, ...]]:
    """The plans of all shards, by phase."""
    parts = ROUNDS * shards
    settled, settled_steps, settled_starts = _by_shard(settled_S2, states, shards, late_from)
    fresh, fresh_steps, fresh_starts = _fresh(
        pushes.starts_ng, on_shards.numbers, on_shards.steps, settled, settled_steps, settled_starts
    )
    counts_ng = np.diff(pushes.starts_ng)
    is_pushing_np = counts_ng[:, :parts] + counts_ng[:, parts:] > 0
    plans = [
        ShardPlan(
            pushers=tuple(np.flatnonzero(is_pushing_np[:, part]).tolist()),
            pushed=on_shards.fingerprints_np[is_pushing_np[:, part], part],
            settled=settled[settled_starts[part] : settled_starts[part + 1]],
            fresh=fresh[fresh_starts[part] : fresh_starts[part + 1]],
            fresh_steps=fresh_steps[fresh_starts[part] : fresh_starts[part + 1]],
        )
        for part in range(parts)
    ]
    return [tuple(plans[phase * shards : (phase + 1) * shards]) for phase in range(ROUNDS)]


@kernel
def _fresh(
    starts_ng: I64, numbers: I64, steps: I64, settled: I64, settled_steps: I64, settled_starts: I64
) -> tuple[I64, I64, I64]:
    """Rows that will be up to date on the shards, by (phase, shard): the owned rows pushed, then settled ones; the step
    that changed each; and group starts.
    """
    parts = settled_starts.size - 1
    starts = settled_starts.copy()
    owned = 0
    for part in range(parts):
        for worker in range(starts_ng.shape[0]):
            owned += starts_ng[worker, part + 1] - starts_ng[worker, part]
        starts[part + 1] += owned
    fresh = np.empty(starts[parts], np.int64)
    fresh_steps = np.empty(starts[parts], np.int64)
    at = 0
    for part in range(parts):
        for worker in range(starts_ng.shape[0]):
            for i in range(starts_ng[worker, part], starts_ng[worker, part + 1]):
                fresh[at], fresh_steps[at] = numbers[i], steps[i]
                at += 1
        for i in range(settled_starts[part], settled_starts[part + 1]):
            fresh[at], fresh_steps[at] = settled[i], settled_steps[i]
            at += 1
    return fresh, fresh_steps, starts


@kernel
def _by_shard(rows_S2: I64, states: RowStates, shards: int, late_from: int) -> tuple[I64, I64, I64]:
    """Rows by (phase, shard), stable, in numbers of that shard; the step that changed each; and group starts."""
    part_S = np.empty(rows_S2.shape[0], np.int32)
    starts = np.zeros(ROUNDS * shards + 1, np.int64)
    for i in range(rows_S2.shape[0]):
        row = rows_S2[i, SETTLED_ROW]
        part = row % shards + shards * phase_of(states, row, late_from, rows_S2[i, SETTLED_MAKES_ROOM] != 0)
        part_S[i] = part
        starts[part + 1] += 1
    for part in range(ROUNDS * shards):
        starts[part + 1] += starts[part]
    at = starts.copy()
    numbers = np.empty(rows_S2.shape[0], np.int64)
    steps = np.empty(rows_S2.shape[0], np.int64)
    for i in range(rows_S2.shape[0]):
        row = rows_S2[i, SETTLED_ROW]
        place = at[part_S[i]]
        at[part_S[i]] += 1
        numbers[place], steps[place] = row // shards, step_of(states, row)
    return numbers, steps, starts


def _traffic(pushes_nk: I64, pulls_nk: I64, lookups: I64) -> Traffic:
    """Counts of moves by worker and kind."""
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


def _missing(workers: tuple[WorkerPlan, ...], missing_M: F64, states: RowStates) -> PrunedMoves:
    """missing_M: what is missing of a row by its mask, in whole rows."""

    def of(moves: list[Moves]) -> F64:
        return np.array([missing_M[masks_of(states, each.rows)].sum() for each in moves])

    return PrunedMoves(
        full_pull=of([worker.pull_full for worker in workers]),
        value_pull=of([worker.pull_values for worker in workers]),
        owned_push=of([worker.push_owned for worker in workers]),
    )
