"""Rows of one shard: numbering, start values, last steps."""

import numpy as np
import pytest

from ps.config import RowConfig
from ps.errors import OutOfOrder, UnknownRow
from ps.keys import FREE
from ps.start import start_rows
from ps.store import NEVER, Store
from tests.ps.doubles import ints

CONFIG = RowConfig(dim=3)


def filled(rows: int, chunk_rows: int = 4) -> Store:
    store = Store(CONFIG, seed=5, chunk_rows=chunk_rows)
    store.create(np.arange(rows), np.arange(rows, dtype=np.uint64) + np.uint64(100))
    return store


def values(store: Store, numbers: np.ndarray) -> np.ndarray:
    out = np.empty((len(numbers), store.shape.total), np.float32)
    store.gather(numbers, out)
    return out


def test_rows_over_many_chunks_have_the_start_values_of_their_keys() -> None:
    store = filled(11)
    expected = start_rows(CONFIG, 5, np.arange(100, 111, dtype=np.uint64))
    assert len(store) == 11
    assert np.array_equal(values(store, np.arange(11)), expected)
    assert store.keys(ints(0, 10)).tolist() == [100, 110]


def test_growth_keeps_what_was_written() -> None:
    store = filled(3)
    store.write(ints(2), np.full((1, store.shape.total), 9.0, np.float32))
    store.create(np.arange(3, 50), np.arange(3, 50, dtype=np.uint64))
    assert np.all(values(store, ints(2)) == 9.0)


def test_narrow_gather_gives_the_value_without_state() -> None:
    store = filled(6)
    out = np.empty((2, store.shape.value), np.float32)
    store.gather(ints(5, 1), out)
    assert np.array_equal(out, values(store, ints(5, 1))[:, : store.shape.value])


def test_number_that_exists_is_not_created_again() -> None:
    store = filled(4)
    with pytest.raises(OutOfOrder, match="do not follow"):
        store.create(ints(3, 4), np.array([103, 104], np.uint64))
    assert len(store) == 4


@pytest.mark.parametrize("numbers", [(5,), (4, 6), (5, 4), (4, 4)])
def test_new_numbers_must_follow_without_gaps(numbers: tuple[int, ...]) -> None:
    store = filled(4)
    with pytest.raises(OutOfOrder, match="do not follow"):
        store.create(ints(*numbers), np.arange(len(numbers), dtype=np.uint64))
    assert len(store) == 4


@pytest.mark.parametrize("number", [-1, 4, 2**62])
def test_unknown_number_is_refused_by_every_access(number: int) -> None:
    store = filled(4)
    row = np.zeros((1, store.shape.total), np.float32)
    for access in (
        lambda: store.gather(ints(number), row),
        lambda: store.write(ints(number), row),
        lambda: store.stamp(ints(number), ints(1)),
        lambda: store.steps(ints(number)),
    ):
        with pytest.raises(UnknownRow, match="never announced"):
            access()


def test_row_remembers_the_step_that_last_changed_it() -> None:
    store = filled(6)
    store.stamp(ints(5, 1), ints(40, 41))
    assert store.steps(ints(0, 1, 5)).tolist() == [NEVER, 41, 40]


def test_a_forgotten_row_is_zeros_under_no_key_and_its_number_starts_again_under_another() -> None:
    store = filled(6)
    store.forget(ints(4, 1), step=7)
    assert store.keys(ints(1, 4)).tolist() == [FREE, FREE]
    assert store.steps(ints(1, 4)).tolist() == [7, 7]
    assert not values(store, ints(1, 4)).any()
    store.reuse(ints(4), np.array([900], np.uint64))
    assert store.keys(ints(4, 5)).tolist() == [900, 105]
    assert np.array_equal(values(store, ints(4)), start_rows(CONFIG, 5, np.array([900], np.uint64)))
    assert np.array_equal(values(store, ints(5)), start_rows(CONFIG, 5, np.array([105], np.uint64)))


def test_only_rows_in_use_are_forgotten_and_only_free_numbers_used_again() -> None:
    store = filled(6)
    store.forget(ints(1), step=7)
    key = np.array([900], np.uint64)
    with pytest.raises(OutOfOrder, match="row numbers 1 of 2 are free"):
        store.forget(ints(0, 1), step=8)
    with pytest.raises(OutOfOrder, match="row numbers 2 of 1 are in use"):
        store.reuse(ints(2), key)
    with pytest.raises(OutOfOrder, match="some occur twice"):
        store.reuse(ints(1, 1), np.repeat(key, 2))
    assert store.keys(ints(0, 1, 2)).tolist() == [100, FREE, 102]
