"""Start values of rows, from (seed, key) alone: row numbering, shards and restarts do not change the model.

A 64-bit hash of (seed, key, column) is split into four 16-bit uniforms; their centred sum (Irwin–Hall of 4) is scaled
to the requested standard deviation. Up to that one multiplication everything is integer arithmetic, so values are equal
on every machine. The wide column and SGD's absent state start at 0, Adagrad's accumulators at ``initial_accumulator``,
that of the wide column at ``wide_accumulator``.

Legend: K keys, W columns of a value, T of value and state.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infra.base.kernels import kernel
from infra.base.mixing import GAMMA, MASK, mix, mix_reference
from ps.config import RowConfig
from ps.utilities import all_live

_CENTRE = 2 * 65535
SUM_STD = math.sqrt((65536**2 - 1) / 3)
"""Standard deviation of the sum of four uniforms over 0..65535."""


@kernel
def _fill(seed: Any, keys_K: Any, dim: int, scale: float, rows_KT: Any) -> None:
    gamma = np.uint64(GAMMA)
    low = np.uint64(0xFFFF)
    for k in range(keys_K.shape[0]):
        origin = mix(mix(seed + gamma) ^ keys_K[k])
        for c in range(dim):
            h = mix(origin + np.uint64(c + 1) * gamma)
            total = (h & low) + (h >> np.uint64(16) & low) + (h >> np.uint64(32) & low) + (h >> np.uint64(48))
            rows_KT[k, c] = float(np.int64(total) - _CENTRE) * scale


def start_rows(config: RowConfig, seed: int, keys_K: NDArray[np.uint64]) -> NDArray[Any]:
    """[value | state] of each key before its first training."""
    shape = config.shape()
    rows_KT = np.zeros((len(keys_K), shape.total), config.float_dtype)
    rows_KT[:, shape.value : shape.value + shape.optimizer_state] = config.initial_accumulator
    if shape.wide and shape.optimizer_state:
        rows_KT[:, shape.value + shape.optimizer_state - 1] = config.wide_start
    if shape.chunks:
        rows_KT[:, -1] = all_live(shape.chunks)
    _fill(np.uint64(seed & MASK), keys_K, shape.dim, config.init_std / SUM_STD, rows_KT)
    return rows_KT


def start_reference(config: RowConfig, seed: int, key: int) -> list[float]:
    """The same for one key, in plain integers."""
    shape = config.shape()
    origin = mix_reference(mix_reference(seed + GAMMA) ^ key)
    values = []
    for c in range(shape.dim):
        h = mix_reference(origin + (c + 1) * GAMMA)
        total = sum(h >> shift & 0xFFFF for shift in (0, 16, 32, 48))
        values.append((total - _CENTRE) * (config.init_std / SUM_STD))
    state = [config.initial_accumulator] * shape.optimizer_state
    if shape.wide and state:
        state[-1] = config.wide_start
    utilities_and_mask = [0.0] * shape.chunks + [float(2**shape.chunks - 1)] if shape.chunks else []
    return values + [0.0] * int(shape.wide) + state + utilities_and_mask
