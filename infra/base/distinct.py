"""The keys of a batch, each distinct one once.

Click data repeats itself: a batch has several times fewer distinct keys than keys. Finding them is a function of the
batch alone, so the loader does it ahead of training, and the dispatcher looks up only the distinct ones.

Legend: B samples, F keys per sample, U distinct keys of the batch.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from infra.base.hashing import EMPTY, home, vacancy
from infra.base.kernels import kernel

I32 = NDArray[np.int32]
U64 = NDArray[np.uint64]

FEWEST_PLACES = 1024
"""Places of the smallest hash table."""
KEYS_A_PLACE = 8
"""Keys for each place of the first hash table; it grows if more of them differ than it has room for."""


class BatchKeys(NamedTuple):
    """The keys of a batch under local numbers 0..U-1, in order of first use."""

    local_BF: I32
    keys_U: U64

    @property
    def matrix(self) -> U64:
        """The keys as the samples have them, [B, F]."""
        return self.keys_U[self.local_BF]


def number_keys(keys_BF: U64) -> BatchKeys:
    """Numbers the distinct keys of a batch in order of first use, sample after sample."""
    keys = keys_BF.reshape(-1)
    local = np.empty(keys.size, np.int32)
    distinct = np.empty(keys.size, np.uint64)
    count = _number_all(keys, local, distinct)
    return BatchKeys(local.reshape(keys_BF.shape), distinct[:count].copy())


def number_keys_reference(keys_BF: U64) -> BatchKeys:
    """What ``number_keys`` must return, with a dictionary."""
    numbers: dict[int, int] = {}
    local = [numbers.setdefault(int(key), len(numbers)) for key in keys_BF.reshape(-1)]
    return BatchKeys(np.array(local, np.int32).reshape(keys_BF.shape), np.array(list(numbers), np.uint64))


class _Table(NamedTuple):
    """A hash table with open addressing that has the keys themselves, so that no other memory says what a place has."""

    keys: U64
    numbers: I32
    """EMPTY where there is no key."""


@kernel
def _table(places: int) -> _Table:
    return _Table(np.empty(places, np.uint64), np.full(places, EMPTY, np.int32))


@kernel
def _number_all(keys: U64, local: I32, distinct: U64) -> int:
    """Fills in the number of each key and the distinct keys; returns how many these are."""
    places = FEWEST_PLACES
    while places * KEYS_A_PLACE < keys.size:
        places *= 2
    table = _table(2 * places)
    numbered, count = _number(keys, table, 0, 0, local, distinct)
    while numbered < keys.size:
        places *= 4
        larger = _table(2 * places)
        _enter(distinct[:count], larger)
        numbered, count = _number(keys, larger, numbered, count, local, distinct)
    return count


@kernel
def _number(keys: U64, table: _Table, first: int, count: int, local: I32, distinct: U64) -> tuple[int, int]:
    """Numbers keys from the first one on, until all are numbered or the table is half full; returns how many keys are
    numbered and how many of them are distinct.
    """
    mask = table.numbers.size - 1
    for i in range(first, keys.size):
        at = home(keys[i], mask)
        while table.numbers[at] != EMPTY and table.keys[at] != keys[i]:
            at = (at + 1) & mask
        if table.numbers[at] == EMPTY:
            if 2 * count >= table.numbers.size:
                return i, count
            table.keys[at] = keys[i]
            table.numbers[at] = count
            distinct[count] = keys[i]
            count += 1
        local[i] = table.numbers[at]
    return keys.size, count


@kernel
def _enter(distinct: U64, table: _Table) -> None:
    """Enters different keys, in order, into an empty table."""
    for number in range(distinct.size):
        at = vacancy(table.numbers, distinct[number])
        table.keys[at] = distinct[number]
        table.numbers[at] = number
