import math

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from ingest.keys import absent_key, hash_values, key_of, log_square, log_squares, table_seed, text_of


def test_integer_and_its_digits_are_one_key() -> None:
    assert key_of("item", 7) == key_of("item", "7") == key_of("item", 7.0)


def test_boolean_is_not_the_number_one() -> None:
    assert key_of("item", True) == key_of("item", "true") != key_of("item", 1)


def test_same_value_in_two_tables_has_two_keys() -> None:
    assert key_of("user", "7") != key_of("item", "7")


def test_absent_value_is_not_the_empty_string() -> None:
    assert key_of("user", None) == absent_key("user") != key_of("user", "")


def test_keys_stay_what_they_were_in_the_first_release() -> None:
    assert (key_of("user", "u17"), key_of("user", None)) == (FIRST_KEY, FIRST_ABSENT)


FIRST_KEY = 11878354123808643895
FIRST_ABSENT = 32801546975381039


@pytest.mark.parametrize("pair", [(2**24, 2**24 + 1), (2**53, 2**53 + 1), (2**63, 2**63 + 1), (2**64, 2**64 + 1)])
def test_neighbouring_large_integers_keep_their_own_keys(pair: tuple[int, int]) -> None:
    assert key_of("item", pair[0]) != key_of("item", pair[1])


@given(
    st.lists(st.none() | st.text() | st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False))
)
def test_many_values_hash_as_one_by_one(values: list[str | int | float | bool | None]) -> None:
    values = [v for v in values if not isinstance(v, str) or v.isprintable()]
    assert hash_values(table_seed("t"), absent_key("t"), values) == [key_of("t", v) for v in values]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_key_is_xxh3_of_the_utf8_bytes(value: str) -> None:
    assert key_of("t", value) == xxhash.xxh3_64_intdigest(value.encode(), table_seed("t"))


@given(st.integers(0, 2**40))
def test_bucket_is_the_floor_of_the_squared_logarithm(value: int) -> None:
    exact = math.log(value + 1) ** 2
    assert log_square(value) == math.floor(exact) or abs(exact - round(exact)) < 1e-9


@given(st.lists(st.floats(-1e15, 2.0**62), min_size=1))
def test_buckets_of_many_values_equal_those_of_one(values: list[float]) -> None:
    assert log_squares(np.array(values)).tolist() == [log_square(v) for v in values]


def test_negative_numbers_are_their_own_buckets() -> None:
    assert [log_square(v) for v in (-3, -1, 0, 1, 2)] == [-3, -1, 0, 0, 1]


def test_float_keeps_every_digit() -> None:
    assert text_of(0.1 + 0.2) == "0.30000000000000004"
