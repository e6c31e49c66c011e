"""Arrays come back to the bit from the narrowest form that holds them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from infra.base.packing import BITS, forms_of

NAMES = (("u4", "i8"), ("u2", "i4"), ("u1", "u2", "i4"), ("u1", "u2", "u4", "i8"))
EDGES = tuple(edge + near for edge in (0, 1 << 8, 1 << 16, 1 << 31, 1 << 32) for near in (-1, 0, 1))
FLOATS = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(width=32))


def integers(dtype: str) -> st.SearchStrategy[NDArray[Any]]:
    """Arrays whose largest number is often next to a bound of a type."""
    bounds = np.iinfo(dtype)
    edges = [edge for edge in EDGES if bounds.min <= edge <= bounds.max]
    elements = st.one_of(st.sampled_from(edges), st.integers(0, 9), st.integers(int(bounds.min), int(bounds.max)))
    return arrays(dtype, st.integers(0, 40), elements=elements)


@given(st.sampled_from(NAMES).flatmap(lambda names: st.tuples(st.just(names), integers(names[-1]))))
def test_integers_come_back_equal(given: tuple[tuple[str, ...], NDArray[Any]]) -> None:
    names, array = given
    forms = forms_of(names)
    number, packed = forms.pack(array)
    received = forms.unpack(number, packed.tobytes())
    assert (received.dtype, received.tolist()) == (array.dtype, array.tolist())
    assert packed.dtype == np.dtype(names[number])
    for narrower in names[:number]:
        assert not np.array_equal(array.astype(narrower), array), f"{narrower} would do"


@pytest.mark.parametrize(
    ("largest", "form"), [(0, "u1"), (255, "u1"), (256, "u2"), (65_535, "u2"), (65_536, "i4"), (-1, "i4")]
)
def test_the_largest_number_decides(largest: int, form: str) -> None:
    _, packed = forms_of(("u1", "u2", "i4")).pack(np.array([0, largest, 0], np.int32))
    assert packed.dtype == np.dtype(form)


@pytest.mark.parametrize(("largest", "form"), [((1 << 32) - 1, "u4"), (1 << 32, "i8"), (-1, "i8")])
def test_rows_beyond_32_bits_keep_their_type(largest: int, form: str) -> None:
    _, packed = forms_of(("u4", "i8")).pack(np.array([largest]))
    assert packed.dtype == np.dtype(form)


@given(arrays(np.float32, st.integers(0, 40), elements=FLOATS))
def test_floats_come_back_to_the_bit(array: NDArray[np.float32]) -> None:
    forms = forms_of((BITS, "f4"))
    number, packed = forms.pack(array)
    received = forms.unpack(number, packed.tobytes())
    assert received.dtype == np.float32
    assert received.tobytes() == array.tobytes()


@given(arrays(np.bool_, st.integers(0, 40)))
def test_zeros_and_ones_take_a_bit_each(array: NDArray[np.bool_]) -> None:
    number, packed = forms_of((BITS, "f4")).pack(array.astype(np.float32))
    assert (number, packed.nbytes) == (0, array.size // 8 + 1)


@pytest.mark.parametrize("label", [-0.0, 0.5, 2.0, np.nan, 1e-45])
def test_another_number_among_them_keeps_them_floats(label: float) -> None:
    number, packed = forms_of((BITS, "f4")).pack(np.array([0, 1, label], np.float32))
    assert (number, packed.dtype.name) == (1, "float32")


@pytest.mark.parametrize(
    ("number", "buffer"), [(0, b""), (0, b"\0"), (0, b"\xff\0"), (1, b"abc"), (2, b""), (255, b"")]
)
def test_what_is_no_form_of_an_array_is_refused(number: int, buffer: bytes) -> None:
    with pytest.raises(ValueError, match=r"form 2|form 255|bits have no mark|multiple of element size"):
        forms_of((BITS, "f4")).unpack(number, buffer)
