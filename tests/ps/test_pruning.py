"""What chunks are worth is counted, and those that are worth least are pruned."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps.bins import BINS
from ps.config import RowConfig
from ps.errors import OutOfOrder
from ps.pruned_store import PrunedStore, stored_reference
from ps.pruning import count_chunks, count_reference, decide_reference, halve_reference, prune, weigh_columns
from ps.start import start_rows
from ps.utilities import bins_reference
from tests.ps.doubles import ints
from tests.ps.test_pruned_store import drawn, rows_of

ROWS = 30


def made(chunks: int, float_dtype: str = "float32") -> PrunedStore:
    """Rows with any masks and utilities over many orders of magnitude, some of them 0; number 4 is free."""
    config = RowConfig.model_validate({"dim": 16, "chunks": chunks, "float_dtype": float_dtype})
    store = PrunedStore(config, 5, 4)
    store.reserve(ROWS)
    rows_KT = drawn(config, ROWS, 3)
    random = np.random.default_rng(1)
    rows_KT[:, -1 - chunks : -1] = 2.0 ** random.uniform(-110, 30, (ROWS, chunks)) * (random.random((ROWS, 1)) > 0.2)
    store.load(np.arange(ROWS), np.arange(ROWS, dtype=np.uint64), np.arange(ROWS), rows_KT)
    store.forget(ints(4), step=50)
    return store


@pytest.mark.parametrize("float_dtype", ["float32", "float64"])
@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
def test_every_chunk_of_a_row_with_a_key_is_counted(chunks: int, float_dtype: str) -> None:
    store = made(chunks, float_dtype)
    keyed = np.delete(np.arange(ROWS), 4)
    rows_KT = rows_of(store, keyed)
    counts = count_chunks(store)
    assert np.array_equal(counts, count_reference(rows_KT[:, -1 - chunks : -1], store.masks(keyed)))
    assert counts.sum() == chunks * (ROWS - 1)
    assert counts[1].sum() == store.live


@pytest.mark.parametrize("chunks", [1, 4])
def test_columns_are_worth_what_their_accumulators_hold(chunks: int) -> None:
    store = made(chunks)
    rows_KT = rows_of(store)
    is_live_KD = store.masks(np.arange(ROWS))[:, None] >> np.arange(16) // (16 // chunks) & 1
    expected = (rows_KT[:, 17:33].astype(np.float64) * is_live_KD).sum(axis=0)
    assert weigh_columns(store) == pytest.approx(expected)


@given(
    chunks=st.sampled_from([1, 2, 4, 8]),
    float_dtype=st.sampled_from(["float32", "float64"]),
    thresholds=st.lists(st.tuples(st.integers(0, BINS), st.integers(0, BINS)), min_size=8, max_size=8),
    halvings=st.sampled_from([0, 1, 40, 1 << 20]),
)
def test_pruned_rows_are_those_of_the_reference(
    chunks: int, float_dtype: str, thresholds: list[tuple[int, int]], halvings: int
) -> None:
    store = made(chunks, float_dtype)
    config = RowConfig.model_validate({"dim": 16, "chunks": chunks, "float_dtype": float_dtype})
    evict_below = [low // 2 for low, _ in thresholds[:chunks]]
    bring_from = [high // 2 for _, high in thresholds[:chunks]]
    rows_KT = rows_of(store)
    masks_K = store.masks(np.arange(ROWS))
    evicted, brought = decide_reference(rows_KT[:, -1 - chunks : -1], masks_K, evict_below, bring_from)
    evicted[4] = brought[4] = 0
    start = start_rows(config, 5, np.arange(ROWS, dtype=np.uint64))
    for chunk, columns in enumerate(np.split(np.arange(16), chunks)):
        back = np.flatnonzero(brought >> chunk & 1)
        rows_KT[np.ix_(back, columns)] = start[np.ix_(back, columns)]
    rows_KT[:, -1] = masks_K & ~evicted | brought
    rows_KT[:, -1 - chunks : -1] = halve_reference(rows_KT[:, -1 - chunks : -1], halvings)
    done = prune(store, evict_below, bring_from, halvings)
    assert np.array_equal(rows_of(store), stored_reference(config, rows_KT))
    assert done.numbers.tolist() == np.flatnonzero(evicted | brought).tolist()
    assert done.masks.tolist() == rows_KT[done.numbers, -1].tolist()
    assert (done.pruned, done.brought_back) == (np.bitwise_count(evicted).sum(), np.bitwise_count(brought).sum())
    assert store.steps(np.arange(ROWS)).tolist() == [50 if number == 4 else number for number in range(ROWS)]


def test_chunk_that_was_just_pruned_does_not_come_back() -> None:
    store = made(2)
    live = store.live
    done = prune(store, [BINS, BINS], [0, 0], 0)
    assert (done.pruned, done.brought_back) == (live, 2 * (ROWS - 1) - live)
    assert store.live == done.brought_back


def test_halving_is_exact_and_ends_at_zero() -> None:
    utilities = np.array([3.0, 2.0**-98, 2.0**-99, 0.0], np.float32)
    assert halve_reference(utilities, 1).tolist() == [1.5, 2.0**-99, 2.0**-100, 0.0]
    assert halve_reference(utilities, 2).tolist() == [0.75, 2.0**-100, 0.0, 0.0]


def test_halving_lowers_bins_by_sixteen() -> None:
    store = made(2)
    before = bins_reference(rows_of(store)[:, -3:-1])
    prune(store, [0, 0], [BINS, BINS], 3)
    after = bins_reference(rows_of(store)[:, -3:-1])
    large = after > 0
    assert np.array_equal(after[large], before[large] - 48)


@pytest.mark.parametrize("thresholds", [[], [1], [1, 1, 1]])
def test_thresholds_of_another_number_of_chunks_are_refused(thresholds: list[int]) -> None:
    store = made(2)
    with pytest.raises(OutOfOrder, match="rows of 2 chunks"):
        prune(store, thresholds, [1, 1], 0)
    with pytest.raises(OutOfOrder, match="rows of 2 chunks"):
        prune(store, [1, 1], thresholds, 0)
