"""The directory: which workers hold each row and in which state; coherence is decided one step ahead.

A pure function of the sequence of (batch, assignment): it is never queried over the network and is the same code live,
in the simulator and in tests. For each step it says exactly which worker pushes, pulls and evicts which row:

1. *synchronise*: if anyone but its owner uses a row of this batch, the owner pushes it; a split row is pushed by every
   part-holder; copies held by workers that do not use the row become outdated, since it is about to change (under full
   synchronisation all rows that the step before trained are pushed first, used or not).
2. *give slots*: every row that a worker uses gets a slot; what it does not hold in its newest state is pulled; if there
   is no room, others are evicted, and what only this worker has of them (an owned row, or a part) is pushed first.
3. *advance*: a row used by one worker is owned by it, a row used by several is split over them.

Between 2 and 3, within a budget, owners push rows that nobody needs yet (dispatch/placement/rows/behind.py).

The plan of a step does not depend on 3, so 3 is done while the plan is on its way (infra.base.rest.py).

Transfers of rows that the step before did not train are marked as early (dispatch/placement/rows/plan.py).

Rows of a hot set, if there is one, are replicated instead (dispatch/placement/rows/replicas.py) and take no part in
this.

Legend: B samples, F keys per sample, U distinct rows of the batch, n workers, Q words of 64 workers each, C slots,
M masks of a row.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from dispatch.placement.arrays import F64, I32, I64, U8, U64
from dispatch.placement.errors import CacheTooSmall
from dispatch.placement.rows import cache
from dispatch.placement.rows.behind import WriteBehind
from dispatch.placement.rows.cache import EVICTIONS
from dispatch.placement.rows.coherence import (
    advance,
    drop_all_copies,
    drop_copies,
    find_used,
    flush,
    forget,
    give_slots,
    hold_cached,
    leave,
    push_trained,
    settle,
    synchronise,
)
from dispatch.placement.rows.holders import WORD_BITS, everybody, members_of, words_for
from dispatch.placement.rows.index import BatchRows
from dispatch.placement.rows.moves import (
    OWNED_FLUSH,
    OWNED_UPDATE,
    PULLS_COUNT,
    RoundMoves,
    add_pulls,
    add_pushes,
    emptied,
    empty_moves,
)
from dispatch.placement.rows.plan import RoundPlan, make_round
from dispatch.placement.rows.replicas import COLD, Replicas, give_up, set_clean, set_replicated
from dispatch.placement.rows.states import (
    CLEAN,
    REPLICATED,
    STATE_MASK,
    RowStates,
    copy_clean,
    gather,
    growing_states,
    is_any_unwritten,
    masks_of,
    set_last_steps,
    set_masks,
)
from dispatch.placement.rows.uses import Uses, make_uses
from infra.base.hashing import EMPTY
from infra.base.kernels import ranges_for
from infra.base.rest import LeftOver

Synchronisation = Literal["on_demand", "full"]
"""Whether an update is pushed when another worker needs the row, or always in the step after it."""


NOTHING_UNDER_WAY = 1 << 62
FIRST_ROWS = 1024


class Forgotten(NamedTuple):
    """Rows whose keys were forgotten."""

    rows: I64
    """Their numbers, ascending."""
    live: int
    """The number of chunks of them that were live."""


class Directory:
    """Who holds what. One per generation: it starts with every row clean, and held by nobody unless it continues."""

    def __init__(
        self,
        cache_rows_n: I64,
        eviction: str,
        shards: int,
        synchronisation: Synchronisation = "on_demand",
        replicas: int = 0,
        write_behind: float = 0.0,
    ) -> None:
        """replicas: slots of each cache that are reserved for a hot set.

        write_behind: most owned rows that a worker pushes ahead of a flush, as a share of the rows it pulls.
        """
        self.workers = cache_rows_n.size
        self.shards = shards
        self._eviction = EVICTIONS[eviction]
        self._caches = cache.empty_caches(cache_rows_n)
        self._caches.capacity_n[:] -= replicas
        self._replicas = Replicas(cache_rows_n, replicas)
        self._rest = LeftOver()
        """What the last plan left to do; only ``_rows`` and ``_behind`` depend on it, and wait for it."""
        self._all_states = growing_states(words_for(self.workers))
        self._states = self._all_states.first(FIRST_ROWS)
        self._synchronisation = synchronisation
        # under full synchronisation every row has been pushed before it could be written behind
        self._idle_lists = WriteBehind(self._caches, write_behind if synchronisation == "on_demand" else 0.0)
        self._trained = np.empty(0, np.int64)
        """Rows whose updates the next step pushes in any case."""
        self._late_from = NOTHING_UNDER_WAY
        """The last step; transfers of rows that it trains have to wait for it."""
        self._moves = empty_moves(self.workers, 0, 0, 0)
        """Those of the last step; their memory is used again."""
        self._sizes_M: F64 | None = None
        """Size of a row by its mask; None: all rows are whole."""

    @property
    def _rows(self) -> RowStates:
        """What is known of every row."""
        self._rest.wait()
        return self._states

    @property
    def _behind(self) -> WriteBehind:
        self._rest.wait()
        return self._idle_lists

    def write_behind(self, is_due: bool) -> None:
        """Sets whether owners push rows ahead of a flush from now on; by default they do."""
        self._behind.is_due = is_due

    def use_sizes(self, sizes_M: F64 | None) -> None:
        """Sets the bytes of a row by its mask, over those of a whole one; None, as by default: all rows are whole."""
        self._sizes_M = sizes_M

    def sizes(self, rows: I64) -> F64 | None:
        """Bytes of each row over those of a whole one; None if all rows are whole."""
        return None if self._sizes_M is None else self._sizes_M[self.masks(rows)]

    @property
    def nbytes(self) -> int:
        return self._rows.nbytes + self._behind.nbytes + sum(array.nbytes for array in self._caches)

    @property
    def cache_rows_n(self) -> I64:
        """Slots of each worker's cache for rows that are not replicated."""
        return self._caches.capacity_n

    @property
    def replicas(self) -> int:
        """Most rows of a hot set."""
        return self._replicas.most

    def continue_from(self, old: "Directory", members: Sequence[int | None]) -> list[bool]:
        """Takes over caches of the generation before, between its flush and the first step of this one.

        members: the number that each worker had there, None for a newcomer. Returns whether each worker keeps its
        cache: one that stays does, unless the cache has another size now. Replicas are dropped.
        """
        assert len(members) == self.workers, f"{len(members)} members in a directory of {self.workers} workers"
        assert not is_any_unwritten(old._rows), "rows have not been written back"
        assert old._replicas.is_written_back, "replicas have not been written back"
        self._reserve(len(old._rows))
        copy_clean(old._rows, self._states[: len(old._rows)])
        sizes = self._replicas.cache_rows_n
        old_sizes = old._replicas.cache_rows_n
        keeps = [False] * self.workers
        for worker, was in enumerate(members):
            if was is not None and old_sizes[was] == sizes[worker]:
                keeps[worker] = True
                cache.carry_over(old._caches, was, self._caches, worker)
                hold_cached(worker, self._rows, self._caches)
        return keeps

    def load(self, last_steps_R: I64, masks_R: U8 | None = None) -> None:
        """Takes over when each row was last trained and, if rows have chunks, their masks, from a checkpoint, before
        the first step.
        """
        self._reserve(last_steps_R.size)
        set_last_steps(self._states[: last_steps_R.size], last_steps_R, masks_R)

    def forget(self, keys_R: U64, before: int) -> Forgotten:
        """Forgets the rows with a key that were last trained before a step.

        What only workers have of them is lost, and their copies leave first when room is needed. The shards must drop
        the parts of split rows.
        """
        self._reserve(keys_R.size)
        return Forgotten(*forget(keys_R, before, self._rows, self._caches))

    def set_masks(self, rows: I64, masks: U8) -> None:
        """Sets which chunks of new rows are live."""
        self._reserve(int(rows.max(initial=-1)) + 1)
        set_masks(self._rows, rows, masks)

    def masks(self, rows: I64) -> U8:
        """Which chunks of these rows are live."""
        self._reserve(int(rows.max(initial=-1)) + 1)
        return masks_of(self._rows, rows)

    def reshape(self, rows: I64, masks: U8) -> None:
        """Sets the masks of these rows, which have changed on the shards, and drops every copy of them; to be called
        between a flush and the next step.
        """
        self.set_masks(rows, masks)
        drop_copies(rows, self._rows, self._caches)

    def drop_copies(self) -> None:
        """Drops every copy of every row; to be called between a flush and the next step."""
        drop_all_copies(self._rows, self._caches)

    @property
    def replicated(self) -> I64:
        """The rows that every worker has a replica of, ascending."""
        return self._replicas.rows

    def replicate(self, rows: I64, for_good: bool = False) -> None:
        """Replicates these rows, and no others, on every worker from the next step on.

        for_good: whether they are never exchanged, so that slots which they do not need become ordinary ones.
        """
        self._reserve(int(rows.max(initial=-1)) + 1)
        self._replicas.choose(rows)
        if for_good:
            self._caches.capacity_n[:] += self._replicas.most - rows.size

    def look_up(self, batch: BatchRows) -> tuple[U8, U64]:
        """State and holders of the batch's rows, in the form that a policy needs."""
        self._reserve(batch.end)
        state_U, holders_UQ = gather(self._rows, batch.rows_U)
        if not self._replicas.is_empty:
            state_U[np.isin(batch.rows_U, self._replicas.leaving)] = CLEAN  # and held by nobody
            replicated = self._replicas.is_replicated(batch.rows_U)
            state_U[replicated], holders_UQ[replicated] = CLEAN, everybody(self.workers)
        return state_U, holders_UQ

    def plan(self, step: int, batch: BatchRows, assignment_B: I32) -> RoundPlan:
        """Decides everything that moves in this step, and assumes that the step will be done."""
        self._reserve(batch.end)
        uses, users_UQ = make_uses(self.workers, batch.local_BF, assignment_B, batch.rows_U.size)
        reduction = None
        if not self._replicas.is_empty:
            uses, reduction = self._replicas.take_out(batch.rows_U, uses)
        self._check_room(uses)
        state_U, holders_UQ = gather(self._rows, batch.rows_U)
        entering, leaving = self._replicas.entering, self._replicas.leaving
        first = np.concatenate((self._trained, entering, leaving))
        pulls = int(np.diff(uses.local_starts).max()) + entering.size
        held = min(batch.rows_U.size, self._caches.is_outdated_nC.shape[1])  # a worker pushes only what it holds
        pushes = first.size + held + pulls + self._behind.most(pulls)
        moves = emptied(self._moves, pushes, pulls, first.size + batch.rows_U.size + uses.local.size)
        self._moves = moves
        if first.size:
            push_trained(self._trained, self._rows, self._caches, moves)
            if leaving.size:
                add_pushes(moves, *self._replicas.write_leaving(OWNED_UPDATE))
                set_clean(leaving, self._rows)
            if entering.size:
                self._enter(entering, moves)
            state_U, holders_UQ = gather(self._rows, batch.rows_U)
        slots = np.empty(uses.local.size, np.int32)
        now = step & 0x7FFFFFFF
        holding_w = members_of(holders_UQ, self.workers)
        synchronise(holding_w.size, holding_w, batch.rows_U, users_UQ, state_U, holders_UQ, self._caches, moves)
        find_used(ranges_for(slots.size), batch.rows_U, uses, now, self._caches, slots)
        busy_w = np.flatnonzero(np.diff(uses.local_starts) + moves.counts_nK[:, PULLS_COUNT])
        give_slots(
            busy_w.size,
            busy_w,
            batch.rows_U,
            state_U,
            holders_UQ,
            uses,
            now,
            self._late_from,
            self._rows,
            self._caches,
            self._eviction,
            self._behind.lists,
            self._behind.credit_n,
            self._behind.share_now,
            moves,
            slots,
        )
        settle(batch.rows_U, state_U, self._rows, moves)
        decided = make_round(self.workers, self.shards, moves, uses, slots, self._rows, self._late_from, self._sizes_M)
        self._late_from = step
        rows, behind = self._rows, self._behind

        def conclude() -> None:
            behind.note(uses, slots)
            leave(rows, moves)
            advance(ranges_for(batch.rows_U.size), step, batch.rows_U, users_UQ, rows)
            if reduction is not None:
                set_replicated(reduction.rows_R, rows)

        self._rest.leave(conclude, batch.rows_U.size)
        if reduction is not None:
            decided = self._replicas.add_to(decided, reduction)
        if self._synchronisation == "full":
            self._trained = batch.rows_U if reduction is None else batch.rows_U[reduction.position_U == COLD]
        return decided

    def flush(self) -> RoundPlan:
        """Writes every owned, split or replicated row back; owners keep a clean copy, everyone keeps its replicas."""
        slots = self._caches.is_outdated_nC.shape[1]
        moves = empty_moves(self.workers, slots + self._replicas.most, 0, slots * self.workers)
        flush(self._rows, self._caches, moves)
        self._behind.forget()
        add_pushes(moves, *self._replicas.write_back(OWNED_FLUSH))
        none = np.empty(0, np.int32)
        return make_round(self.workers, self.shards, moves, None, none, self._rows, sizes_M=self._sizes_M)

    def holders(self, row: int) -> tuple[int, set[int]]:
        """State and holders of one row, for tests and debugging."""
        first, *words = self._rows[row].tolist()
        state = first & int(STATE_MASK)
        if state == REPLICATED:
            return REPLICATED, set(range(self.workers))
        return state, {j for j in range(self.workers) if words[j // WORD_BITS] >> j % WORD_BITS & 1}

    def cached(self, worker: int) -> dict[int, int]:
        """Slot by row of one worker's cache, including outdated copies, but without rows of which
        it holds a replica.
        """
        rows = self._caches.slot_nC4[worker, :, cache.ROW]
        return {int(row): slot for slot, row in enumerate(rows) if row != EMPTY} | self._replicas.cached(worker)

    def _enter(self, entering: I64, moves: RoundMoves) -> None:
        """Pushes what anyone trained of these rows, drops ordinary copies, and lets every worker pull a replica."""
        push_trained(entering, self._rows, self._caches, moves)
        give_up(entering, self._rows, self._caches)
        set_replicated(entering, self._rows)
        add_pulls(moves, *self._replicas.pulls())

    def _reserve(self, rows: int) -> None:
        if rows > len(self._states):
            self._rest.wait()
            self._states = self._all_states.first(rows)

    def _check_room(self, uses: Uses) -> None:
        for worker, used in enumerate(np.diff(uses.local_starts).tolist()):
            if used > self._caches.capacity_n[worker]:
                raise CacheTooSmall(
                    f"cache of worker {worker} cannot hold its micro-batch; it has "
                    f"{self._caches.capacity_n[worker]} slots for {used} rows; expected a slot for each row; raise "
                    f"dispatch.cache_rows"
                )
