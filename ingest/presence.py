"""Which fields of an event had a value, determined from its sample, in the same way for JSON and packed records.

A key shows it by the table's absent key, a dense float by its sign (``ABSENT``). If a field has both, its key is used;
of a list the first key. Packed records of devices that write a plain 0 for an absent number count as having it. Legend:
B samples, S fields of events that the schema uses.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ingest.keys import absent_key
from ingest.samples import Samples
from ingest.schema import Schema


class Witnesses(NamedTuple):
    """Where in a sample each field shows whether it had a value."""

    key_S: NDArray[np.int64]
    """Index among the keys; -1: the field is dense only."""
    absent_S: NDArray[np.uint64]
    """The key that represents no value."""
    dense_S: NDArray[np.int64]
    """Index among the dense floats, if there is no key."""


@lru_cache(maxsize=8)
def witnesses_of(schema: Schema) -> Witnesses:
    """The witnesses of a schema; cached, because the loader needs them for every batch."""
    keys: dict[str, tuple[int, int]] = {}
    at = 0
    for table in schema.tables:
        keys.setdefault(table.field, (at, absent_key(table.key_table)))
        at += table.values
    dense = {field.field: place for place, field in reversed(list(enumerate(schema.dense_fields)))}
    places = [keys.get(source, (-1, 0)) for source in schema.sources]
    return Witnesses(
        np.array([place for place, _ in places], np.int64),
        np.array([absent for _, absent in places], np.uint64),
        np.array([dense.get(source, 0) for source in schema.sources], np.int64),
    )


def has_value(samples: Samples, witnesses: Witnesses, field: int) -> NDArray[np.bool_]:
    """Which samples have a value in the field with this number."""
    place = int(witnesses.key_S[field])
    if place >= 0:
        return np.asarray(samples.keys_BF[:, place] != witnesses.absent_S[field])
    column_B = samples.dense_BN[:, int(witnesses.dense_S[field])]
    return np.asarray((column_B != 0) | ~np.signbit(column_B))


def missing_faults(samples: Samples, schema: Schema, faults: dict[int, str]) -> None:
    """Adds a fault for every sample without a field that the schema requires, unless it has a fault already."""
    if not schema.required:
        return
    witnesses = witnesses_of(schema)
    for name in schema.required:
        for row in np.flatnonzero(~has_value(samples, witnesses, schema.sources.index(name))).tolist():
            faults.setdefault(row, f"missing: field {name!r}, which the schema requires")
