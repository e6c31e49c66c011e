"""laia: each sample to the worker that already holds most of its rows.

Legend: B samples, F keys a sample, U distinct rows of the batch, n workers, Q words of 64 workers each.

Samples in batch order; among equally good workers with room the first wins, counting from worker (step mod n), as the
published code does: deterministic, and no worker is favoured for long. Links do not matter to it. A part-holder of a
split row counts as a holder, as in the cost.
"""

import numpy as np
from numpy.typing import NDArray

from dispatch.cost import held_by
from dispatch.policies.capacity import check_capacities
from dispatch.situation import Situation
from infra.kernels import kernel


class Laia:
    """Greedy by the number of rows held."""

    def __init__(self) -> None:
        self.name = "laia"

    def assign(self, situation: Situation) -> NDArray[np.int32]:
        check_capacities(situation)
        at_B: NDArray[np.int32] = _laia(
            situation.local_BF, situation.holders_UQ, situation.capacity_n, situation.step % situation.workers
        )
        return at_B


def laia_reference(situation: Situation) -> NDArray[np.int32]:
    """The same in plain numpy."""
    score_Bn = held_by(situation.holders_UQ, situation.workers)[situation.local_BF].sum(axis=1)
    scan_n = (np.arange(situation.workers) + situation.step) % situation.workers
    left_n = situation.capacity_n.copy()
    at_B = np.empty(situation.samples, dtype=np.int32)
    for i in range(situation.samples):
        at_B[i] = scan_n[np.where(left_n > 0, score_Bn[i], -1)[scan_n].argmax()]
        left_n[at_B[i]] -= 1
    return at_B


@kernel
def _laia(
    local_BF: NDArray[np.int32], holders_UQ: NDArray[np.uint64], capacity_n: NDArray[np.int64], start: int
) -> NDArray[np.int32]:
    samples, fields = local_BF.shape
    workers = capacity_n.shape[0]
    left_n = capacity_n.copy()
    score_n = np.empty(workers, dtype=np.int64)
    at_B = np.empty(samples, dtype=np.int32)
    for i in range(samples):
        score_n[:] = 0
        for f in range(fields):
            u = local_BF[i, f]
            for j in range(workers):
                score_n[j] += np.int64((holders_UQ[u, j >> 6] >> np.uint64(j & 63)) & np.uint64(1))
        best = -1
        for offset in range(workers):
            j = (start + offset) % workers
            if left_n[j] > 0 and (best < 0 or score_n[j] > score_n[best]):
                best = j
        at_B[i] = best
        left_n[best] -= 1
    return at_B
