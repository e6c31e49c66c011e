"""The caches of all workers as the dispatcher sees them: which row is in which slot, and which leaves first.

Order of eviction: outdated copies (most recently outdated first), then by the chosen policy: ``lru`` evicts the row
that was not used for longest; ``lfu`` evicts the row used in the fewest steps since it came; ``emark`` evicts the lower
mark first, then the row used less often (ESD §8.1). Rows of the current step are never evicted. Ties go to the lower
slot.

All three share one structure. Using a row sets its mark to ``target``. Victims come from a queue of all slots, sorted
once by last use or by number of uses; an entry is valid only while its mark is below ``target``, that is, while its row
has not been used since the queue was built, so the order at that moment is still correct. When the queue is used up,
every mark equals ``target``: it rises by one and the queue is built again. An eviction costs O(log C), amortised. For
``lfu`` a row that has just come may be the next to leave, so its queue is built again in every step that evicts.

Legend: n workers, C slots, H places of the hash table row → slot, K counters.
"""

from typing import NamedTuple

import numpy as np

from dispatch.placement.arrays import I32, I64, Bool
from infra.base.hashing import EMPTY, find, home, remove, vacancy
from infra.base.kernels import kernel

ROW = 0
"""Columns of ``slot_nC4``; this one is the row that the slot holds, or EMPTY."""
MARK = 1
USES = 2
LAST = 3
"""Step of the last use, modulo 2^31."""

DIGIT_BITS = 11
DIGIT = 1 << DIGIT_BITS
"""Base of the radix sort that builds a queue."""

LRU = 0
EMARK = 1
LFU = 2
EVICTIONS = {"lru": LRU, "emark": EMARK, "lfu": LFU}

TARGET = 0
"""Columns of ``counters_nK``: the newest mark, slots in use, entries of the two lists, the queue's step."""
FILLED = 1
OUTDATED = 2
HEAD = 3
QUEUED = 4
MADE = 5
COUNTERS = 16
"""Twice a cache line, so that no two threads write to the same one."""


class Caches(NamedTuple):
    """Plain arrays, so that numba kernels can take them whole."""

    capacity_n: I64
    slot_nC4: I32
    """What is known of each slot, stored together so that one fetch is enough: ROW, MARK, USES, LAST."""
    table_nH: I32
    """Hash table from row to slot, with open addressing."""
    is_outdated_nC: Bool
    is_listed_nC: Bool
    """Whether the slot is in ``outdated_nC`` (entries are removed lazily)."""
    outdated_nC: I32
    queue_nC: I32
    counters_nK: I64


def empty_caches(capacity_n: I64) -> Caches:
    n = capacity_n.size
    C = int(capacity_n.max(initial=1))
    H = 1 << (2 * C - 1).bit_length()
    counters = np.zeros((n, COUNTERS), np.int64)
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
        counters_nK=counters,
    )


@kernel
def slot_of(caches: Caches, worker: int, row: int) -> int:
    """The slot that holds a copy of the row, outdated or not; EMPTY if none does."""
    table = caches.table_nH[worker]
    return int(table[find(table, caches.slot_nC4[worker, :, ROW], row)])


@kernel
def find_slots(caches: Caches, worker: int, rows: I64) -> I32:
    """The same for many. Memory fetches are slow but independent, so all are started before any result is used."""
    mask = caches.table_nH.shape[1] - 1
    slots = np.empty(rows.size, np.int32)
    found = np.empty(rows.size, np.int32)
    for i in range(rows.size):
        slots[i] = caches.table_nH[worker, home(rows[i], mask)]
    for i in range(rows.size):
        found[i] = caches.slot_nC4[worker, max(slots[i], 0), ROW]
    for i in range(rows.size):
        if slots[i] != EMPTY and found[i] != rows[i]:
            slots[i] = slot_of(caches, worker, rows[i])
    return slots


@kernel
def put(caches: Caches, worker: int, row: int, slot: int) -> None:
    """Puts a row into an empty slot."""
    table = caches.table_nH[worker]
    table[vacancy(table, row)] = slot
    caches.slot_nC4[worker, slot, ROW] = row
    caches.is_outdated_nC[worker, slot] = False


@kernel
def drop(caches: Caches, worker: int, slot: int) -> None:
    """Empties a slot."""
    remove(caches.table_nH[worker], caches.slot_nC4[worker, :, ROW], slot)
    caches.slot_nC4[worker, slot, ROW] = EMPTY


@kernel
def carry_over(old: Caches, was: int, new: Caches, worker: int) -> None:
    """Copies the contents of a cache into an empty one: slots, ages and marks. Slots that the new
    one lacks are lost.
    """
    counters = new.counters_nK[worker]
    filled = min(old.counters_nK[was, FILLED], new.capacity_n[worker])
    for slot in range(filled):
        new.slot_nC4[worker, slot] = old.slot_nC4[was, slot]
        put(new, worker, old.slot_nC4[was, slot, ROW], slot)
        if old.is_outdated_nC[was, slot]:
            new.is_outdated_nC[worker, slot] = True
    for slot in old.outdated_nC[was, : old.counters_nK[was, OUTDATED]]:
        if slot < filled:
            new.outdated_nC[worker, counters[OUTDATED]] = slot
            new.is_listed_nC[worker, slot] = True
            counters[OUTDATED] += 1
    for slot in old.queue_nC[was, old.counters_nK[was, HEAD] : old.counters_nK[was, QUEUED]]:
        if slot < filled:
            new.queue_nC[worker, counters[QUEUED]] = slot
            counters[QUEUED] += 1
    counters[FILLED] = filled
    counters[TARGET], counters[MADE] = old.counters_nK[was, TARGET], old.counters_nK[was, MADE]


@kernel
def use(caches: Caches, worker: int, slot: int, step: int) -> None:
    caches.slot_nC4[worker, slot, MARK] = caches.counters_nK[worker, TARGET]
    caches.slot_nC4[worker, slot, USES] += 1
    caches.slot_nC4[worker, slot, LAST] = step


@kernel
def outdate(caches: Caches, worker: int, slot: int) -> None:
    """Marks the copy in this slot as no longer the newest: it leaves first when room is needed."""
    caches.is_outdated_nC[worker, slot] = True
    if not caches.is_listed_nC[worker, slot]:
        caches.is_listed_nC[worker, slot] = True
        caches.outdated_nC[worker, caches.counters_nK[worker, OUTDATED]] = slot
        caches.counters_nK[worker, OUTDATED] += 1


@kernel
def make_room(caches: Caches, worker: int, wanted: int, step: int, eviction: int) -> I32:
    """Slots for rows that come in this step; ROW still names the row that has to leave each, EMPTY if none does.

    Rows of this step must have been used already, so that they have the newest mark. The slots count as used from here
    on. Slots that were never used come first, then outdated copies, then the queue's.
    """
    counters = caches.counters_nK[worker]
    slots = np.empty(wanted, np.int32)
    taken = 0
    while taken < wanted and counters[FILLED] < caches.capacity_n[worker]:
        slots[taken] = counters[FILLED]
        counters[FILLED] += 1
        taken += 1
    while taken < wanted and counters[OUTDATED] > 0:
        counters[OUTDATED] -= 1
        slot = caches.outdated_nC[worker, counters[OUTDATED]]
        caches.is_listed_nC[worker, slot] = False
        slots[taken] = slot
        taken += 1 if caches.is_outdated_nC[worker, slot] else 0
    _start_again(caches, worker, slots[:taken], step)
    if taken < wanted:
        _take_queued(caches, worker, slots[taken:], step, eviction)
    return slots


@kernel
def _take_queued(caches: Caches, worker: int, slots: I32, step: int, eviction: int) -> None:
    """Fills ``slots`` from the queue, which is built again when it is used up."""
    counters = caches.counters_nK[worker]
    if eviction == LFU and counters[MADE] != step:
        _queue_again(caches, worker, step, eviction)
    taken = 0
    while taken < slots.size:
        first = taken
        while taken < slots.size and counters[HEAD] < counters[QUEUED]:
            slot = caches.queue_nC[worker, counters[HEAD]]
            counters[HEAD] += 1
            slots[taken] = slot
            taken += 1 if caches.slot_nC4[worker, slot, MARK] < counters[TARGET] else 0
        _start_again(caches, worker, slots[first:taken], step)
        if taken < slots.size:
            _queue_again(caches, worker, step, eviction)


@kernel
def _start_again(caches: Caches, worker: int, slots: I32, step: int) -> None:
    """Resets these slots for the first use of the rows that are about to come."""
    for slot in slots:
        caches.slot_nC4[worker, slot, USES] = 0
        use(caches, worker, slot, step)


@kernel
def _queue_again(caches: Caches, worker: int, step: int, eviction: int) -> None:
    counters = caches.counters_nK[worker]
    capacity = caches.capacity_n[worker]
    counters[TARGET] += 1
    slots = caches.slot_nC4[worker, :capacity]
    order = _stable_order(slots[:, LAST if eviction == LRU else USES])
    counters[HEAD], counters[QUEUED], counters[MADE] = 0, 0, step
    for slot in order:
        if slots[slot, LAST] == step:
            slots[slot, MARK] = counters[TARGET]
        else:
            caches.queue_nC[worker, counters[QUEUED]] = slot
            counters[QUEUED] += 1


@kernel
def _stable_order(values: I32) -> I32:
    """A stable argsort of numbers from 0 up: radix sort by the lowest digit first."""
    order = np.arange(values.size).astype(np.int32)
    other = np.empty(values.size, np.int32)
    most = values.max() if values.size else 0
    shift = 0
    while most >> shift:
        starts = np.zeros(DIGIT + 1, np.int64)
        for value in values:
            starts[((value >> shift) & (DIGIT - 1)) + 1] += 1
        starts = np.cumsum(starts)
        for i in order:
            digit = (values[i] >> shift) & (DIGIT - 1)
            other[starts[digit]] = i
            starts[digit] += 1
        order, other = other, order
        shift += DIGIT_BITS
    return order
