"""laia's assignment: each sample to the worker that already holds most of its rows.

Legend: B samples, F keys per sample, U distinct rows of the batch, n workers, Q words of 64 workers each.

A row counts for a worker that has its newest value: nobody has that of a split row, whatever parts they hold. With
``parts_hold``, part-holders count as holders, as in esd's cost unless that is strict; a comparison is fair only with
the same rule on both sides. A row that occurs twice in a sample counts once.

Samples are placed in batch order; among equally good workers with room the first wins, counting from worker (number of
the sample mod n). This spreads samples of unknown rows as evenly as Herald's random choice does, and is deterministic;
counting from the same worker throughout a batch would pile them up on one. Links do not matter.
"""

import numpy as np

from dispatch.placement.arrays import I32, I64, U8, U64
from dispatch.placement.assign.situation import Assignment, Situation, check_capacities
from dispatch.placement.rows.holders import held, held_by
from dispatch.placement.rows.states import SPLIT
from infra.base.kernels import kernel


class Laia:
    """Greedy by the number of rows held."""

    def __init__(self, parts_hold: bool = False) -> None:
        self._parts_hold = parts_hold

    def assign(self, situation: Situation) -> Assignment:
        check_capacities(situation)
        return Assignment(assign_by_rows_held(situation, situation.local_BF, self._parts_hold))


def assign_by_rows_held(situation: Situation, local_BF: I32, parts_hold: bool = False) -> I32:
    """A worker per sample by the rows that count, which may be those of some tables only."""
    first = (situation.step * situation.samples) % situation.workers
    at_B: I32 = _laia(local_BF, situation.state_U, situation.holders_UQ, situation.capacity_n, first, parts_hold)
    return at_B


def laia_reference(situation: Situation, parts_hold: bool = False) -> I32:
    """The same in plain numpy."""
    counts_U = (situation.state_U != SPLIT) | parts_hold
    newest_Un = held_by(situation.holders_UQ, situation.workers) & counts_U[:, None]
    score_Bn = np.array([newest_Un[np.unique(rows_F)].sum(axis=0) for rows_F in situation.local_BF])
    left_n = situation.capacity_n.copy()
    at_B = np.empty(situation.samples, dtype=np.int32)
    for i in range(situation.samples):
        scan_n = (np.arange(situation.workers) + situation.step * situation.samples + i) % situation.workers
        at_B[i] = scan_n[np.where(left_n > 0, score_Bn[i], -1)[scan_n].argmax()]
        left_n[at_B[i]] -= 1
    return at_B


@kernel
def _laia(
    local_BF: I32,
    state_U: U8,
    holders_UQ: U64,
    capacity_n: I64,
    first: int,
    parts_hold: bool,
) -> I32:
    samples, fields = local_BF.shape
    workers = capacity_n.shape[0]
    left_n = capacity_n.copy()
    score_n = np.empty(workers, dtype=np.int64)
    seen_U = np.full(state_U.shape[0], -1, dtype=np.int32)
    at_B = np.empty(samples, dtype=np.int32)
    for i in range(samples):
        score_n[:] = 0
        for f in range(fields):
            u = local_BF[i, f]
            if seen_U[u] == i or (state_U[u] == SPLIT and not parts_hold):
                continue
            seen_U[u] = i
            for j in range(workers):
                score_n[j] += np.int64(held(holders_UQ, u, j))
        best = -1
        for offset in range(workers):
            j = (first + i + offset) % workers
            if left_n[j] > 0 and (best < 0 or score_n[j] > score_n[best]):
                best = j
        at_B[i] = best
        left_n[best] -= 1
    return at_B
