"""Hashes raw values to 64-bit keys: xxh3 of the value's bytes, seeded by the table's name.

The bytes of a raw value are its text in UTF-8: a string is itself, an integer its decimal digits (so 7 and "7" are one
key: a device may send either), a boolean ``true`` or ``false``, a float its shortest decimal form, whole floats below
2**53 as integers (1.0 and 1 are one key: JSON does not distinguish them). A value never passes through a float32. An
absent value has a separate key that no raw value shares, not even the empty string.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import numpy as np
import xxhash
from numpy.typing import NDArray

Raw = str | int | float | bool
_digest = xxhash.xxh3_64_intdigest

WHOLE_LIMIT = 2.0**53
"""Below this, every whole float is exactly one integer."""


def table_seed(table: str) -> int:
    return _digest(table.encode(), 0x66726573686574)


def absent_key(table: str) -> int:
    """The key of (table, no value), hashed with another seed than the table's values."""
    return _digest(b"absent", table_seed(table) ^ 0xFFFF_FFFF_FFFF_FFFF)


def rare_key(table: str) -> int:
    """The key of the row that rare keys of a table share, hashed with a seed of its own, too."""
    return _digest(b"rare", table_seed(table) ^ 0xFFFF_FFFF_FFFF_FFFF)


def rare_keys(tables: Iterable[str]) -> NDArray[np.uint64]:
    """The same for many tables."""
    return np.array([rare_key(table) for table in tables], np.uint64)


def text_of(value: Raw) -> str:
    """The canonical text of a raw value."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < WHOLE_LIMIT:
        return str(int(value))
    return repr(value)


def key_of(table: str, value: Raw | None) -> int:
    """The key of one raw value; None is the absent value."""
    return absent_key(table) if value is None else _digest(text_of(value).encode(), table_seed(table))


def hash_values(seed: int, absent: int, values: Iterable[Raw | None]) -> list[int]:
    """Keys of many raw values of one table, including absent ones."""
    return [
        absent if v is None else _digest(v.encode() if type(v) is str else text_of(v).encode(), seed) for v in values
    ]


# ── integers as keys ──────────────────────────────────────────────────────────────────────────────────────────────────
def _bucket_starts() -> list[float]:
    """Smallest whole number of each bucket b of floor(ln(v+1)^2), for v below 2**63."""
    last = math.floor(math.log(2.0**63) ** 2)
    return [float(_bucket_start(bucket)) for bucket in range(last + 1)]


def _bucket_start(bucket: int) -> int:
    return bisect_left(range(2**63 - 1), True, key=lambda v: math.log(v + 1) ** 2 >= bucket)


BUCKET_STARTS = _bucket_starts()
"""One table for every code path, so that no machine's vector logarithm can move a value to another bucket."""
_STARTS = np.array(BUCKET_STARTS)


def log_square(value: float) -> int:
    """floor(ln(v+1)^2) for v >= 0, the value itself when negative; fractions are rounded down."""
    whole = math.floor(value)
    return whole if whole < 0 else bisect_right(BUCKET_STARTS, whole) - 1


def log_squares(values_B: NDArray[np.float64]) -> NDArray[np.int64]:
    """log_square of many values."""
    whole_B = np.floor(values_B)
    buckets_B = np.searchsorted(_STARTS, whole_B, side="right") - 1
    return np.where(whole_B < 0, whole_B, buckets_B).astype(np.int64)
