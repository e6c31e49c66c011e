"""The cost of each sample on each worker, counted one sample at a time, in bytes.

Legend: B samples, F keys per sample, U distinct rows of the batch, n workers, Q words of 64 workers each.

For each distinct row of a sample, on worker j: the row's pull over j's link if j is not a holder, plus the push of
every *other* holder that would have to push first: the owner of an OWNED row, every part-holder of a SPLIT one, nobody
for a CLEAN one. A pull and an owner's push carry value and state, a part only the value's bytes (``value_share``). If
chunks of a row are pruned, its pull and its owner's push cost less (``size_U``); parts travel at full width.

Part-holders count as holders here although they must pull again: as a rule for placing single samples this keeps rows
where they are being used, and moves clearly less than the literal count, which ``parts_hold=False`` gives. What is
charged afterwards is up to the directory and stays strict.

Per sample this comes to P + T_j · (R − h_j), with P the pushes if no holder trained it, T_j the cost of a row over j's
link, R its distinct rows, and h_j what j saves as a holder, in rows: its pull, and its push if it would have had to
push. Nothing of size rows × workers is needed. With sizes, R and h_j are sums of sizes instead of counts.
"""

import numpy as np
from numba import prange

from dispatch.placement.arrays import F64, I32, U8, U64
from dispatch.placement.assign.situation import Situation
from dispatch.placement.rows.holders import WORD_BITS, bit_at, held, held_by
from dispatch.placement.rows.states import CLEAN, OWNED, SPLIT
from infra.base.kernels import kernel, range_of, threaded, threads

LOW_HALF = np.uint64(2**32 - 1)
WEIGHTS = np.zeros(3, dtype=np.uint64)
"""What a held row adds to a worker's count, by its state: both kinds of count in the two halves of one number."""
WEIGHTS[CLEAN], WEIGHTS[OWNED], WEIGHTS[SPLIT] = 1, 2, 2**32


def cost_matrix(situation: Situation) -> F64:
    """Cost of every sample on every worker, [B, n], in units of one whole row over the fastest link."""
    pushes_U = _pushes(situation.state_U, situation.holders_UQ, situation.row_cost_n, situation.value_share)
    part = 1.0 + situation.value_share if situation.parts_hold else 0.0
    rows = situation.local_BF, situation.state_U, situation.holders_UQ
    cost_Bn = np.empty((situation.samples, situation.workers), dtype=np.float64)
    if situation.size_U is None:
        _price(threads(), *rows, pushes_U, situation.row_cost_n, part, cost_Bn)
    else:
        _price_by_size(threads(), *rows, pushes_U, situation.row_cost_n, part, situation.size_U, cost_Bn)
    return cost_Bn


def cost_matrix_reference(situation: Situation) -> F64:
    """The same in plain numpy, one distinct row of a sample at a time."""
    held_Un = held_by(situation.holders_UQ, situation.workers)
    is_split_U = situation.state_U == SPLIT
    size_U = np.ones(is_split_U.size) if situation.size_U is None else situation.size_U
    push_U = np.where(is_split_U, situation.value_share, size_U * (situation.state_U == OWNED))
    pushes_Un = held_Un * situation.row_cost_n * push_U[:, None]
    counts_Un = held_Un & (situation.parts_hold | ~is_split_U)[:, None]
    pulls_Un = ~counts_Un * situation.row_cost_n * size_U[:, None]
    cost_Un = pulls_Un + pushes_Un.sum(axis=1, keepdims=True) - pushes_Un * counts_Un
    return np.array([cost_Un[np.unique(rows_F)].sum(axis=0) for rows_F in situation.local_BF]).reshape(
        situation.samples, situation.workers
    )


@kernel
def _pushes(state_U: U8, holders_UQ: U64, row_cost_n: F64, value_share: float) -> F64:
    """The cost if every holder of a row pushes it, whole."""
    workers = row_cost_n.shape[0]
    pushes_U = np.zeros(state_U.shape[0], dtype=np.float64)
    for u in range(state_U.shape[0]):
        if state_U[u] != CLEAN:
            for j in range(workers):
                pushes_U[u] += row_cost_n[j] * held(holders_UQ, u, j)
            if state_U[u] == SPLIT:
                pushes_U[u] *= value_share
    return pushes_U


@threaded
def _price(
    ranges: int,
    local_BF: I32,
    state_U: U8,
    holders_UQ: U64,
    pushes_U: F64,
    row_cost_n: F64,
    part: float,
    cost_Bn: F64,
) -> None:
    """Fills ``cost_Bn``, one range of samples at a time; part: what a part-holder saves, in rows."""
    for k in prange(ranges):
        first, end = range_of(k, ranges, local_BF.shape[0])
        _costs(local_BF[first:end], state_U, holders_UQ, pushes_U, row_cost_n, part, cost_Bn[first:end])


@kernel
def _costs(
    local_BF: I32, state_U: U8, holders_UQ: U64, pushes_U: F64, row_cost_n: F64, part: float, cost_Bn: F64
) -> None:
    (samples, fields), workers, words = local_BF.shape, row_cost_n.shape[0], holders_UQ.shape[1]
    # low half: rows that a worker holds whole, those that it owns twice; high half: parts that it holds
    held_n = np.empty(words * WORD_BITS, dtype=np.uint64)
    seen_U = np.full(state_U.shape[0], -1, dtype=np.int32)
    for i in range(samples):
        held_n[:] = 0
        pushes = 0.0
        rows = 0
        for f in range(fields):
            u = local_BF[i, f]
            if seen_U[u] == i:
                continue
            seen_U[u] = i
            rows += 1
            pushes += pushes_U[u]
            weight = WEIGHTS[state_U[u]]
            for q in range(words):
                word = holders_UQ[u, q]
                first = q * WORD_BITS
                # visits every bit, set or not: branches on holders are unpredictable, and this form is vectorised
                for j in range(min(WORD_BITS, workers - first)):
                    held_n[first + j] += bit_at(word, j) * weight
        for j in range(workers):
            saved = np.float64(held_n[j] & LOW_HALF) + part * np.float64(held_n[j] >> np.uint64(32))
            cost_Bn[i, j] = pushes + row_cost_n[j] * (np.float64(rows) - saved)


@threaded
def _price_by_size(
    ranges: int,
    local_BF: I32,
    state_U: U8,
    holders_UQ: U64,
    pushes_U: F64,
    row_cost_n: F64,
    part: float,
    size_U: F64,
    cost_Bn: F64,
) -> None:
    """The same with rows of different sizes; part: what a part-holder of a whole row saves, in rows."""
    for k in prange(ranges):
        first, end = range_of(k, ranges, local_BF.shape[0])
        _costs_by_size(local_BF[first:end], state_U, holders_UQ, pushes_U, row_cost_n, part, size_U, cost_Bn[first:end])


@kernel
def _costs_by_size(
    local_BF: I32,
    state_U: U8,
    holders_UQ: U64,
    pushes_U: F64,
    row_cost_n: F64,
    part: float,
    size_U: F64,
    cost_Bn: F64,
) -> None:
    """Parts are counted, and only what is missing of their rows is summed: so sizes of 1 give the same bits as none."""
    (samples, fields), workers, words = local_BF.shape, row_cost_n.shape[0], holders_UQ.shape[1]
    saved_n = np.empty(words * WORD_BITS, dtype=np.float64)
    parts_n = np.empty(words * WORD_BITS, dtype=np.float64)
    seen_U = np.full(state_U.shape[0], -1, dtype=np.int32)
    for i in range(samples):
        saved_n[:] = 0.0
        parts_n[:] = 0.0
        pushes = 0.0
        rows = 0.0
        for f in range(fields):
            u = local_BF[i, f]
            if seen_U[u] == i:
                continue
            seen_U[u] = i
            size = size_U[u]
            rows += size
            is_split = state_U[u] == SPLIT
            pushes += pushes_U[u] * (1.0 if is_split else size)
            saved = size * (2.0 if state_U[u] == OWNED else 1.0)
            if is_split:
                saved = size - 1.0 if part > 0.0 else 0.0
            for q in range(words):
                word = holders_UQ[u, q]
                first = q * WORD_BITS
                for j in range(min(WORD_BITS, workers - first)):
                    holds = np.float64(bit_at(word, j))
                    saved_n[first + j] += holds * saved
                    parts_n[first + j] += holds * is_split
        for j in range(workers):
            cost_Bn[i, j] = pushes + row_cost_n[j] * (rows - (saved_n[j] + part * parts_n[j]))
