"""Hash tables of numbers, each representing a key that is stored elsewhere: open addressing with linear probing.

``table[at]`` is EMPTY or a number i whose key is ``keys[i]``. Indexes use it for key → row, caches for row → slot. A
table's size is a power of two, and it must never become full.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from infra.base.kernels import kernel

I32 = NDArray[np.int32]
EMPTY = -1
MIX = np.uint64(0x9E3779B97F4A7C15)


@kernel
def home(key: int, mask: int) -> np.int64:
    """Where a search for the key begins. The highest bits of the product say it: they spread numbers that follow each
    other, such as those of rows, more evenly than chance would.
    """
    return np.int64((((np.uint64(key) * MIX) >> np.uint64(32)) * np.uint64(mask + 1)) >> np.uint64(32))


@kernel
def find(table: I32, keys: Any, key: int) -> np.int64:
    """The key's place in the table, or the empty one where it belongs."""
    mask = table.size - 1
    at = home(key, mask)
    while table[at] != EMPTY and keys[table[at]] != key:
        at = (at + 1) & mask
    return at


@kernel
def vacancy(table: I32, key: int) -> np.int64:
    """The empty place for a key that is not in the table; fetches no keys."""
    mask = table.size - 1
    at = home(key, mask)
    while table[at] != EMPTY:
        at = (at + 1) & mask
    return at


@kernel
def remove(table: I32, keys: Any, number: int) -> None:
    """Removes a number that is in the table; those after it move up, so no tombstones are needed."""
    mask = table.size - 1
    at = home(keys[number], mask)
    while table[at] != number:
        at = (at + 1) & mask
    behind = (at + 1) & mask
    while table[behind] != EMPTY:
        moved = table[behind]
        if ((behind - home(keys[moved], mask)) & mask) >= ((behind - at) & mask):
            table[at] = moved
            at = behind
        behind = (behind + 1) & mask
    table[at] = EMPTY
