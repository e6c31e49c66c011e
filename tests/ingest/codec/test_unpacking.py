"""Compiled kernels of packed samples give what their plain forms give."""

from inspect import getclosurevars
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from ingest.codec.packed import PackedCodec
from ingest.codec.unpacking import add_crosses, are_good, fill_keys, terms_of, warm_up
from ingest.columns import MAX_TIME
from ingest.convert import Event
from ingest.crosses import add_crosses as add_crosses_reference
from ingest.schema import load_schema
from tests.ingest.test_crosses import CROSSED

SAMPLES, DENSE = 4, 3
LIMITS = [0.0, -0.0, 1.0, -1.0, 2.0, float("inf"), float("-inf"), float("nan"), MAX_TIME, -1e-300]
numbers = st.sampled_from(LIMITS)


@given(arrays(np.uint64, st.tuples(st.integers(0, 9), st.just(5)), elements=st.integers(0, 2**64 - 1)))
def test_crosses_are_those_of_the_plain_form(keys_BE: NDArray[np.uint64]) -> None:
    found = add_crosses(keys_BE, CROSSED)
    assert found.dtype == np.uint64
    assert found.tolist() == add_crosses_reference(keys_BE, CROSSED).tolist()


@pytest.mark.parametrize("ranges", [1, 2, 3, 7, 20])
def test_ranges_of_samples_add_up(ranges: int) -> None:
    keys_BE = np.arange(65, dtype=np.uint64).reshape(13, 5)
    keys_BF = np.empty((13, CROSSED.fields), np.uint64)
    fill_keys(ranges, keys_BE, *terms_of(CROSSED), keys_BF)
    assert keys_BF.tolist() == add_crosses_reference(keys_BE, CROSSED).tolist()


def test_keys_stay_as_they_are_without_crosses() -> None:
    keys_BE = np.ones((2, 3), np.uint64)
    assert add_crosses(keys_BE, load_schema("synthetic")) is keys_BE


@given(
    arrays(np.float32, SAMPLES, elements=numbers.map(np.float32)),
    arrays(np.float64, SAMPLES, elements=numbers),
    arrays(np.float32, (SAMPLES, DENSE), elements=numbers.map(np.float32)),
)
def test_a_sample_is_good_if_all_its_values_are(
    labels_B: NDArray[np.float32], times_B: NDArray[np.float64], dense_BN: NDArray[np.float32]
) -> None:
    low_N = np.array([0, -1, -2], np.float32)
    high_N = np.array([1, 2, 0], np.float32)

    def is_good(label: Any, time: Any, dense_N: Any) -> bool:
        is_within = all(low <= value <= high for low, value, high in zip(low_N, dense_N, high_N, strict=True))
        return bool(label in (0, 1) and 0 <= time < MAX_TIME and is_within)

    found_B = are_good(labels_B, times_B, dense_BN, low_N, high_N)
    assert found_B.tolist() == [is_good(*row) for row in zip(labels_B, times_B, dense_BN, strict=True)]


def test_what_was_compiled_before_serves_for_any_number_of_samples() -> None:
    warm_up()
    codec = PackedCodec(CROSSED)
    for count in (1, 2):
        codec.decode([codec.encode_events([Event(1.0, 1, {"user": "u", "item": "i"})] * count)])
    compiled: list[Any] = [getclosurevars(fill_keys).nonlocals["alone"], are_good]
    assert [len(each.signatures) for each in compiled] == [1, 1]
