"""Converts events to samples: columns of raw values become keys, dense floats, labels and times, or faults with a
reason.

Both codecs and every producer use this, so an event gives the same sample whichever way it came. Legend: B events, E
keys of tables, N dense floats.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from ingest.columns import (
    Faults,
    hash_column,
    hash_lists,
    hash_pooled,
    parse_texts,
    read_dense,
    read_labels,
    read_more_labels,
    read_numbers,
    read_times,
    read_weights,
)
from ingest.crosses import add_crosses
from ingest.keys import Raw, absent_key, key_of, log_squares
from ingest.presence import missing_faults
from ingest.samples import Samples
from ingest.schema import KeyTable, Schema

Value = Raw | list[Raw] | dict[str, float] | None
"""What a field of an event may hold; None means that the field is absent."""

INTEGER_LIMIT = 2.0**63
"""Numbers that are put into buckets must be smaller in absolute value."""


class Event(msgspec.Struct, frozen=True):
    """One click or non-click as a device reports it."""

    event_time: float
    """Unix seconds."""
    label: int
    """1 for a click, 0 for none."""
    fields: dict[str, Value]
    labels: dict[str, int | None] | msgspec.UnsetType = msgspec.UNSET
    """Further labels by name, if the schema has several."""


class Converter:
    """Converts columns to samples for one schema."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.numeric = {d.field for d in schema.dense_fields} | {t.field for t in schema.tables if t.bucket != "none"}
        self.numeric |= {schema.weight} - {""}
        """Fields that must be numbers."""
        self.lists = {t.field: t.values for t in schema.tables if t.values > 1}
        """Fields that may be lists, with their most values."""
        self.pooled = {t.field for t in schema.tables if t.pool != "none"}
        """Fields that may be objects of values with their weights."""
        self._buckets = {
            t.name: {i: key_of(t.name, i) for i in range(256)} for t in schema.tables if t.bucket != "none"
        }

    def convert(
        self,
        times: Sequence[float],
        labels: Sequence[int],
        columns: Sequence[Sequence[Value]],
        more_labels: Sequence[Sequence[int | None]] = (),
    ) -> tuple[Samples, Faults]:
        """Samples of all rows (rows with faults hold nonsense) and the faults; expects a column for each of
        schema.inputs, and of labels after the main one.
        """
        column = dict(zip(self.schema.inputs, columns, strict=True))
        faults: Faults = {}
        times_B = read_times(times, faults)
        labels_B = read_labels(labels, faults)
        for name in self.schema.coerced:
            column[name] = parse_texts(name, column[name], faults)
        numbers = {name: read_numbers(name, column[name], faults) for name in column if name in self.numeric}
        keys_BE = np.empty((len(times), self.schema.singles), np.uint64)
        at = 0
        shares: list[NDArray[np.float32]] = []
        for table in self.schema.tables:
            keys_Bv = keys_BE[:, at : at + table.values]
            if table.pool == "none":
                keys_Bv[:] = self._keys(table, column[table.field], numbers, faults)
            else:
                limit = self.schema.limits.string_bytes
                keys_Bv[:], shares_Bv = hash_pooled(table, column[table.field], limit, faults)
                shares.append(shares_Bv)
            at += table.values
        dense_BN = np.empty((len(times), self.schema.dense), np.float32)
        for place, dense in enumerate(self.schema.dense_fields):
            dense_BN[:, place] = read_dense(dense, numbers[dense.field], faults)
        name = self.schema.weight
        weights_B = read_weights(name, numbers[name], faults) if name else None
        shares_BP = np.concatenate(shares, axis=1) if shares else None
        samples = Samples(
            labels_B=labels_B,
            dense_BN=dense_BN,
            keys_BF=add_crosses(keys_BE, self.schema),
            times_B=times_B,
            weights_B=weights_B,
            shares_BP=shares_BP,
            more_labels_BL=read_more_labels(self.schema.more_labels, more_labels, faults) if more_labels else None,
        )
        missing_faults(samples, self.schema, faults)
        return samples, faults

    def convert_events(self, events: Sequence[Event]) -> tuple[Samples, Faults]:
        """Samples of events in memory; a field of a wrong type is a fault like any other."""
        columns = [[event.fields.get(name) for event in events] for name in self.schema.inputs]
        faults: Faults = {}
        for name, column in zip(self.schema.inputs, columns, strict=True):
            self._check_types(name, column, faults)
        given = [{} if isinstance(event.labels, msgspec.UnsetType) else event.labels for event in events]
        more_labels = [[labels.get(name) for labels in given] for name in self.schema.more_labels]
        samples, more = self.convert([e.event_time for e in events], [e.label for e in events], columns, more_labels)
        return samples, {**more, **faults}

    def _check_types(self, name: str, column: list[Value], faults: Faults) -> None:
        """Replaces values that a column of this field cannot hold by None."""
        allowed: tuple[type, ...] = (
            (int, float, type(None)) if name in self.numeric else (str, int, float, bool, type(None))
        )
        if name in self.schema.coerced:
            allowed = (*allowed, str)
        kinds = set(map(type, column))
        if kinds <= set(allowed):
            return
        for row, value in enumerate(column):
            is_list = name in self.lists and type(value) is list and {type(v) for v in value} <= {str, int, float, bool}
            if name in self.pooled and type(value) is dict:
                is_list = all(type(v) in (int, float) for v in value.values()) and all(type(k) is str for k in value)
            if not is_list and type(value) not in allowed:
                faults.setdefault(row, f"wrong type: field {name!r} is {type(value).__name__}")
                column[row] = None

    def _keys(
        self, table: KeyTable, column: Sequence[Value], numbers: dict[str, NDArray[np.float64]], faults: Faults
    ) -> NDArray[np.uint64]:
        if table.bucket != "none":
            return self._bucketed(table, numbers[table.field], faults)
        if table.values > 1:
            return hash_lists(table, column, self.schema.limits.string_bytes, faults)
        return hash_column(table, column, self.schema.limits.string_bytes, faults)[:, None]

    def _bucketed(self, table: KeyTable, numbers_B: NDArray[np.float64], faults: Faults) -> NDArray[np.uint64]:
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
