"""Partial gradients: kept, summed in worker order, applied once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps.config import RowConfig
from ps.errors import OutOfOrder, UnknownRow
from ps.optimizers import rule_of, update_reference
from ps.parts import Parts, settle_reference
from ps.store import Store
from tests.ps.doubles import ints

CONFIG = RowConfig(dim=3)


def table(rows: int = 10) -> tuple[Store, Parts]:
    store = Store(CONFIG, seed=5, chunk_rows=4)
    store.create(np.arange(rows), np.arange(rows, dtype=np.uint64))
    return store, Parts(store, rule_of(CONFIG))


def row_of(store: Store, number: int) -> np.ndarray:
    out = np.empty((1, store.shape.total), np.float32)
    store.gather(ints(number), out)
    return out


@given(st.permutations(range(6)), st.integers(1, 6))
def test_any_order_of_arrival_gives_the_sum_in_worker_order(order: list[int], workers: int) -> None:
    store, parts = table()
    gradients = {w: np.random.default_rng(w).normal(size=(1, 4)).astype(np.float32) * 10.0**w for w in order[:workers]}
    before = row_of(store, 7)
    for worker, gradient in gradients.items():
        parts.add(worker, ints(7), gradient)
    parts.apply_sums(ints(7))
    assert np.array_equal(row_of(store, 7), update_reference(CONFIG, before, settle_reference(gradients)))


def test_worker_order_matters_to_the_last_bit() -> None:
    big, tiny = np.full((1, 4), 1e8, np.float32), np.full((1, 4), 1.0, np.float32)
    assert np.all(settle_reference({0: big, 1: -big, 2: tiny}) == 1.0)
    assert np.all(settle_reference({0: big, 1: tiny, 2: -big}) == 0.0)


def test_unsettled_parts_stay_pending() -> None:
    store, parts = table()
    one = np.ones((2, 4), np.float32)
    before = row_of(store, 2)
    parts.add(0, ints(2, 9), one)
    parts.apply_sums(ints(9))
    assert np.array_equal(row_of(store, 2), before)
    assert len(parts) == 1


def test_settled_row_takes_new_parts() -> None:
    store, parts = table()
    one = np.ones((1, 4), np.float32)
    expected = row_of(store, 2)
    for _ in range(2):
        parts.add(0, ints(2), one)
        parts.apply_sums(ints(2))
        expected = update_reference(CONFIG, expected, one)
    assert np.array_equal(row_of(store, 2), expected)


def test_pool_grows_and_its_places_are_used_again() -> None:
    store, parts = table(rows=3000)
    rng = np.random.default_rng(0)
    every, (first, second) = np.arange(3000), rng.normal(size=(2, 3000, 4)).astype(np.float32)
    for _ in range(3):
        before = np.concatenate([row_of(store, number) for number in range(3000)])
        parts.add(1, every, second)
        parts.add(0, every, first)
        parts.apply_sums(every)
        expected = update_reference(CONFIG, before, first + second)
        assert np.array_equal(np.concatenate([row_of(store, number) for number in range(3000)]), expected)
    assert len(parts) == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=60, unique=True), st.data())
def test_interleaved_rows_and_settlements_equal_the_reference(
    arrivals: list[tuple[int, int]], data: st.DataObject
) -> None:
    store, parts = table()
    rng = np.random.default_rng(1)
    expected = {number: row_of(store, number) for number in range(10)}
    pending: dict[int, dict[int, np.ndarray]] = {}
    for number, worker in arrivals:
        gradient = rng.normal(size=(1, 4)).astype(np.float32)
        parts.add(worker, ints(number), gradient)
        pending.setdefault(number, {})[worker] = gradient
        if data.draw(st.booleans()):
            settled = data.draw(st.sampled_from(sorted(pending)))
            parts.apply_sums(ints(settled))
            expected[settled] = update_reference(CONFIG, expected[settled], settle_reference(pending.pop(settled)))
    assert len(parts) == sum(map(len, pending.values()))
    assert all(np.array_equal(row_of(store, number), row) for number, row in expected.items())


def test_second_part_of_one_worker_is_out_of_order() -> None:
    _, parts = table()
    parts.add(3, ints(1), np.ones((1, 4), np.float32))
    with pytest.raises(OutOfOrder, match="second part of row number 1"):
        parts.add(3, ints(0, 1), np.ones((2, 4), np.float32))


@pytest.mark.parametrize("settled", [(1, 2), (1, 1)])
def test_settling_a_row_without_parts_changes_nothing(settled: tuple[int, ...]) -> None:
    store, parts = table()
    before = row_of(store, 1)
    parts.add(0, ints(1), np.ones((1, 4), np.float32))
    with pytest.raises(OutOfOrder, match="have no part"):
        parts.apply_sums(ints(*settled))
    assert np.array_equal(row_of(store, 1), before)


def test_part_of_an_unknown_row_is_refused() -> None:
    _, parts = table()
    with pytest.raises(UnknownRow):
        parts.add(0, ints(10), np.ones((1, 4), np.float32))


def test_dropped_parts_are_gone() -> None:
    _, parts = table()
    parts.add(0, ints(1), np.ones((1, 4), np.float32))
    assert parts.drop() == 1
    with pytest.raises(OutOfOrder):
        parts.apply_sums(ints(1))


def test_parts_of_forgotten_rows_are_dropped_and_their_places_used_again() -> None:
    store, parts = table()
    one = np.ones((3, 4), np.float32)
    for worker in range(3):
        parts.add(worker, ints(2, 5, 9), one)
    parts.discard(ints(5, 7, 2))
    assert len(parts) == 3
    with pytest.raises(OutOfOrder, match=r"row numbers \[2\] of 1 to settle have no part"):
        parts.apply_sums(ints(2))
    before = row_of(store, 9)
    parts.apply_sums(ints(9))
    assert np.array_equal(row_of(store, 9), update_reference(CONFIG, before, 3 * one[:1]))
    before = row_of(store, 5)
    for worker in range(3):
        parts.add(worker, ints(2, 5, 9), one)
    parts.apply_sums(ints(5))
    assert np.array_equal(row_of(store, 5), update_reference(CONFIG, before, 3 * one[:1]))
    assert len(parts) == 6
