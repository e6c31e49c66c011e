"""Encodes events as records: JSON or packed, each for its partition, with bad events added on request.

Events with equal values of the schema's partition_by field go to the same partition, so their order is kept. Bad events
are extra: they never replace a good one.
"""

from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec
import xxhash

from ingest.codec.json_events import encode_json
from ingest.codec.nesting import is_too_deep
from ingest.codec.packed import PackedCodec
from ingest.convert import Converter, Event
from ingest.errors import EncodeError
from ingest.keys import Raw, text_of
from ingest.producing.poison import PACKED_RECORD_POISON, PACKED_SAMPLE_POISON, POISON, poison_packed
from ingest.samples import Samples
from ingest.schema import Schema
from ingest.streams.sink import Entry


class _Fields(msgspec.Struct):
    fields: dict[str, Any] = {}


_decoder = msgspec.json.Decoder(_Fields)


def partition_key(event: Event | bytes, schema: Schema) -> bytes | None:
    """The text of the event's partition_by field, or None if it has none."""
    if not schema.partition_by:
        return None
    if isinstance(event, bytes) and is_too_deep(event):
        return None
    try:
        fields = event.fields if isinstance(event, Event) else _decoder.decode(event).fields
        value = fields.get(schema.partition_by)
        return text_of(value).encode() if isinstance(value, Raw) else None
    except (msgspec.DecodeError, ValueError):
        return None  # not an event, or not a text: whoever decodes the record will reject it


def partition_of(key: bytes, partitions: int) -> int:
    return xxhash.xxh3_64_intdigest(key) % partitions


class Encoder:
    """Encodes the events of one turn into entries per partition."""

    def __init__(
        self, schema: Schema, partitions: Sequence[int], samples_per_record: int = 0, poison_share: float = 0.0
    ) -> None:
        """samples_per_record: 0 writes JSON; poison_share: adds that share of bad events, of each kind in turn."""
        self.schema = schema
        self._partitions = list(partitions)
        self._packed = PackedCodec(schema)
        self._converter = Converter(schema)
        self._samples_per_record = min(samples_per_record, self._packed.most)
        self._poison_share = poison_share
        self._turn = count()
        self.good = 0
        """Good events encoded so far."""
        self.poisoned = 0
        """Bad events added so far."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of poison for this encoding."""
        return (*PACKED_SAMPLE_POISON, *PACKED_RECORD_POISON) if self._samples_per_record else tuple(POISON)

    def encode(self, events: Sequence[Event | bytes]) -> dict[int, list[Entry]]:
        """Records of the events, and of the bad events that are due among them."""
        placed: dict[int, list[tuple[bytes | None, Event | bytes]]] = {}
        for event in events:
            key = partition_key(event, self.schema)
            placed.setdefault(self._place(key), []).append((key, event))
        entries = {partition: self._entries(pairs) for partition, pairs in placed.items()}
        self.good += len(events)
        if self._poison_share:
            self._add_poison(events, entries)
        return entries

    def _place(self, key: bytes | None) -> int:
        """The partition of a key; events without a key are spread in turn."""
        number = next(self._turn) % len(self._partitions) if key is None else partition_of(key, len(self._partitions))
        return self._partitions[number]

    def _add_poison(self, events: Sequence[Event | bytes], entries: dict[int, list[Entry]]) -> None:
        """Adds bad events among the entries until their share of all events is reached."""
        due = int(self.good * self._poison_share / (1 - self._poison_share)) - self.poisoned
        for number in range(due):
            event = events[number * len(events) // due]
            partition, entry = self._poison(event, self.kinds[(self.poisoned + number) % len(self.kinds)])
            mixed = entries.setdefault(partition, [])
            mixed.insert(number * len(mixed) // due, entry)
        self.poisoned += due

    def _poison(self, event: Event | bytes, kind: str) -> tuple[int, Entry]:
        """The partition, and the event made bad."""
        assert isinstance(event, Event), "checked before"
        key = partition_key(event, self.schema)
        if not self._samples_per_record:
            return self._place(key), (key, POISON[kind](event, self.schema))
        samples, _ = self._converter.convert_events([event])
        return self._place(key), (None, poison_packed(self._packed, samples, 0, kind))

    def _entries(self, pairs: Sequence[tuple[bytes | None, Event | bytes]]) -> list[Entry]:
        if not self._samples_per_record:
            return [(key, event if isinstance(event, bytes) else encode_json(event)) for key, event in pairs]
        samples = self._convert([event for _, event in pairs if isinstance(event, Event)])
        size = self._samples_per_record
        return [(None, self._packed.encode(samples.slice(at, at + size))) for at in range(0, len(samples), size)]

    def _convert(self, events: Sequence[Event]) -> Samples:
        samples, faults = self._converter.convert_events(events)
        if faults:
            raise EncodeError(
                f"cannot pack an event: {min(faults.items())[1]}; expected an event of schema {self.schema.name!r}; "
                "correct it, or produce JSON, where it becomes a dead letter"
            )
        return samples
