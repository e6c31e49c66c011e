"""laia_adaptive's assignment: laia's on a few worthwhile tables, so that scoring fits a time budget (Herald §4.3).

Legend: B samples, F keys per sample, U distinct rows of the batch, n workers, Q words of 64 workers each.

A table is worthwhile if most of its cached rows are used so rarely that one worker could train them all: a row is
infrequent if it is in fewer than B/n samples of a batch. The degree of infrequency is infrequent over cached rows, a
running figure that is updated every few steps. How many tables fit the budget follows from a fixed time per lookup and
not from a clock, so that a replay decides the same.
"""

import numpy as np

from dispatch.placement.arrays import F64, I32, I64, U64
from dispatch.placement.assign.rows_held import assign_by_rows_held
from dispatch.placement.assign.situation import Assignment, Situation, check_capacities
from infra.base.kernels import kernel

LOOKUP_NS = 2.0
"""Time to score one key of a sample on one worker."""
PROFILE_STEPS = 10
"""Steps between two updates of the profile."""
KEPT = 0.8
"""Weight of the old profile at each update."""


class LaiaAdaptive:
    """Greedy by the number of rows held, of the tables with the highest degree of infrequency."""

    def __init__(self, budget_ms: float) -> None:
        self._budget_ms = budget_ms
        self._seen_2F: F64 | None = None
        self._chosen: I64 = np.empty(0, np.int64)

    def assign(self, situation: Situation) -> Assignment:
        check_capacities(situation)
        wanted = tables_within(self._budget_ms, situation)
        if self._seen_2F is None or situation.step % PROFILE_STEPS == 0 or wanted != self._chosen.size:
            self._profile(situation, wanted)
        return Assignment(assign_by_rows_held(situation, np.ascontiguousarray(situation.local_BF[:, self._chosen])))

    def _profile(self, situation: Situation, wanted: int) -> None:
        """Adds a batch to the profile and chooses the tables again; equal ones in their order."""
        now_2F = count_infrequent(situation.local_BF, situation.holders_UQ, situation.workers)
        self._seen_2F = now_2F if self._seen_2F is None else KEPT * self._seen_2F + now_2F
        infrequent_F, cached_F = self._seen_2F
        degree_F = np.where(cached_F > 0, infrequent_F / np.maximum(cached_F, 1e-9), 1.0)
        self._chosen = np.sort(np.argsort(-degree_F, kind="stable")[:wanted])


def tables_within(budget_ms: float, situation: Situation) -> int:
    """How many tables can be scored in the budget; at least one."""
    table_ms = situation.samples * situation.workers * LOOKUP_NS / 1e6
    fields = situation.local_BF.shape[1]
    return fields if table_ms * fields <= budget_ms else max(1, int(budget_ms / table_ms))


def count_infrequent_reference(local_BF: I32, holders_UQ: U64, workers: int) -> F64:
    """What ``count_infrequent`` must compute, with numpy."""
    counts_2F = np.zeros((2, local_BF.shape[1]))
    for f in range(local_BF.shape[1]):
        rows, uses = np.unique(local_BF[:, f], return_counts=True)
        is_cached = holders_UQ[rows].any(axis=1)
        counts_2F[:, f] = (is_cached & (uses * workers < local_BF.shape[0])).sum(), is_cached.sum()
    return counts_2F


@kernel
def count_infrequent(local_BF: I32, holders_UQ: U64, workers: int) -> F64:
    """For each table: infrequent cached rows of the batch, and cached rows of the batch."""
    samples, fields = local_BF.shape
    counts_2F = np.zeros((2, fields))
    uses_U = np.zeros(holders_UQ.shape[0], np.int64)
    for f in range(fields):
        for i in range(samples):
            uses_U[local_BF[i, f]] += 1
        for i in range(samples):
            u = local_BF[i, f]
            if uses_U[u] > 0 and holders_UQ[u].any():
                counts_2F[0, f] += uses_U[u] * workers < samples
                counts_2F[1, f] += 1
            uses_U[u] = 0
    return counts_2F
