"""One shard's range: its forms, its sums, and what it refuses."""

import numpy as np
import pytest
from numpy.typing import NDArray

from infra.base.errors import WireError
from ps.config import DenseRule
from ps.dense.range import DenseRange
from ps.dense.update import adam_reference, adam_scales
from ps.errors import OutOfOrder
from ps.protocol import BARE, WHOLE

ADAM, SGD = DenseRule("adam", 0.1), DenseRule("sgd", 0.5)


def floats(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def handed_in(rule: DenseRule, whole: NDArray[np.float32]) -> DenseRange:
    dense = DenseRange(rule, np.float32)
    dense.check(WHOLE, 0, whole.size)
    dense.put(whole)
    return dense


def apply(dense: DenseRange, piece: int, gradients: list[NDArray[np.float32]]) -> None:
    for number, gradient in enumerate(gradients):
        dense.add(piece, gradient, is_first=number == 0)
    dense.apply(piece)


def test_gradients_are_summed_and_applied_once() -> None:
    dense = handed_in(SGD, floats(1, 2))
    apply(dense, 0, [floats(1, 0), floats(1, 4), floats(0, 2)])
    assert dense.read(BARE).tolist() == [0, -1]


def test_gradients_are_summed_in_the_order_given() -> None:
    dense = handed_in(SGD, floats(0))
    apply(dense, 0, [floats(1e8), floats(-1e8), floats(1)])
    assert dense.read(BARE).tolist() == [-0.5]


def test_adam_keeps_its_state_and_counts_updates() -> None:
    dense = handed_in(ADAM, floats(1, 2, 0, 0, 0, 0, 0))
    apply(dense, 0, [floats(3, 4)])
    none = np.zeros(2, np.float32)
    expected = adam_reference(floats(1, 2), none, none, floats(3, 4), adam_scales(0.1, 1, np.float32))
    np.testing.assert_allclose(dense.read(WHOLE), [*np.concatenate(expected), 1], rtol=1e-6)


def test_what_was_handed_in_is_a_copy() -> None:
    whole, gradient = floats(1), floats(1)
    dense = handed_in(SGD, whole)
    apply(dense, 0, [gradient, floats(2)])
    assert (whole.tolist(), gradient.tolist(), dense.read(WHOLE).tolist()) == ([1], [1], [-0.5])


@pytest.mark.parametrize(("rule", "whole"), [(ADAM, 7), (SGD, 2)])
def test_a_range_has_two_forms(rule: DenseRule, whole: int) -> None:
    dense = handed_in(rule, np.zeros(whole, np.float32))
    assert [dense.size(form) for form in (BARE, WHOLE)] == [2, whole]


def test_an_empty_range_is_one() -> None:
    dense = handed_in(ADAM, floats(0))
    apply(dense, 0, [floats()])
    assert (dense.size(BARE), dense.read(WHOLE).tolist()) == (0, [1])


def test_pieces_change_what_the_whole_would(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, (first, second) = floats(*range(9), *[0.0] * 19), np.random.default_rng(0).random((2, 9), np.float32)
    at_once = handed_in(ADAM, whole)
    monkeypatch.setattr("ps.dense.range.LEAST_PIECE_BYTES", 12)
    in_pieces = handed_in(ADAM, whole)
    assert (at_once.pieces, in_pieces.pieces) == (1, 3)
    for gradient in (first, second):
        apply(at_once, 0, [gradient])
        for piece in (2, 0, 1):
            apply(in_pieces, piece, [gradient[3 * piece : 3 * piece + 3]])
    assert np.array_equal(at_once.read(WHOLE), in_pieces.read(WHOLE))
    assert np.array_equal(
        np.concatenate([in_pieces.read(BARE, range(piece, piece + 1)) for piece in range(3)]), at_once.read(BARE)
    )
    assert np.array_equal(in_pieces.read(BARE, range(1, 3)), at_once.read(BARE)[3:])


@pytest.mark.parametrize("form", [BARE, WHOLE])
def test_what_was_never_handed_in_cannot_be_read(form: int) -> None:
    with pytest.raises(OutOfOrder, match="before they were handed in"):
        DenseRange(ADAM, np.float32).read(form)


@pytest.mark.parametrize(("form", "size"), [(BARE, 1), (BARE, 7), (WHOLE, 2), (WHOLE, 10)])
def test_another_number_of_floats_is_refused(form: int, size: int) -> None:
    dense = handed_in(ADAM, np.zeros(7, np.float32))
    with pytest.raises(WireError, match=rf"brought {size} floats"):
        dense.check(form, 0, size)


@pytest.mark.parametrize("size", [0, 2, 6])
def test_a_first_range_that_is_no_whole_one_is_refused(size: int) -> None:
    with pytest.raises(WireError, match=rf"brought {size} floats"):
        DenseRange(ADAM, np.float32).check(WHOLE, 0, size)
