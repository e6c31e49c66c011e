"""Splits a batch so that all workers finish at the same time, each within its bounds.

Legend: n workers.
"""

import numpy as np

from dispatch.placement.arrays import F64, I64

ROUNDING = 1e-9
"""Share of the samples by which sums of times and rates may be wrong."""


def level(samples: int, fixed_n: F64, sample_n: F64, least_n: I64, most_n: I64) -> float:
    """The least time in which all samples can be trained; infinite if the bounds do not allow it.

    A worker trains its fewest samples at any time, and by the time t as many as (t − fixed) / sample, up to its bound.
    The sum of all is a piecewise linear function, with bends where a worker begins to train more or has reached its
    bound. Times of a sample must be above 0.
    """
    if int(most_n.sum()) < samples:
        return float("inf")
    bends = np.concatenate((fixed_n + least_n * sample_n, fixed_n + most_n * sample_n))
    rate_n = 1 / sample_n
    order = bends.argsort(kind="stable")
    bends, rates = bends[order], np.concatenate((rate_n, -rate_n))[order].cumsum()
    trained = least_n.sum() + np.concatenate(([0.0], (rates[:-1] * np.diff(bends)).cumsum()))
    # on a flat stretch, a sum that is too small by rounding must not add the whole stretch
    bend = int(trained.searchsorted(samples * (1 - ROUNDING)))
    if bend == 0 or bend == bends.size:  # the fewest samples suffice, or rounding hides that the most do
        return float(bends[min(bend, bends.size - 1)])
    return float(bends[bend - 1] + (samples - trained[bend - 1]) / rates[bend - 1])
