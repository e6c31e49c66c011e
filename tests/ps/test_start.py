"""Start values: from (seed, key) alone, equal everywhere, unit variance."""

import math
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps.config import RowConfig
from ps.start import start_reference, start_rows

KEYS = st.integers(0, 2**64 - 1)
UNIT = math.sqrt((65536**2 - 1) / 3)


@pytest.mark.parametrize(
    ("seed", "key", "expected"),
    [
        (0, 0, [-61009, -18670, -61513, -9758]),
        (7, 3, [-6270, -34570, 20993, 3482]),
        (7, 2**64 - 1, [-15238, -93100, 34849, 9939]),
    ],
)
def test_values_of_known_keys_never_change(seed: int, key: int, expected: list[int]) -> None:
    config = RowConfig(dim=4, wide=False, optimizer="sgd", init_std=1.0, float_dtype="float64")
    values = start_rows(config, seed, np.array([key], np.uint64))[0]
    assert values.tolist() == [number * (1.0 / UNIT) for number in expected]


@given(st.integers(0, 2**63), st.lists(KEYS, min_size=1, max_size=8), st.sampled_from(["float32", "float64"]))
def test_kernel_equals_plain_reference_to_the_bit(
    seed: int, keys: list[int], dtype: Literal["float32", "float64"]
) -> None:
    config = RowConfig(dim=5, float_dtype=dtype)
    rows = start_rows(config, seed, np.array(keys, np.uint64))
    expected = np.array([start_reference(config, seed, key) for key in keys]).astype(dtype)
    assert rows.dtype == expected.dtype
    assert np.array_equal(rows, expected)


def test_embedding_columns_have_the_wanted_spread() -> None:
    config = RowConfig(dim=64, wide=False, optimizer="sgd", init_std=1.0, float_dtype="float64")
    values = start_rows(config, 1, np.arange(20_000, dtype=np.uint64))
    assert abs(values.mean()) < 0.005
    assert values.var() == pytest.approx(1.0, abs=0.01)
    assert np.abs(np.corrcoef(values.T) - np.eye(64)).max() < 0.05


def test_wide_column_starts_at_zero_and_state_at_its_setting() -> None:
    config = RowConfig(dim=3, initial_accumulator=0.25, wide_accumulator=0.5)
    rows = start_rows(config, 1, np.arange(5, dtype=np.uint64))
    assert np.array_equal(rows[:, 3:], [[0.0, 0.25, 0.25, 0.25, 0.5]] * 5)
    rows = start_rows(config.model_copy(update={"wide_accumulator": 0.0}), 1, np.arange(5, dtype=np.uint64))
    assert np.array_equal(rows[:, 3:], [[0.0, 0.25, 0.25, 0.25, 0.25]] * 5)


@given(st.lists(KEYS, min_size=2, max_size=20, unique=True))
def test_value_does_not_depend_on_the_other_keys(keys: list[int]) -> None:
    config = RowConfig(dim=3)
    forward = start_rows(config, 9, np.array(keys, np.uint64))
    backward = start_rows(config, 9, np.array(keys[::-1], np.uint64))
    assert np.array_equal(forward, backward[::-1])


def test_other_seed_gives_other_values() -> None:
    keys = np.arange(10, dtype=np.uint64)
    config = RowConfig(dim=4, optimizer="sgd", wide=False)
    assert not np.any(start_rows(config, 1, keys) == start_rows(config, 2, keys))
