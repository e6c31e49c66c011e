"""Keys of crosses: one for each combination of values of two or three tables.

A cross is a further key of a sample, after those of the tables. It is a hash of their keys, seeded by the cross's name,
so everything behind it (rows, caches, checkpoints) treats it as any other key. The model uses its wide weight alone.
Packed records do not contain crosses: whoever decodes them computes them.

Legend: B samples, E keys of tables, F keys of a sample with those of crosses.
"""

import json
from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from ingest.keys import table_seed
from ingest.schema import Schema

MASK = 2**64 - 1
MULTIPLIERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shifts and factors of splitmix64."""


class SuggestedCross(msgspec.Struct, frozen=True, kw_only=True):
    """One combination of tables."""

    tables: tuple[str, ...]
    gain: float
    """By how much logloss on later rows is lower than with the crosses before it."""
    keys: int
    """Its distinct keys among the examined events: the rows that it costs."""


class Suggestions(msgspec.Struct, frozen=True, kw_only=True):
    """The crosses that are worth their keys, best first."""

    events: int
    """Events examined."""
    later: int
    """The last ones of them, on which logloss was measured."""
    logloss: float
    """Without crosses, of a model without embeddings."""
    crossed_logloss: float
    """With all suggested crosses."""
    crosses: tuple[SuggestedCross, ...]

    @property
    def line(self) -> str:
        """The line of a schema that uses them; a list in JSON is one in TOML, too."""
        return f"crosses = {json.dumps([cross.tables for cross in self.crosses], ensure_ascii=False)}"


def add_crosses(keys_BE: NDArray[np.uint64], schema: Schema) -> NDArray[np.uint64]:
    """The keys of samples with those of the schema's crosses."""
    if not schema.crosses:
        return keys_BE
    keys_BF = np.empty((len(keys_BE), schema.fields), np.uint64)
    keys_BF[:, : schema.singles] = keys_BE
    for place, (name, members) in enumerate(zip(schema.cross_names, schema.cross_places, strict=True)):
        crossed_B = np.full(len(keys_BE), table_seed(name), np.uint64)
        for member in members:
            crossed_B = _mix(crossed_B ^ keys_BE[:, member])
        keys_BF[:, schema.singles + place] = crossed_B
    return keys_BF


def cross_key(name: str, keys: Iterable[int]) -> int:
    """The key of one combination, in plain integers."""
    crossed = table_seed(name)
    for key in keys:
        crossed ^= key
        for shift, factor in MULTIPLIERS:
            crossed = (crossed ^ crossed >> shift) * factor & MASK
        crossed ^= crossed >> 31
    return crossed


def _mix(values_B: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Spreads every bit over all others; no two values become one."""
    for shift, factor in MULTIPLIERS:
        values_B = (values_B ^ values_B >> np.uint64(shift)) * np.uint64(factor)
    return values_B ^ values_B >> np.uint64(31)
