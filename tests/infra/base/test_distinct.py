"""The distinct keys of a batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.base.distinct import FEWEST_PLACES, number_keys, number_keys_reference

MOST = 2**64 - 1


@given(
    keys=st.lists(st.integers(0, 30).map(lambda small: small * MOST // 30), max_size=80),
    fields=st.sampled_from([1, 2, 5]),
)
def test_keys_are_numbered_as_by_a_dictionary(keys: list[int], fields: int) -> None:
    samples = len(keys) // fields
    keys_BF = np.array(keys[: samples * fields], np.uint64).reshape(samples, fields)
    numbered = number_keys(keys_BF)
    expected = number_keys_reference(keys_BF)
    assert numbered.local_BF.shape == keys_BF.shape
    assert numbered.local_BF.tolist() == expected.local_BF.tolist()
    assert numbered.keys_U.tolist() == expected.keys_U.tolist()
    assert numbered.matrix.tolist() == keys_BF.tolist()


@pytest.mark.parametrize("distinct", [1, FEWEST_PLACES, 20 * FEWEST_PLACES])
def test_the_table_grows_with_the_keys(distinct: int) -> None:
    draw = np.random.default_rng(3)
    keys_BF = draw.integers(0, MOST, distinct, np.uint64)[draw.integers(0, distinct, (12 * FEWEST_PLACES, 2))]
    numbered = number_keys(keys_BF)
    expected = number_keys_reference(keys_BF)
    assert np.array_equal(numbered.local_BF, expected.local_BF)
    assert np.array_equal(numbered.keys_U, expected.keys_U)
