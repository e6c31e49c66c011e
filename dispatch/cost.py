"""What each sample would cost on each worker, counted one sample at a time.

Legend: B samples, F keys a sample, U distinct rows of the batch, n workers, Q words of 64 workers each.

For each key of a sample, on worker j: the row's pull over j's link if j is not a holder, plus the push of every *other*
holder that would have to push first: the owner of an OWNED row, every part-holder of a SPLIT one, nobody for a CLEAN
one. Part-holders count as holders here although they must pull again: as a rule for placing single samples that keeps
rows where they are being used and moves clearly less than the literal count. What is charged afterwards is the
directory's business and stays strict. A row is priced once, however many samples of the batch use it.
"""

import numpy as np
from numpy.typing import NDArray

from dispatch.situation import CLEAN, Situation
from infra.kernels import kernel


def cost_matrix(situation: Situation) -> NDArray[np.float64]:
    """Cost of every sample on every worker, [B, n], in units of one row over the fastest link."""
    cost_Un = _row_costs(situation.state_U, situation.holders_UQ, situation.row_cost_n)
    return _sum_rows(cost_Un, situation.local_BF)


def cost_matrix_reference(situation: Situation) -> NDArray[np.float64]:
    """The same in plain numpy."""
    held_Un = held_by(situation.holders_UQ, situation.workers)
    pushes_Un = held_Un * situation.row_cost_n * (situation.state_U != CLEAN)[:, None]
    pulls_Un = ~held_Un * situation.row_cost_n
    cost_Un = pulls_Un + pushes_Un.sum(axis=1, keepdims=True) - pushes_Un
    cost_Bn: NDArray[np.float64] = cost_Un[situation.local_BF].sum(axis=1)
    return cost_Bn


def held_by(holders_UQ: NDArray[np.uint64], workers: int) -> NDArray[np.bool_]:
    """The holder words as one boolean per row and worker, [U, n]."""
    worker_n = np.arange(workers)
    bits_Un = holders_UQ[:, worker_n // 64] >> (worker_n % 64).astype(np.uint64)
    return (bits_Un & np.uint64(1)).astype(np.bool_)


@kernel
def _row_costs(
    state_U: NDArray[np.uint8], holders_UQ: NDArray[np.uint64], row_cost_n: NDArray[np.float64]
) -> NDArray[np.float64]:
    rows, workers = state_U.shape[0], row_cost_n.shape[0]
    cost_Un = np.empty((rows, workers), dtype=np.float64)
    for u in range(rows):
        # arithmetic instead of branches: who holds what cannot be predicted
        must_push = 0.0 if state_U[u] == CLEAN else 1.0
        pushes = 0.0
        for j in range(workers):
            held = np.float64((holders_UQ[u, j >> 6] >> np.uint64(j & 63)) & np.uint64(1))
            push = held * must_push * row_cost_n[j]
            pushes += push
            cost_Un[u, j] = (1.0 - held) * row_cost_n[j] - push
        for j in range(workers):
            cost_Un[u, j] += pushes
    return cost_Un


@kernel
def _sum_rows(cost_Un: NDArray[np.float64], local_BF: NDArray[np.int32]) -> NDArray[np.float64]:
    samples, fields = local_BF.shape
    workers = cost_Un.shape[1]
    cost_Bn = np.zeros((samples, workers), dtype=np.float64)
    for i in range(samples):
        for f in range(fields):
            u = local_BF[i, f]
            for j in range(workers):
                cost_Bn[i, j] += cost_Un[u, j]
    return cost_Bn
