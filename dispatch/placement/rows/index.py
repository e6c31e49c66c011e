"""The index: which row belongs to a key, and the local numbering of one batch's rows.

A key gets a row number when it is first seen, the lowest one that is free or else the next, and keeps it until it is
forgotten. So the numbering is a pure function of the order of keys, those that are forgotten included. A hash table of
32-bit row numbers, a third to two thirds full, accompanies the array of keys: 14 to 22 bytes per known key.

Legend: B samples, F keys per sample, U distinct rows of the batch.
"""

from dataclasses import dataclass, field

import numpy as np

from dispatch.placement.arrays import I32, I64, U64, Bool
from dispatch.placement.errors import DuplicateKeys
from infra.base.distinct import BatchKeys, number_keys
from infra.base.hashing import EMPTY, find, home, remove
from infra.base.kernels import kernel
from ps.keys import FREE, usable

FIRST_CAPACITY = 1024
NO_ROWS = np.empty(0, np.int64)
NO_KEYS = np.empty(0, np.uint64)
GROWTH = 1.125
"""Factor by which the arrays grow: little memory is idle, and each key is still copied only a few times."""


@dataclass(frozen=True)
class BatchRows:
    """The rows of one batch under local numbers 0..U-1, in order of first use."""

    local_BF: I32
    rows_U: I64
    first_new: int
    """Rows from this number on were assigned for this batch."""
    new_keys: U64
    reused: I64 = field(default_factory=lambda: NO_ROWS)
    """Numbers of forgotten keys that were assigned again for this batch."""
    reused_keys: U64 = field(default_factory=lambda: NO_KEYS)


class Index:
    """Assigns row numbers; knows every key it has seen and not forgotten."""

    def __init__(self, capacity: int = FIRST_CAPACITY) -> None:
        self.count = 0
        """Numbers assigned, including free ones."""
        self.forgotten = 0
        """Keys forgotten so far."""
        self._free = NO_ROWS
        """Numbers of forgotten keys, descending: the last one is assigned next."""
        self._keys = np.empty(capacity, np.uint64)
        self._table = np.full(_table_size(capacity), EMPTY, np.int32)

    @classmethod
    def restore(cls, keys: U64) -> "Index":
        """The index in which row i has keys[i], or is FREE; raises DuplicateKeys if two rows have the same key."""
        index = cls(max(FIRST_CAPACITY, keys.size))
        index._keys[: keys.size] = keys
        index.count = keys.size
        index._free = np.flatnonzero(keys == FREE)[::-1]
        _rehash(index._table, index._keys, index.count)
        if (known := int(np.count_nonzero(index._table != EMPTY))) != index.known:
            raise DuplicateKeys(
                f"{index.known} rows have {known} different keys; expected one row a key; go back to another checkpoint"
            )
        return index

    @property
    def keys(self) -> U64:
        """The key of every row, by row number; FREE for the number of a forgotten key."""
        return self._keys[: self.count]

    @property
    def known(self) -> int:
        """Keys known."""
        return self.count - self._free.size

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._table.nbytes

    def resolve(self, keys: BatchKeys) -> BatchRows:
        """Rows of a batch's keys; unknown keys get free numbers, then the next ones, in order of appearance."""
        if (keys.keys_U == FREE).any():
            keys = number_keys(usable(keys.matrix))
        first_new = self.count
        self._reserve(self.count + keys.keys_U.size)
        rows_U = np.empty(keys.keys_U.size, np.int64)
        left, self.count = _resolve(keys.keys_U, self._table, self._keys, self._free, self.count, rows_U)
        reused, self._free = self._free[left:][::-1].copy(), self._free[:left]
        new_keys = self._keys[first_new : self.count].copy()
        return BatchRows(keys.local_BF, rows_U, first_new, new_keys, reused, self._keys[reused])

    def knows(self, keys_BF: U64) -> Bool:
        """Whether each key has a row."""
        is_known = np.empty(keys_BF.size, np.bool_)
        _look_up(usable(keys_BF.reshape(-1)), self._table, self._keys, is_known)
        return is_known.reshape(keys_BF.shape)

    def forget(self, rows: I64) -> None:
        """Frees the numbers of these rows, which must have keys."""
        _forget(rows, self._table, self._keys)
        self.forgotten += rows.size
        self._free = np.sort(np.concatenate((self._free, rows)))[::-1].copy()

    def _reserve(self, needed: int) -> None:
        if needed > self._keys.size:
            capacity = max(needed, int(self._keys.size * GROWTH))
            self._keys = np.concatenate((self._keys, np.zeros(capacity - self._keys.size, np.uint64)))
        if _table_size(needed) > self._table.size:
            self._table = np.full(_table_size(needed), EMPTY, np.int32)
            _rehash(self._table, self._keys, self.count)


def resolve_reference(known: dict[int, int], keys_BF: U64) -> I64:
    """What ``Index.resolve`` must do, with a dictionary from which forgotten keys are removed."""
    for key in map(int, keys_BF.reshape(-1)):
        if key not in known:
            taken = set(known.values())
            known[key] = next(row for row in range(len(known) + 1) if row not in taken)
    return np.array([known[int(key)] for key in keys_BF.reshape(-1)], np.int64).reshape(keys_BF.shape)


def _table_size(keys: int) -> int:
    """A power of two that is at most two thirds full."""
    return 1 << max(4, (keys * 3 // 2).bit_length())


@kernel
def _resolve(
    keys: U64,
    table: I32,
    known: U64,
    free: I64,
    count: int,
    rows: I64,
) -> tuple[int, int]:
    """Fills in the rows of different keys; returns how many free numbers are left, and how many numbers are assigned.

    Memory fetches are slow but independent of each other, so all are started before any result is used.
    """
    mask = table.size - 1
    left = free.size
    found = np.empty(keys.size, np.uint64)
    for i in range(keys.size):
        rows[i] = table[home(keys[i], mask)]
    for i in range(keys.size):
        found[i] = known[max(rows[i], 0)]
    for i in range(keys.size):
        if rows[i] == EMPTY or found[i] != keys[i]:
            at = find(table, known, keys[i])
            if table[at] == EMPTY:
                if left > 0:
                    left -= 1
                    row = free[left]
                else:
                    row = count
                    count += 1
                known[row] = keys[i]
                table[at] = row
            rows[i] = table[at]
    return left, count


@kernel
def _look_up(keys: U64, table: I32, known: U64, is_known: Bool) -> None:
    for i in range(keys.size):
        is_known[i] = table[find(table, known, keys[i])] != EMPTY


@kernel
def _forget(rows: I64, table: I32, known: U64) -> None:
    for row in rows:
        remove(table, known, row)
        known[row] = FREE


@kernel
def _rehash(table: I32, known: U64, count: int) -> None:
    for row in range(count):
        if known[row] != FREE:
            table[find(table, known, known[row])] = row
