"""Checks and converts single columns of raw values: times, labels, numbers, and values that become keys.

A column is converted as a whole; only a column with a fault is examined value by value, to find the rows at fault.
Legend: B events.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingest.keys import Raw, absent_key, hash_values, table_seed, text_of
from ingest.samples import ABSENT
from ingest.schema import DenseField, KeyTable

Faults = dict[int, str]
"""The first reason found, by row of a bad event."""

MAX_TIME = 253402300800.0
"""Unix seconds of the year 10000."""
MOST_WEIGHT = 1e6
"""Largest weight of a sample."""
NUMBER = re.compile(r"[-+]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][-+]?\d{1,9})?", re.ASCII)
"""A number given as text."""
SAFE_TO_MERGE = {str, int, type(None)}
"""Among these types equal values have equal keys; 1, 1.0 and true are equal in Python but do not share a key."""


def read_times(times: Sequence[float], faults: Faults) -> NDArray[np.float64]:
    """Event times; out of range or not finite is a fault."""
    times_B = np.array(times, np.float64)
    for row in np.flatnonzero(~((times_B >= 0) & (times_B < MAX_TIME))):
        faults.setdefault(int(row), time_fault(float(times_B[row])))
    return times_B


def time_fault(value: float) -> str:
    if not math.isfinite(value):
        return f"not finite: event_time is {value}"
    kind = "negative" if value < 0 else "oversized"
    return f"{kind}: event_time is {value}, expected unix seconds from 0 to {MAX_TIME:.0f}"


def read_labels(labels: Sequence[int], faults: Faults) -> NDArray[np.float32]:
    """Labels; anything but 0 and 1 is a fault."""
    if set(labels) <= {0, 1}:
        return np.array(labels, np.float32)
    for row, label in enumerate(labels):
        if label not in (0, 1):
            faults.setdefault(row, f"label: {_short(label)}, expected 0 or 1")
    return np.array([label if label in (0, 1) else 0 for label in labels], np.float32)


def read_more_labels(
    names: Sequence[str], columns: Sequence[Sequence[int | None]], faults: Faults
) -> NDArray[np.float32]:
    """Labels after the main one, NaN where there is none; anything else than 0, 1 and none is a fault."""
    labels_BL = np.full((len(columns[0]), len(names)), np.nan, np.float32)
    for place, (name, column) in enumerate(zip(names, columns, strict=True)):
        for row, label in enumerate(column):
            if label is None:
                continue
            if label not in (0, 1):
                faults.setdefault(row, f"label: {name!r} is {_short(label)}, expected 0 or 1")
                continue
            labels_BL[row, place] = label
    return labels_BL


def read_numbers(name: str, column: Sequence[Any], faults: Faults) -> NDArray[np.float64]:
    """A numeric column, NaN if the value is absent (or at fault)."""
    try:
        numbers_B = np.array(column, np.float64)  # None becomes NaN
    except OverflowError:
        numbers_B = np.array([_number(name, v, row, faults) for row, v in enumerate(column)], np.float64)
    odd_B = ~np.isfinite(numbers_B)
    for row in np.flatnonzero(odd_B).tolist() if odd_B.any() else []:
        if column[row] is not None:
            faults.setdefault(row, f"not finite: field {name!r} is {column[row]}")
            numbers_B[row] = np.nan
    return numbers_B


def read_weights(name: str, numbers_B: NDArray[np.float64], faults: Faults) -> NDArray[np.float32]:
    """Weights of samples; 1 if there is no number."""
    weights_B = np.where(np.isnan(numbers_B), 1.0, numbers_B)
    for row in np.flatnonzero((weights_B < 0) | (weights_B > MOST_WEIGHT)):
        faults.setdefault(int(row), weight_fault(name, float(weights_B[row])))
    return weights_B.astype(np.float32)


def weight_fault(name: str, value: float) -> str:
    kind = "not finite" if not math.isfinite(value) else "negative" if value < 0 else "oversized"
    return f"{kind}: weight {name!r} is {value:g}, expected 0 to {MOST_WEIGHT:g}"


def parse_texts(name: str, column: Sequence[Any], faults: Faults) -> Sequence[Any]:
    """The column with texts parsed as numbers; None if a text is empty, or not a number, which is a fault."""
    if str not in set(map(type, column)):
        return column
    return [_parsed(name, value, row, faults) if type(value) is str else value for row, value in enumerate(column)]


def _parsed(name: str, text: str, row: int, faults: Faults) -> float | None:
    """Parses numbers as JSON writes them: Python would also accept 1_0, ٣ and infinity."""
    if not (stripped := text.strip()):
        return None
    if NUMBER.fullmatch(stripped) is None:
        faults.setdefault(row, f"wrong type: field {name!r} is the text {text[:40]!a}, expected a number")
        return None
    return float(stripped)


def _number(name: str, value: Any, row: int, faults: Faults) -> float:
    try:
        return math.nan if value is None else float(value)
    except OverflowError:
        faults.setdefault(row, f"oversized: field {name!r} is an integer of {value.bit_length()} bits")
        return math.nan


def read_dense(dense: DenseField, numbers_B: NDArray[np.float64], faults: Faults) -> NDArray[np.float32]:
    """The floats of a dense field: ABSENT if there is no number, finite wherever there is no fault."""
    absent_B = np.isnan(numbers_B)
    values_B = np.where(absent_B, 0.0, numbers_B)
    wrong_B = (values_B < dense.min) | (values_B > dense.max)
    wrong_B &= ~absent_B
    for row in np.flatnonzero(wrong_B):
        faults.setdefault(int(row), range_fault(dense, float(numbers_B[row])))
    values_B[wrong_B] = 0.0
    floats_B = to_float32(dense, values_B)
    for row in np.flatnonzero(~np.isfinite(floats_B)):
        faults.setdefault(int(row), f"not finite: field {dense.field!r} is {numbers_B[row]:g}, too large for a float32")
    floats_B[absent_B] = ABSENT
    return floats_B


def to_float32(dense: DenseField, values_B: NDArray[np.float64]) -> NDArray[np.float32]:
    """The transformed values for the model; a zero is never ABSENT, and what no float32 can hold becomes infinite."""
    with np.errstate(over="ignore"):
        return transform(dense, values_B).astype(np.float32) + np.float32(0)


def transform(dense: DenseField, values_B: NDArray[np.float64]) -> NDArray[np.float64]:
    if dense.transform == "identity":
        return values_B
    if dense.transform == "signed_log1p":
        return np.copysign(np.log1p(np.abs(values_B)), values_B)
    return np.log1p(np.maximum(values_B, 0.0))


def range_fault(dense: DenseField, value: float) -> str:
    kind = "oversized" if value > dense.max else "negative" if value < 0 else "too small"
    return f"{kind}: field {dense.field!r} is {value:g}, expected {dense.min:g} to {dense.max:g}"


def hash_column(table: KeyTable, column: Sequence[Any], limit: int, faults: Faults) -> NDArray[np.uint64]:
    """Keys of a column of single values; each distinct value is checked and hashed once."""
    if not set(map(type, column)) <= SAFE_TO_MERGE:
        return _hash_singly(table, column, limit, faults)
    distinct = list(dict.fromkeys(column))
    if not _are_short(distinct, limit):
        return _hash_singly(table, column, limit, faults)
    try:
        keys = dict(
            zip(distinct, hash_values(table_seed(table.key_table), absent_key(table.key_table), distinct), strict=True)
        )
    except UnicodeEncodeError:
        return _hash_singly(table, column, limit, faults)
    return np.fromiter(map(keys.__getitem__, column), np.uint64, len(column))


def _are_short(values: Sequence[Any], limit: int) -> bool:
    """Whether all texts and integers are certainly within the limit; a character takes at most 4 bytes."""
    texts = [value for value in values if type(value) is str]
    integers = [value for value in values if type(value) is int]
    bound = 10 ** min(limit - 1, 18)
    return 4 * max(map(len, texts), default=0) <= limit and all(-bound < value < bound for value in integers)


def _hash_singly(table: KeyTable, column: Sequence[Any], limit: int, faults: Faults) -> NDArray[np.uint64]:
    """The same, value by value, to find the rows at fault."""
    checked = _checked(table, column, limit, faults)
    return np.array(hash_values(table_seed(table.key_table), absent_key(table.key_table), checked), np.uint64)


def _checked(table: KeyTable, column: Sequence[Any], limit: int, faults: Faults) -> list[Any]:
    """The column with rejected values replaced by None."""
    return ["" if (v is not None and _rejected(table, v, row, limit, faults)) else v for row, v in enumerate(column)]


def _rejected(table: KeyTable, value: Raw, row: int, limit: int, faults: Faults) -> bool:
    fault = _text_fault(table.field, value, limit)
    if fault is not None:
        faults.setdefault(row, fault)
    return fault is not None


def _text_fault(field: str, value: Raw, limit: int) -> str | None:
    if type(value) is str and 4 * len(value) <= limit and value.isascii():
        return None
    if type(value) is int and abs(value) < 10 ** min(limit - 1, 18):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return f"not finite: field {field!r} is {value}"
    if isinstance(value, int) and value.bit_length() > 4 * limit:
        return f"oversized: field {field!r} is an integer of {value.bit_length()} bits, at most {limit} digits"
    try:
        size = len(text_of(value).encode())
    except UnicodeEncodeError:
        return f"lone surrogate: field {field!r} has half a character"
    return f"oversized: field {field!r} has {size} bytes, at most {limit}" if size > limit else None


def hash_lists(table: KeyTable, column: Sequence[Any], limit: int, faults: Faults) -> NDArray[np.uint64]:
    """Keys of a column of lists, each padded with the absent key or truncated; a single value is a list of one."""
    most = table.values
    padding: list[None] = [None] * most
    flat: list[Any] = []
    for row, value in enumerate(column):
        values = value if type(value) is list else [value]
        if len(values) > most and not table.truncate:
            faults.setdefault(row, f"too many values: field {table.field!r} has {len(values)}, at most {most}")
        flat += (values + padding)[:most]
    flat_faults: Faults = {}
    keys = hash_column(table, flat, limit, flat_faults)
    for place, reason in flat_faults.items():
        faults.setdefault(place // most, reason)
    return keys.reshape(len(column), most)


def hash_pooled(
    table: KeyTable, column: Sequence[Any], limit: int, faults: Faults
) -> tuple[NDArray[np.uint64], NDArray[np.float32]]:
    """Keys of a column of objects or lists, and the share of each in the table's sum.

    A shorter one is padded with its first value, whose row is needed anyway, with shares of 0. Without values the
    absent key has a share of 1.
    """
    most = table.values
    shares_Bv = np.zeros((len(column), most), np.float32)
    flat: list[Any] = []
    for row, value in enumerate(column):
        names = (list(value) if type(value) in (list, dict) else [value]) or [None]
        shares = list(map(_share, value.values())) if type(value) is dict and value else [1.0] * len(names)
        if len(names) > most and not table.truncate:
            faults.setdefault(row, f"too many values: field {table.field!r} has {len(names)}, at most {most}")
        names, shares = names[:most], shares[:most]
        if not all(0 <= share <= MOST_WEIGHT for share in shares):
            faults.setdefault(row, f"{_share_kind(shares)}: a weight of field {table.field!r}, expected 0 to 1e6")
            shares = [0.0] * len(names)
        shares_Bv[row, : len(names)] = shares
        flat += names + [names[0]] * (most - len(names))
    if table.pool == "mean":
        totals_B1 = shares_Bv.sum(axis=1, keepdims=True)
        shares_Bv = np.divide(shares_Bv, totals_B1, out=shares_Bv, where=totals_B1 > 0)
    flat_faults: Faults = {}
    keys = hash_column(table, flat, limit, flat_faults)
    for place, reason in flat_faults.items():
        faults.setdefault(place // most, reason)
    return keys.reshape(len(column), most), shares_Bv


def _share(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _share_kind(shares: Sequence[float]) -> str:
    if not all(map(math.isfinite, shares)):
        return "not finite"
    return "negative" if min(shares) < 0 else "oversized"


def _short(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value) if _is_small(value) else "a very large integer"
    return text[:40]


def _is_small(value: object) -> bool:
    return not isinstance(value, int) or value.bit_length() <= 128
