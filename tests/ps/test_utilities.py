"""Bins of utilities: the kernel against plain numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.base.kernels import kernel
from ps.bins import BINS
from ps.utilities import all_live, bin_of, bins_reference, weight_of_use


@kernel
def bins(utilities: np.ndarray, out: np.ndarray) -> None:
    for number in range(utilities.shape[0]):
        out[number] = bin_of(utilities[number])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=20))
def test_any_number_has_the_bin_of_the_reference(dtype: type, numbers: list[float]) -> None:
    utilities: np.ndarray = np.array(numbers, dtype)
    found = np.empty(len(utilities), np.int64)
    bins(utilities, found)
    assert np.array_equal(found, bins_reference(utilities))
    assert ((found >= 0) & (found < BINS)).all()


def test_sixteen_bins_are_a_factor_of_two() -> None:
    low, high = bins_reference(np.array([1.3, 2.6]))
    assert high - low == 16
    assert bins_reference(np.array([0.0, -1.0, np.nan, 2.0**-110, np.inf])).tolist() == [0, 0, 0, 0, BINS - 1]


def test_a_use_weighs_twice_as_much_a_half_life_later() -> None:
    assert weight_of_use(140, 100, 40) == 2.0


def test_masks_of_whole_rows_have_a_bit_for_each_chunk() -> None:
    assert [all_live(chunks) for chunks in (1, 2, 8)] == [1, 3, 255]
