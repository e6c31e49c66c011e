"""The keys of a batch, each distinct one once.

Click data repeats itself: a batch has several times fewer distinct keys than keys. Finding them is a function of the
batch alone, so the loader's thread does it ahead of training, and the dispatcher looks up only the distinct ones.

The keys of a large batch are divided among threads, by their hashes: each *part* of the keys has numbers of its own at
first. Where each of these was used first says which number it gets in the end. A batch is read in as many *ranges* as
it has parts, one range a thread.

Legend: B samples, F keys per sample, K keys, U distinct keys of the batch, p parts, r ranges.
"""

from typing import NamedTuple

import numpy as np
from numba import prange
from numpy.typing import NDArray

from infra.base.hashing import EMPTY, MIX, home, vacancy
from infra.base.kernels import kernel, range_of, threaded, threads

U8 = NDArray[np.uint8]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]

FEWEST_PLACES = 1024
"""Places of the smallest hash table."""
KEYS_A_PLACE = 8
"""Keys for each place of the first hash table; it grows if more of them differ than it has room for."""
FEWEST_DIVIDED = 1 << 15
"""Keys of a batch below which one thread numbers them in less time than several."""


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
    if threads() > 1 and keys.size >= FEWEST_DIVIDED:
        count = number_divided(threads(), keys, local, distinct)
    else:
        count = _number_all(keys, local, distinct)
    return BatchKeys(local.reshape(keys_BF.shape), distinct[:count].copy())


def number_divided(parts: int, keys: U64, local: I32, distinct: U64) -> int:
    """Fills in the number of each key and the distinct keys; returns how many these are. The result is the same for any
    number of parts.
    """
    part_K = np.empty(keys.size, np.uint8)
    sizes_rp = np.empty((parts, parts), np.int64)
    _divide(parts, keys, part_K, sizes_rp)
    at_rp = (np.cumsum(sizes_rp.T) - sizes_rp.T.reshape(-1)).reshape(parts, parts).T.copy()
    work = _Parts(
        part_K,
        at_rp,
        keys=np.empty(keys.size, np.uint64),
        local=np.empty(keys.size, np.int32),
        distinct=np.empty(keys.size, np.uint64),
        firsts_rp=np.empty((parts + 1, parts), np.int64),
        number=np.empty(keys.size, np.int32),
    )
    _sort(parts, keys, work)
    _number_parts(parts, work)
    _number_firsts(parts, keys, work, distinct)
    _fill(parts, work, local)
    return int(work.firsts_rp[parts].sum())


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


# ── by several threads ────────────────────────────────────────────────────────────────────────────────────────────────
class _Parts(NamedTuple):
    """The keys by part, within a part as in the batch: plain arrays, so that kernels can take them whole."""

    part_K: U8
    """The part of each key of the batch."""
    at_rp: I64
    """Where the keys of each range begin within those of each part."""
    keys: U64
    local: I32
    """The number of each key among those of its part."""
    distinct: U64
    """The distinct keys of each part, from where its keys begin; so have ``number`` the numbers in the batch."""
    firsts_rp: I64
    """How many distinct keys of each part the ranges before each one have; and all ranges, at the end."""
    number: I32


@threaded
def _divide(parts: int, keys: U64, part_K: U8, sizes_rp: I64) -> None:
    """Says which part each key belongs to, and counts these, one range at a time."""
    for r in prange(parts):
        _divide_range(r, parts, keys, part_K, sizes_rp)


@kernel
def _divide_range(r: int, parts: int, keys: U64, part_K: U8, sizes_rp: I64) -> None:
    first, end = range_of(r, parts, keys.size)
    sizes = np.zeros(parts, np.int64)
    for i in range(first, end):
        # the highest bits, since a table's places are given by others
        part = np.uint8((((keys[i] * MIX) >> np.uint64(56)) * np.uint64(parts)) >> np.uint64(8))
        part_K[i] = part
        sizes[part] += 1
    sizes_rp[r] = sizes


@threaded
def _sort(parts: int, keys: U64, work: _Parts) -> None:
    """Copies the keys of each range to their parts."""
    for r in prange(parts):
        _sort_range(r, parts, keys, work)


@kernel
def _sort_range(r: int, parts: int, keys: U64, work: _Parts) -> None:
    first, end = range_of(r, parts, keys.size)
    at_p = work.at_rp[r].copy()
    for i in range(first, end):
        part = work.part_K[i]
        work.keys[at_p[part]] = keys[i]
        at_p[part] += 1


@threaded
def _number_parts(parts: int, work: _Parts) -> None:
    """Numbers the keys of each part, and counts the distinct ones by range."""
    for part in prange(parts):
        _number_part(part, parts, work)


@kernel
def _number_part(part: int, parts: int, work: _Parts) -> None:
    first = work.at_rp[0, part]
    end = work.at_rp[0, part + 1] if part + 1 < parts else work.keys.size
    _number_all(work.keys[first:end], work.local[first:end], work.distinct[first:end])
    count = 0
    for r in range(parts):
        work.firsts_rp[r, part] = count
        range_end = work.at_rp[r + 1, part] if r + 1 < parts else end
        for i in range(work.at_rp[r, part], range_end):
            count += work.local[i] == count
    work.firsts_rp[parts, part] = count


@threaded
def _number_firsts(parts: int, keys: U64, work: _Parts, distinct: U64) -> None:
    """Numbers the distinct keys in the order of the batch, one range at a time."""
    for r in prange(parts):
        _number_firsts_of(r, parts, keys, work, distinct)


@kernel
def _number_firsts_of(r: int, parts: int, keys: U64, work: _Parts, distinct: U64) -> None:
    first, end = range_of(r, parts, keys.size)
    at_p = work.at_rp[r].copy()
    firsts_p = work.firsts_rp[r].copy()
    number = firsts_p.sum()
    for i in range(first, end):
        part = work.part_K[i]
        if work.local[at_p[part]] == firsts_p[part]:
            work.number[work.at_rp[0, part] + firsts_p[part]] = number
            distinct[number] = keys[i]
            number += 1
            firsts_p[part] += 1
        at_p[part] += 1


@threaded
def _fill(parts: int, work: _Parts, local: I32) -> None:
    """Gives every key the number in the batch, one range at a time."""
    for r in prange(parts):
        _fill_range(r, parts, work, local)


@kernel
def _fill_range(r: int, parts: int, work: _Parts, local: I32) -> None:
    first, end = range_of(r, parts, local.size)
    at_p = work.at_rp[r].copy()
    for i in range(first, end):
        part = work.part_K[i]
        local[i] = work.number[work.at_rp[0, part] + work.local[at_p[part]]]
        at_p[part] += 1
