"""Decoded events, column by column.

Legend: B samples, F keys a sample, N dense floats a sample.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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

    def __len__(self) -> int:
        return len(self.labels_B)

    def slice(self, start: int, end: int) -> "Samples":
        """Samples start to end, sharing memory."""
        part = slice(start, end)
        return Samples(self.labels_B[part], self.dense_BN[part], self.keys_BF[part], self.times_B[part])

    def where(self, chosen_B: NDArray[np.bool_]) -> "Samples":
        return Samples(self.labels_B[chosen_B], self.dense_BN[chosen_B], self.keys_BF[chosen_B], self.times_B[chosen_B])

    def equals(self, other: "Samples") -> bool:
        """Whether all arrays are equal, bit for bit."""
        pairs = (
            (self.labels_B, other.labels_B),
            (self.dense_BN, other.dense_BN),
            (self.keys_BF, other.keys_BF),
            (self.times_B, other.times_B),
        )
        return all(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


def no_samples(fields: int, dense: int) -> Samples:
    """Zero samples of F keys and N floats."""
    return Samples(
        np.empty(0, np.float32),
        np.empty((0, dense), np.float32),
        np.empty((0, fields), np.uint64),
        np.empty(0, np.float64),
    )


def join_samples(parts: Sequence[Samples]) -> Samples:
    """All samples in the order of the parts; at least one part."""
    if len(parts) == 1:
        return parts[0]
    return Samples(
        np.concatenate([p.labels_B for p in parts]),
        np.concatenate([p.dense_BN for p in parts]),
        np.concatenate([p.keys_BF for p in parts]),
        np.concatenate([p.times_B for p in parts]),
    )
