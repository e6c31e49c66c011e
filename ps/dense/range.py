"""One shard's range of the dense vector: weights, optimizer state, and how many updates there have been.

Nothing is known of it until a worker hands it in as a whole; from then on its length is fixed. A whole range is one
flat array, on the wire as in memory: the weights, then under Adam the mean of gradients, the mean of their squares and
the number of updates. Gradients are summed in worker order and applied once, so the result does not depend on the order
of arrival, to the bit.

Legend: L weights of the range.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from infra.errors import WireError
from ps.config import DenseRule
from ps.dense.update import adam, adam_scales, add_to, sgd
from ps.errors import OutOfOrder
from ps.protocol import BARE, NO_DENSE, WHOLE


class DenseRange:
    """Weights and state of a range, and their optimizer."""

    def __init__(self, rule: DenseRule, dtype: DTypeLike) -> None:
        self._rule = rule
        self._whole: NDArray[Any] = np.empty(0, dtype)
        self._length: int | None = None

    def size(self, form: int) -> int:
        """Floats of the range in that form; raises OutOfOrder before the range was handed in."""
        if form == NO_DENSE:
            return 0
        if self._length is None:
            raise OutOfOrder(
                "dense weights were asked for or changed before they were handed in; expected a worker to push them "
                "as a whole first; the dispatcher must order it"
            )
        return self._length if form == BARE else self._whole.size

    def check(self, form: int, floats: int) -> None:
        """Raises unless so many floats are the range in that form."""
        is_first = form == WHOLE and self._length is None
        expected = self._whole_size(self._length_of(floats)) if is_first else self.size(form)
        if floats != expected:
            raise WireError(
                f"a push brought {floats} floats of dense weights in form {form}; expected {expected}; give worker and "
                "shard the same settings"
            )

    def change(self, form: int, brought: Sequence[NDArray[Any]]) -> None:
        """Takes what the workers of a round pushed, in their order: one whole range, or gradients. Checked before."""
        if form == WHOLE:
            (whole,) = brought
            self._length, self._whole = self._length_of(whole.size), whole.copy()
        else:
            self._apply(brought)

    def read(self, form: int) -> NDArray[Any]:
        """The range in that form; a view, which the next update changes."""
        return self._whole[: self.size(form)]

    def _apply(self, gradients: Sequence[NDArray[Any]]) -> None:
        """Sums gradients in the order given and applies the optimizer once."""
        total_L = gradients[0].copy()
        for part_L in gradients[1:]:
            add_to(total_L, part_L)
        length = self.size(BARE)
        weights_L, dtype = self._whole[:length], self._whole.dtype
        if self._rule.optimizer == "sgd":
            sgd(weights_L, total_L, dtype.type(self._rule.rate))
            return
        self._whole[-1] += 1
        scales = adam_scales(self._rule.rate, int(self._whole[-1]), dtype)
        adam(weights_L, self._whole[length : 2 * length], self._whole[2 * length : 3 * length], total_L, scales)

    def _length_of(self, floats: int) -> int:
        return floats if self._rule.optimizer == "sgd" else max(0, floats - 1) // 3

    def _whole_size(self, length: int) -> int:
        return length if self._rule.optimizer == "sgd" else 3 * length + 1
