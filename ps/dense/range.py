"""One shard's range of the dense vector: weights, optimizer state, and the number of updates.

The range is unknown until a worker hands it in as a whole; from then on its length is fixed. A whole range is one flat
array, on the wire as in memory: the weights, then under Adam the mean of gradients, the mean of their squares and the
number of updates. Gradients arrive, and updated weights leave, in *pieces* of the range, so that a link carries both at
the same time; each piece is updated on its own. Gradients are summed in worker order, each as soon as those before it
are there, and applied once, so the result depends neither on the order of arrival nor on the number of pieces, to the
bit.

Legend: L weights of the range.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from infra.base.errors import WireError
from ps.config import DenseRule
from ps.dense.update import adam, adam_scales, add_to, sgd
from ps.errors import OutOfOrder
from ps.protocol import BARE, WHOLE

MOST_PIECES = 8
LEAST_PIECE_BYTES = 1 << 16
"""Smaller pieces would cost more in messages than they save in time."""
FIRST_PIECE = range(1)


def pieces_of(length: int, itemsize: int) -> list[slice]:
    """How a range of that many weights is split into pieces; worker and shard must agree on it."""
    count = min(MOST_PIECES, max(1, length * itemsize // LEAST_PIECE_BYTES))
    return [slice(length * each // count, length * (each + 1) // count) for each in range(count)]


def place_of(places: Sequence[slice], pieces: range) -> slice:
    """Where neighbouring pieces are in the range; pieces that there are not have no place in it."""
    first, last = (min(piece, len(places) - 1) for piece in (pieces.start, pieces.stop - 1))
    return slice(places[first].start, places[last].stop)


@dataclass
class DenseCopy:
    """A copy of a whole range, each piece at the same turn; empty if the range had not been handed in."""

    whole: NDArray[Any]
    is_complete: bool = False
    copied: int = 0
    """Number of pieces copied."""


class DenseRange:
    """Weights and state of a range, and their optimizer."""

    def __init__(self, rule: DenseRule, dtype: DTypeLike) -> None:
        self._rule = rule
        self._whole: NDArray[Any] = np.empty(0, dtype)
        self._length: int | None = None
        self._places = [slice(0, 0)]
        self._sum: NDArray[Any] = self._whole
        """The gradients of the pieces that were added since their last updates."""
        self._updates = [0]
        """Number of updates of each piece."""

    @property
    def pieces(self) -> int:
        """Number of pieces; 1 before the range was handed in."""
        return len(self._places)

    def size(self, form: int, piece: int = 0) -> int:
        """Floats of a piece, or of the whole range; raises OutOfOrder before the range was handed in."""
        if self._length is None:
            raise OutOfOrder(
                "dense weights were asked for or changed before they were handed in; expected a worker to push them "
                "as a whole first; the dispatcher must order it"
            )
        place = self._places[piece]
        return place.stop - place.start if form == BARE else self._whole.size

    def check(self, form: int, piece: int, floats: int) -> None:
        """Raises unless that many floats make up that piece, or the whole range."""
        is_first = form == WHOLE and self._length is None
        if not 0 <= piece < (1 if form == WHOLE else self.pieces):
            raise WireError(
                f"a push brought piece {piece} of dense weights in form {form}; expected one of {self.pieces}, and the "
                "whole at once; give worker and shard the same settings"
            )
        expected = self._whole_size(self._length_of(floats)) if is_first else self.size(form, piece)
        if floats != expected:
            raise WireError(
                f"a push brought {floats} floats of dense weights in form {form}; expected {expected}; give worker and "
                "shard the same settings"
            )

    def put(self, whole: NDArray[Any]) -> None:
        """Replaces the whole range; its size must have been checked."""
        self._length = self._length_of(whole.size)
        self._whole = whole.copy()
        self._places = pieces_of(self._length, whole.itemsize)
        self._sum = np.empty(self._length, whole.dtype)
        counted = int(whole[-1]) if self._has_state else 0
        self._updates = [counted] * len(self._places)

    def add(self, piece: int, gradient_L: NDArray[Any], is_first: bool) -> None:
        """Adds a gradient of a piece to those before it; its size must have been checked."""
        sum_L = self._sum[self._places[piece]]
        if is_first:
            sum_L[:] = gradient_L
        else:
            add_to(sum_L, gradient_L)

    def apply(self, piece: int) -> None:
        """Applies the optimizer once, with the sum of the gradients that were added."""
        place = self._places[piece]
        sum_L = self._sum[place]
        length = self.size(WHOLE) // 3
        dtype = self._whole.dtype
        if not self._has_state:
            sgd(self._whole[place], sum_L, dtype.type(self._rule.rate))
            return
        self._updates[piece] += 1
        self._whole[-1] = self._updates[piece]
        scales = adam_scales(self._rule.rate, self._updates[piece], dtype)
        weights_L, mean_L, square_L = (self._whole[start * length :][place] for start in range(3))
        adam(weights_L, mean_L, square_L, sum_L, scales)

    def read(self, form: int, pieces: range = FIRST_PIECE) -> NDArray[Any]:
        """Neighbouring pieces of the weights, or the whole range; a view, which the next update changes."""
        size = self.size(WHOLE)
        return self._whole[place_of(self._places, pieces) if form == BARE else slice(size)]

    def empty_copy(self) -> DenseCopy:
        return DenseCopy(self._whole[:0].copy())

    def copy(self, piece: int, into: DenseCopy) -> None:
        """Copies one piece, weights and state; to be called once for each piece."""
        if self._length is None:
            into.is_complete = True
            return
        if into.whole.size != self._whole.size:
            into.whole = np.empty_like(self._whole)
        place = self._places[piece]
        for start in range(0, self._length * (3 if self._has_state else 1), self._length or 1):
            into.whole[start:][place] = self._whole[start:][place]
        if self._has_state:
            into.whole[-1] = self._updates[piece]
        into.copied += 1
        into.is_complete = into.copied == self.pieces

    @property
    def _has_state(self) -> bool:
        return self._rule.optimizer != "sgd"

    def _length_of(self, floats: int) -> int:
        return max(0, floats - 1) // 3 if self._has_state else floats

    def _whole_size(self, length: int) -> int:
        return 3 * length + 1 if self._has_state else length
