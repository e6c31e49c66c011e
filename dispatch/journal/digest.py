"""Digests by which two runs are compared: of their settings, and of what they predict in a step."""

from collections.abc import Mapping

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray


def digest_of(settings: Mapping[str, str]) -> str:
    """32 hex digits."""
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(sorted(settings.items())))


def digest_of_logits(logits_B: NDArray[np.float32]) -> int:
    return xxhash.xxh3_64_intdigest(logits_B.tobytes())
