"""The contents of events, field by field, compared with a schema: for ``freshet check``, and for a run before it
begins.

JSON events are examined as they came, including those that would be rejected; of packed records, the good samples are.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ingest.codec.decoder import OFFSET, Decoded, Decoder
from ingest.codec.packed import is_packed
from ingest.codec.unknown import all_fields, nearest_field, show_text, show_value
from ingest.crosses import Suggestions
from ingest.keys import key_of
from ingest.presence import has_value, witnesses_of
from ingest.samples import Samples, join_samples, no_samples
from ingest.schema import Schema
from ingest.streams.position import Position
from ingest.streams.source import Record

EXAMPLES = 3
MOST_UNKNOWN = 100
"""Most names that are reported, the most frequent ones."""
MOST_DISTINCT = 1_000_000
"""Most keys of a field that are kept to count them."""
KIND_NAMES = {str: "text", bool: "boolean", int: "integer", float: "number", list: "list", dict: "object"}


class FieldFindings(msgspec.Struct, frozen=True, kw_only=True):
    """One field, of the schema or unknown to it."""

    name: str
    share: float
    """Share of the examined events that have a value."""
    kinds: dict[str, int]
    """Number of events by kind of value: text, integer, number, boolean, list, object; key, float in packed records."""
    lowest: float | None
    highest: float | None
    """Highest of its numbers, transformed in packed records; None: it has none."""
    distinct: int
    """Number of distinct keys among its values."""
    examples: tuple[str, ...]
    nearest: str | None = None
    """For an unknown field: the absent field of the schema that may be meant."""


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in the examined records."""

    schema: str
    records: int
    good: int
    rejected: int
    reasons: dict[str, int]
    """Number of events that would be dead letters, by kind of reason."""
    rejects: tuple[str, ...]
    """The first reason of each kind in full."""
    fields: tuple[FieldFindings, ...]
    """Fields of the schema; none if no event could be read."""
    unknown: tuple[FieldFindings, ...]
    fitting: int
    """Good events with a value of at least one field."""
    faults: tuple[str, ...] = ()
    """What is wrong; nothing if every event is good and every field occurs in some event."""
    suggested: Suggestions | None = None
    """Crosses that the good events suggest, if they were searched for."""

    @property
    def absent(self) -> tuple[str, ...]:
        """Fields of the schema that no event has; none if no event could be read."""
        return tuple(found.name for found in self.fields if not found.share)


def find_faults(found: Findings) -> Iterator[str]:
    """What is wrong, worst first."""
    if not found.records:
        yield "there is no record to look at"
    elif not found.good:
        yield "no event fits the schema"
    if found.rejected:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in found.reasons.items())
        yield f"{found.rejected:,} of {found.good + found.rejected:,} events would be dead letters: {kinds}"
    meant = {unknown.nearest: unknown.name for unknown in found.unknown if unknown.nearest}
    yield from (f"no event has field {name}; some have {meant[name]}" for name in found.absent if name in meant)
    if others := [name for name in found.absent if name not in meant]:
        yield f"no event has {'field' if len(others) == 1 else 'any of the fields'} {', '.join(others)}"


@dataclass
class Column:
    """Accumulates the values of one field."""

    present: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    lowest: float | None = None
    highest: float | None = None
    keys: set[int] = field(default_factory=set)
    examples: list[str] = field(default_factory=list)

    def add(self, value: Any) -> None:
        """Adds the value of one JSON event; null and an empty list count as none."""
        if value is None or value == []:
            return
        self.present += 1
        self.kinds[KIND_NAMES[type(value)]] += 1
        members = value if isinstance(value, list) else [value]
        self._add_keys(key_of("", member) for member in members if isinstance(member, str | int | float))
        self._add_numbers([float(m) for m in members if type(m) in (int, float) and abs(m) < 1e300])
        if len(self.examples) < EXAMPLES and (text := show_value(value)) not in self.examples:
            self.examples.append(text)

    def add_packed(
        self, keys: NDArray[np.uint64] | None, absent: int, floats: NDArray[np.float32] | None, count: int
    ) -> None:
        """Adds what packed samples hold of a field: its keys, padded with the absent one, its floats, or both."""
        self.present += count
        self.kinds["float" if keys is None else "key"] += count
        self._add_keys(set(keys.ravel().tolist()) - {absent} if keys is not None else ())
        self._add_numbers(floats.tolist() if floats is not None else [])

    def findings(self, name: str, events: int, nearest: str | None = None) -> FieldFindings:
        return FieldFindings(
            name=name,
            share=self.present / events if events else 0.0,
            kinds={kind: count for kind, count in self.kinds.items() if count},
            lowest=self.lowest,
            highest=self.highest,
            distinct=len(self.keys),
            examples=tuple(self.examples),
            nearest=nearest,
        )

    def _add_keys(self, keys: Iterable[int]) -> None:
        if len(self.keys) < MOST_DISTINCT:
            self.keys.update(keys)

    def _add_numbers(self, numbers: list[float]) -> None:
        known = [bound for bound in (self.lowest, self.highest) if bound is not None]
        if numbers:
            self.lowest = min(*known, *numbers, numbers[0])
            self.highest = max(*known, *numbers, numbers[0])


class Survey:
    """Examines records and accumulates their contents."""

    def __init__(self, schema: Schema, keeps_samples: bool = False) -> None:
        """keeps_samples: whether the good samples are kept, too."""
        self._schema = schema
        self._kept: list[Samples] | None = [] if keeps_samples else None
        self._decoder = Decoder(schema)
        self._columns = {name: Column() for name in schema.sources}
        self._unknown: dict[str, Column] = {}
        self._reasons: Counter[str] = Counter()
        self._rejects: dict[str, str] = {}
        self._records = self._good = self._fitting = self._seen = 0

    @property
    def events(self) -> int:
        """Number of events examined so far, good and bad."""
        return self._good + self._reasons.total()

    def add(self, payloads: Sequence[bytes]) -> None:
        """Examines records, JSON or packed."""
        if not payloads:
            return
        records = [Record(place, None, payload, 0) for place, payload in enumerate(payloads)]
        decoded = self._decoder.decode(records, Position(0))
        self._records += len(payloads)
        self._good += len(decoded)
        if self._kept is not None:
            self._kept.append(decoded.samples)
        for reject in decoded.rejects:
            kind = reject.reason.partition(":")[0]
            self._reasons[kind] += 1
            self._rejects.setdefault(kind, show_text(reject.reason, 200))
        for payload in payloads:
            self._add_json(payload)
        self._add_samples(decoded, np.array([is_packed(payload) for payload in payloads]))

    @property
    def samples(self) -> Samples:
        """The good samples, if they are kept."""
        return join_samples([no_samples(self._schema.fields, self._schema.dense), *(self._kept or ())])

    def findings(self) -> Findings:
        columns = self._columns if self._seen else {}
        fields = tuple(column.findings(name, self._seen) for name, column in columns.items())
        absent = [found.name for found in fields if not found.share]
        frequent = sorted(self._unknown.items(), key=lambda pair: -pair[1].present)[:MOST_UNKNOWN]
        found = Findings(
            schema=self._schema.name,
            records=self._records,
            good=self._good,
            rejected=self._reasons.total(),
            reasons=dict(self._reasons.most_common()),
            rejects=tuple(self._rejects.values()),
            fields=fields,
            unknown=tuple(
                column.findings(show_text(name), self._seen, nearest_field(name, absent)) for name, column in frequent
            ),
            fitting=self._fitting,
        )
        return msgspec.structs.replace(found, faults=tuple(find_faults(found)))

    def _add_json(self, payload: bytes) -> None:
        values = all_fields(payload)
        if values is None:
            return
        self._seen += 1
        for name, value in values.items():
            if name in self._columns:
                self._columns[name].add(value)
            elif name != self._schema.partition_by and len(self._unknown) < MOST_DISTINCT:
                self._unknown.setdefault(name, Column()).add(value)

    def _add_samples(self, decoded: Decoded, packed_B: NDArray[np.bool_]) -> None:
        """Counts good samples that have some field, and adds the values of packed ones."""
        witnesses = witnesses_of(self._schema)
        samples = decoded.samples
        has_BS = [has_value(samples, witnesses, place) for place in range(len(self._schema.sources))]
        self._fitting += int(np.any(has_BS, axis=0).sum())
        is_packed_B = packed_B[decoded.at_B[:, OFFSET]]
        self._seen += int(is_packed_B.sum())
        if not is_packed_B.any():
            return
        widths = {table.field: table.values for table in reversed(self._schema.tables)}
        for place, name in enumerate(self._schema.sources):
            chosen_B = has_BS[place] & is_packed_B
            key = witnesses.key_S[place]
            dense = [d.field for d in self._schema.dense_fields]
            keys = samples.keys_BF[chosen_B, key : key + widths[name]] if key >= 0 else None
            floats = samples.dense_BN[chosen_B, dense.index(name)] if name in dense else None
            self._columns[name].add_packed(keys, int(witnesses.absent_S[place]), floats, int(chosen_B.sum()))
