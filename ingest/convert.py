"""From columns of raw values to samples, and the reasons for which a value is rejected.

Both codecs and every producer come through here, so an event gives the same sample whichever way it travelled.
Columns are converted whole; only a column in which something is wrong is looked at value by value.
Legend: B events, F keys, N dense floats.
"""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ingest.keys import Raw, absent_key, hash_values, key_of, log_squares, table_seed, text_of
from ingest.samples import Samples
from ingest.schema import DenseField, Schema, Table

Value = Raw | list[Raw] | None
"""What a field of an event may hold; None stands for an absent field."""

MAX_TIME = 253402300800.0
"""unix seconds of the year 10000"""
INTEGER_LIMIT = 2.0**63
SAFE_TO_MERGE = {str, int, type(None)}
"""Among these equal values have equal keys; 1, 1.0 and true are equal in Python but not all one key."""


class Event(msgspec.Struct, frozen=True):
    """One click or non-click as a device tells it."""

    event_time: float
    """unix seconds"""
    label: int
    """1 for a click, 0 for none"""
    fields: dict[str, Value]


Faults = dict[int, str]
"""Row of a bad event → the first reason found."""


class Converter:
    """Turns columns into samples for one schema."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        names = dict.fromkeys([t.field for t in schema.tables] + [d.field for d in schema.dense_fields])
        self.sources: tuple[str, ...] = tuple(names)
        """the event's fields that are used, in column order"""
        self.numeric = {d.field for d in schema.dense_fields} | {t.field for t in schema.tables if t.bucket != "none"}
        """fields that must be numbers"""
        self.lists = {t.field: t.values for t in schema.tables if t.values > 1}
        """fields that may be lists → most values"""
        self._buckets = {
            t.name: {i: key_of(t.name, i) for i in range(256)} for t in schema.tables if t.bucket != "none"
        }

    def convert(
        self, times: Sequence[float], labels: Sequence[int], columns: Sequence[Sequence[Value]]
    ) -> tuple[Samples, Faults]:
        """Samples of all rows (rows with faults hold nonsense) and the faults; columns are in the order of sources."""
        column = dict(zip(self.sources, columns, strict=True))
        faults: Faults = {}
        times_B, labels_B = _times(times, faults), _labels(labels, faults)
        numbers = {name: _numbers(name, column[name], faults) for name in self.sources if name in self.numeric}
        keys_BF = np.empty((len(times), self.schema.fields), np.uint64)
        at = 0
        for table in self.schema.tables:
            keys_BF[:, at : at + table.values] = self._keys(table, column[table.field], numbers, faults)
            at += table.values
        dense_BN = np.empty((len(times), self.schema.dense), np.float32)
        for place, dense in enumerate(self.schema.dense_fields):
            dense_BN[:, place] = _dense(dense, numbers[dense.field], faults)
        return Samples(labels_B, dense_BN, keys_BF, times_B), faults

    def convert_events(self, events: Sequence[Event]) -> tuple[Samples, Faults]:
        """Samples of events in memory; a field of a wrong type is a fault like any other."""
        columns = [[event.fields.get(name) for event in events] for name in self.sources]
        faults: Faults = {}
        for name, column in zip(self.sources, columns, strict=True):
            self._check_types(name, column, faults)
        samples, more = self.convert([e.event_time for e in events], [e.label for e in events], columns)
        return samples, {**more, **faults}

    def _check_types(self, name: str, column: list[Value], faults: Faults) -> None:
        """Blanks out values that a column of this field cannot hold."""
        allowed: tuple[type, ...] = (
            (int, float, type(None)) if name in self.numeric else (str, int, float, bool, type(None))
        )
        kinds = set(map(type, column))
        if kinds <= set(allowed):
            return
        for row, value in enumerate(column):
            is_list = name in self.lists and type(value) is list and {type(v) for v in value} <= {str, int, float, bool}
            if not is_list and type(value) not in allowed:
                faults.setdefault(row, f"wrong type: field {name!r} is {type(value).__name__}")
                column[row] = None

    def _keys(
        self, table: Table, column: Sequence[Value], numbers: dict[str, NDArray[np.float64]], faults: Faults
    ) -> NDArray[np.uint64]:
        if table.bucket != "none":
            return self._bucketed(table, numbers[table.field], faults)
        if table.values > 1:
            return _listed(table, column, self.schema.limits.string_bytes, faults)
        return _hashed(table, column, self.schema.limits.string_bytes, faults)[:, None]

    def _bucketed(self, table: Table, numbers_B: NDArray[np.float64], faults: Faults) -> NDArray[np.uint64]:
        absent_B = np.isnan(numbers_B)
        large_B = ~absent_B & (np.abs(numbers_B) >= INTEGER_LIMIT)
        for row in np.flatnonzero(large_B):
            faults.setdefault(
                int(row), f"oversized: field {table.field!r} is {numbers_B[row]:g}, at most 2**63 in size"
            )
        buckets_B = log_squares(np.where(absent_B | large_B, 0.0, numbers_B))
        distinct, inverse_B = np.unique(buckets_B, return_inverse=True)
        known = self._buckets[table.name]
        keys = [known[b] if b in known else key_of(table.name, b) for b in distinct.tolist()]
        keys_B = np.array(keys, np.uint64)[inverse_B]
        keys_B[absent_B] = absent_key(table.name)
        return keys_B[:, None]


def _times(times: Sequence[float], faults: Faults) -> NDArray[np.float64]:
    times_B = np.array(times, np.float64)
    for row in np.flatnonzero(~((times_B >= 0) & (times_B < MAX_TIME))):
        faults.setdefault(int(row), time_fault(float(times_B[row])))
    return times_B


def time_fault(value: float) -> str:
    if not math.isfinite(value):
        return f"not finite: event_time is {value}"
    kind = "negative" if value < 0 else "oversized"
    return f"{kind}: event_time is {value}, expected unix seconds from 0 to {MAX_TIME:.0f}"


def _labels(labels: Sequence[int], faults: Faults) -> NDArray[np.float32]:
    if set(labels) <= {0, 1}:
        return np.array(labels, np.float32)
    for row, label in enumerate(labels):
        if label not in (0, 1):
            faults.setdefault(row, f"label: {_short(label)}, expected 0 or 1")
    return np.array([label if label in (0, 1) else 0 for label in labels], np.float32)


def _numbers(name: str, column: Sequence[Any], faults: Faults) -> NDArray[np.float64]:
    """A numeric column, NaN where the value is absent (or at fault)."""
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


def _number(name: str, value: Any, row: int, faults: Faults) -> float:
    try:
        return math.nan if value is None else float(value)
    except OverflowError:
        faults.setdefault(row, f"oversized: field {name!r} is an integer of {value.bit_length()} bits")
        return math.nan


def _dense(dense: DenseField, numbers_B: NDArray[np.float64], faults: Faults) -> NDArray[np.float64]:
    values_B = np.nan_to_num(numbers_B, nan=0.0)
    wrong_B = ~np.isnan(numbers_B) & ((numbers_B < dense.min) | (numbers_B > dense.max))
    for row in np.flatnonzero(wrong_B):
        faults.setdefault(int(row), range_fault(dense, float(numbers_B[row])))
    values_B[wrong_B] = 0.0
    return transform(dense, values_B)


def transform(dense: DenseField, values_B: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.log1p(np.maximum(values_B, 0.0)) if dense.transform == "log1p" else values_B


def range_fault(dense: DenseField, value: float) -> str:
    kind = "oversized" if value > dense.max else "negative" if value < 0 else "too small"
    return f"{kind}: field {dense.field!r} is {value:g}, expected {dense.min:g} to {dense.max:g}"


def _hashed(table: Table, column: Sequence[Any], limit: int, faults: Faults) -> NDArray[np.uint64]:
    """Keys of a column of single values; each distinct value is checked and hashed once."""
    if not set(map(type, column)) <= SAFE_TO_MERGE:
        return _hashed_singly(table, column, limit, faults)
    distinct = list(dict.fromkeys(column))
    if not _are_short(distinct, limit):
        return _hashed_singly(table, column, limit, faults)
    try:
        keys = dict(zip(distinct, hash_values(table_seed(table.name), absent_key(table.name), distinct), strict=True))
    except UnicodeEncodeError:
        return _hashed_singly(table, column, limit, faults)
    return np.fromiter(map(keys.__getitem__, column), np.uint64, len(column))


def _are_short(values: Sequence[Any], limit: int) -> bool:
    """Whether all texts and integers are surely within the limit; a character takes at most 4 bytes."""
    texts = [value for value in values if type(value) is str]
    integers = [value for value in values if type(value) is int]
    bound = 10 ** min(limit - 1, 18)
    return 4 * max(map(len, texts), default=0) <= limit and all(-bound < value < bound for value in integers)


def _hashed_singly(table: Table, column: Sequence[Any], limit: int, faults: Faults) -> NDArray[np.uint64]:
    """The same, value by value: what it is tested against, and the way to find which rows are at fault."""
    checked = _checked(table, column, limit, faults)
    return np.array(hash_values(table_seed(table.name), absent_key(table.name), checked), np.uint64)


def _checked(table: Table, column: Sequence[Any], limit: int, faults: Faults) -> list[Any]:
    """The column with rejected values blanked out."""
    return ["" if (v is not None and _rejected(table, v, row, limit, faults)) else v for row, v in enumerate(column)]


def _rejected(table: Table, value: Raw, row: int, limit: int, faults: Faults) -> bool:
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
        return f"not decodable: field {field!r} is no valid text"
    return f"oversized: field {field!r} has {size} bytes, at most {limit}" if size > limit else None


def _listed(table: Table, column: Sequence[Any], limit: int, faults: Faults) -> NDArray[np.uint64]:
    """Keys of a column of lists, each padded with the absent key; a single value is a list of one."""
    most = table.values
    padding: list[None] = [None] * most
    flat: list[Any] = []
    for row, value in enumerate(column):
        values = value if type(value) is list else [value]
        if len(values) > most:
            faults.setdefault(row, f"too many values: field {table.field!r} has {len(values)}, at most {most}")
        flat += (values + padding)[:most]
    flat_faults: Faults = {}
    keys = _hashed(table, flat, limit, flat_faults)
    for place, reason in flat_faults.items():
        faults.setdefault(place // most, reason)
    return keys.reshape(len(column), most)


def _short(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value) if _is_small(value) else "a very large integer"
    return text[:40]


def _is_small(value: object) -> bool:
    return not isinstance(value, int) or value.bit_length() <= 128
