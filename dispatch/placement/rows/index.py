"""The index: which row belongs to a key, and the local numbering of one batch's rows.

A key gets a row number when it is first seen, the lowest one that is free or else the next, and keeps it until it is
forgotten. So the numbering is a pure function of the order of keys, those that are forgotten included. A hash table of
32-bit row numbers, a third to two thirds full, accompanies the array of keys: 14 to 20 bytes per known key.

The hash table doubles some slots at a time, with one batch after the other, so that no batch waits for all keys to be
hashed again. A key's *home*, where a search for it begins, is the lower bits of its hash. One more bit counts once
the table has doubled: a key then stays, or its home moves up by the old size. While it doubles, this is so for homes
below ``split``, and homes from there on are as before. ``_double`` moves split up to an empty slot, beyond which no
search from a lower home can go; so it only has to insert again what is in between. A search that reaches the end of the
table continues behind it, where memory is reserved, and not at the beginning.

Legend: B samples, F keys per sample, U distinct rows of the batch.
"""

from dataclasses import dataclass, field

import numpy as np
from numba import prange

from dispatch.placement.arrays import I32, I64, U64, Bool
from dispatch.placement.errors import DuplicateKeys
from infra.base.distinct import BatchKeys, number_keys
from infra.base.growing import GrowingArray
from infra.base.hashing import MIX
from infra.base.kernels import kernel, range_of, ranges_for, threaded
from ps.keys import FREE, usable

FIRST_CAPACITY = 1024
NO_ROWS = np.empty(0, np.int64)
NO_KEYS = np.empty(0, np.uint64)
EMPTY = 0
"""In an empty slot of the hash table, since memory that was never used is zero. Row numbers count from 1 in there."""
LEAST_DOUBLED = 1 << 15
"""Slots by which the table doubles with a batch, about a millisecond's work."""
DOUBLED_PER_KEY = 8
"""The same for every new key, if that is more: so the table has doubled before it is four fifths full."""


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

    @property
    def end(self) -> int:
        """The number after the highest one that is assigned."""
        return self.first_new + self.new_keys.size


class Index:
    """Assigns row numbers; knows every key it has seen and not forgotten."""

    def __init__(self, capacity: int = FIRST_CAPACITY) -> None:
        self.count = 0
        """Numbers assigned, including free ones."""
        self.forgotten = 0
        """Keys forgotten so far."""
        self._free = NO_ROWS
        """Numbers of forgotten keys, descending: the last one is assigned next."""
        self._keys = GrowingArray(np.uint64)
        """Keys by row number, from 1; the first is FREE, so that an empty slot has a key which nobody looks for."""
        self._keys.first(1)[:] = FREE
        self._table = GrowingArray(np.int32)
        self._size = _table_size(capacity)
        """Homes in the hash table, a power of two, before it began to double."""
        self._split = 0
        """Homes that have doubled; 0: the table is not doubling."""

    @classmethod
    def restore(cls, keys: U64) -> "Index":
        """The index in which row i has keys[i], or is FREE; raises DuplicateKeys if two rows have the same key."""
        index = cls(max(FIRST_CAPACITY, keys.size))
        index.count = keys.size
        index.keys[:] = keys
        index._free = np.flatnonzero(keys == FREE)[::-1]
        if (known := _enter(*index._slots(), index._known())) != index.known:
            raise DuplicateKeys(
                f"{index.known} rows have {known} different keys; expected one row a key; go back to another checkpoint"
            )
        return index

    @property
    def keys(self) -> U64:
        """The key of every row, by row number; FREE for the number of a forgotten key."""
        return self._known()[1:]

    @property
    def known(self) -> int:
        """Keys known."""
        return self.count - self._free.size

    @property
    def homes(self) -> int:
        """Homes in the hash table."""
        return self._size + self._split

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.homes * np.dtype(np.int32).itemsize

    def resolve(self, keys: BatchKeys) -> BatchRows:
        """Rows of a batch's keys; unknown keys get free numbers, then the next ones, in order of appearance."""
        first_new = self.count
        while _is_crowded(self.known + keys.keys_U.size, self._size):
            self._double(self._size)
        rows_U = np.empty(keys.keys_U.size, np.int64)
        known = self._known(keys.keys_U.size)
        slots = self._slots(keys.keys_U.size)
        ranges = ranges_for(rows_U.size)
        has_free_k = np.zeros(ranges, np.bool_)
        _fetch(ranges, keys.keys_U, *slots, known, rows_U, has_free_k)
        if has_free_k.any():
            return self.resolve(number_keys(usable(keys.matrix)))
        left, last = _number(keys.keys_U, *slots, known, self._free, self.count, rows_U)
        self.count = last
        reused, self._free = self._free[left:][::-1].copy(), self._free[:left]
        new_keys = known[first_new + 1 : last + 1].copy()
        if self._split or _table_size(self.known) > self._size:
            self._double(max(LEAST_DOUBLED, DOUBLED_PER_KEY * (new_keys.size + reused.size)))
        return BatchRows(keys.local_BF, rows_U, first_new, new_keys, reused, known[reused + 1])

    def knows(self, keys_BF: U64) -> Bool:
        """Whether each key has a row."""
        is_known = np.empty(keys_BF.size, np.bool_)
        _look_up(usable(keys_BF.reshape(-1)), *self._slots(), self._known(), is_known)
        return is_known.reshape(keys_BF.shape)

    def forget(self, rows: I64) -> None:
        """Frees the numbers of these rows, which must have keys."""
        _forget(rows, *self._slots(), self._known())
        self.forgotten += rows.size
        self._free = np.sort(np.concatenate((self._free, rows)))[::-1].copy()

    def _known(self, more: int = 0) -> U64:
        """Keys by row number, from 1, with room for so many more."""
        return self._keys.first(1 + self.count + more)

    def _slots(self, more: int = 0) -> tuple[I32, int, int]:
        """The hash table, size and split, with room behind the last home for all keys and so many more."""
        return self._table.first(2 * self._size + self.count + more + 1), self._size, self._split

    def _double(self, wanted: int) -> None:
        self._split = _double(*self._slots(), self._known(), wanted)
        if self._split >= self._size:
            self._size *= 2
            self._split = 0


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


def _is_crowded(keys: int, size: int) -> bool:
    """Whether so many keys are too many for a table of this size, until it has doubled."""
    return 10 * keys > 9 * size


@kernel
def _low_home(key: int, mask: int) -> np.int64:
    """Where a search for the key begins: the lower bits of its hash."""
    return np.int64((np.uint64(key) * MIX) >> np.uint64(32)) & mask


@kernel
def _home(key: int, size: int, split: int) -> np.int64:
    """Where a search for the key begins."""
    doubled = _low_home(key, 2 * size - 1)
    single = doubled & (size - 1)
    return doubled if single < split else single


@kernel
def _find(table: I32, size: int, split: int, known: U64, key: int) -> np.int64:
    """The key's slot, or the empty one where it belongs."""
    at = _home(key, size, split)
    while table[at] != EMPTY and known[table[at]] != key:
        at += 1
    return at


@threaded
def _fetch(ranges: int, keys: U64, table: I32, size: int, split: int, known: U64, rows: I64, has_free_k: Bool) -> None:
    """Fills in the rows of known keys, one range of keys at a time; of others ~ of the slot where they belong, which is
    negative; and whether a range has the key FREE, for which an empty home would be taken.
    """
    for k in prange(ranges):
        has_free_k[k] = _fetch_range(k, ranges, keys, table, size, split, known, rows)


@kernel
def _fetch_range(k: int, ranges: int, keys: U64, table: I32, size: int, split: int, known: U64, rows: I64) -> bool:
    """Memory fetches are slow but independent of each other, so all are started before any result is used."""
    first, end = range_of(k, ranges, keys.size)
    found = np.empty(end - first, np.uint64)
    has_free = False
    if split:
        for i in range(first, end):
            rows[i] = table[_home(keys[i], size, split)]
    else:  # the same, but faster
        for i in range(first, end):
            rows[i] = table[_low_home(keys[i], size - 1)]
    for i in range(first, end):
        found[i - first] = known[rows[i]]
        has_free |= keys[i] == FREE
    for i in range(first, end):
        if found[i - first] != keys[i]:
            at = _find(table, size, split, known, keys[i])
            rows[i] = ~at if table[at] == EMPTY else table[at] - 1
        else:
            rows[i] -= 1
    return has_free


@kernel
def _number(
    keys: U64, table: I32, size: int, split: int, known: U64, free: I64, count: int, rows: I64
) -> tuple[int, int]:
    """Gives numbers to keys of a batch that are not known, see ``_fetch``; returns how many free numbers are left, and
    how many numbers are assigned.
    """
    left = free.size
    for i in range(keys.size):
        if rows[i] < 0:
            at = ~rows[i]
            while table[at] != EMPTY:  # since then, by another key
                at += 1
            if left > 0:
                left -= 1
                rows[i] = free[left]
            else:
                rows[i] = count
                count += 1
            table[at] = rows[i] + 1
            known[rows[i] + 1] = keys[i]
    return left, count


@kernel
def _look_up(keys: U64, table: I32, size: int, split: int, known: U64, is_known: Bool) -> None:
    for i in range(keys.size):
        is_known[i] = table[_find(table, size, split, known, keys[i])] != EMPTY


@kernel
def _forget(rows: I64, table: I32, size: int, split: int, known: U64) -> None:
    """Rows behind a removed one move up, so no tombstones are needed."""
    for row in rows:
        at = _find(table, size, split, known, known[row + 1])
        known[row + 1] = FREE
        behind = at + 1
        while table[behind] != EMPTY:
            if _home(known[table[behind]], size, split) <= at:
                table[at] = table[behind]
                at = behind
            behind += 1
        table[at] = EMPTY


@kernel
def _enter(table: I32, size: int, split: int, known: U64) -> int:
    """Enters every key into an empty table; returns how many different ones there are."""
    entered = 0
    for number in range(1, known.size):
        if known[number] != FREE:
            at = _find(table, size, split, known, known[number])
            entered += table[at] == EMPTY
            table[at] = number
    return entered


@kernel
def _double(table: I32, size: int, split: int, known: U64, wanted: int) -> int:
    """Doubles the wanted number of homes, up to the next empty slot; returns how many have doubled now."""
    end = min(split + wanted, size)
    while table[end] != EMPTY:
        end += 1
    moved = np.empty(end - split, np.int32)
    count = 0
    for at in range(split, end):
        if table[at] != EMPTY:
            moved[count] = table[at]
            table[at] = EMPTY
            count += 1
    keys = known[moved[:count]]
    for i in range(count):
        slot = _low_home(keys[i], 2 * size - 1)
        while table[slot] != EMPTY:
            slot += 1
        table[slot] = moved[i]
    return end
