"""The coarse problems by which exact solvers find prices: every 4th, 16th, … sample, capacities scaled alike."""

import numpy as np

from dispatch.placement.arrays import I64

COARSEN = 4
"""each coarser level looks at every COARSEN-th sample of the finer one"""
COARSEST_SAMPLES_PER_WORKER = 1
"""even that says something about prices, and a level with so few costs next to nothing"""


def level_strides(samples: int, workers: int) -> list[int]:
    """Which samples each level looks at, the coarsest first and 1, all of them, last."""
    strides = [1]
    while samples >= strides[0] * COARSEN * COARSEST_SAMPLES_PER_WORKER * workers:
        strides.insert(0, strides[0] * COARSEN)
    return strides


def level_places(capacity_n: I64, part: int, samples: int) -> I64:
    """Each worker's places when only `part` of the samples are looked at; in all enough for them."""
    return np.diff(np.cumsum(np.minimum(capacity_n, samples)) * part // max(samples, 1), prepend=0)
