"""The coarse problems by which exact solvers find prices: every 4th, 16th, … sample, with capacities scaled alike."""

import numpy as np

from dispatch.placement.arrays import I64

COARSEN = 4
"""Each coarser level uses every COARSEN-th sample of the finer one."""
COARSEST_SAMPLES_PER_WORKER = 1
"""Samples per worker of the coarsest level: even that few give useful prices, at almost no cost."""


def level_strides(samples: int, workers: int) -> list[int]:
    """The stride of each level, the coarsest first and 1, all samples, last."""
    strides = [1]
    while samples >= strides[0] * COARSEN * COARSEST_SAMPLES_PER_WORKER * workers:
        strides.insert(0, strides[0] * COARSEN)
    return strides


def level_places(capacity_n: I64, part: int, samples: int) -> I64:
    """Each worker's places if only `part` of the samples are used; together enough for them."""
    return np.diff(np.cumsum(np.minimum(capacity_n, samples)) * part // max(samples, 1), prepend=0)
