"""Depth of msgpack values, against values built by the encoder."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.base.nesting import is_nested_deeper

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=50,
)


def depth_of(value: Any) -> int:
    """Lists and maps inside each other; empty ones hold nothing and count as values."""
    inner = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []
    return 1 + max(map(depth_of, inner)) if inner else 0


@given(VALUES, st.integers(0, 4))
def test_depth_is_found_for_any_value(value: Any, levels: int) -> None:
    assert is_nested_deeper(msgspec.msgpack.encode(value), levels) == (depth_of(value) > levels)


@pytest.mark.parametrize(
    "opening", [b"\x91", b"\x81\xa1a", b"\xdc\x00\x01", b"\xdd\xff\xff\xff\xff", b"\xdf\0\0\0\1\xc0"]
)
def test_any_opening_a_hundred_thousand_times_is_deep(opening: bytes) -> None:
    assert is_nested_deeper(opening * 100_000, 16)


@given(st.binary())
def test_any_bytes_are_read_to_an_end(value: bytes) -> None:
    is_nested_deeper(value, 2)
