"""The kernels with which the directory keeps copies coherent, see the three steps of
dispatch/placement/rows/directory.py.

Legend: U distinct rows of the batch, n workers, w those that have something to do, Q words of 64 workers each.
"""

import numpy as np
from numba import prange

from dispatch.placement.arrays import F64, I32, I64, U8, U64
from dispatch.placement.rows import cache
from dispatch.placement.rows.behind import IdleLists, push_idle
from dispatch.placement.rows.cache import Caches
from dispatch.placement.rows.holders import held, is_single
from dispatch.placement.rows.moves import (
    CLEAN_COUNT,
    OWNED_EVICT,
    OWNED_FLUSH,
    OWNED_UPDATE,
    PART_EVICT,
    PART_FLUSH,
    PART_UPDATE,
    PARTS_COUNT,
    VALUE_ONLY,
    WITH_STATE,
    RoundMoves,
    add_settled,
    lose_clean,
    lose_part,
    pull,
    push,
)
from dispatch.placement.rows.states import (
    CLEAN,
    OWNED,
    REPLICATED,
    SPLIT,
    RowStates,
    add_holder,
    is_held,
    is_holder,
    live_chunks,
    remove_holder,
    set_state,
    set_trained,
    state_of,
    step_of,
)
from dispatch.placement.rows.uses import Uses
from infra.base.hashing import EMPTY
from infra.base.kernels import kernel, range_of, threaded
from ps.keys import FREE

PUSHES = 1
"""What a holder does before a step, as bits."""
LEAVES = 2


@kernel
def push_trained(trained: I64, rows: RowStates, caches: Caches, moves: RoundMoves) -> None:
    """Step 1 under full synchronisation: owners push and keep a clean copy, part-holders push and keep none."""
    for row in trained:
        state = state_of(rows, row)
        if state == CLEAN:
            continue
        for worker in range(caches.capacity_n.size):
            if not is_holder(rows, row, worker):
                continue
            slot = cache.slot_of(caches, worker, row)
            push(moves, worker, row, slot, OWNED_UPDATE if state == OWNED else PART_UPDATE)
            if state == SPLIT:
                remove_holder(rows, row, worker)
                cache.outdate(caches, worker, slot)
        if state == SPLIT:
            add_settled(moves, row)
        set_state(rows, row, CLEAN)


@threaded
def synchronise(
    w: int,
    holding_w: I64,
    rows_U: I64,
    users_UQ: U64,
    state_U: U8,
    holders_UQ: U64,
    caches: Caches,
    moves: RoundMoves,
) -> None:
    """Step 1, for each of the w workers that hold rows of the batch. state_U and holders_UQ, here and below: before the
    step; they stay as they are, since ``advance`` is about to overwrite them.
    """
    for k in prange(w):
        _synchronise(holding_w[k], rows_U, users_UQ, state_U, holders_UQ, caches, moves)


@threaded
def find_used(ranges: int, rows_U: I64, uses: Uses, step: int, caches: Caches, slots: I32) -> None:
    """The first part of step 2, one range of all workers' uses at a time: fills ``slots`` with those of the rows that
    workers hold, EMPTY for others, and marks them as used before room is made, so that none of them leaves.

    step: this one, as slots have it, here and below.
    """
    for k in prange(ranges):
        _find_used(k, ranges, rows_U, uses, step, caches, slots)


@threaded
def give_slots(
    w: int,
    busy_w: I64,
    rows_U: I64,
    state_U: U8,
    holders_UQ: U64,
    uses: Uses,
    step: int,
    late_from: int,
    rows: RowStates,
    caches: Caches,
    eviction: int,
    lists: IdleLists,
    credit_n: F64,
    share: float,
    moves: RoundMoves,
    slots: I32,
) -> None:
    """The rest of step 2, and what is written behind, for each of the w workers that pull anything or have
    samples; completes ``slots``.

    Of the rows' states only those change here that one worker owns alone; what several workers evict is noted for
    ``settle`` and ``leave``.
    """
    for k in prange(w):
        _give_slots(busy_w[k], rows_U, uses, state_U, holders_UQ, step, rows, caches, eviction, moves, slots)
        if share > 0.0:
            push_idle(busy_w[k], lists, credit_n, share, rows, caches, moves, late_from, step)


@kernel
def _synchronise(
    worker: int, rows_U: I64, users_UQ: U64, state_U: U8, holders_UQ: U64, caches: Caches, moves: RoundMoves
) -> None:
    """Step 1 for one worker: it pushes what others are about to use, and marks what it will not hold any more."""
    u_of, kind = _leaving(worker, users_UQ, state_U, holders_UQ)
    slot = cache.find_slots(caches, worker, rows_U[u_of])
    for i in range(u_of.size):
        if kind[i] & PUSHES:
            u = u_of[i]
            push(moves, worker, rows_U[u], slot[i], OWNED_UPDATE if state_U[u] == OWNED else PART_UPDATE)
        if kind[i] & LEAVES:
            cache.outdate(caches, worker, slot[i])


@kernel
def _leaving(worker: int, users_UQ: U64, state_U: U8, holders_UQ: U64) -> tuple[I32, U8]:
    """Every row of the batch that a holder pushes or stops holding, and which of the two it does."""
    u_of = np.empty(state_U.size, np.int32)
    kind = np.empty(state_U.size, np.uint8)
    count = 0
    for u in range(state_U.size):
        if not held(holders_UQ, u, worker):
            continue
        state = state_U[u]
        uses = held(users_UQ, u, worker)
        if uses and (state == CLEAN or (state == OWNED and is_single(users_UQ, u))):
            continue
        u_of[count] = u
        kind[count] = (PUSHES if state != CLEAN else 0) | (LEAVES if state == SPLIT or not uses else 0)
        count += 1
    return u_of[:count], kind[:count]


@kernel
def _find_used(k: int, ranges: int, rows_U: I64, uses: Uses, step: int, caches: Caches, slots: I32) -> None:
    first, end = range_of(k, ranges, uses.local.size)
    for worker in range(uses.alone_n.size):
        begins = max(first, uses.local_starts[worker])
        ends = min(end, uses.local_starts[worker + 1])
        if begins < ends:
            slots[begins:ends] = cache.find_slots(caches, worker, rows_U[uses.local[begins:ends]])
            for slot in slots[begins:ends]:
                if slot != EMPTY:
                    caches.is_outdated_nC[worker, slot] = False
                    cache.use(caches, worker, slot, step)


@kernel
def _give_slots(
    worker: int,
    rows_U: I64,
    uses: Uses,
    state_U: U8,
    holders_UQ: U64,
    step: int,
    rows: RowStates,
    caches: Caches,
    eviction: int,
    moves: RoundMoves,
    slots: I32,
) -> None:
    """A slot for every row that a worker uses and has none; missing or outdated rows are pulled."""
    first = uses.local_starts[worker]
    local = uses.local[first : uses.local_starts[worker + 1]]
    its_slots = slots[first : first + local.size]
    _fill_slots(worker, rows_U, local, its_slots, step, rows, caches, eviction, moves)
    for i in range(local.size):
        if state_U[local[i]] == SPLIT or not held(holders_UQ, local[i], worker):
            kind = WITH_STATE if i < uses.alone_n[worker] else VALUE_ONLY
            pull(moves, worker, rows_U[local[i]], its_slots[i], kind)


@kernel
def _fill_slots(
    worker: int,
    rows_U: I64,
    local: I32,
    slots: I32,
    step: int,
    rows: RowStates,
    caches: Caches,
    eviction: int,
    moves: RoundMoves,
) -> None:
    """Puts the rows that a worker uses and does not hold into its cache, and fills in their slots."""
    missing = np.empty(slots.size, np.int32)
    count = 0
    for i in range(slots.size):
        if slots[i] == EMPTY:
            missing[count] = i
            count += 1
    slots[missing[:count]] = cache.make_room(caches, worker, count, step, eviction)
    _evict(worker, slots[missing[:count]], rows, caches, moves)
    for i in missing[:count]:
        cache.put(caches, worker, rows_U[local[i]], slots[i])


@kernel
def _evict(worker: int, slots: I32, rows: RowStates, caches: Caches, moves: RoundMoves) -> None:
    """Empties slots; what only this worker has of a row is pushed first. Outdated copies need no push."""
    states = _fetch(worker, slots, rows, caches)
    for i in range(slots.size):
        row = int(caches.slot_nC4[worker, slots[i], cache.ROW])
        if row == EMPTY:
            continue
        if not caches.is_outdated_nC[worker, slots[i]]:
            if states[i] == OWNED:
                push(moves, worker, row, slots[i], OWNED_EVICT)
                remove_holder(rows, row, worker)
                set_state(rows, row, CLEAN)
            elif states[i] == SPLIT:
                push(moves, worker, row, slots[i], PART_EVICT)
                lose_part(moves, worker, row)
            else:
                lose_clean(moves, worker, row)
        cache.drop(caches, worker, slots[i])


@kernel
def settle(rows_U: I64, state_U: U8, rows: RowStates, moves: RoundMoves) -> None:
    """Notes split rows of which all parts are pushed: those of the batch, and those that every part-holder evicted."""
    for u in range(rows_U.size):
        if state_U[u] == SPLIT:
            add_settled(moves, rows_U[u])
    for worker in range(moves.counts_nK.shape[0]):
        for row in moves.parts_nP[worker, : moves.counts_nK[worker, PARTS_COUNT]]:
            remove_holder(rows, row, worker)
            if not is_held(rows, row):
                add_settled(moves, row, makes_room=True)
                set_state(rows, row, CLEAN)


@kernel
def leave(rows: RowStates, moves: RoundMoves) -> None:
    """Workers that evicted clean copies no longer hold them."""
    for worker in range(moves.counts_nK.shape[0]):
        for row in moves.clean_nP[worker, : moves.counts_nK[worker, CLEAN_COUNT]]:
            remove_holder(rows, row, worker)


@kernel
def _fetch(worker: int, slots: I32, rows: RowStates, caches: Caches) -> U8:
    """States of the rows in some slots, fetched ahead because these fetches are independent of each other."""
    states = np.empty(slots.size, np.uint8)
    for i in range(slots.size):
        row = caches.slot_nC4[worker, slots[i], cache.ROW]
        states[i] = state_of(rows, max(row, 0))
    return states


@threaded
def advance(ranges: int, step: int, rows_U: I64, users_UQ: U64, rows: RowStates) -> None:
    """Step 3, one range of rows at a time: the users of a row hold it, alone or as one of several."""
    for k in prange(ranges):
        _advance(k, ranges, step, rows_U, users_UQ, rows)


@kernel
def _advance(k: int, ranges: int, step: int, rows_U: I64, users_UQ: U64, rows: RowStates) -> None:
    first, end = range_of(k, ranges, rows_U.size)
    for u in range(first, end):
        set_trained(rows, rows_U[u], step, OWNED if is_single(users_UQ, u) else SPLIT)
        for q in range(users_UQ.shape[1]):
            rows[rows_U[u], 1 + q] = users_UQ[u, q]


@kernel
def hold_cached(worker: int, rows: RowStates, caches: Caches) -> None:
    """The worker holds what its cache has, except for outdated copies; all of it is clean."""
    for slot in range(caches.capacity_n[worker]):
        row = int(caches.slot_nC4[worker, slot, cache.ROW])
        if row != EMPTY and not caches.is_outdated_nC[worker, slot]:
            add_holder(rows, row, worker)


@kernel
def forget(keys_R: U64, before: int, rows: RowStates, caches: Caches) -> tuple[I64, int]:
    """Collects the rows that were last trained before a step, and counts their live chunks; nobody holds them
    afterwards, and nothing of them is written back. Replicated rows stay.
    """
    forgotten = np.empty(keys_R.size, np.int64)
    count = 0
    live = 0
    for row in range(keys_R.size):
        if keys_R[row] == FREE or step_of(rows, row) >= before or state_of(rows, row) == REPLICATED:
            continue
        for worker in range(caches.capacity_n.size):
            if is_holder(rows, row, worker):
                cache.outdate(caches, worker, cache.slot_of(caches, worker, row))
        live += live_chunks(rows, row)
        rows[row, :] = 0
        forgotten[count] = row
        count += 1
    return forgotten[:count].copy(), live


@kernel
def drop_copies(dropped: I64, rows: RowStates, caches: Caches) -> None:
    """Nobody holds these rows, all of them clean, afterwards."""
    for row in dropped:
        for worker in range(caches.capacity_n.size):
            if is_holder(rows, row, worker):
                cache.outdate(caches, worker, cache.slot_of(caches, worker, row))
                remove_holder(rows, row, worker)


@kernel
def drop_all_copies(rows: RowStates, caches: Caches) -> None:
    """Nobody holds any row, all of them clean, afterwards."""
    for worker in range(caches.capacity_n.size):
        for slot in range(caches.capacity_n[worker]):
            row = int(caches.slot_nC4[worker, slot, cache.ROW])
            if row != EMPTY and is_holder(rows, row, worker):
                cache.outdate(caches, worker, slot)
                remove_holder(rows, row, worker)


@kernel
def flush(rows: RowStates, caches: Caches, moves: RoundMoves) -> None:
    """Owners push and keep a clean copy, part-holders push and keep none."""
    for worker in range(caches.capacity_n.size):
        for slot in range(caches.capacity_n[worker]):
            row = int(caches.slot_nC4[worker, slot, cache.ROW])
            if row == EMPTY or state_of(rows, row) == CLEAN or not is_holder(rows, row, worker):
                continue
            if state_of(rows, row) == OWNED:
                push(moves, worker, row, slot, OWNED_FLUSH)
                set_state(rows, row, CLEAN)
            else:
                push(moves, worker, row, slot, PART_FLUSH)
                remove_holder(rows, row, worker)
                cache.outdate(caches, worker, slot)
                if not is_held(rows, row):
                    add_settled(moves, row)
                    set_state(rows, row, CLEAN)
