"""Write-behind: owners push rows before anyone needs them, so that a flush finds little left to write back.

Every worker has a queue of the rows that it trained alone, in the order in which they were last trained. In each step
the first ones, which have not been trained for longest, leave it: at most a share of the rows that the worker pulls in
this step, and none that this step or the one before trains. They are pushed with state, in the round that nobody waits
for, and become clean; the owner keeps its copy. This changes what moves and when, but no bit of the model.

An entry of a queue is (slot, step), and counts only while the slot was last used in that step: a row that is trained
again, or leaves its slot, has another entry or none. If the queue's array is full, entries that no longer count are
removed, which leaves at most one per slot: each entry is written, moved and read a bounded number of times.

Legend: n workers, C slots, K = 2C entries.
"""

from typing import NamedTuple

import numpy as np

from dispatch.placement.arrays import I32, I64
from dispatch.placement.rows import cache
from dispatch.placement.rows.cache import Caches
from dispatch.placement.rows.moves import MOVE_WORKER, OWNED_BEHIND, PULLS_COUNT, RoundMoves, push
from dispatch.placement.rows.states import CLEAN, OWNED, RowStates, set_state, state_of, step_of
from dispatch.placement.rows.uses import Uses
from infra.base.kernels import kernel

HEAD = 0
"""Columns of ``ends_n2``."""
TAIL = 1

ENTRY_SLOT = 0
"""columns of ``entries_nK2``"""
ENTRY_STEP = 1


class IdleQueues(NamedTuple):
    """Plain arrays, so that kernels can take them whole."""

    entries_nK2: I32
    """Slot, and step modulo 2^31."""
    ends_n2: I64
    """Where the entries of each worker begin and end."""


class WriteBehind:
    """The queues of all workers, and the budget."""

    def __init__(self, caches: Caches, share: float) -> None:
        """share: of the rows that a worker pulls in a step; 0: nothing is written behind."""
        self.share = share
        self.is_due = True
        """Whether rows are pushed now; otherwise they stay in the queues."""
        n, C = caches.is_outdated_nC.shape
        self._queues = IdleQueues(np.empty((n, 2 * C if share else 0, 2), np.int32), np.zeros((n, 2), np.int64))
        self.forget()
        self._credit_n = np.zeros(n)
        """The fraction of each worker's budgets so far that was not enough for a row."""

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._queues)

    def most(self, pulls: int) -> int:
        """Most rows that are pushed in a step with that many pulls."""
        return int(self.share * pulls) + self._credit_n.size if self.share else 0

    def push(self, rows: RowStates, caches: Caches, moves: RoundMoves, late_from: int) -> None:
        """Adds this step's rows to the moves, which have all its pulls; rows of step late_from, or after it, stay."""
        if self.share and self.is_due:
            pulls_n = np.bincount(
                moves.pulls_4[: moves.counts[PULLS_COUNT], MOVE_WORKER], minlength=self._credit_n.size
            )
            self._credit_n += self.share * pulls_n
            budget_n = self._credit_n.astype(np.int64)
            self._credit_n -= budget_n
            push_idle(self._queues, budget_n, rows, caches, moves, late_from)

    def note(self, uses: Uses, slots: I32, step: int, caches: Caches) -> None:
        """Adds what the step trains to the queues; slots: of the rows in ``uses``."""
        if self.share:
            queue_trained(self._queues, uses, slots, step, caches)

    def forget(self) -> None:
        """Clears the queues, because every row has become clean."""
        n, K, _ = self._queues.entries_nK2.shape
        # at different places, so that they do not all become full and are compacted in the same step
        self._queues.ends_n2[:] = (np.arange(n) * K // n)[:, np.newaxis]


@kernel
def push_idle(
    queues: IdleQueues, budget_n: I64, rows: RowStates, caches: Caches, moves: RoundMoves, late_from: int
) -> None:
    """Pushes up to that many rows of each worker, the longest untrained first."""
    for worker in range(budget_n.size):
        entries = queues.entries_nK2[worker]
        ends = queues.ends_n2[worker]
        left = budget_n[worker]
        while left > 0 and ends[HEAD] < ends[TAIL]:
            slot = entries[ends[HEAD], ENTRY_SLOT]
            step = entries[ends[HEAD], ENTRY_STEP]
            row = int(caches.slot_nC4[worker, slot, cache.ROW])
            if _counts(caches, worker, slot, step) and state_of(rows, row) == OWNED:
                if step_of(rows, row) >= late_from:
                    break
                push(moves, worker, row, slot, OWNED_BEHIND)
                set_state(rows, row, CLEAN)
                left -= 1
            ends[HEAD] += 1


@kernel
def queue_trained(queues: IdleQueues, uses: Uses, slots: I32, step: int, caches: Caches) -> None:
    """Adds the rows that each worker alone uses in this step, in the order of its uses."""
    for worker in range(uses.alone_n.size):
        entries = queues.entries_nK2[worker]
        ends = queues.ends_n2[worker]
        first = uses.local_starts[worker]
        if ends[TAIL] + uses.alone_n[worker] > entries.shape[0]:
            _close_up(queues, worker, caches)
        for slot in slots[first : first + uses.alone_n[worker]]:
            entries[ends[TAIL], ENTRY_SLOT] = slot
            entries[ends[TAIL], ENTRY_STEP] = step
            ends[TAIL] += 1


@kernel
def _close_up(queues: IdleQueues, worker: int, caches: Caches) -> None:
    """Moves the valid entries to the front. The slots of this step's rows have none, so there is room for them."""
    entries = queues.entries_nK2[worker]
    ends = queues.ends_n2[worker]
    kept = 0
    for i in range(ends[HEAD], ends[TAIL]):
        if _counts(caches, worker, entries[i, ENTRY_SLOT], entries[i, ENTRY_STEP]):
            entries[kept] = entries[i]
            kept += 1
    ends[HEAD], ends[TAIL] = 0, kept


@kernel
def _counts(caches: Caches, worker: int, slot: int, step: int) -> bool:
    """Whether the slot still holds the row that this step trained there."""
    return bool(caches.slot_nC4[worker, slot, cache.LAST] == step and not caches.is_outdated_nC[worker, slot])
