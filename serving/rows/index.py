"""Finds the row of a key: open addressing on 64-bit keys.

The numbers of rows are those of the training run: a number has a key until training forgets it, and another one later.
Besides the array of keys there is a hash table of 32-bit numbers: 8 or 9 bytes a number, and 6 to 12 for the hash
table, which is at most two thirds full.

Legend: K keys.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infra.base.hashing import EMPTY, find, home, remove
from infra.base.kernels import kernel
from ps.keys import FREE

FIRST_CAPACITY = 1024
GROWTH = 1.125
"""Factor by which arrays grow: little memory is idle, and each row is still copied only a few times."""
MOST_CHANGED = 0.25
"""Share of all numbers up to which changed ones are remembered one by one."""
BLOCK_NUMBERS = 1 << 16
"""Numbers that are brought into a new hash table at a time."""


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
def _assign(numbers_K: Any, keys_K: Any, table: Any, known: Any) -> int:
    """Gives numbers keys; those whose key changes leave the hash table, if they are in it, until ``_enter``.

    Returns how many left it.
    """
    removed = 0
    for k in range(keys_K.size):
        number = numbers_K[k]
        if known[number] == keys_K[k]:
            continue
        if known[number] != FREE and table[find(table, known, known[number])] == number:
            remove(table, known, number)
            removed += 1
        known[number] = keys_K[k]
    return removed


@kernel
def _enter(numbers_K: Any, table: Any, known: Any) -> tuple[int, int]:
    """Brings numbers into the hash table; returns how many entered, and how many have the key of another number."""
    entered = 0
    repeated = 0
    for number in numbers_K:
        if known[number] != FREE:
            at = find(table, known, known[number])
            if table[at] == EMPTY:
                table[at] = number
                entered += 1
            repeated += table[at] != number
    return entered, repeated


def find_reference(known: dict[int, int], keys: list[int]) -> list[int]:
    """What ``KeyIndex.find`` must return, computed with a dictionary."""
    return [known.get(key, EMPTY) for key in keys]


class KeyIndex:
    """Keys by number."""

    def __init__(self, capacity: int = FIRST_CAPACITY) -> None:
        self._known = np.full(capacity, FREE)
        self._table = np.full(_table_size(capacity), EMPTY, np.int32)
        self.known = 0
        """Keys that can be found."""
        self._changed: list[NDArray[np.int64]] = []
        """Numbers that were given keys and are not in the hash table yet."""
        self._is_table_valid = True
        """Whether the hash table has all other numbers; it is built anew if most keys change."""

    @property
    def capacity(self) -> int:
        """Numbers from 0 that can have a key."""
        return self._known.size

    @property
    def nbytes(self) -> int:
        return self._known.nbytes + self._table.nbytes

    def find(self, keys_K: NDArray[np.uint64]) -> NDArray[np.int32]:
        """The number of each key; EMPTY for an unknown key."""
        numbers_K = np.empty(keys_K.size, np.int32)
        _find(keys_K, self._table, self._known, numbers_K)
        return numbers_K

    def assign(self, numbers_K: NDArray[np.int64], keys_K: NDArray[np.uint64]) -> None:
        """Gives numbers keys, or FREE; they are found once ``enter`` is called.

        A key may move from one number to another: in between, both may have it.
        """
        if not self._is_table_valid:
            self._known[numbers_K] = keys_K
            return
        is_changed_K = self._known[numbers_K] != keys_K
        if is_changed_K.any():
            self.known -= _assign(numbers_K[is_changed_K], keys_K[is_changed_K], self._table, self._known)
            self._changed.append(numbers_K[is_changed_K])
        if sum(each.size for each in self._changed) > MOST_CHANGED * self.capacity:
            self._is_table_valid = False
            self._changed = []

    def enter(self) -> int:
        """Makes the assigned keys known; returns how many numbers have the key of another number."""
        repeated = self._enter_all(self._changed) if self._is_table_valid else self._build_table()
        self._changed = []
        return repeated

    def reserve(self, numbers: int) -> None:
        """Makes room for that many numbers in total, and for an eighth more than before at least."""
        if numbers > self.capacity:
            capacity = max(numbers, int(self.capacity * GROWTH))
            self._known = np.concatenate([self._known, np.full(capacity - self.capacity, FREE)])
        if _table_size(numbers) > self._table.size:
            self._table = np.full(_table_size(numbers), EMPTY, np.int32)
            self._build_table()

    def _build_table(self) -> int:
        """Builds the hash table anew from the keys; returns how many numbers have the key of another number."""
        self._table[:] = EMPTY
        self._is_table_valid = True
        self.known = 0
        blocks = range(0, self.capacity, BLOCK_NUMBERS)
        return self._enter_all(np.arange(first, min(first + BLOCK_NUMBERS, self.capacity)) for first in blocks)

    def _enter_all(self, blocks: Iterable[NDArray[np.int64]]) -> int:
        """Brings blocks of numbers into the hash table; returns how many have the key of another number."""
        all_repeated = 0
        for numbers_K in blocks:
            entered, repeated = _enter(numbers_K, self._table, self._known)
            self.known += entered
            all_repeated += repeated
        return all_repeated


def warm_up_index() -> None:
    """Compiles the kernels."""
    index = KeyIndex()
    numbers_K = np.zeros(1, np.int64)
    keys_K = np.zeros(1, np.uint64)
    index.assign(numbers_K, keys_K)
    index.enter()
    index.find(keys_K)


def _table_size(keys: int) -> int:
    """A power of two of which the keys fill at most two thirds."""
    return 1 << max(4, (keys * 3 // 2).bit_length())
