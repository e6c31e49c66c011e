"""The one value that no key has: it stands for the key of a row number that is free."""

import numpy as np
from numpy.typing import NDArray

FREE = np.uint64(2**64 - 1)
"""In place of the key of a number whose key was forgotten."""


def usable(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The same keys; FREE, which an event may hash to by chance or by design, becomes the value below it."""
    return np.minimum(keys, FREE - np.uint64(1))
