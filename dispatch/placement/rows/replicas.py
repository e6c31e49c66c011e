"""The directory's part in a hot set: rows of which every worker holds a replica, all-reduced instead of pushed and
pulled.

Replicas are in separate slots at the end of each cache, in the order of row numbers, and are never evicted; they are
independent of the ordinary slots. In the step in which a hot set *enters*, what anyone trained of its rows is pushed,
ordinary copies become outdated and every worker pulls every row of it, with state. From then on, in each step:

1. *reduce*: the replicated rows that anyone uses in this batch are the last of every worker's used slots, the same rows
   in the same order for all; each worker contributes its gradient (zeros for rows that it does not use), the sum is the
   same on all of them to the bit, and each applies the optimizer to its own replica: all stay equal, to the bit.
2. *flush*: rows that changed since they were last written are written back with state, each by one worker.

Legend: U distinct rows of the batch, H rows of the hot set, R of them used in this step, n workers.
"""

from dataclasses import dataclass, replace

import numpy as np

from dispatch.placement.arrays import I32, I64, Bool
from dispatch.placement.rows import cache
from dispatch.placement.rows.cache import Caches
from dispatch.placement.rows.plan import RoundPlan
from dispatch.placement.rows.states import REPLICATED, RowStates, is_holder, set_state
from dispatch.placement.rows.uses import Uses
from infra.base.kernels import kernel

COLD = -1
NO_ROWS = np.empty(0, np.int64)


@dataclass(frozen=True)
class Reduction:
    """The replicated rows of one batch, in its order of first use."""

    position_U: I32
    """Position of each row of the batch among the R, COLD if it is not replicated."""
    rows_R: I64
    places_R: I64
    """Their places in the hot set."""
    used_n: I64
    """How many of them each worker uses."""


class Replicas:
    """The hot set of one directory: empty until ``choose``, then fixed."""

    def __init__(self, cache_rows_n: I64, most: int) -> None:
        self.most = most
        self.rows_H = np.empty(0, np.int64)
        self._enters = False
        """Whether the next step brings the hot set to the workers."""
        self.cache_rows_n = cache_rows_n
        self._place_of_row = np.full(1, COLD, np.int32)
        """Place in the hot set by row number; the last entry represents all higher ones."""
        self._is_changed_H = np.empty(0, np.bool_)

    @property
    def workers(self) -> int:
        return int(self.cache_rows_n.size)

    @property
    def is_written_back(self) -> bool:
        """Whether the shards have every row of the hot set as the workers do."""
        return not self._is_changed_H.any()

    @property
    def entering(self) -> I64:
        """The rows that the next step brings to the workers."""
        return self.rows_H if self._enters else NO_ROWS

    def cached(self, worker: int) -> dict[int, int]:
        """Slot by row of the replicas that a worker holds."""
        slots = self.slots(worker, np.arange(self.rows_H.size))
        return {} if self._enters else dict(zip(self.rows_H.tolist(), slots.tolist(), strict=True))

    def choose(self, rows_H: I64) -> None:
        """Fixes the hot set."""
        assert not self.rows_H.size, "a hot set is chosen once"
        assert rows_H.size <= self.most, f"{rows_H.size} hot rows in {self.most} slots"
        self.rows_H = np.unique(rows_H)
        self._enters = rows_H.size > 0
        self._place_of_row = np.full(int(self.rows_H.max(initial=-1)) + 2, COLD, np.int32)
        self._place_of_row[self.rows_H] = np.arange(self.rows_H.size)
        self._is_changed_H = np.zeros(self.rows_H.size, np.bool_)

    def slots(self, worker: int, places: I64) -> I32:
        """The slots in which a worker keeps the rows with these places in the hot set."""
        slots: I32 = (self.cache_rows_n[worker] - self.rows_H.size + places).astype(np.int32)
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
        """Workers, and lines (row, slot, 0), by which each of them gets every row of the hot set."""
        places = np.arange(self.rows_H.size)
        lines = [
            np.stack((self.rows_H, self.slots(j, places), np.zeros_like(places)), axis=1) for j in range(self.workers)
        ]
        return np.repeat(np.arange(self.workers), places.size), np.concatenate(lines)

    def add_to(self, decided: RoundPlan, reduction: Reduction) -> RoundPlan:
        """The plan of a step with its reduction; the reduced rows count as changed."""
        self._is_changed_H[reduction.places_R] = True
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
            replica_pull=self.entering.size,
        )
        self._enters = False
        return replace(decided, workers=workers, traffic=traffic)

    def write_back(self, kind: int) -> tuple[I64, I64]:
        """Workers, and lines (row, slot, kind), by which one each pushes the rows that changed since the last time."""
        places = np.flatnonzero(self._is_changed_H)
        self._is_changed_H[places] = False
        workers = places % self.workers
        slots = self.cache_rows_n[workers] - self.rows_H.size + places
        return workers, np.stack((self.rows_H[places], slots, np.full_like(places, kind)), axis=1)

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
def set_replicated(hot: I64, rows: RowStates) -> None:
    """Notes that everybody holds such a row in a separate slot; no bits are set, so the directory's kernels skip it."""
    for row in hot:
        set_state(rows, row, REPLICATED)
        rows[row, 1:] = 0
