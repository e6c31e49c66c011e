"""The growing table against plain arrays."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ps.chunks import Chunks, gather_reference, scatter_reference


@given(st.integers(1, 5), st.integers(1, 23), st.lists(st.integers(0, 10**6), max_size=30), st.integers(1, 3))
def test_kernels_equal_plain_reference_over_any_chunks(size: int, rows: int, picks: list[int], width: int) -> None:
    table = Chunks(size, 3, np.float32)
    table.grow(rows)
    every, numbers = np.arange(rows), np.array([pick % rows for pick in picks], np.int64)
    before = np.random.default_rng(rows).random((rows, 3), np.float32)
    written = np.random.default_rng(size).random((len(numbers), 3), np.float32)
    table.scatter(every, before)
    table.scatter(numbers, written)
    got = np.empty((rows, width), np.float32)
    table.gather(every, got)
    expected = scatter_reference(before, numbers, written)
    assert np.array_equal(got, gather_reference([expected], every, width))


def test_one_row_is_copied_as_wide_as_its_target_whatever_the_stride() -> None:
    table = Chunks(4, 3, np.float32)
    table.grow(1)
    table.scatter(np.zeros(1, np.int64), np.ones((1, 3), np.float32))
    around = np.zeros((1, 3), np.float32)
    out = around[:, :2]
    assert out.flags.c_contiguous
    assert out.strides[0] == 12
    table.gather(np.zeros(1, np.int64), out)
    assert around.tolist() == [[1.0, 1.0, 0.0]]


def test_growing_keeps_chunks_where_they_are() -> None:
    table = Chunks(4, 2, np.float64)
    table.grow(3)
    first = table.addresses.tolist()
    table.grow(100)
    assert table.addresses.tolist()[:1] == first
    assert len(table.addresses) == 25


def test_new_rows_hold_the_fill_value() -> None:
    table = Chunks(4, 1, np.int64, fill=-1)
    table.grow(9)
    got = np.empty((9, 1), np.int64)
    table.gather(np.arange(9), got)
    assert np.all(got == -1)
