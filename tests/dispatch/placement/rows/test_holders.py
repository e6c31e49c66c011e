import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.placement.arrays import U64
from dispatch.placement.rows.holders import (
    everybody,
    held,
    held_by,
    is_same,
    is_single,
    lowest_bit,
    only,
    words_for,
    worker_of,
)

WORKERS = 130
sets = st.sets(st.integers(0, WORKERS - 1))


def packed(*workers: set[int]) -> U64:
    """One set per row, bit by bit."""
    sets_UQ = np.zeros((len(workers), 3), np.uint64)
    for u, members in enumerate(workers):
        for j in members:
            sets_UQ[u, j // 64] |= np.uint64(1 << (j % 64))
    return sets_UQ


def test_sets_are_read_bit_by_bit() -> None:
    assert np.flatnonzero(held_by(packed({63, 65}), WORKERS)[0]).tolist() == [63, 65]


@given(sets)
def test_a_worker_is_held_if_it_is_in_the_set(members: set[int]) -> None:
    sets_UQ = packed(set(), members)
    assert {j for j in range(WORKERS) if held(sets_UQ, 1, j)} == members
    assert set(np.flatnonzero(held_by(sets_UQ, WORKERS)[1]).tolist()) == members
    assert is_single(sets_UQ, 1) is (len(members) == 1)


@given(sets, sets)
def test_sets_are_the_same_if_they_have_the_same_workers(left: set[int], right: set[int]) -> None:
    assert is_same(packed(left), packed(right), 0) is (left == right)
    assert is_same(packed(left), packed(set(left)), 0)


@given(st.sets(st.integers(0, 63), min_size=1))
def test_bits_are_taken_from_the_lowest(members: set[int]) -> None:
    word = packed(members)[0, 0]
    assert worker_of(np.uint64(lowest_bit(word)), 0) == min(members)
    assert worker_of(np.uint64(lowest_bit(word)), 2) == 128 + min(members)


@pytest.mark.parametrize(("workers", "words"), [(1, 1), (64, 1), (65, 2), (128, 2), (130, 3)])
def test_everybody_has_one_bit_in_as_few_words_as_hold_them(workers: int, words: int) -> None:
    assert words_for(workers) == words == everybody(workers).size
    assert np.bitwise_count(everybody(workers)).sum() == workers
    assert held_by(everybody(workers)[None], workers).all()


def test_sets_of_one_worker_have_that_worker() -> None:
    assert np.array_equal(only(np.array([0, 129, 64]), WORKERS), packed({0}, {129}, {64}))
