"""A digest of all rows of a run that does not depend on how many shards hold them.

Each row has a hash of 128 bits, of its number in the run, its key, its last step and the bits of its value and state.
The digest is the sum of the hashes, in two halves modulo 2^64 each: every shard sums its own rows, and the sums are
added.

Legend: K rows at a time, B words of a row.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from infra.base.kernels import kernel
from infra.base.mixing import GAMMA, mix, mix_reference
from ps.store import RowStore

_MASK = (1 << 64) - 1
HASHED_ROWS = 4096
"""Rows hashed at a time: few enough that copies of them stay in the processor's cache."""
FACTOR = 0xD6E8FEB86659FD93
"""An odd factor, so that multiplication by it is invertible."""


@kernel
def _sum(first: int, stride: int, keys_K: Any, last_steps_K: Any, words_KB: Any, totals_2: Any) -> None:
    """Adds the hashes of the rows first, first + stride, … of the run."""
    factor = np.uint64(FACTOR)
    shift = np.uint64(32)
    for k in range(keys_K.shape[0]):
        low = mix(np.uint64(first + k * stride) + np.uint64(GAMMA))
        low = mix(low ^ keys_K[k])
        low = mix(low ^ np.uint64(last_steps_K[k]))
        high = (low ^ shift) * factor
        for b in range(words_KB.shape[1]):
            word = np.uint64(words_KB[k, b])
            low = mix(low ^ word)
            high = (high + word) * factor
            high ^= high >> shift
        totals_2[0] += low
        totals_2[1] += mix(high)


def digest_reference(rows: Iterable[tuple[int, int, int, list[int]]]) -> str:
    """The digest of rows (number in the run, key, last step, words of value and state), in plain integers."""
    totals = [0, 0]
    for number, key, last_step, words in rows:
        low = mix_reference(number + GAMMA)
        low = mix_reference(low ^ key)
        low = mix_reference(low ^ (last_step & _MASK))
        high = (low ^ 32) * FACTOR & _MASK
        for word in words:
            low = mix_reference(low ^ word)
            high = (high + word) * FACTOR & _MASK
            high ^= high >> 32
        totals[0] += low
        totals[1] += mix_reference(high)
    return _hex(totals)


def word_of(row_bytes: int) -> type[np.unsignedinteger[Any]]:
    """The word by which a row of that many bytes is hashed: the largest one that divides it."""
    return np.uint32 if row_bytes % 8 else np.uint64


def digest_store(store: RowStore, shard: int, shards: int) -> str:
    """The digest of the rows of one shard, as 32 hex digits."""
    totals_2 = np.zeros(2, np.uint64)
    word = word_of(store.shape.total * store.dtype.itemsize)
    for first in range(0, len(store), HASHED_ROWS):
        numbers = np.arange(first, min(first + HASHED_ROWS, len(store)))
        rows_KT = np.empty((len(numbers), store.shape.total), store.dtype)
        store.gather(numbers, rows_KT)
        words = rows_KT.view(word)
        _sum(first * shards + shard, shards, store.keys(numbers), store.steps(numbers), words, totals_2)
    return _hex(totals_2.tolist())


def add_digests(digests: Iterable[str]) -> str:
    """The digest of the rows of all shards together, from the digest of each."""
    halves = [(int(digest[:16], 16), int(digest[16:], 16)) for digest in digests]
    return _hex([sum(half) for half in zip(*halves, strict=True)] if halves else [0, 0])


def _hex(totals: Iterable[int]) -> str:
    return "".join(f"{total & _MASK:016x}" for total in totals)
