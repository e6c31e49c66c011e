"""Finds the row of a key: open addressing on 64-bit keys.

A key gets the next number when it is first inserted, and keeps it. Besides the array of keys there is a hash table of
32-bit numbers: 8 bytes a key, and 6 to 12 for the hash table, which is at most two thirds full.

Legend: K keys.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatch.placement.rows.hashing import EMPTY, find, home
from infra.base.kernels import kernel

FIRST_CAPACITY = 1024
GROWTH = 1.125
"""Factor by which arrays grow: little memory is idle, and each row is still copied only a few times."""


@kernel
def _find(keys_K: Any, table: Any, known: Any, numbers_K: Any) -> None:
    """Memory accesses are slow but independent of each other, so all are started before any result is used."""
    mask = table.size - 1
    for k in range(keys_K.size):
        numbers_K[k] = table[home(keys_K[k], mask)]
    for k in range(keys_K.size):
        if numbers_K[k] != EMPTY and known[numbers_K[k]] != keys_K[k]:
            numbers_K[k] = table[find(table, known, keys_K[k])]


@kernel
def _insert(keys_K: Any, table: Any, known: Any, count: int, numbers_K: Any) -> int:
    """Numbers of keys; unknown keys get the next numbers. Returns how many keys are known afterwards."""
    for k in range(keys_K.size):
        at = find(table, known, keys_K[k])
        if table[at] == EMPTY:
            known[count] = keys_K[k]
            table[at] = count
            count += 1
        numbers_K[k] = table[at]
    return count


@kernel
def _rehash(table: Any, known: Any, count: int) -> None:
    for number in range(count):
        table[find(table, known, known[number])] = number


def find_reference(known: dict[int, int], keys: list[int]) -> list[int]:
    """What ``KeyIndex.find`` must return, computed with a dictionary."""
    return [known.get(key, EMPTY) for key in keys]


def insert_reference(known: dict[int, int], keys: list[int]) -> list[int]:
    """What ``KeyIndex.insert`` must return, computed with a dictionary."""
    return [known.setdefault(key, len(known)) for key in keys]


class KeyIndex:
    """Numbers keys, from 0."""

    def __init__(self, capacity: int = FIRST_CAPACITY) -> None:
        self.count = 0
        self._known = np.empty(capacity, np.uint64)
        self._table = np.full(_table_size(capacity), EMPTY, np.int32)

    @property
    def capacity(self) -> int:
        """Number of keys that fit without growing."""
        return self._known.size

    @property
    def nbytes(self) -> int:
        return self._known.nbytes + self._table.nbytes

    def find(self, keys_K: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The number of each key; EMPTY for an unknown key."""
        numbers_K = np.empty(keys_K.size, np.int32)
        _find(keys_K, self._table, self._known, numbers_K)
        return numbers_K

    def insert(self, keys_K: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The number of each key, known or new; call ``reserve`` first."""
        numbers_K = np.empty(keys_K.size, np.int32)
        self.count = _insert(keys_K, self._table, self._known, self.count, numbers_K)
        return numbers_K

    def reserve(self, keys: int) -> None:
        """Makes room for that many keys in total."""
        if keys > self._known.size:
            known = np.empty(keys, np.uint64)
            known[: self.count] = self._known[: self.count]
            self._known = known
        if _table_size(keys) > self._table.size:
            self._table = np.full(_table_size(keys), EMPTY, np.int32)
            _rehash(self._table, self._known, self.count)


def warm_up_index() -> None:
    """Compiles the kernels."""
    index = KeyIndex()
    keys_K = np.zeros(1, np.uint64)
    index.insert(keys_K)
    index.reserve(4 * FIRST_CAPACITY)
    index.find(keys_K)


def _table_size(keys: int) -> int:
    """A power of two of which the keys fill at most two thirds."""
    return 1 << max(4, (keys * 3 // 2).bit_length())
