"""Rows in chunks: full width to everybody else, only live chunks in memory."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ps.config import RowConfig
from ps.errors import CheckpointDamaged, OutOfOrder, UnknownRow
from ps.keys import FREE
from ps.pruned_store import PrunedStore, stored_reference
from ps.start import start_rows
from tests.ps.doubles import ints

CONFIG = RowConfig(dim=8, chunks=4)
KEYS = np.arange(11, dtype=np.uint64) + np.uint64(100)
configs = st.builds(
    lambda chunks, wide, optimizer, float_dtype: RowConfig(
        dim=16, chunks=chunks, wide=wide, optimizer=optimizer, float_dtype=float_dtype, initial_accumulator=0.25
    ),
    st.sampled_from([1, 2, 4, 8]),
    st.booleans(),
    st.sampled_from(["sgd", "adagrad", "rowwise_adagrad"]),
    st.sampled_from(["float32", "float64"]),
)


def filled(bare: tuple[int, ...] = ()) -> PrunedStore:
    store = PrunedStore(CONFIG, seed=5, chunk_rows=4)
    store.create(np.arange(11), KEYS, ints(*bare))
    return store


def rows_of(store: PrunedStore, numbers: np.ndarray | None = None) -> np.ndarray:
    numbers = np.arange(len(store)) if numbers is None else numbers
    out = np.empty((len(numbers), store.shape.total), store.dtype)
    store.gather(numbers, out)
    return out


def drawn(config: RowConfig, rows: int, seed: int) -> np.ndarray:
    """Any rows with any masks."""
    random = np.random.default_rng(seed)
    rows_KT = random.normal(size=(rows, config.shape().total)).astype(config.float_dtype)
    rows_KT[:, -1] = random.integers(0, 2**config.chunks, rows)
    return rows_KT


def test_new_rows_have_the_start_values_of_their_keys() -> None:
    store = filled()
    assert np.array_equal(rows_of(store), start_rows(CONFIG, 5, KEYS))
    assert store.live == 44


@settings(max_examples=60)
@given(configs, st.integers(1, 20), st.integers(1, 6), st.data())
def test_rows_loaded_and_written_are_those_of_the_reference(
    config: RowConfig, rows: int, chunk_rows: int, data: st.DataObject
) -> None:
    store = PrunedStore(config, 5, chunk_rows)
    store.reserve(rows)
    table = np.empty((rows, store.shape.total), store.dtype)
    for seed in range(3):  # later files of a checkpoint replace some rows of the earlier ones
        drawn_rows = st.lists(st.integers(0, rows - 1), unique=True)
        numbers = np.arange(rows) if seed == 0 else np.array(data.draw(drawn_rows), np.int64)
        table[numbers] = drawn(config, len(numbers), seed)
        store.load(numbers, numbers.astype(np.uint64), numbers, table[numbers])
    written = drawn(config, rows, 9)
    written[:, -1] = table[:, -1]
    half = np.arange(0, rows, 2)[::-1].copy()
    store.write(half, written[half])
    table[half] = written[half]
    expected = stored_reference(config, table)
    assert np.array_equal(rows_of(store), expected)
    values = np.empty((rows, store.shape.value), store.dtype)
    store.gather(np.arange(rows), values)
    assert np.array_equal(values, expected[:, : store.shape.value])
    assert store.live == np.bitwise_count(table[:, -1].astype(np.uint8)).sum()
    store.compact()
    assert np.array_equal(rows_of(store), expected)


def test_bare_rows_begin_with_nothing_but_start_accumulators() -> None:
    store = filled(bare=(3, 9))
    row = rows_of(store, ints(3))[0]
    expected = start_rows(CONFIG, 5, KEYS[3:4])[0]
    expected[:8] = 0
    expected[-1] = 0
    assert np.array_equal(row, expected)
    assert store.masks(ints(2, 3, 9)).tolist() == [15, 0, 0]
    assert store.live == 36


def test_forgotten_row_frees_its_chunks_and_its_number_begins_anew() -> None:
    store = filled()
    store.forget(ints(2, 5), step=3)
    assert store.live == 36
    assert store.keys(ints(2)).tolist() == [FREE]
    assert not rows_of(store, ints(2))[0, :9].any()
    keys = np.array([7, 8], np.uint64)
    store.reuse(ints(5, 2), keys, ints(2))
    expected = start_rows(CONFIG, 5, keys)
    expected[1, :8] = 0
    expected[1, -1] = 0
    assert np.array_equal(rows_of(store, ints(5, 2)), expected)
    assert store.live == 40


def test_row_written_with_another_mask_is_refused_and_nothing_written() -> None:
    store = filled(bare=(3,))
    before = rows_of(store)
    written = before[[2, 3]] + 1
    written[:, -1] = 15
    with pytest.raises(OutOfOrder, match="row number 3 was written with the mask 15"):
        store.write(ints(2, 3), written)
    assert np.array_equal(rows_of(store), before)


@pytest.mark.parametrize("mask", [-1.0, 16.0, 2.5, np.nan])
def test_checkpoint_with_an_impossible_mask_is_refused(mask: float) -> None:
    store = filled()
    row = rows_of(store, ints(0))
    row[0, -1] = mask
    with pytest.raises(CheckpointDamaged, match="row number 0 has the mask"):
        store.load(ints(0), KEYS[:1], ints(1), row)


@pytest.mark.parametrize("number", [-1, 11, 2**62])
def test_unknown_number_is_refused_by_every_access(number: int) -> None:
    store = filled()
    row = rows_of(store, ints(0))
    for access in (
        lambda: store.gather(ints(number), row),
        lambda: store.write(ints(number), row),
        lambda: store.masks(ints(number)),
        lambda: store.set_masks(ints(number), np.zeros(1, np.uint8)),
    ):
        with pytest.raises(UnknownRow, match="never announced"):
            access()


def test_chunks_brought_back_have_start_values_and_the_others_stay() -> None:
    store = filled(bare=(3,))
    trained = rows_of(store) + 1
    trained[:, -1] = store.masks(np.arange(11))
    store.write(np.arange(11), trained)
    before = rows_of(store)
    store.set_masks(ints(2), np.array([0b0011], np.uint8))
    store.bring_back(ints(2, 3), np.array([0b0100, 0b1000], np.uint8))
    start = start_rows(CONFIG, 5, KEYS)
    expected = before.copy()
    expected[2, 4:6] = start[2, 4:6]
    expected[2, 9 + 4 : 9 + 6] = CONFIG.initial_accumulator
    expected[3, 6:8] = start[3, 6:8]
    expected[[2, 3], -1] = [0b0111, 0b1000]
    assert np.array_equal(rows_of(store), stored_reference(CONFIG, expected))


@settings(max_examples=60)
@given(configs.filter(lambda config: config.optimizer == "adagrad"), st.integers(1, 20), st.integers(1, 6), st.data())
def test_dropped_columns_are_as_if_never_trained(
    config: RowConfig, rows: int, chunk_rows: int, data: st.DataObject
) -> None:
    width = config.dim // config.chunks
    staying = data.draw(st.integers(1, width))
    drawn_columns = st.lists(st.integers(0, width - 1), min_size=staying, max_size=staying, unique=True)
    by_chunk = [sorted(data.draw(drawn_columns)) for _ in range(config.chunks)]
    kept = tuple(chunk * width + column for chunk, columns in enumerate(by_chunk) for column in columns)
    table = drawn(config, rows, 1)
    numbers = np.arange(rows)
    store = PrunedStore(config, 5, chunk_rows)
    restored = PrunedStore(config, 5, chunk_rows, kept)
    for each in (store, restored):
        each.reserve(rows)
        each.load(numbers, numbers.astype(np.uint64), numbers, table)
    before = store.nbytes
    store.drop_columns(kept)
    assert np.array_equal(rows_of(store), stored_reference(config, table, kept))
    blocks = -(-store.live // chunk_rows) * chunk_rows
    assert before - store.nbytes == blocks * 2 * (config.dim - len(kept)) // config.chunks * store.dtype.itemsize
    written = drawn(config, rows, 9)
    written[:, -1] = table[:, -1]
    for each in (store, restored):
        each.write(numbers, written)
        each.create(np.arange(rows, rows + 3), np.arange(3, dtype=np.uint64), ints(rows + 1))
        each.bring_back(ints(rows + 1), np.array([1], np.uint8))
    new = start_rows(config, 5, np.arange(3, dtype=np.uint64))
    new[1, width : config.dim] = 0
    new[1, -1] = 1
    expected = stored_reference(config, np.concatenate([written, new]), kept)
    assert np.array_equal(rows_of(store), expected)
    assert np.array_equal(rows_of(restored), expected)
    assert store.packing.widths == restored.packing.widths


@pytest.mark.parametrize("kept", [(0, 2, 4), (0, 2, 4, 6, 7), (2, 0, 4, 6), (0, 0, 2, 4), (0, 2, 4, 8)])
def test_columns_that_cannot_be_kept_are_refused_and_nothing_dropped(kept: tuple[int, ...]) -> None:
    store = filled()
    with pytest.raises(OutOfOrder, match="as many columns of each of their chunks"):
        store.drop_columns(kept)
    assert np.array_equal(rows_of(store), start_rows(CONFIG, 5, KEYS))


def test_columns_are_dropped_once_and_only_if_they_have_accumulators() -> None:
    store = filled()
    store.drop_columns((0, 2, 4, 6))
    with pytest.raises(OutOfOrder, match="of rows that have 4 of 8"):
        store.drop_columns((0, 2, 4, 6))
    with pytest.raises(OutOfOrder, match="optimizer adagrad"):
        PrunedStore(RowConfig(dim=8, chunks=4, optimizer="sgd"), 5, 4).drop_columns((0, 2, 4, 6))


MEASURE = """
import numpy as np, psutil
from ps.bins import BINS
from ps.config import RowConfig
from ps.pruned_store import PrunedStore
from ps.pruning import prune

def make(rows):
    store = PrunedStore(RowConfig(dim=64, chunks=2), 1, 65536)
    for first in range(0, rows, 65536):
        numbers = np.arange(first, min(first + 65536, rows))
        store.create(numbers, numbers.astype(np.uint64))
    numbers = np.arange(0, rows, 10)
    row = np.empty((len(numbers), store.shape.total), np.float32)
    store.gather(numbers, row)
    row[:, -3:-1] = 1
    store.write(numbers, row)
    return store

def prune_tenth(store):
    return prune(store, [1, 1], [BINS, BINS], 0)

prune_tenth(make(100))
store = make(10**6)
before = psutil.Process().memory_info().rss
chunks_before, bytes_before = store.live, store.nbytes
done = prune_tenth(store)
after = psutil.Process().memory_info().rss
assert done.pruned == 1_800_000 and store.live == 200_000, (done.pruned, store.live)
freed = done.pruned * 64 * 4
print((before - after) / freed, (bytes_before - store.nbytes) / freed)
"""


def test_memory_of_pruned_chunks_goes_back_to_the_system() -> None:
    ran = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=False, timeout=100)
    assert ran.returncode == 0, ran.stderr
    resident, counted = map(float, ran.stdout.split())
    assert resident > 0.7
    assert 0.9 < counted <= 1.0
