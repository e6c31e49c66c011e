"""The cost of each sample on each worker, counted one sample at a time, in bytes.

Legend: B samples, F keys per sample, U distinct rows of the batch, n workers, Q words of 64 workers each.

For each distinct row of a sample, on worker j: the row's pull over j's link if j is not a holder, plus the push of
every *other* holder that would have to push first: the owner of an OWNED row, every part-holder of a SPLIT one, nobody
for a CLEAN one. A pull and an owner's push carry value and state, a part only the value's bytes (``value_share``). If
chunks of a row are pruned, its pull and its owner's push cost less (``size_U``); parts travel at full width.

Part-holders count as holders here although they must pull again: as a rule for placing single samples this keeps rows
where they are being used, and moves clearly less than the literal count, which ``parts_hold=False`` gives. What is
charged afterwards is up to the directory and stays strict.

Per sample this comes to P + T_j · (R − h_j), with P the pushes if no holder trained it, T_j the cost of a pull over j's
downlink, R its distinct rows, and h_j what j saves as a holder, in pulls: its pull, and its push if it would have had
to push. A push counts as many pulls as its cost is a multiple of theirs (the *ratio*), which is 1 if both directions of
the link are equal. Nothing of size rows × workers is needed. With sizes, R and h_j are sums of sizes instead of counts.
"""

from typing import NamedTuple

import numpy as np
from numba import prange

from dispatch.placement.arrays import F64, I32, U8, U64
from dispatch.placement.assign.situation import Situation
from dispatch.placement.errors import BadCost
from dispatch.placement.rows.holders import WORD_BITS, bit_at, held, held_by
from dispatch.placement.rows.states import CLEAN, OWNED, SPLIT
from infra.base.kernels import kernel, range_of, threaded, threads

COUNT_BITS = np.uint64(21)
MOST_ROWS = 2**21 - 1
"""Most distinct rows of a sample."""
ONE_COUNT = np.uint64(MOST_ROWS)
WEIGHTS = np.zeros(3, dtype=np.uint64)
"""What a held row adds to a worker's counts, by its state: rows that it has, those of them that it owns, and parts, in
three parts of one number.
"""
WEIGHTS[CLEAN], WEIGHTS[OWNED], WEIGHTS[SPLIT] = 1, 1 + 2**21, 2**42


class PricedRows(NamedTuple):
    """The distinct rows of a batch."""

    state_U: U8
    holders_UQ: U64
    pushes_U: F64
    """The cost if every holder of a row pushes it, whole."""


class LinkPrices(NamedTuple):
    """What rows cost over each worker's link."""

    row_cost_n: F64
    """A pull."""
    ratio_n: F64
    """See push_ratios."""
    part_n: F64
    """See parts_saved."""


def cost_matrix(situation: Situation) -> F64:
    """Cost of every sample on every worker, [B, n], in units of one whole row over the fastest downlink."""
    if situation.local_BF.shape[1] > MOST_ROWS:
        raise BadCost(
            f"cannot count what samples cost; they have {situation.local_BF.shape[1]} keys each; expected at most "
            f"{MOST_ROWS}; shorten the lists of the schema"
        )
    pushes_U = _pushes(situation.state_U, situation.holders_UQ, situation.push_cost_n, situation.value_share)
    rows = PricedRows(situation.state_U, situation.holders_UQ, pushes_U)
    links = LinkPrices(situation.row_cost_n, push_ratios(situation), parts_saved(situation))
    cost_Bn = np.empty((situation.samples, situation.workers), dtype=np.float64)
    if situation.size_U is None:
        _price(threads(), situation.local_BF, rows, links, cost_Bn)
    else:
        _price_by_size(threads(), situation.local_BF, rows, links, situation.size_U, cost_Bn)
    return cost_Bn


def push_ratios(situation: Situation) -> F64:
    """How many pulls a push costs each worker; exactly 1 where both directions of its link are equal."""
    return np.asarray(situation.push_cost_n / situation.row_cost_n)


def parts_saved(situation: Situation) -> F64:
    """What each worker saves as part-holder of a whole row, in pulls; 0 if part-holders do not count as holders."""
    saved_n = 1.0 + situation.value_share * push_ratios(situation)
    return saved_n if situation.parts_hold else np.zeros_like(saved_n)


def cost_matrix_reference(situation: Situation) -> F64:
    """The same in plain numpy, one distinct row of a sample at a time."""
    held_Un = held_by(situation.holders_UQ, situation.workers)
    is_split_U = situation.state_U == SPLIT
    size_U = np.ones(is_split_U.size) if situation.size_U is None else situation.size_U
    push_U = np.where(is_split_U, situation.value_share, size_U * (situation.state_U == OWNED))
    pushes_Un = held_Un * situation.push_cost_n * push_U[:, None]
    counts_Un = held_Un & (situation.parts_hold | ~is_split_U)[:, None]
    pulls_Un = ~counts_Un * situation.row_cost_n * size_U[:, None]
    cost_Un = pulls_Un + pushes_Un.sum(axis=1, keepdims=True) - pushes_Un * counts_Un
    return np.array([cost_Un[np.unique(rows_F)].sum(axis=0) for rows_F in situation.local_BF]).reshape(
        situation.samples, situation.workers
    )


@kernel
def _pushes(state_U: U8, holders_UQ: U64, push_cost_n: F64, value_share: float) -> F64:
    """The cost if every holder of a row pushes it, whole."""
    workers = push_cost_n.shape[0]
    pushes_U = np.zeros(state_U.shape[0], dtype=np.float64)
    for u in range(state_U.shape[0]):
        if state_U[u] != CLEAN:
            for j in range(workers):
                pushes_U[u] += push_cost_n[j] * held(holders_UQ, u, j)
            if state_U[u] == SPLIT:
                pushes_U[u] *= value_share
    return pushes_U


@threaded
def _price(ranges: int, local_BF: I32, rows: PricedRows, links: LinkPrices, cost_Bn: F64) -> None:
    """Fills ``cost_Bn``, one range of samples at a time."""
    for k in prange(ranges):
        first, end = range_of(k, ranges, local_BF.shape[0])
        _costs(local_BF[first:end], rows, links, cost_Bn[first:end])


@kernel
def _costs(local_BF: I32, rows: PricedRows, links: LinkPrices, cost_Bn: F64) -> None:
    state_U, holders_UQ, pushes_U = rows
    row_cost_n, ratio_n, part_n = links
    (samples, fields), workers, words = local_BF.shape, row_cost_n.shape[0], holders_UQ.shape[1]
    held_n = np.empty(words * WORD_BITS, dtype=np.uint64)
    seen_U = np.full(state_U.shape[0], -1, dtype=np.int32)
    for i in range(samples):
        held_n[:] = 0
        pushes = 0.0
        count = 0
        for f in range(fields):
            u = local_BF[i, f]
            if seen_U[u] == i:
                continue
            seen_U[u] = i
            count += 1
            pushes += pushes_U[u]
            weight = WEIGHTS[state_U[u]]
            for q in range(words):
                word = holders_UQ[u, q]
                first = q * WORD_BITS
                # visits every bit, set or not: branches on holders are unpredictable, and this form is vectorised
                for j in range(min(WORD_BITS, workers - first)):
                    held_n[first + j] += bit_at(word, j) * weight
        for j in range(workers):
            held = np.float64(held_n[j] & ONE_COUNT)
            owned = np.float64(held_n[j] >> COUNT_BITS & ONE_COUNT)
            parts = np.float64(held_n[j] >> COUNT_BITS + COUNT_BITS)
            saved = held + owned * ratio_n[j] + part_n[j] * parts
            cost_Bn[i, j] = pushes + row_cost_n[j] * (np.float64(count) - saved)


@threaded
def _price_by_size(ranges: int, local_BF: I32, rows: PricedRows, links: LinkPrices, size_U: F64, cost_Bn: F64) -> None:
    """The same with rows of different sizes."""
    for k in prange(ranges):
        first, end = range_of(k, ranges, local_BF.shape[0])
        _costs_by_size(local_BF[first:end], rows, links, size_U, cost_Bn[first:end])


@kernel
def _costs_by_size(local_BF: I32, rows: PricedRows, links: LinkPrices, size_U: F64, cost_Bn: F64) -> None:
    """Parts are counted, and only what is missing of their rows is summed: so sizes of 1 give the same bits as none.

    If a push costs as much as a pull, an owned row counts twice among the saved ones, and nothing else is summed.
    """
    state_U, holders_UQ, pushes_U = rows
    row_cost_n, ratio_n, part_n = links
    (samples, fields), workers, words = local_BF.shape, row_cost_n.shape[0], holders_UQ.shape[1]
    saved_n = np.empty(words * WORD_BITS, dtype=np.float64)
    owned_n = np.empty(words * WORD_BITS, dtype=np.float64)
    parts_n = np.empty(words * WORD_BITS, dtype=np.float64)
    is_even = bool((ratio_n == 1.0).all())
    parts_hold = part_n[0] > 0.0
    seen_U = np.full(state_U.shape[0], -1, dtype=np.int32)
    for i in range(samples):
        saved_n[:] = 0.0
        owned_n[:] = 0.0
        parts_n[:] = 0.0
        pushes = 0.0
        whole = 0.0
        for f in range(fields):
            u = local_BF[i, f]
            if seen_U[u] == i:
                continue
            seen_U[u] = i
            size = size_U[u]
            whole += size
            is_split = state_U[u] == SPLIT
            pushes += pushes_U[u] * (1.0 if is_split else size)
            is_owned = state_U[u] == OWNED
            saved = size * (2.0 if is_owned and is_even else 1.0)
            if is_split:
                saved = size - 1.0 if parts_hold else 0.0
            for q in range(words):
                word = holders_UQ[u, q]
                first = q * WORD_BITS
                for j in range(min(WORD_BITS, workers - first)):
                    holds = np.float64(bit_at(word, j))
                    saved_n[first + j] += holds * saved
                    parts_n[first + j] += holds * is_split
                if is_owned and not is_even:
                    for j in range(min(WORD_BITS, workers - first)):
                        owned_n[first + j] += np.float64(bit_at(word, j)) * size
        for j in range(workers):
            saved = saved_n[j] + owned_n[j] * ratio_n[j] + part_n[j] * parts_n[j]
            cost_Bn[i, j] = pushes + row_cost_n[j] * (whole - saved)
