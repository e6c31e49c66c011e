"""What a chunk of a row is worth: each use adds its gradient's norm, and counts half as much a half-life later.

Utilities do not decay row by row. Instead the weight of a use grows: a use in step t has the weight 2^((t − since) /
half-life), so at any moment the order of utilities is the one that decaying ones would have. Every so often all of them
are halved as often as ``since`` advances by a half-life; that is exact.

Utilities are compared by bins, sixteen to a factor of two: counts by bin are integers, so thresholds that follow from
them do not depend on how rows are spread over shards.

Legend: K chunks of a row.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infra.base.kernels import kernel
from ps.bins import BINS

BINS_PER_DOUBLING = 16
LOWEST_EXPONENT = -100
"""Utilities below 2 to the power of this count as 0."""


def weight_of_use(step: int, since: int, half_life_steps: int) -> float:
    """What a use in a step adds to a utility, in units of one in step ``since``."""
    return float(2.0 ** ((step - since) / half_life_steps))


def all_live(chunks: int) -> int:
    """The mask of a row of which no chunk is pruned."""
    return (1 << chunks) - 1


def count_live(masks: NDArray[np.uint8]) -> int:
    """Chunks that are live in these masks."""
    return int(np.bitwise_count(masks).sum())


@kernel
def bin_of(utility: float) -> int:
    """Inside a kernel: the bin of a utility; 0 is for those that count as 0 or are no numbers."""
    if not utility > 0.0:
        return 0
    if utility == np.inf:
        return BINS - 1
    mantissa, exponent = math.frexp(utility)
    if exponent < LOWEST_EXPONENT:
        return 0
    within = int((mantissa - 0.5) * 2 * BINS_PER_DOUBLING)
    return min(1 + (exponent - LOWEST_EXPONENT) * BINS_PER_DOUBLING + within, BINS - 1)


def bins_reference(utilities: NDArray[Any]) -> NDArray[np.int64]:
    """The bins of utilities, in plain numpy."""
    is_finite = np.isfinite(utilities)
    mantissa, exponent = np.frexp(np.where(is_finite, utilities, 0).astype(np.float64))
    within = ((mantissa - 0.5) * 2 * BINS_PER_DOUBLING).astype(np.int64)
    bins = np.minimum(1 + (exponent - LOWEST_EXPONENT) * BINS_PER_DOUBLING + within, BINS - 1)
    bins = np.where((utilities > 0) & (exponent >= LOWEST_EXPONENT), bins, 0)
    return np.where(utilities == np.inf, BINS - 1, bins)
