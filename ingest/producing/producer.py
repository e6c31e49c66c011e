"""Writes events to a sink, the embedded log or Kafka: JSON or packed, evenly paced, with poison on request.

An event may come as the bytes of its JSON: it is then written as it is, whatever it holds.
Events with equal values of the schema's partition_by field go to the same partition, so their order is kept. What
``produced`` counts is durable. Poisoned events are extra: they never replace a good one.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import msgspec
import xxhash

from infra.process import Stop
from ingest.codec.json_events import encode_json
from ingest.codec.packed import PackedCodec
from ingest.convert import Converter, Event
from ingest.errors import EncodeError
from ingest.keys import Raw, text_of
from ingest.producing.poison import PACKED_RECORD_POISON, PACKED_SAMPLE_POISON, POISON, poison_packed
from ingest.samples import Samples
from ingest.schema import Schema
from ingest.streams.sink import Entry, Sink

TURN_EVENTS = 2048
"""most events between two appends"""
TURNS_PER_SECOND = 10
"""appends a second of a paced stream"""

SO_FAR = "so far"

Unit = Event | bytes | None
"""what a stream gives: an event, the JSON of one, or None where nothing more has come yet"""


@dataclass(frozen=True)
class Produced:
    """What one producer wrote."""

    events: int
    """good and bad"""
    poisoned: int
    """bad ones among them, as far as this producer made them bad"""
    records: int
    seconds: float
    reason: str
    """why it ended: count, duration, end of events, or the reason of the stop; so far: it has not"""


def partition_of(key: bytes, partitions: int) -> int:
    return xxhash.xxh3_64_intdigest(key) % partitions


class _Fields(msgspec.Struct):
    fields: dict[str, Any] = {}


_decoder = msgspec.json.Decoder(_Fields)


def partition_key(event: Event | bytes, schema: Schema) -> bytes | None:
    """The text of the event's partition_by field, or None if it has none."""
    if not schema.partition_by:
        return None
    try:
        fields = event.fields if isinstance(event, Event) else _decoder.decode(event).fields
        value = fields.get(schema.partition_by)
        return text_of(value).encode() if isinstance(value, Raw) else None
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None  # no event, or no text: its reader will say so


class Encoder:
    """Turns the events of one turn into entries per partition."""

    def __init__(self, schema: Schema, partitions: Sequence[int], samples_per_record: int) -> None:
        """samples_per_record 0 writes JSON."""
        self.schema, self._partitions = schema, list(partitions)
        self._packed, self._converter = PackedCodec(schema), Converter(schema)
        self._samples_per_record = min(samples_per_record, self._packed.most)
        self._turn = count()

    def encode(self, events: Sequence[Event | bytes]) -> dict[int, list[Entry]]:
        placed: dict[int, list[tuple[bytes | None, Event | bytes]]] = {}
        for event in events:
            key = partition_key(event, self.schema)
            placed.setdefault(self.place(key), []).append((key, event))
        return {partition: self._entries(pairs) for partition, pairs in placed.items()}

    def place(self, key: bytes | None) -> int:
        """The partition of a key; without a key one after the other."""
        number = next(self._turn) % len(self._partitions) if key is None else partition_of(key, len(self._partitions))
        return self._partitions[number]

    def poison(self, event: Event | bytes, kind: str) -> tuple[int, Entry]:
        """The event made bad, with its partition."""
        assert isinstance(event, Event), "checked before"
        key = partition_key(event, self.schema)
        if not self._samples_per_record:
            return self.place(key), (key, POISON[kind](event, self.schema))
        samples, _ = self._converter.convert_events([event])
        return self.place(key), (None, poison_packed(self._packed, samples, 0, kind))

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of poison for this encoding."""
        return (*PACKED_SAMPLE_POISON, *PACKED_RECORD_POISON) if self._samples_per_record else tuple(POISON)

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


def produce(
    events: Iterable[Unit],
    sink: Sink,
    schema: Schema,
    stop: Stop,
    samples_per_record: int = 0,
    rate: float | None = None,
    limit: int | None = None,
    poison_share: float = 0.0,
    duration_seconds: float | None = None,
    show: Callable[[Produced], None] = lambda so_far: None,
) -> Produced:
    """Writes events until they end, limit good ones are written, the time is over, or a stop is requested.

    poison_share adds, evenly, that share of bad events of each kind in turn; rate is in events a second. What has been
    written so far is shown after every turn.
    """
    started = time.monotonic()
    ends = math.inf if duration_seconds is None else started + duration_seconds
    encoder = Encoder(schema, sink.partitions, samples_per_record)
    stream = iter(events)
    turn_events = TURN_EVENTS if rate is None else max(1, min(TURN_EVENTS, round(rate / TURNS_PER_SECOND)))
    total = poisoned = records = 0
    more = True
    while more and not stop.requested and time.monotonic() < ends:
        left = turn_events if limit is None else min(turn_events, limit - (total - poisoned))
        turn, more = _turn(stream, left)
        entries = encoder.encode(turn)
        bad = _poison(encoder, turn, entries, poison_share, total - poisoned, poisoned)
        sink.write(entries)
        records += sum(map(len, entries.values()))
        total, poisoned = total + len(turn) + bad, poisoned + bad
        show(Produced(total, poisoned, records, time.monotonic() - started, SO_FAR))
        if rate is not None:
            stop.wait(max(0.0, min(started + total / rate, ends) - time.monotonic()))
    reason = _reason(stop, limit == total - poisoned, more)
    return Produced(total, poisoned, records, time.monotonic() - started, reason)


def _reason(stop: Stop, is_complete: bool, more: bool) -> str:
    if stop.requested:
        return stop.reason
    if is_complete:
        return "count"
    return "duration" if more else "end of events"


def _turn(stream: Iterator[Unit], most: int) -> tuple[list[Event | bytes], bool]:
    """(the next events, whether there may be more): at most so many, fewer where the stream pauses or ends."""
    turn: list[Event | bytes] = []
    while len(turn) < most:
        try:
            event = next(stream)
        except StopIteration:
            return turn, False
        if event is None:
            return turn, True
        turn.append(event)
    return turn, most > 0


def _poison(
    encoder: Encoder,
    turn: Sequence[Event | bytes],
    entries: dict[int, list[Entry]],
    share: float,
    good: int,
    poisoned: int,
) -> int:
    """Adds bad events among the turn's entries until their share of all events is reached; returns how many."""
    due = int((good + len(turn)) * share / (1 - share)) - poisoned if share else 0
    for number in range(due):
        event = turn[number * len(turn) // due]
        partition, entry = encoder.poison(event, encoder.kinds[(poisoned + number) % len(encoder.kinds)])
        mixed = entries.setdefault(partition, [])
        mixed.insert(number * len(mixed) // due, entry)
    return due
