"""Write-behind: owners push rows before anyone needs them, so that a flush finds little left to write back.

Every worker has a list of the rows that it trained alone, in the order in which they were last trained. In each step
the first ones, which have not been trained for longest, leave it: at most a share of the rows that the worker pulls in
this step, and none that this step or the one before trains. They are pushed with state, in the round that nobody waits
for, and become clean; the owner keeps its copy. This changes what moves and when, but no bit of the model.

A list is doubly linked, through the slots of the cache: a row that is trained again moves to the end in constant time,
so no step has to tidy up after others. A slot whose row is no longer owned, or another one, stays in the list until it
is first or trained again.

Legend: n workers, w those with samples, C slots, K numbers of a worker.
"""

from typing import NamedTuple

import numpy as np
from numba import prange

from dispatch.placement.arrays import F64, I32, I64
from dispatch.placement.rows import cache
from dispatch.placement.rows.cache import Caches
from dispatch.placement.rows.moves import OWNED_BEHIND, PULLS_COUNT, RoundMoves, push
from dispatch.placement.rows.states import CLEAN, OWNED, RowStates, is_holder, set_state, state_of, step_of
from dispatch.placement.rows.uses import Uses
from infra.base.hashing import EMPTY
from infra.base.kernels import kernel, threaded

FIRST = 0
"""Columns of ``ends_nK``."""
LAST = 1
ENDS = 32
"""Twice a cache line, so that no two threads write to the same one."""

BEFORE = 0
"""Columns of ``links_nC2``."""
AFTER = 1

NONE = -1
"""In place of a slot where a list ends."""
UNLISTED = -2
"""In place of the slot before one that is in no list."""


class IdleLists(NamedTuple):
    """Plain arrays, so that kernels can take them whole."""

    links_nC2: I32
    """The slots that were trained before and after each one."""
    ends_nK: I32
    """The slots of each worker that have not been trained for longest and for shortest."""


class WriteBehind:
    """The lists of all workers, and the budget."""

    def __init__(self, caches: Caches, share: float) -> None:
        """share: of the rows that a worker pulls in a step; 0: nothing is written behind."""
        self.share = share
        self.is_due = True
        """Whether rows are pushed now; otherwise they stay in the lists."""
        n, C = caches.is_outdated_nC.shape
        self.lists = IdleLists(np.empty((n, C if share else 0, 2), np.int32), np.empty((n, ENDS), np.int32))
        self.forget()
        self.credit_n = np.zeros(n)
        """The fraction of each worker's budgets so far that was not enough for a row."""

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.lists)

    @property
    def share_now(self) -> float:
        """The share in the next step."""
        return self.share if self.is_due else 0.0

    def most(self, pulls: int) -> int:
        """Most rows that a worker pushes in a step with that many pulls."""
        return int(self.share * pulls) + 1

    def note(self, uses: Uses, slots: I32) -> None:
        """Moves what the step trains to the ends of the lists; slots: of the rows in ``uses``."""
        if self.share:
            users_w = np.flatnonzero(np.diff(uses.local_starts))
            list_trained(users_w.size, users_w, self.lists, uses, slots)

    def forget(self) -> None:
        """Clears the lists, because every row has become clean."""
        self.lists.links_nC2[:, :, BEFORE] = UNLISTED
        self.lists.ends_nK[:] = NONE


@kernel
def push_idle(
    worker: int,
    lists: IdleLists,
    credit_n: F64,
    share: float,
    rows: RowStates,
    caches: Caches,
    moves: RoundMoves,
    late_from: int,
    now: int,
) -> None:
    """Pushes rows of a worker, the longest untrained first, up to a share of the pulls, which the moves have.

    Rows of step late_from, or after it, stay. now: this step, as slots have it.
    """
    links = lists.links_nC2[worker]
    ends = lists.ends_nK[worker]
    credit = credit_n[worker] + share * moves.counts_nK[worker, PULLS_COUNT]
    left = int(credit)
    credit_n[worker] = credit - left
    while left > 0 and ends[FIRST] != NONE:
        slot = ends[FIRST]
        row = int(caches.slot_nC4[worker, slot, cache.ROW])
        if _is_idle(caches, worker, slot, now) and state_of(rows, row) == OWNED and is_holder(rows, row, worker):
            if step_of(rows, row) >= late_from:
                break
            push(moves, worker, row, slot, OWNED_BEHIND)
            set_state(rows, row, CLEAN)
            left -= 1
        _take_out(links, ends, slot)


@threaded
def list_trained(w: int, users_w: I64, lists: IdleLists, uses: Uses, slots: I32) -> None:
    """Moves the rows that each worker alone uses in this step to the end of its list, in the order of its uses."""
    for k in prange(w):
        _list_trained(users_w[k], lists, uses, slots)


@kernel
def _list_trained(worker: int, lists: IdleLists, uses: Uses, slots: I32) -> None:
    links = lists.links_nC2[worker]
    ends = lists.ends_nK[worker]
    first = uses.local_starts[worker]
    for slot in slots[first : first + uses.alone_n[worker]]:
        if links[slot, BEFORE] != UNLISTED:
            _take_out(links, ends, slot)
        _append(links, ends, slot)


@kernel
def _append(links: I32, ends: I32, slot: int) -> None:
    last = ends[LAST]
    links[slot, BEFORE] = last
    links[slot, AFTER] = NONE
    if last == NONE:
        ends[FIRST] = slot
    else:
        links[last, AFTER] = slot
    ends[LAST] = slot


@kernel
def _take_out(links: I32, ends: I32, slot: int) -> None:
    before = links[slot, BEFORE]
    after = links[slot, AFTER]
    if before == NONE:
        ends[FIRST] = after
    else:
        links[before, AFTER] = after
    if after == NONE:
        ends[LAST] = before
    else:
        links[after, BEFORE] = before
    links[slot, BEFORE] = UNLISTED


@kernel
def _is_idle(caches: Caches, worker: int, slot: int, now: int) -> bool:
    """Whether the slot has a row that nobody uses in this step: its worker does not, and no other has made it outdated.

    States and holders are still those before the step.
    """
    # not one expression with "and": numba would then count references to every array of the caches, which takes 60
    # times as long as the rest
    if caches.slot_nC4[worker, slot, cache.ROW] == EMPTY or caches.slot_nC4[worker, slot, cache.LAST] == now:
        return False
    return not caches.is_outdated_nC[worker, slot]
