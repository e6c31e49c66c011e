"""A 64-bit mixing function, equal on every machine; start values, fingerprints and digests are based on it."""

from typing import Any

import numpy as np

from infra.base.kernels import kernel

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


@kernel
def mix(value: Any) -> Any:
    """Spreads 64 bits over 64 bits."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(_MIX_1)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(_MIX_2)
    return value ^ (value >> np.uint64(31))


def mix_reference(value: int) -> int:
    value &= MASK
    value = (value ^ value >> 30) * _MIX_1 & MASK
    value = (value ^ value >> 27) * _MIX_2 & MASK
    return value ^ value >> 31
