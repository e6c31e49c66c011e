"""The directory: for every row, which workers hold it and in which state; coherence decided one step ahead.

A pure function of the sequence of (batch, assignment): it is never asked over the network and is the same code live,
in the simulator and in tests. For each step it says, exactly, which worker pushes, pulls and evicts which row:

1. *synchronise*: a row of this batch that its owner alone does not use is pushed by the owner; a split row is pushed
   by every part-holder; copies held by workers that do not use the row become outdated, since it is about to change
   (under full synchronisation all rows that the step before trained are pushed first, used or not);
2. *place*: every row a worker uses gets a slot; what it does not hold in its newest state is pulled; if there is no
   room, victims leave, and those that only this worker knows (owned, or a part) are pushed first;
3. *advance*: a row used by one worker is owned by it, a row used by several is split over them.

Rows of a hot set, if there is one, are replicated instead (dispatch/rows/replicas.py) and take no part in this.

Legend: B samples, F keys a sample, U distinct rows of the batch, n workers, Q words of 64 workers each, C slots.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dispatch.errors import CacheTooSmall
from dispatch.rows import cache
from dispatch.rows.cache import EMPTY, EVICTIONS, Caches
from dispatch.rows.index import GROWTH, BatchRows
from dispatch.rows.plan import Lines, RoundPlan, Uses, is_single, make_round, make_uses
from dispatch.rows.replicas import COLD, Replicas, everybody, give_up, set_replicated
from dispatch.rows.states import (
    CLEAN,
    OWNED,
    REPLICATED,
    SPLIT,
    RowStates,
    empty_states,
    gather,
    is_held,
    set_state,
    set_trained,
    state_of,
)
from infra.kernels import kernel

Synchronisation = Literal["on_demand", "full"]
"""whether an update is pushed when another worker needs the row, or always in the step after it"""

OWNED_UPDATE = 0
"""kinds of push, in the order the plan groups them"""
PART_UPDATE = 1
OWNED_EVICT = 2
PART_EVICT = 3
OWNED_FLUSH = 4
PART_FLUSH = 5

PUSHES = 1
"""what a holder does before a step, as bits"""
LEAVES = 2

ONE = np.uint64(1)


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
        self._rows = empty_states(1024, (self.workers + 63) // 64)
        self._synchronisation = synchronisation
        self._trained = np.empty(0, np.int64)
        """rows whose updates the next step pushes in any case"""

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + sum(array.nbytes for array in self._caches)

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
        state_U, holders_UQ = gather(self._rows, batch.rows_U)
        if self._replicas.rows_H.size:
            replicated = self._replicas.is_replicated(batch.rows_U)
            state_U[replicated], holders_UQ[replicated] = CLEAN, everybody(self.workers)
        return state_U, holders_UQ

    def plan(self, step: int, batch: BatchRows, assignment_B: NDArray[np.int32]) -> RoundPlan:
        """Decides everything that moves in this step, and takes the step as done."""
        self._reserve(int(batch.rows_U.max(initial=-1)) + 1)
        users_UQ = _users(batch.local_BF, assignment_B, batch.rows_U.size, self._rows.shape[1] - 1)
        uses = make_uses(self.workers, batch.local_BF, assignment_B, users_UQ)
        reduction = None
        if self._replicas.rows_H.size:
            uses, reduction = self._replicas.take_out(batch.rows_U, uses)
        self._check_room(uses)
        entering = self._replicas.entering
        pushed = np.concatenate((self._trained, entering, batch.rows_U))
        lines = _empty_lines(pushed, self._rows, uses.local.size + entering.size * self.workers)
        if self._trained.size:
            _push_trained(self._trained, self._rows, self._caches, lines)
        if entering.size:
            self._enter(entering, lines)
        state_U, holders_UQ = gather(self._rows, batch.rows_U)
        _synchronise(batch.rows_U, users_UQ, state_U, holders_UQ, self._caches, lines)
        now = step & 0x7FFFFFFF
        slots = _place(batch.rows_U, uses, holders_UQ, now, self._rows, self._caches, self._eviction, lines)
        decided = make_round(self.workers, self.shards, lines, uses, slots, self._rows)
        _advance(step, batch.rows_U, users_UQ, self._rows)
        if reduction is not None:
            set_replicated(reduction.rows_R, self._rows)
            decided = self._replicas.add_to(decided, reduction)
        if self._synchronisation == "full":
            self._trained = batch.rows_U if reduction is None else batch.rows_U[reduction.position_U == COLD]
        return decided

    def flush(self) -> RoundPlan:
        """Writes every owned, split or replicated row back; owners keep a clean copy, everyone keeps its replicas."""
        lines = _empty_lines(np.empty(0, np.int64), self._rows, self._caches.is_outdated_nC.size)
        _flush(self._rows, self._caches, lines)
        written = self._replicas.write_back(OWNED_FLUSH)
        lines.pushes_4[lines.counts[0] : lines.counts[0] + len(written)] = written
        lines.counts[0] += len(written)
        return make_round(self.workers, self.shards, lines, None, np.empty(0, np.int32), self._rows)

    def holders(self, row: int) -> tuple[int, set[int]]:
        """State and holders of one row, for tests and for people."""
        if state_of(self._rows, row) == REPLICATED:
            return REPLICATED, set(range(self.workers))
        words = self._rows[row, 1:]
        held = {j for j in range(self.workers) if int(words[j >> 6]) >> (j & 63) & 1}
        return int(state_of(self._rows, row)), held

    def cached(self, worker: int) -> dict[int, int]:
        """row → slot of one worker's cache, outdated copies included, but not of rows that it holds a replica of."""
        rows = self._caches.slot_nC4[worker, :, cache.ROW]
        return {int(row): slot for slot, row in enumerate(rows) if row != EMPTY} | self._replicas.cached(worker)

    def _enter(self, rows_H: NDArray[np.int64], lines: Lines) -> None:
        """What anyone trained of the hot set is pushed, ordinary copies are given up, every worker pulls a replica."""
        _push_trained(rows_H, self._rows, self._caches, lines)
        give_up(rows_H, self._rows, self._caches)
        set_replicated(rows_H, self._rows)
        pulls = self._replicas.pulls()
        lines.pulls_4[lines.counts[1] : lines.counts[1] + len(pulls)] = pulls
        lines.counts[1] += len(pulls)

    def _reserve(self, rows: int) -> None:
        known, columns = self._rows.shape
        if rows > known:
            larger = empty_states(max(rows, int(known * GROWTH)), columns - 1)
            larger[:known] = self._rows
            self._rows = larger

    def _check_room(self, uses: Uses) -> None:
        for worker, used in enumerate(np.diff(uses.local_starts).tolist()):
            if used > self._caches.capacity_n[worker]:
                raise CacheTooSmall(
                    f"worker {worker} has {self._caches.capacity_n[worker]} slots but its micro-batch uses "
                    f"{used} rows; every row of a micro-batch needs a slot: raise dispatch.cache_rows"
                )


def _empty_lines(rows_U: NDArray[np.int64], rows: RowStates, uses: int) -> Lines:
    """Room for the worst case: every holder of a batch row pushes, and every use evicts something."""
    held = int(np.bitwise_count(rows[rows_U, 1:]).sum())
    return Lines(
        pushes_4=np.empty((held + uses, 4), np.int64),
        pulls_4=np.empty((uses, 4), np.int64),
        settled=np.empty(rows_U.size + uses, np.int64),
        counts=np.zeros(3, np.int64),
    )


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
def _push(lines: Lines, worker: int, row: int, slot: int, kind: int) -> None:
    at = lines.counts[0]
    lines.pushes_4[at, 0], lines.pushes_4[at, 1] = worker, row
    lines.pushes_4[at, 2], lines.pushes_4[at, 3] = slot, kind
    lines.counts[0] = at + 1


@kernel
def _settle(lines: Lines, row: int) -> None:
    lines.settled[lines.counts[2]] = row
    lines.counts[2] += 1


@kernel
def _push_trained(trained: NDArray[np.int64], rows: RowStates, caches: Caches, lines: Lines) -> None:
    """Step 1 under full synchronisation: owners push and keep a clean copy, part-holders push and keep none."""
    for row in trained:
        state, holders = state_of(rows, row), rows[row, 1:]
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
        set_state(rows, row, CLEAN)


@kernel
def _synchronise(
    rows_U: NDArray[np.int64],
    users_UQ: NDArray[np.uint64],
    state_U: NDArray[np.uint8],
    holders_UQ: NDArray[np.uint64],
    caches: Caches,
    lines: Lines,
) -> None:
    """Step 1: afterwards every row of the batch is clean, and its holders are users that need not pull it.

    The caches are told; of the rows only ``holders_UQ`` is, since _advance is about to overwrite their states.
    """
    worker, u_of, kind = _leaving(rows_U, users_UQ, state_U, holders_UQ, lines)
    slot = cache.find_slots(caches, worker, rows_U[u_of])
    for i in range(worker.size):
        row = rows_U[u_of[i]]
        if kind[i] & PUSHES:
            _push(lines, worker[i], row, slot[i], OWNED_UPDATE if state_U[u_of[i]] == OWNED else PART_UPDATE)
        if kind[i] & LEAVES:
            cache.outdate(caches, worker[i], slot[i])


@kernel
def _leaving(
    rows_U: NDArray[np.int64],
    users_UQ: NDArray[np.uint64],
    state_U: NDArray[np.uint8],
    holders_UQ: NDArray[np.uint64],
    lines: Lines,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.uint8]]:
    """Every (holder, row) that pushes or ceases to be a holder, and which of the two it does."""
    most = lines.pushes_4.shape[0]
    worker, u_of, kind = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most, np.uint8)
    count = 0
    for u in range(rows_U.size):
        state = state_U[u]
        if state == OWNED and _same_bits(holders_UQ, users_UQ, u):
            continue
        for q in range(holders_UQ.shape[1]):
            holders, users = holders_UQ[u, q], users_UQ[u, q]
            left = holders if state != CLEAN else holders & ~users
            holders_UQ[u, q] = 0 if state == SPLIT else holders & users
            while left != 0:
                bit = left & (~left + ONE)
                left ^= bit
                worker[count], u_of[count] = q * 64 + _bit_number(bit), u
                leaves = LEAVES if state == SPLIT or (users & bit) == 0 else 0
                kind[count] = leaves | (PUSHES if state != CLEAN else 0)
                count += 1
        if state == SPLIT:
            _settle(lines, rows_U[u])
    return worker[:count], u_of[:count], kind[:count]


@kernel
def _same_bits(left_UQ: NDArray[np.uint64], right_UQ: NDArray[np.uint64], u: int) -> bool:
    different = np.uint64(0)
    for q in range(left_UQ.shape[1]):
        different |= left_UQ[u, q] ^ right_UQ[u, q]
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
    rows_U: NDArray[np.int64],
    uses: Uses,
    holders_UQ: NDArray[np.uint64],
    step: int,
    rows: RowStates,
    caches: Caches,
    eviction: int,
    lines: Lines,
) -> NDArray[np.int32]:
    """Step 2: a slot for every row a worker uses; what is missing or outdated is pulled."""
    slots = np.empty(uses.local.size, np.int32)
    for worker in range(caches.capacity_n.size):
        first, end = uses.local_starts[worker], uses.local_starts[worker + 1]
        local = uses.local[first:end]
        slots[first:end] = _slots_for(worker, rows_U[local], step, rows, caches, eviction, lines)
        word, bit = worker >> 6, ONE << np.uint64(worker & 63)
        for i in range(local.size):
            if (holders_UQ[local[i], word] & bit) == 0:
                at = lines.counts[1]
                lines.pulls_4[at, 0], lines.pulls_4[at, 1] = worker, rows_U[local[i]]
                lines.pulls_4[at, 2], lines.pulls_4[at, 3] = slots[first + i], 0 if i < uses.alone_n[worker] else 1
                lines.counts[1] = at + 1
    return slots


@kernel
def _slots_for(
    worker: int,
    used: NDArray[np.int64],
    step: int,
    rows: RowStates,
    caches: Caches,
    eviction: int,
    lines: Lines,
) -> NDArray[np.int32]:
    """The slots of the rows a worker uses. All it holds are marked before any room is made, so none of them leaves."""
    slots = cache.find_slots(caches, np.full(used.size, worker, np.int32), used)
    missing = np.empty(used.size, np.int32)
    count = 0
    for i in range(used.size):
        if slots[i] == EMPTY:
            missing[count] = i
            count += 1
        else:
            caches.is_outdated_nC[worker, slots[i]] = False
            cache.use(caches, worker, slots[i], step)
    slots[missing[:count]] = cache.make_room(caches, worker, count, step, eviction)
    _evict(worker, slots[missing[:count]], rows, caches, lines)
    for i in missing[:count]:
        cache.put(caches, worker, used[i], slots[i])
    return slots


@kernel
def _evict(worker: int, slots: NDArray[np.int32], rows: RowStates, caches: Caches, lines: Lines) -> None:
    """Empties slots; what only this worker knows of a row is pushed first. An outdated copy is known to others."""
    word, bit = 1 + (worker >> 6), ONE << np.uint64(worker & 63)
    states = _fetch(worker, slots, rows, caches)
    for i in range(slots.size):
        row = int(caches.slot_nC4[worker, slots[i], cache.ROW])
        if row == EMPTY:
            continue
        if not caches.is_outdated_nC[worker, slots[i]]:
            rows[row, word] ^= bit
            if states[i] == OWNED:
                _push(lines, worker, row, slots[i], OWNED_EVICT)
                set_state(rows, row, CLEAN)
            elif states[i] == SPLIT:
                _push(lines, worker, row, slots[i], PART_EVICT)
                if not is_held(rows, row):
                    _settle(lines, row)
                    set_state(rows, row, CLEAN)
        cache.drop(caches, worker, slots[i])


@kernel
def _fetch(worker: int, slots: NDArray[np.int32], rows: RowStates, caches: Caches) -> NDArray[np.uint8]:
    """States of the rows in some slots: fetches that do not wait for each other."""
    states = np.empty(slots.size, np.uint8)
    for i in range(slots.size):
        row = caches.slot_nC4[worker, slots[i], cache.ROW]
        states[i] = state_of(rows, max(row, 0))
    return states


@kernel
def _advance(step: int, rows_U: NDArray[np.int64], users_UQ: NDArray[np.uint64], rows: RowStates) -> None:
    """Step 3."""
    for u in range(rows_U.size):
        set_trained(rows, rows_U[u], step, OWNED if is_single(users_UQ, u) else SPLIT)
        for q in range(users_UQ.shape[1]):
            rows[rows_U[u], 1 + q] = users_UQ[u, q]


@kernel
def _flush(rows: RowStates, caches: Caches, lines: Lines) -> None:
    for worker in range(caches.capacity_n.size):
        word, bit = 1 + (worker >> 6), ONE << np.uint64(worker & 63)
        for slot in range(caches.capacity_n[worker]):
            row = int(caches.slot_nC4[worker, slot, cache.ROW])
            if row == EMPTY or state_of(rows, row) == CLEAN or (rows[row, word] & bit) == 0:
                continue
            if state_of(rows, row) == OWNED:
                _push(lines, worker, row, slot, OWNED_FLUSH)
                set_state(rows, row, CLEAN)
            else:
                _push(lines, worker, row, slot, PART_FLUSH)
                rows[row, word] ^= bit
                cache.outdate(caches, worker, slot)
                if not is_held(rows, row):
                    _settle(lines, row)
                    set_state(rows, row, CLEAN)
