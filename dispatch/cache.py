"""The caches of all workers as the dispatcher sees them: which row is in which slot, and who goes first.

Order of eviction: outdated copies (most recently outdated first), then by the chosen policy:
``lru``   the row not used for longest goes first;
``lfu``   the row used in the fewest steps since it came goes first;
``emark`` the lower mark goes first, then the row used less often (ESD §8.1).
Rows of the current step are never evicted. Ties go to the lower slot.

All share one structure. Using a row sets its mark to ``target``. Victims come from a queue of all slots,
sorted once by last use or by number of uses; an entry counts only while its mark is below ``target``, that is, while
its row has not been used since the queue was made, so the order frozen at that moment is still true. When the queue is
spent, every mark equals ``target``: it rises by one and the queue is made anew. An eviction costs O(log C), amortised.
For ``lfu`` a row that has just come may be the next to go, so its queue is made anew in every step that evicts.

Legend: n workers, C slots, H places of the hash table row → slot.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from infra.kernels import kernel

EMPTY = -1
MIX = np.uint64(0x9E3779B97F4A7C15)

ROW = 0
"""columns of ``slot_nC4``: the row it holds, or EMPTY"""
MARK = 1
USES = 2
LAST = 3
"""step of the last use, modulo 2^31"""

LRU = 0
EMARK = 1
LFU = 2
EVICTIONS = {"lru": LRU, "emark": EMARK, "lfu": LFU}

TARGET = 0
"""columns of ``counters_n6``: the newest mark, slots in use, entries of the two lists, the queue's step"""
FILLED = 1
OUTDATED = 2
HEAD = 3
QUEUED = 4
MADE = 5


class Caches(NamedTuple):
    """Plain arrays, so that numba kernels can take them whole."""

    capacity_n: NDArray[np.int64]
    slot_nC4: NDArray[np.int32]
    """what is known of each slot, side by side so that it is fetched at once: ROW, MARK, USES, LAST"""
    table_nH: NDArray[np.int32]
    """row → slot, open addressing"""
    is_outdated_nC: NDArray[np.bool_]
    is_listed_nC: NDArray[np.bool_]
    """whether the slot stands in ``outdated_nC`` (entries are removed lazily)"""
    outdated_nC: NDArray[np.int32]
    queue_nC: NDArray[np.int32]
    counters_n6: NDArray[np.int64]


def empty_caches(capacity_n: NDArray[np.int64]) -> Caches:
    n, C = capacity_n.size, int(capacity_n.max(initial=1))
    H = 1 << (2 * C - 1).bit_length()
    counters = np.zeros((n, 6), np.int64)
    counters[:, TARGET] = 1
    slots = np.zeros((n, C, 4), np.int32)
    slots[:, :, ROW] = EMPTY
    return Caches(
        capacity_n=capacity_n.astype(np.int64),
        slot_nC4=slots,
        table_nH=np.full((n, H), EMPTY, np.int32),
        is_outdated_nC=np.zeros((n, C), np.bool_),
        is_listed_nC=np.zeros((n, C), np.bool_),
        outdated_nC=np.zeros((n, C), np.int32),
        queue_nC=np.zeros((n, C), np.int32),
        counters_n6=counters,
    )


@kernel
def _home(row: int, mask: int) -> np.int64:
    return np.int64((np.uint64(row) * MIX) >> np.uint64(32)) & mask


@kernel
def slot_of(caches: Caches, worker: int, row: int) -> int:
    """The slot that holds a copy of the row, outdated or not; EMPTY if none does."""
    table, slots = caches.table_nH[worker], caches.slot_nC4[worker]
    mask = table.size - 1
    at = _home(row, mask)
    while table[at] != EMPTY:
        if slots[table[at], ROW] == row:
            return int(table[at])
        at = (at + 1) & mask
    return EMPTY


@kernel
def put(caches: Caches, worker: int, row: int, slot: int) -> None:
    table = caches.table_nH[worker]
    mask = table.size - 1
    at = _home(row, mask)
    while table[at] != EMPTY:
        at = (at + 1) & mask
    table[at] = slot
    caches.slot_nC4[worker, slot, ROW] = row
    caches.slot_nC4[worker, slot, USES] = 0
    caches.is_outdated_nC[worker, slot] = False


@kernel
def drop(caches: Caches, worker: int, slot: int) -> None:
    """Empties a slot; the entries behind it in the table move up, so no tombstones are needed."""
    table, slots = caches.table_nH[worker], caches.slot_nC4[worker]
    mask = table.size - 1
    at = _home(slots[slot, ROW], mask)
    while table[at] != slot:
        at = (at + 1) & mask
    behind = (at + 1) & mask
    while table[behind] != EMPTY:
        home = _home(slots[table[behind], ROW], mask)
        if ((behind - home) & mask) >= ((behind - at) & mask):
            table[at] = table[behind]
            at = behind
        behind = (behind + 1) & mask
    table[at] = EMPTY
    slots[slot, ROW] = EMPTY


@kernel
def use(caches: Caches, worker: int, slot: int, step: int) -> None:
    record = caches.slot_nC4[worker, slot]
    record[MARK] = caches.counters_n6[worker, TARGET]
    record[USES] += 1
    record[LAST] = step


@kernel
def outdate(caches: Caches, worker: int, slot: int) -> None:
    """The copy in this slot is no longer the newest: it goes first when room is needed."""
    caches.is_outdated_nC[worker, slot] = True
    if not caches.is_listed_nC[worker, slot]:
        caches.is_listed_nC[worker, slot] = True
        caches.outdated_nC[worker, caches.counters_n6[worker, OUTDATED]] = slot
        caches.counters_n6[worker, OUTDATED] += 1


@kernel
def next_victim(caches: Caches, worker: int, step: int, eviction: int) -> int:
    """The slot to empty next. Rows of this step have been used already, so they carry the newest mark."""
    counters = caches.counters_n6[worker]
    while counters[OUTDATED] > 0:
        counters[OUTDATED] -= 1
        slot = caches.outdated_nC[worker, counters[OUTDATED]]
        caches.is_listed_nC[worker, slot] = False
        if caches.is_outdated_nC[worker, slot]:
            return int(slot)
    if eviction == LFU and counters[MADE] != step:
        _queue_again(caches, worker, step, eviction)
    while True:
        while counters[HEAD] < counters[QUEUED]:
            slot = caches.queue_nC[worker, counters[HEAD]]
            counters[HEAD] += 1
            if caches.slot_nC4[worker, slot, MARK] < counters[TARGET]:
                return int(slot)
        _queue_again(caches, worker, step, eviction)


@kernel
def _queue_again(caches: Caches, worker: int, step: int, eviction: int) -> None:
    counters = caches.counters_n6[worker]
    capacity = caches.capacity_n[worker]
    counters[TARGET] += 1
    slots = caches.slot_nC4[worker, :capacity]
    order = np.argsort(slots[:, LAST if eviction == LRU else USES], kind="mergesort")
    counters[HEAD], counters[QUEUED], counters[MADE] = 0, 0, step
    for slot in order:
        if slots[slot, LAST] == step:
            slots[slot, MARK] = counters[TARGET]
        else:
            caches.queue_nC[worker, counters[QUEUED]] = slot
            counters[QUEUED] += 1


@kernel
def take_free(caches: Caches, worker: int) -> int:
    """The next slot never used; EMPTY if there is none. An emptied slot is filled again at once, so none come back."""
    counters = caches.counters_n6[worker]
    if counters[FILLED] == caches.capacity_n[worker]:
        return EMPTY
    counters[FILLED] += 1
    return int(counters[FILLED] - 1)
