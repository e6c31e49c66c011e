"""The directory's part in a hot set: rows of which every worker holds a replica, all-reduced instead of pushed and
pulled.

Replicas are in separate slots, counted from the end of each cache, and are never evicted; they are independent of the
ordinary slots. In the step in which rows *enter* the set, what anyone trained of them is pushed, ordinary copies become
outdated and every worker pulls every one of them, with state. In the step in which rows *leave* it, those that changed
since they were last written are pushed with state, each by one worker; they are then clean and held by nobody, and
whoever uses them in that step pulls them after that. From then on, in each step:

1. *reduce*: the replicated rows that anyone uses in this batch are the last of every worker's used slots, the same rows
   in the same order for all; each worker contributes its gradient (zeros for rows that it does not use), the sum is the
   same on all of them to the bit, and each applies the optimizer to its own replica: all stay equal, to the bit.
2. *flush*: rows that changed since they were last written are written back with state, each by one worker.

A place that becomes free is not given out in the same step: rows that enter may be pulled while the step before still
trains the row that leaves. So the rows before a change and those that enter with it must fit into the slots together.

Legend: U distinct rows of the batch, P places for replicas, R replicated rows used in this step, n workers.
"""

from dataclasses import dataclass, replace

import numpy as np

from dispatch.placement.arrays import I32, I64, Bool
from dispatch.placement.rows import cache
from dispatch.placement.rows.cache import Caches
from dispatch.placement.rows.plan import RoundPlan
from dispatch.placement.rows.states import CLEAN, REPLICATED, RowStates, is_holder, set_state
from dispatch.placement.rows.uses import Uses
from infra.base.kernels import kernel

COLD = -1
NO_PLACES = np.empty(0, np.int64)


@dataclass(frozen=True)
class Reduction:
    """The replicated rows of one batch, in its order of first use."""

    position_U: I32
    """Position of each row of the batch among the R, COLD if it is not replicated."""
    rows_R: I64
    places_R: I64
    """Their places."""
    used_n: I64
    """How many of them each worker uses."""


class Replicas:
    """The hot set of one directory: empty until ``choose``, which may be called again between two steps."""

    def __init__(self, cache_rows_n: I64, most: int) -> None:
        self.most = most
        self.cache_rows_n = cache_rows_n
        self._row_P = np.full(most, COLD, np.int64)
        """The row at each place, COLD if there is none."""
        self._is_changed_P = np.zeros(most, np.bool_)
        """Whether it changed since it was last written."""
        self._entering = NO_PLACES
        """Places whose rows the next step brings to the workers."""
        self._leaving = NO_PLACES
        """Places that the next step frees."""
        self._place_of_row = np.full(1, COLD, np.int32)
        """Place by row number, of all rows but those that leave; the last entry represents all higher ones."""

    @property
    def workers(self) -> int:
        return int(self.cache_rows_n.size)

    @property
    def is_written_back(self) -> bool:
        """Whether the shards have every row of the hot set as the workers do."""
        return not self._is_changed_P.any()

    @property
    def rows(self) -> I64:
        """The rows that are replicated from the next step on, ascending."""
        kept = np.delete(self._row_P, self._leaving)
        return np.sort(kept[kept != COLD])

    @property
    def entering(self) -> I64:
        """The rows that the next step brings to the workers."""
        return self._row_P[self._entering]

    @property
    def leaving(self) -> I64:
        """The rows that are no longer replicated from the next step on."""
        return self._row_P[self._leaving]

    @property
    def is_empty(self) -> bool:
        """Whether no row is replicated, and none leaves."""
        return bool((self._row_P == COLD).all())

    def cached(self, worker: int) -> dict[int, int]:
        """Slot by row of the replicas that a worker holds."""
        (places,) = np.nonzero(self._row_P != COLD)
        held = np.setdiff1d(places, self._entering)
        return dict(zip(self._row_P[held].tolist(), self.slots(worker, held).tolist(), strict=True))

    def choose(self, rows: I64) -> None:
        """Replicates these rows, and no others, from the next step on."""
        assert not self._entering.size, "a hot set is chosen twice before a step"
        assert not self._leaving.size, "a hot set is chosen twice before a step"
        wanted = np.unique(rows)
        is_used_P = self._row_P != COLD
        entering = np.setdiff1d(wanted, self._row_P[is_used_P])
        (free,) = np.nonzero(~is_used_P)
        assert entering.size <= free.size, f"{entering.size} rows enter a hot set with {free.size} free slots"
        self._leaving = np.flatnonzero(is_used_P & ~np.isin(self._row_P, wanted))
        self._entering = free[: entering.size]
        self._row_P[self._entering] = entering
        self._place_of_row = np.full(int(wanted.max(initial=-1)) + 2, COLD, np.int32)
        (places,) = np.nonzero(np.isin(self._row_P, wanted))
        self._place_of_row[self._row_P[places]] = places

    def slots(self, worker: int, places: I64) -> I32:
        """The slots in which a worker keeps the rows at these places."""
        slots: I32 = (self.cache_rows_n[worker] - 1 - places).astype(np.int32)
        return slots

    def is_replicated(self, rows_U: I64) -> Bool:
        is_replicated: Bool = self._places(rows_U) != COLD
        return is_replicated

    def take_out(self, rows_U: I64, uses: Uses) -> tuple[Uses, Reduction]:
        """The uses of ordinary rows, with positions of replicated ones after them; and the reduction."""
        places_U = self._places(rows_U)
        reduced = np.flatnonzero(places_U != COLD)
        position_U = np.full(rows_U.size, COLD, np.int32)
        position_U[reduced] = np.arange(reduced.size)
        ordinary = _ordinary(uses, position_U)
        used_n = np.diff(uses.local_starts) - np.diff(ordinary.local_starts)
        return ordinary, Reduction(position_U, rows_U[reduced], places_U[reduced].astype(np.int64), used_n)

    def pulls(self) -> tuple[I64, I64]:
        """Workers, and lines (row, slot, 0), by which each of them gets every row that enters."""
        places = self._entering
        lines = [
            np.stack((self.entering, self.slots(j, places), np.zeros_like(places)), axis=1) for j in range(self.workers)
        ]
        return np.repeat(np.arange(self.workers), places.size), np.concatenate(lines)

    def add_to(self, decided: RoundPlan, reduction: Reduction) -> RoundPlan:
        """The plan of a step with its reduction; the reduced rows count as changed, and what leaves has left."""
        self._is_changed_P[reduction.places_R] = True
        workers = tuple(
            replace(
                plan,
                use_slots=np.concatenate((plan.use_slots, self.slots(j, reduction.places_R))),
                replicated=reduction.rows_R.size,
            )
            for j, plan in enumerate(decided.workers)
        )
        traffic = replace(
            decided.traffic,
            lookups=decided.traffic.lookups + reduction.used_n,
            reduced=reduction.rows_R.size,
            replica_pull=self._entering.size,
        )
        self._row_P[self._leaving] = COLD
        self._entering = self._leaving = NO_PLACES
        return replace(decided, workers=workers, traffic=traffic)

    def write_back(self, kind: int) -> tuple[I64, I64]:
        """Workers, and lines (row, slot, kind), by which one each pushes the rows that changed since the last time."""
        return self._write(np.flatnonzero(self._is_changed_P), kind)

    def write_leaving(self, kind: int) -> tuple[I64, I64]:
        """The same of the rows that leave."""
        return self._write(self._leaving[self._is_changed_P[self._leaving]], kind)

    def _write(self, places: I64, kind: int) -> tuple[I64, I64]:
        self._is_changed_P[places] = False
        workers = places % self.workers
        slots = self.cache_rows_n[workers] - 1 - places
        return workers, np.stack((self._row_P[places], slots, np.full_like(places, kind)), axis=1)

    def _places(self, rows_U: I64) -> I32:
        return self._place_of_row[np.minimum(rows_U, self._place_of_row.size - 1)]


def _ordinary(uses: Uses, position_U: I32) -> Uses:
    """The uses without replicated rows; positions are those in [its ordinary rows | the R replicated ones]."""
    replicated = position_U[uses.local]
    is_cold = replicated == COLD
    before = np.concatenate(([0], np.cumsum(is_cold)))
    starts = before[uses.local_starts]
    counts_n = np.diff(uses.local_starts)
    place = before[:-1] - np.repeat(starts[:-1], counts_n)
    place[~is_cold] = (np.repeat(np.diff(starts), counts_n) + replicated)[~is_cold]
    fields = uses.positions.size // max(1, uses.samples.size)
    entries = uses.positions + np.repeat(uses.local_starts[:-1], np.diff(uses.sample_starts) * fields)
    return uses._replace(
        local=uses.local[is_cold],
        local_starts=starts,
        positions=place[entries].astype(np.int32),
        alone_n=before[uses.local_starts[:-1] + uses.alone_n] - starts[:-1],
    )


@kernel
def give_up(hot: I64, rows: RowStates, caches: Caches) -> None:
    """Marks every holder's copy in an ordinary slot as outdated."""
    for row in hot:
        for worker in range(caches.capacity_n.size):
            if is_holder(rows, row, worker):
                cache.outdate(caches, worker, cache.slot_of(caches, worker, row))


@kernel
def set_clean(left: I64, rows: RowStates) -> None:
    """Notes that nobody holds such a row, of which the shards have the newest value."""
    for row in left:
        set_state(rows, row, CLEAN)


@kernel
def set_replicated(hot: I64, rows: RowStates) -> None:
    """Notes that everybody holds such a row in a separate slot; no bits are set, so the directory's kernels skip it."""
    for row in hot:
        set_state(rows, row, REPLICATED)
        rows[row, 1:] = 0
