"""Random situations for the tests of policies and costs."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dispatch.placement.assign.situation import Situation
from dispatch.placement.rows.holders import bit_of, word_of, words_for
from dispatch.placement.rows.states import CLEAN, OWNED, SPLIT


def draw_situation(
    seed: int, samples: int = 48, fields: int = 5, workers: int = 4, capacity_n: NDArray[np.int64] | None = None
) -> Situation:
    """A batch over a few dozen whole rows in all three states, with the holders that each state allows."""
    rng = np.random.default_rng(seed)
    rows = 8 * fields
    state_U = rng.choice([CLEAN, OWNED, SPLIT], rows).astype(np.uint8) if workers > 1 else np.zeros(rows, np.uint8)
    holders_UQ = np.zeros((rows, words_for(workers)), np.uint64)
    for u, state in enumerate(state_U):
        fewest, most = {CLEAN: (0, workers), OWNED: (1, 1), SPLIT: (2, workers)}[int(state)]
        for j in rng.permutation(workers)[: rng.integers(fewest, most + 1)]:
            holders_UQ[u, word_of(j)] |= bit_of(j)
    equal_n = np.full(workers, -(-samples // workers), np.int64)
    return Situation(
        step=int(rng.integers(0, 100)),
        local_BF=rng.integers(0, rows, (samples, fields), dtype=np.int32),
        state_U=state_U,
        holders_UQ=holders_UQ,
        row_cost_n=np.where(np.arange(workers) % 2, 10.0, 1.0),
        capacity_n=equal_n if capacity_n is None else capacity_n,
    )


def with_sizes(situation: Situation, seed: int) -> Situation:
    """The same with rows of a few sizes, as those with one, two and more live chunks have."""
    size_U = np.random.default_rng(seed).choice([0.07, 0.3, 0.61, 1.0], situation.state_U.size)
    return replace(situation, size_U=size_U)


def with_uplinks(situation: Situation, seed: int) -> Situation:
    """The same behind links whose uplinks are slower or faster than their downlinks, some of them equal."""
    ratio_n = np.random.default_rng(seed).choice([0.5, 1.0, 2.0**0.25, 3.0, 10.0], situation.workers)
    return replace(situation, up_cost_n=situation.row_cost_n * ratio_n)
