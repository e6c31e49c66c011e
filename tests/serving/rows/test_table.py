"""Rows by key: kernels against plain references, growth, and what a row costs."""

from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ps.columns import is_kept
from ps.config import RowConfig
from ps.keys import FREE
from ps.start import start_rows
from serving.rows.index import KeyIndex, find_reference
from serving.rows.table import RowTable, look_up_reference
from serving.rows.values import PrunedValues, select_reference

CPU = torch.device("cpu")
ROWS = RowConfig(dim=3)
WIDTH = ROWS.shape().value


KEYS = st.integers(0, (1 << 64) - 2) | st.integers(0, 40)
CHANGES = st.dictionaries(st.integers(0, 60), KEYS | st.just(int(FREE)), max_size=30)
"""keys by number, or FREE for a number whose key is forgotten"""


@settings(max_examples=60, deadline=None)
@given(st.lists(CHANGES, max_size=8), st.randoms(use_true_random=False))
def test_index_answers_as_a_dictionary_does_though_keys_move_and_are_forgotten(
    batches: list[dict[int, int]], random: Random
) -> None:
    index, key_of = KeyIndex(2), dict[int, int]()
    for changes in batches:
        after = dict[int, int]()
        for number, key in (key_of | changes).items():  # a key has one number: of others that have it, it is forgotten
            after[number] = int(FREE) if key in after.values() else key
        changed = [number for number, key in after.items() if key_of.get(number) != key]
        random.shuffle(changed)
        index.reserve(max(after, default=0) + 1)
        for first in range(0, len(changed), 7):
            numbers = changed[first : first + 7]
            index.assign(np.array(numbers, np.int64), np.array([after[number] for number in numbers], np.uint64))
        assert index.enter() == 0
        key_of = after
        known = {key: number for number, key in key_of.items() if key != FREE}
        asked = [*known, *(key for batch in batches for key in batch.values() if key != FREE)]
        assert index.find(np.array(asked, np.uint64)).tolist() == find_reference(known, asked)
        assert index.known == len(known)


def test_a_number_with_the_key_of_another_one_is_not_known_until_it_has_a_key_of_its_own() -> None:
    index = KeyIndex()
    index.assign(np.array([0, 1, 2]), np.array([7, 7, 8], np.uint64))
    assert index.enter() == 1
    assert index.known == 2
    index.assign(np.array([1, 2]), np.array([9, FREE], np.uint64))
    assert index.enter() == 0
    assert index.known == 2
    assert index.find(np.array([7, 8, 9], np.uint64)).tolist() == [0, -1, 1]


def test_lookup_is_that_of_a_dictionary_and_unknown_keys_have_their_start_value() -> None:
    random = np.random.default_rng(1)
    keys = random.permutation(3000).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    table, rows = RowTable(ROWS, 7, torch.float32, CPU), dict[int, list[float]]()
    table.reserve(2000)
    for first in range(0, 2000, 500):  # overlapping: known keys are replaced, and it grows
        put = keys[max(0, first - 200) : first + 500]
        values = random.normal(size=(len(put), WIDTH)).astype(np.float32)
        table.put(np.arange(max(0, first - 200), first + 500), put, values)
        rows |= dict(zip(put.tolist(), values.tolist(), strict=True))
    assert table.enter() == 0
    asked = random.choice(keys, (50, 4))
    found = table.look_up(asked).numpy()
    assert len(table) == 2000
    assert np.array_equal(found, look_up_reference(rows, ROWS, 7, asked))
    unknown = keys[2000:2005].reshape(1, -1)
    assert np.array_equal(table.look_up(unknown)[0].numpy(), start_rows(ROWS, 7, unknown[0])[:, :WIDTH])


def test_unknown_keys_have_the_value_of_rare_ones_of_their_field_if_there_are_any() -> None:
    rare = np.array([500, 600], np.uint64)
    table = RowTable(ROWS, 7, torch.float32, CPU, rare)
    table.put(np.array([0, 3]), np.array([500, 9], np.uint64), np.array([[1.0] * WIDTH, [2.0] * WIDTH], np.float32))
    assert table.enter() == 0
    found = table.look_up(np.array([[9, 8], [8, 9]], np.uint64)).numpy()
    assert found[0, 0].tolist() == found[1, 1].tolist() == [2.0] * WIDTH
    assert found[1, 0].tolist() == [1.0] * WIDTH, "the first field has rare keys"
    assert np.array_equal(found[0, 1], start_rows(ROWS, 7, np.array([8], np.uint64))[0, :WIDTH]), "the second has none"


def test_rows_of_rare_keys_are_found_only_for_unknown_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    table = RowTable(ROWS, 7, torch.float32, CPU, np.array([500, 600], np.uint64))
    table.put(np.array([0, 1]), np.array([500, 9], np.uint64), np.ones((2, WIDTH), np.float32))
    assert table.enter() == 0
    asked = list[list[int]]()

    def find(index: KeyIndex, keys_K: NDArray[np.uint64]) -> NDArray[np.int32]:
        asked.append(keys_K.tolist())
        return found(index, keys_K)

    found = KeyIndex.find
    monkeypatch.setattr(KeyIndex, "find", find)
    table.look_up(np.array([[9, 9]], np.uint64))
    assert asked == [[9, 9]]
    table.look_up(np.array([[9, 8]], np.uint64))
    assert asked[1:] == [[9, 8], [500, 600]]


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CHUNK_CHANGES = st.dictionaries(st.integers(0, 60), st.integers(0, 255), min_size=1, max_size=30)
"""masks by number"""


@settings(max_examples=40, deadline=None)
@given(
    batches=st.lists(CHUNK_CHANGES, max_size=8),
    chunks=st.sampled_from([1, 2, 4, 8]),
    wide=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float16]),
)
def test_rows_without_their_pruned_chunks_read_as_zeros_there_though_masks_change(
    batches: list[dict[int, int]], chunks: int, wide: bool, dtype: torch.dtype
) -> None:
    config = RowConfig.model_validate({"dim": 8, "chunks": chunks, "wide": wide})
    table, rows = RowTable(config, 7, dtype, CPU), dict[int, list[float]]()
    random = np.random.default_rng(1)
    masks_of = dict[int, int]()
    for changes in batches:
        numbers = np.array(list(changes))
        masks = np.array(list(changes.values())).astype(np.uint8) & (2**chunks - 1)
        values = random.integers(-9, 9, size=(len(numbers), 8 + wide)).astype(np.float32)
        values[:, :8] *= (masks[:, None] >> np.arange(8) // (8 // chunks) & 1).astype(np.float32)
        table.reserve(61)
        table.put(numbers, numbers.astype(np.uint64), values, masks)
        rows |= dict(zip(numbers.tolist(), values.tolist(), strict=True))
        masks_of |= dict(zip(numbers.tolist(), masks.tolist(), strict=True))
        assert table.enter() == 0
        asked = np.arange(70, dtype=np.uint64).reshape(-1, 2)
        found = table.look_up(asked).numpy()
        assert np.array_equal(found, look_up_reference(rows, config, 7, asked))
        assert isinstance(table._values, PrunedValues)
        assert table._values.live == sum(mask.bit_count() for mask in masks_of.values())
        assert len(table._values._chunks_NX) <= max(1.5 * (1 + table._values.live), 2)


@pytest.mark.parametrize("device", [CPU, pytest.param(torch.device("cuda"), marks=needs_gpu)], ids=str)
@pytest.mark.parametrize("wide", [True, False])
def test_rows_are_selected_as_by_the_reference(wide: bool, device: torch.device) -> None:
    random = np.random.default_rng(3)
    values = PrunedValues(RowConfig(dim=8, chunks=4, wide=wide), 100, torch.float32, device)
    masks = random.integers(16, size=100).astype(np.uint8)
    values.put(np.arange(100), random.normal(size=(100, 8 + wide)).astype(np.float32), masks)
    numbers = random.integers(100, size=300).astype(np.int32)
    tables = (table.cpu().numpy() for table in (values._places_KC, values._chunks_NX, values._wide_K))
    assert np.array_equal(values.select(numbers).cpu().numpy(), select_reference(numbers, *tables))


@pytest.mark.parametrize("device", [CPU, pytest.param(torch.device("cuda"), marks=needs_gpu)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kept", [(), (1, 2, 7), (0, 3, 4, 5, 6, 7)])
def test_columns_that_all_rows_have_dropped_are_zeros_and_take_no_memory(
    kept: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    config = RowConfig(dim=8, chunks=1)
    table = RowTable(config, 7, dtype, device, kept=kept)
    given_KW = np.arange(1, 10, dtype=np.float32) * np.ones((5, 1), np.float32)
    given_KW[:, np.flatnonzero(~is_kept(8, kept))] = 0
    table.reserve(5, 5)
    before = table.nbytes
    keys = np.arange(5, dtype=np.uint64)
    for count in (0, 5):
        table.put(np.arange(count), keys[:count], given_KW[:count], np.ones(count, np.uint8))
    assert table.enter() == 0
    assert table.look_up(keys[:, None])[:, 0].tolist() == given_KW.tolist()
    assert table.look_up(keys[:0, None]).shape == (0, 1, 9)
    unknown = table.look_up(np.array([[99]], np.uint64))[0, 0].cpu()
    assert set(np.flatnonzero(unknown[:8])) == set(kept or range(8))
    assert table.nbytes == before
    whole = RowTable(config, 7, dtype, device)
    whole.reserve(5, 5)
    assert whole.nbytes - table.nbytes == 6 * (8 - len(kept or range(8))) * dtype.itemsize


def test_if_training_has_no_memory_for_chunks_unknown_keys_are_zeros() -> None:
    table = RowTable(RowConfig(dim=4, chunks=2), 7, torch.float32, CPU, np.array([500, 600], np.uint64))
    table.put(np.array([0]), np.array([500], np.uint64), np.ones((1, 5), np.float32), np.array([3], np.uint8))
    assert table.enter() == 0
    table.are_new_keys_bare = True
    assert table.look_up(np.array([[9, 8]], np.uint64)).tolist() == [[[1.0] * 5, [0.0] * 5]]


def test_a_model_pruned_to_a_tenth_takes_a_tenth_of_the_memory_for_its_chunks() -> None:
    rows = 20_000
    keys = np.arange(rows, dtype=np.uint64)
    masks = np.where(np.arange(rows) % 10, 0, 3).astype(np.uint8)
    values = np.ones((rows, 129), np.float32)
    config = RowConfig(dim=128, chunks=2)
    whole, pruned = RowTable(config, 7, torch.float32, CPU), RowTable(config, 7, torch.float32, CPU)
    whole.put(*_reserved(whole, keys), values, np.full(rows, 3, np.uint8))
    values[masks == 0, :128] = 0
    pruned.put(*_reserved(pruned, keys), values, masks)
    later = RowTable(config, 7, torch.float32, CPU)
    later.put(*_reserved(later, keys), np.ones_like(values), np.full(rows, 3, np.uint8))
    later.put(np.arange(rows), keys, values, masks)
    for table in (whole, pruned, later):
        assert table.enter() == 0
    head_bytes = 20 + 4 + 2 * 4
    for table in (pruned, later):
        assert table.nbytes < rows * (head_bytes + 128 * 4 / 10 * 1.13)
        assert torch.equal(table.look_up(keys.reshape(-1, 1))[:, 0], torch.from_numpy(values))
    assert whole.nbytes > rows * 128 * 4


def _reserved(table: RowTable, keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    table.reserve(len(keys))
    return np.arange(len(keys)), keys


@pytest.mark.parametrize(("dtype", "bytes_per_float"), [(torch.float32, 4), (torch.float16, 2)])
def test_a_row_costs_its_values_and_at_most_twenty_bytes(dtype: torch.dtype, bytes_per_float: int) -> None:
    table, rows = RowTable(ROWS, 7, dtype, CPU), 20_000
    table.reserve(rows)
    keys = np.arange(rows, dtype=np.uint64)
    values = np.linspace(-1, 1, rows * WIDTH).reshape(rows, WIDTH).astype(np.float32)
    table.put(np.arange(rows), keys, values)
    assert table.enter() == 0
    assert table.nbytes / rows <= WIDTH * bytes_per_float + 20
    found = table.look_up(keys.reshape(-1, 1))
    assert found.dtype == torch.float32
    assert torch.allclose(found[:, 0], torch.from_numpy(values).to(dtype).float())


def test_a_table_that_grows_by_little_at_a_time_is_seldom_copied_and_a_whole_one_has_no_idle_rows() -> None:
    table = RowTable(ROWS, 7, torch.float32, CPU)
    table.reserve(20_000)
    hash_table_bytes = 4 * 32_768
    assert table.nbytes == 20_000 * (WIDTH * 4 + 8) + hash_table_bytes
    sizes = set[int]()
    for rows in range(20_000, 30_000, 100):
        table.reserve(rows)
        sizes.add(table.nbytes)
    assert len(sizes) <= 6, "four times an eighth more, and once a larger hash table"
    assert max(sizes) < 1.125 * 30_000 * (WIDTH * 4 + 8) + 2 * hash_table_bytes + 1
