"""The directory: for every row, which workers hold it and in which state; coherence decided one step ahead.

A pure function of the sequence of (batch, assignment): it is never asked over the network and is the same code live,
in the simulator and in tests. For each step it says, exactly, which worker pushes, pulls and evicts which row:

1. *synchronise*: a row of this batch that its owner alone does not use is pushed by the owner; a split row is pushed
   by every part-holder; copies held by workers that do not use the row become outdated, since it is about to change
   (under full synchronisation all rows that the step before trained are pushed first, used or not);
2. *place*: every row a worker uses gets a slot; what it does not hold in its newest state is pulled; if there is no
   room, victims leave, and those that only this worker knows (owned, or a part) are pushed first;
3. *advance*: a row used by one worker is owned by it, a row used by several is split over them.

Rows of a hot set, if there is one, are replicated instead (dispatch/replicas.py) and take no part in this.

Legend: B samples, F keys a sample, U distinct rows of the batch, n workers, Q words of 64 workers each, C slots.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatch import cache
from dispatch.cache import EMPTY, EVICTIONS, Caches
from dispatch.errors import CacheTooSmall
from dispatch.index import GROWTH, BatchRows
from dispatch.plan import Lines, RoundPlan, WorkerUse, make_round
from dispatch.policies.spec import Synchronisation
from dispatch.replicas import COLD, Replicas
from dispatch.situation import CLEAN, OWNED, REPLICATED, SPLIT
from infra.kernels import kernel

OWNED_UPDATE = 0
"""kinds of push, in the order the plan groups them"""
PART_UPDATE = 1
OWNED_EVICT = 2
PART_EVICT = 3
OWNED_FLUSH = 4
PART_FLUSH = 5

ONE = np.uint64(1)
NO_ROWS = np.empty(0, np.int64)


class RowStates(NamedTuple):
    """State, holders and last change of every known row."""

    state: NDArray[np.uint8]
    holders_Q: NDArray[np.uint64]
    changed: NDArray[np.int64]
    """the step that last trained the row"""


class Directory:
    """Who holds what. One per generation: it starts with every row clean and held by nobody."""

    def __init__(
        self,
        cache_rows_n: NDArray[np.int64],
        eviction: str,
        shards: int,
        synchronisation: Synchronisation = "on_demand",
        replicas: int = 0,
    ) -> None:
        """replicas: slots of each cache that are set apart for a hot set."""
        self.workers = cache_rows_n.size
        self.shards = shards
        self._eviction = EVICTIONS[eviction]
        self._caches = cache.empty_caches(cache_rows_n)
        self._caches.capacity_n[:] -= replicas
        self._replicas = Replicas(cache_rows_n, replicas)
        self._rows = _empty_states(1024, (self.workers + 63) // 64)
        self._synchronisation = synchronisation
        self._trained = np.empty(0, np.int64)
        """rows whose updates the next step pushes in any case"""

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self._rows, *self._caches))

    @property
    def cache_rows_n(self) -> NDArray[np.int64]:
        """Slots of each worker's cache for rows that are not replicated."""
        return self._caches.capacity_n

    @property
    def replicas(self) -> int:
        """How many rows a hot set may have."""
        return self._replicas.most

    def replicate(self, rows: NDArray[np.int64]) -> None:
        """From the next step on these rows are replicated on every worker; slots that they do not need become free."""
        self._reserve(int(rows.max(initial=-1)) + 1)
        self._replicas.choose(rows)
        self._caches.capacity_n[:] += self._replicas.most - self._replicas.rows_H.size

    def look(self, batch: BatchRows) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
        """State and holders of the batch's rows, as a policy wants them."""
        self._reserve(int(batch.rows_U.max(initial=-1)) + 1)
        state_U, holders_UQ = self._rows.state[batch.rows_U], self._rows.holders_Q[batch.rows_U]
        if self._replicas.rows_H.size:
            replicated = self._replicas.is_replicated(batch.rows_U)
            state_U[replicated], holders_UQ[replicated] = CLEAN, _everybody(self.workers)
        return state_U, holders_UQ

    def plan(self, step: int, batch: BatchRows, assignment_B: NDArray[np.int32]) -> RoundPlan:
        """Decides everything that moves in this step, and takes the step as done."""
        self._reserve(int(batch.rows_U.max(initial=-1)) + 1)
        users_UQ = _users(batch.local_BF, assignment_B, batch.rows_U.size, self._rows.holders_Q.shape[1])
        uses = [_use_of(worker, batch.local_BF, assignment_B, users_UQ) for worker in range(self.workers)]
        reduction = None
        if self._replicas.rows_H.size:
            uses, reduction = self._replicas.take_out(batch.rows_U, uses)
        self._check_room(batch, uses)
        entering = self._replicas.rows_H if self._replicas.enters else NO_ROWS
        pushed = np.concatenate((self._trained, entering, batch.rows_U))
        lines = _empty_lines(pushed, self._rows, sum(use.local.size for use in uses) + entering.size * self.workers)
        if self._trained.size:
            _push_trained(self._trained, self._rows, self._caches, lines)
        if entering.size:
            self._enter(entering, lines)
        _synchronise(batch.rows_U, users_UQ, self._rows, self._caches, lines)
        now = step & 0x7FFFFFFF
        slots = [
            _place(worker, batch.rows_U, use.local, use.alone, now, self._rows, self._caches, self._eviction, lines)
            for worker, use in enumerate(uses)
        ]
        decided = make_round(self.workers, self.shards, lines, uses, slots, self._rows.changed)
        _advance(step, batch.rows_U, users_UQ, self._rows)
        if reduction is not None:
            _set_replicated(reduction.rows_R, self._rows)
            decided = self._replicas.add_to(decided, reduction)
        if self._synchronisation == "full":
            self._trained = batch.rows_U if reduction is None else batch.rows_U[reduction.position_U == COLD]
        return decided

    def flush(self) -> RoundPlan:
        """Writes every owned or split row back; owners keep a clean copy."""
        lines = _empty_lines(np.empty(0, np.int64), self._rows, self._caches.is_outdated_nC.size)
        _flush(self._rows, self._caches, lines)
        written = self._replicas.write_back(OWNED_FLUSH)
        lines.pushes_4[lines.counts[0] : lines.counts[0] + len(written)] = written
        lines.counts[0] += len(written)
        return make_round(self.workers, self.shards, lines, [], [], self._rows.changed)

    def holders(self, row: int) -> tuple[int, set[int]]:
        """State and holders of one row, for tests and for people."""
        words = self._rows.holders_Q[row]
        if self._rows.state[row] == REPLICATED:
            return REPLICATED, set(range(self.workers))
        return int(self._rows.state[row]), {j for j in range(self.workers) if int(words[j >> 6]) >> (j & 63) & 1}

    def cached(self, worker: int) -> dict[int, int]:
        """row → slot of one worker's cache, outdated copies included, but not of rows that it holds a replica of."""
        rows = self._caches.slot_nC4[worker, :, cache.ROW]
        replicated = [] if self._replicas.enters else self._replicas.rows_H.tolist()
        slots = self._replicas.slots(worker, np.arange(len(replicated))).tolist()
        ordinary = {int(row): slot for slot, row in enumerate(rows) if row != EMPTY}
        return ordinary | dict(zip(replicated, slots, strict=True))

    def _enter(self, rows_H: NDArray[np.int64], lines: Lines) -> None:
        """What anyone trained of the hot set is pushed, ordinary copies are given up, every worker pulls a replica."""
        _push_trained(rows_H, self._rows, self._caches, lines)
        _give_up(rows_H, self._rows, self._caches)
        _set_replicated(rows_H, self._rows)
        pulls = self._replicas.pulls()
        lines.pulls_4[lines.counts[1] : lines.counts[1] + len(pulls)] = pulls
        lines.counts[1] += len(pulls)

    def _reserve(self, rows: int) -> None:
        if rows > self._rows.state.size:
            larger = _empty_states(max(rows, int(self._rows.state.size * GROWTH)), self._rows.holders_Q.shape[1])
            known = self._rows.state.size
            larger.state[:known] = self._rows.state
            larger.holders_Q[:known] = self._rows.holders_Q
            larger.changed[:known] = self._rows.changed
            self._rows = larger

    def _check_room(self, batch: BatchRows, uses: list[WorkerUse]) -> None:
        for worker, use in enumerate(uses):
            if use.local.size > self._caches.capacity_n[worker]:
                raise CacheTooSmall(
                    f"worker {worker} has {self._caches.capacity_n[worker]} slots but its micro-batch uses "
                    f"{use.local.size} rows; every row of a micro-batch needs a slot: raise dispatch.cache_rows"
                )


def _everybody(workers: int) -> NDArray[np.uint64]:
    """Holder words with a bit for every worker."""
    bits = np.zeros((workers + 63) // 64 * 64, np.uint8)
    bits[:workers] = 1
    return np.packbits(bits, bitorder="little").view("<u8").astype(np.uint64)


def _empty_states(rows: int, words: int) -> RowStates:
    return RowStates(np.full(rows, CLEAN, np.uint8), np.zeros((rows, words), np.uint64), np.zeros(rows, np.int64))


def _empty_lines(rows_U: NDArray[np.int64], rows: RowStates, uses: int) -> Lines:
    """Room for the worst case: every holder of a batch row pushes, and every use evicts something."""
    held = int(np.bitwise_count(rows.holders_Q[rows_U]).sum())
    return Lines(
        pushes_4=np.empty((held + uses, 4), np.int64),
        pulls_4=np.empty((uses, 4), np.int64),
        settled=np.empty(rows_U.size + uses, np.int64),
        counts=np.zeros(3, np.int64),
    )


def _use_of(
    worker: int, local_BF: NDArray[np.int32], assignment_B: NDArray[np.int32], users_UQ: NDArray[np.uint64]
) -> WorkerUse:
    samples = np.flatnonzero(assignment_B == worker)
    local, positions, alone = _use_rows(local_BF, samples, users_UQ)
    return WorkerUse(samples, local, positions, alone)


@kernel
def _users(
    local_BF: NDArray[np.int32], assignment_B: NDArray[np.int32], distinct: int, words: int
) -> NDArray[np.uint64]:
    users = np.zeros((distinct, words), np.uint64)
    for i in range(local_BF.shape[0]):
        word, bit = assignment_B[i] >> 6, ONE << np.uint64(assignment_B[i] & 63)
        for f in range(local_BF.shape[1]):
            users[local_BF[i, f], word] |= bit
    return users


@kernel
def _is_single(words: NDArray[np.uint64]) -> bool:
    seen = False
    for word in words:
        if word != 0:
            if seen or (word & (word - ONE)) != 0:
                return False
            seen = True
    return seen


@kernel
def _use_rows(
    local_BF: NDArray[np.int32], samples: NDArray[np.int64], users_UQ: NDArray[np.uint64]
) -> tuple[NDArray[np.int32], NDArray[np.int32], int]:
    """Distinct rows of a micro-batch, those no other worker uses first; and each key's position among them."""
    fields = local_BF.shape[1]
    position = np.full(users_UQ.shape[0], EMPTY, np.int32)
    alone_rows = np.empty(samples.size * fields, np.int32)
    shared_rows = np.empty(samples.size * fields, np.int32)
    alone, shared = 0, 0
    for i in samples:
        for f in range(fields):
            u = local_BF[i, f]
            if position[u] == EMPTY:
                if _is_single(users_UQ[u]):
                    position[u] = alone
                    alone_rows[alone] = u
                    alone += 1
                else:
                    position[u] = shared
                    shared_rows[shared] = u
                    shared += 1
    positions = np.empty(samples.size * fields, np.int32)
    at = 0
    for i in samples:
        for f in range(fields):
            u = local_BF[i, f]
            positions[at] = position[u] if _is_single(users_UQ[u]) else alone + position[u]
            at += 1
    return np.concatenate((alone_rows[:alone], shared_rows[:shared])), positions, alone


@kernel
def _push(lines: Lines, worker: int, row: int, slot: int, kind: int) -> None:
    line = lines.pushes_4[lines.counts[0]]
    line[0], line[1], line[2], line[3] = worker, row, slot, kind
    lines.counts[0] += 1


@kernel
def _settle(lines: Lines, row: int) -> None:
    lines.settled[lines.counts[2]] = row
    lines.counts[2] += 1


@kernel
def _push_trained(trained: NDArray[np.int64], rows: RowStates, caches: Caches, lines: Lines) -> None:
    """Step 1 under full synchronisation: owners push and keep a clean copy, part-holders push and keep none."""
    for row in trained:
        state, holders = rows.state[row], rows.holders_Q[row]
        if state == CLEAN:
            continue
        for worker in range(caches.capacity_n.size):
            word, bit = worker >> 6, ONE << np.uint64(worker & 63)
            if (holders[word] & bit) == 0:
                continue
            slot = cache.slot_of(caches, worker, row)
            _push(lines, worker, row, slot, OWNED_UPDATE if state == OWNED else PART_UPDATE)
            if state == SPLIT:
                holders[word] ^= bit
                cache.outdate(caches, worker, slot)
        if state == SPLIT:
            _settle(lines, row)
        rows.state[row] = CLEAN


@kernel
def _give_up(hot: NDArray[np.int64], rows: RowStates, caches: Caches) -> None:
    """Every holder's copy in an ordinary slot becomes outdated."""
    for row in hot:
        for worker in range(caches.capacity_n.size):
            if rows.holders_Q[row, worker >> 6] & (ONE << np.uint64(worker & 63)):
                cache.outdate(caches, worker, cache.slot_of(caches, worker, row))


@kernel
def _set_replicated(hot: NDArray[np.int64], rows: RowStates) -> None:
    """Every worker holds such a row, in a slot of its own: no bits are kept, so the steps above find nothing to do."""
    for row in hot:
        rows.state[row] = REPLICATED
        rows.holders_Q[row, :] = 0


@kernel
def _synchronise(
    rows_U: NDArray[np.int64], users_UQ: NDArray[np.uint64], rows: RowStates, caches: Caches, lines: Lines
) -> None:
    """Step 1: afterwards every row of the batch is clean, and its holders are users that need not pull it."""
    for u in range(rows_U.size):
        row, state = rows_U[u], rows.state[rows_U[u]]
        holders, users = rows.holders_Q[row], users_UQ[u]
        if state == OWNED and _equal(holders, users):
            continue
        for q in range(holders.size):
            left = holders[q]
            while left != 0:
                bit = left & (~left + ONE)
                left ^= bit
                worker = q * 64 + _bit_number(bit)
                slot = cache.slot_of(caches, worker, row)
                if state == OWNED:
                    _push(lines, worker, row, slot, OWNED_UPDATE)
                elif state == SPLIT:
                    _push(lines, worker, row, slot, PART_UPDATE)
                if state == SPLIT or (users[q] & bit) == 0:
                    holders[q] ^= bit
                    cache.outdate(caches, worker, slot)
        if state == SPLIT:
            _settle(lines, row)
        rows.state[row] = CLEAN


@kernel
def _equal(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> bool:
    different = np.uint64(0)
    for q in range(left.size):
        different |= left[q] ^ right[q]
    return bool(different == 0)


@kernel
def _bit_number(bit: np.uint64) -> int:
    number = 0
    while bit > ONE:
        bit >>= ONE
        number += 1
    return number


@kernel
def _place(
    worker: int,
    rows_U: NDArray[np.int64],
    used: NDArray[np.int32],
    alone: int,
    step: int,
    rows: RowStates,
    caches: Caches,
    eviction: int,
    lines: Lines,
) -> NDArray[np.int32]:
    """Step 2 for one worker: a slot for every row it uses; what is missing or outdated is pulled."""
    word, bit = worker >> 6, ONE << np.uint64(worker & 63)
    slots = np.empty(used.size, np.int32)
    for i in range(used.size):
        slots[i] = cache.slot_of(caches, worker, rows_U[used[i]])
        if slots[i] != EMPTY:
            caches.is_outdated_nC[worker, slots[i]] = False
            cache.use(caches, worker, slots[i], step)
    for i in range(used.size):
        row = rows_U[used[i]]
        if slots[i] == EMPTY:
            slots[i] = cache.take_free(caches, worker)
            if slots[i] == EMPTY:
                slots[i] = cache.next_victim(caches, worker, step, eviction)
                _evict(worker, slots[i], rows, caches, lines)
            cache.put(caches, worker, row, slots[i])
            cache.use(caches, worker, slots[i], step)
        if (rows.holders_Q[row, word] & bit) == 0:
            line = lines.pulls_4[lines.counts[1]]
            line[0], line[1], line[2], line[3] = worker, row, slots[i], 0 if i < alone else 1
            lines.counts[1] += 1
    return slots


@kernel
def _evict(worker: int, slot: int, rows: RowStates, caches: Caches, lines: Lines) -> None:
    """Empties a slot; what only this worker knows of the row is pushed first."""
    row = int(caches.slot_nC4[worker, slot, cache.ROW])
    word, bit = worker >> 6, ONE << np.uint64(worker & 63)
    if (rows.holders_Q[row, word] & bit) != 0:
        rows.holders_Q[row, word] ^= bit
        if rows.state[row] == OWNED:
            _push(lines, worker, row, slot, OWNED_EVICT)
            rows.state[row] = CLEAN
        elif rows.state[row] == SPLIT:
            _push(lines, worker, row, slot, PART_EVICT)
            if not rows.holders_Q[row].any():
                _settle(lines, row)
                rows.state[row] = CLEAN
    cache.drop(caches, worker, slot)


@kernel
def _advance(step: int, rows_U: NDArray[np.int64], users_UQ: NDArray[np.uint64], rows: RowStates) -> None:
    """Step 3."""
    for u in range(rows_U.size):
        row = rows_U[u]
        rows.state[row] = OWNED if _is_single(users_UQ[u]) else SPLIT
        rows.holders_Q[row, :] = users_UQ[u]
        rows.changed[row] = step


@kernel
def _flush(rows: RowStates, caches: Caches, lines: Lines) -> None:
    for worker in range(caches.capacity_n.size):
        word, bit = worker >> 6, ONE << np.uint64(worker & 63)
        for slot in range(caches.capacity_n[worker]):
            row = int(caches.slot_nC4[worker, slot, cache.ROW])
            if row == EMPTY or rows.state[row] == CLEAN or (rows.holders_Q[row, word] & bit) == 0:
                continue
            if rows.state[row] == OWNED:
                _push(lines, worker, row, slot, OWNED_FLUSH)
                rows.state[row] = CLEAN
            else:
                _push(lines, worker, row, slot, PART_FLUSH)
                rows.holders_Q[row, word] ^= bit
                cache.outdate(caches, worker, slot)
                if not rows.holders_Q[row].any():
                    _settle(lines, row)
                    rows.state[row] = CLEAN
