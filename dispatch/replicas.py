"""The directory's part in a hot set: rows every worker holds a replica of, all-reduced instead of pushed and pulled.

Replicas lie in slots of their own at the end of each cache, in the order of row numbers, and are never evicted; the
ordinary slots know nothing of them. In the step in which a hot set *enters*, what anyone trained of its rows is pushed,
ordinary copies become outdated and every worker pulls every row of it, with state. From then on, in each step:

1. *reduce*: the replicated rows that anyone uses in this batch are the last of every worker's used slots, the same rows
   in the same order for all; each worker brings its gradient (zeros for what it does not use), the sum is the same on
   all of them to the bit, and each applies the optimizer to its own replica: all stay equal, to the bit;
2. *flush*: rows changed since they were last written are written back with state, each by one worker.

Legend: U distinct rows of the batch, H rows of the hot set, R of them used in this step, n workers.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dispatch.plan import Longs, RoundPlan, WorkerUse

COLD = -1


@dataclass(frozen=True)
class Reduction:
    """The replicated rows of one batch, in its order of first use."""

    position_U: NDArray[np.int32]
    """of each row of the batch among the R, COLD if it is not replicated"""
    rows_R: Longs
    places_R: Longs
    """their places in the hot set"""
    used_n: Longs
    """how many of them each worker uses"""


class Replicas:
    """The hot set of one directory: empty until ``choose``, then fixed."""

    def __init__(self, cache_rows_n: Longs, most: int) -> None:
        self.most = most
        self.rows_H = np.empty(0, np.int64)
        self.enters = False
        """whether the next step brings the hot set to the workers"""
        self._cache_rows_n = cache_rows_n
        self._place_of_row = np.full(1, COLD, np.int32)
        """by row number; the last entry stands for all higher ones"""
        self._is_changed_H = np.empty(0, np.bool_)

    @property
    def workers(self) -> int:
        return int(self._cache_rows_n.size)

    def choose(self, rows_H: Longs) -> None:
        """Fixes the hot set."""
        assert not self.rows_H.size, "a hot set is chosen once"
        assert rows_H.size <= self.most, f"{rows_H.size} hot rows in {self.most} slots"
        self.rows_H, self.enters = np.unique(rows_H), rows_H.size > 0
        self._place_of_row = np.full(int(self.rows_H.max(initial=-1)) + 2, COLD, np.int32)
        self._place_of_row[self.rows_H] = np.arange(self.rows_H.size)
        self._is_changed_H = np.zeros(self.rows_H.size, np.bool_)

    def slots(self, worker: int, places: Longs) -> NDArray[np.int32]:
        """Where a worker keeps the rows with these places in the hot set."""
        slots: NDArray[np.int32] = (self._cache_rows_n[worker] - self.rows_H.size + places).astype(np.int32)
        return slots

    def is_replicated(self, rows_U: Longs) -> NDArray[np.bool_]:
        is_replicated: NDArray[np.bool_] = self._places(rows_U) != COLD
        return is_replicated

    def take_out(self, rows_U: Longs, uses: list[WorkerUse]) -> tuple[list[WorkerUse], Reduction]:
        """Uses of ordinary rows alone; positions of replicated ones lead behind them, to their place among the R."""
        places_U = self._places(rows_U)
        reduced = np.flatnonzero(places_U != COLD)
        position_U = np.full(rows_U.size, COLD, np.int32)
        position_U[reduced] = np.arange(reduced.size)
        used_n = np.array([np.count_nonzero(position_U[use.local] != COLD) for use in uses], np.int64)
        reduction = Reduction(position_U, rows_U[reduced], places_U[reduced].astype(np.int64), used_n)
        return [_ordinary(use, position_U) for use in uses], reduction

    def pulls(self) -> Longs:
        """Lines (worker, row, slot, 0) by which every worker gets every row of the hot set."""
        places = np.arange(self.rows_H.size)
        lines = [
            np.stack((np.full_like(places, j), self.rows_H, self.slots(j, places), np.zeros_like(places)), axis=1)
            for j in range(self.workers)
        ]
        return np.concatenate(lines)

    def add_to(self, decided: RoundPlan, reduction: Reduction) -> RoundPlan:
        """The plan of a step with its reduction; the rows reduced count as changed."""
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
            replica_pull=self.rows_H.size if self.enters else 0,
        )
        self.enters = False
        return replace(decided, workers=workers, traffic=traffic)

    def write_back(self, kind: int) -> Longs:
        """Lines (worker, row, slot, kind) by which one worker each pushes the rows changed since the last time."""
        places = np.flatnonzero(self._is_changed_H)
        self._is_changed_H[places] = False
        workers = places % self.workers
        slots = self._cache_rows_n[workers] - self.rows_H.size + places
        return np.stack((workers, self.rows_H[places], slots, np.full_like(places, kind)), axis=1)

    def _places(self, rows_U: Longs) -> NDArray[np.int32]:
        return self._place_of_row[np.minimum(rows_U, self._place_of_row.size - 1)]


def _ordinary(use: WorkerUse, position_U: NDArray[np.int32]) -> WorkerUse:
    """The use without replicated rows; every position is that in [ordinary rows | the R replicated ones]."""
    is_cold = position_U[use.local] == COLD
    cold = use.local[is_cold]
    position = cold.size + position_U[use.local]
    position[is_cold] = np.arange(cold.size)
    return WorkerUse(use.samples, cold, position[use.positions], int(np.count_nonzero(is_cold[: use.alone])))
