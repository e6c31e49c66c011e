"""A 64-bit fingerprint of the rows in a push: the dispatcher announces it, and a shard compares it
with what arrives.
"""

from typing import Any

import numpy as np

from infra.base.kernels import kernel
from infra.base.mixing import GAMMA, mix, mix_reference


@kernel
def fingerprint_of_row(number: Any, is_part: Any) -> Any:
    """The fingerprint of one pushed row, as value and state or as a part."""
    return mix(np.uint64(2 * number + is_part) + np.uint64(GAMMA))


@kernel
def fingerprint(owned_numbers: Any, part_numbers: Any) -> Any:
    """The fingerprint of one push: the sum over its rows. Other rows have another one, except in one case in 2^64."""
    total = np.uint64(0)
    for number in owned_numbers:
        total += fingerprint_of_row(number, 0)
    for number in part_numbers:
        total += fingerprint_of_row(number, 1)
    return total


def fingerprint_reference(owned_numbers: list[int], part_numbers: list[int]) -> int:
    """The same in plain integers."""
    rows = [2 * number for number in owned_numbers] + [2 * number + 1 for number in part_numbers]
    return sum(mix_reference(row + GAMMA) for row in rows) % (1 << 64)
