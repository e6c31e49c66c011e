"""What each sample would cost on each worker, counted one sample at a time.

Legend: B samples, F keys a sample, U distinct rows of the batch, n workers, Q words of 64 workers each.

For each key of a sample, on worker j: the row's pull over j's link if j is not a holder, plus the push of every *other*
holder that would have to push first: the owner of an OWNED row, every part-holder of a SPLIT one, nobody for a CLEAN
one. Part-holders count as holders here although they must pull again: as a rule for placing single samples that keeps
rows where they are being used and moves clearly less than the literal count. What is charged afterwards is the
directory's business and stays strict.

Per sample this comes to P + T_j · (F − h_j), with P the pushes if no holder trained it, T_j the cost of a row over j's
link, and h_j its keys that j holds, those that j would not have to push either counted twice. Nothing of size rows ×
workers is needed.
"""

import numpy as np

from dispatch.arrays import F64, I32, U8, U64
from dispatch.assign.situation import Situation
from dispatch.rows.holders import WORD_BITS, bit_at, held, held_by
from dispatch.rows.states import CLEAN
from infra.kernels import kernel


def cost_matrix(situation: Situation) -> F64:
    """Cost of every sample on every worker, [B, n], in units of one row over the fastest link."""
    pushes_U = _pushes(situation.state_U, situation.holders_UQ, situation.row_cost_n)
    return _costs(situation.local_BF, situation.state_U, situation.holders_UQ, pushes_U, situation.row_cost_n)


def cost_matrix_reference(situation: Situation) -> F64:
    """The same in plain numpy."""
    held_Un = held_by(situation.holders_UQ, situation.workers)
    pushes_Un = held_Un * situation.row_cost_n * (situation.state_U != CLEAN)[:, None]
    pulls_Un = ~held_Un * situation.row_cost_n
    cost_Un = pulls_Un + pushes_Un.sum(axis=1, keepdims=True) - pushes_Un
    cost_Bn: F64 = cost_Un[situation.local_BF].sum(axis=1)
    return cost_Bn


@kernel
def _pushes(state_U: U8, holders_UQ: U64, row_cost_n: F64) -> F64:
    """What it costs if every holder of a row pushes it."""
    workers = row_cost_n.shape[0]
    pushes_U = np.zeros(state_U.shape[0], dtype=np.float64)
    for u in range(state_U.shape[0]):
        if state_U[u] != CLEAN:
            for j in range(workers):
                pushes_U[u] += row_cost_n[j] * held(holders_UQ, u, j)
    return pushes_U


@kernel
def _costs(local_BF: I32, state_U: U8, holders_UQ: U64, pushes_U: F64, row_cost_n: F64) -> F64:
    (samples, fields), workers, words = local_BF.shape, row_cost_n.shape[0], holders_UQ.shape[1]
    cost_Bn = np.empty((samples, workers), dtype=np.float64)
    held_n = np.empty(words * WORD_BITS, dtype=np.uint64)
    for i in range(samples):
        held_n[:] = 0
        pushes = 0.0
        for f in range(fields):
            u = local_BF[i, f]
            pushes += pushes_U[u]
            weight = np.uint64(1 if state_U[u] == CLEAN else 2)
            for q in range(words):
                word, first = holders_UQ[u, q], q * WORD_BITS
                # every bit, set or not: who holds what cannot be predicted, and this is done for several at once
                for j in range(min(WORD_BITS, workers - first)):
                    held_n[first + j] += bit_at(word, j) * weight
        for j in range(workers):
            cost_Bn[i, j] = pushes + row_cost_n[j] * (np.float64(fields) - np.float64(held_n[j]))
    return cost_Bn
