"""Decoded events, column by column.

Legend: B samples, F keys a sample, N dense floats a sample, P keys of pooled tables, L
labels after the main one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ABSENT = np.float32(-0.0)
"""Dense float of an absent field: it trains like the 0 that it equals, and its sign tells it from a number 0."""


@dataclass(frozen=True, eq=False)
class Samples:
    """B samples; keys are 64-bit integers from end to end and never pass through a float."""

    labels_B: NDArray[np.float32]
    dense_BN: NDArray[np.float32]
    keys_BF: NDArray[np.uint64]
    times_B: NDArray[np.float64]
    """Event time, unix seconds."""
    weights_B: NDArray[np.float32] | None = None
    """How much each sample counts in the loss and in metrics; None: all count 1."""
    shares_BP: NDArray[np.float32] | None = None
    """By how much each value of a pooled table counts in its sum; None: the schema has no pooled tables."""
    more_labels_BL: NDArray[np.float32] | None = None
    """The labels after the main one, NaN where an event has none; None: there is only one label."""

    def __len__(self) -> int:
        return len(self.labels_B)

    @property
    def columns(self) -> tuple[Any, ...]:
        """All arrays, in the order of the attributes; None for those that there are not."""
        return tuple(vars(self).values())

    def slice(self, start: int, end: int) -> "Samples":
        """Samples start to end, sharing memory."""
        return self.each(lambda column: column[start:end])

    def where(self, chosen_B: NDArray[np.bool_]) -> "Samples":
        return self.each(lambda column: column[chosen_B])

    def equals(self, other: "Samples") -> bool:
        """Whether all arrays are equal, bit for bit."""
        return all(_are_equal(a, b) for a, b in zip(self.columns, other.columns, strict=True))

    def each(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> "Samples":
        """The same with every array changed."""
        changed: tuple[Any, ...] = tuple(None if column is None else change(column) for column in self.columns)
        return Samples(*changed)


def _are_equal(a: NDArray[Any] | None, b: NDArray[Any] | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def no_samples(fields: int, dense: int) -> Samples:
    """Zero samples of F keys and N floats."""
    return Samples(
        np.empty(0, np.float32),
        np.empty((0, dense), np.float32),
        np.empty((0, fields), np.uint64),
        np.empty(0, np.float64),
    )


def join_samples(parts: Sequence[Samples]) -> Samples:
    """All samples of one schema in the order of the parts; at least one part."""
    filled = [part for part in parts if len(part)] or parts[:1]
    if len(filled) == 1:
        return filled[0]
    by_column = zip(*(part.columns for part in filled), strict=True)
    joined: tuple[Any, ...] = tuple(None if arrays[0] is None else np.concatenate(arrays) for arrays in by_column)
    return Samples(*joined)
