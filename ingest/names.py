"""Finds field and value of a key. A key is a hash, so candidate values are hashed again and compared.

Without any event it finds absent values, buckets, and whole numbers below 10,000. Any other value is found if an event
that contains it is examined; for packed records, which contain only keys, only the field is found.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from infra.base.errors import FreshetError
from ingest.check import payloads_of
from ingest.codec.decoder import Decoder
from ingest.codec.packed import is_packed
from ingest.codec.unknown import all_fields, show_value
from ingest.config import StreamConfig
from ingest.convert import INTEGER_LIMIT
from ingest.crosses import cross_key
from ingest.kafka.config import KafkaConfig
from ingest.keys import BUCKET_STARTS, absent_key, key_of, log_square
from ingest.schema import KeyTable, Schema
from ingest.streams.position import Position
from ingest.streams.source import Record

WHOLE_NUMBERS = 10_000
TURN_RECORDS = 256


class KeyName(msgspec.Struct, frozen=True):
    """The field and value of a key."""

    field: str
    """Table of the schema."""
    value: str | None
    """The value as JSON; None: not known."""


def find_names(keys: Iterable[int], schema: Schema, payloads: Iterator[bytes]) -> dict[int, KeyName]:
    """Names of the keys that can be found from the schema or these records; reads no more records than needed."""
    wanted = set(keys)
    found = {key: name for key, name in _names_of_schema(schema) if key in wanted}
    decoder = Decoder(schema)
    while any(key not in found or found[key].value is None for key in wanted):
        if not (turn := list(islice(payloads, TURN_RECORDS))):
            break
        for key, name in _names_of_records(turn, schema, decoder):
            if key in wanted and (key not in found or found[key].value is None):
                found[key] = name
    return found


def newest_payloads(stream: StreamConfig, kafka: KafkaConfig, limit: int) -> Iterator[bytes]:
    """About that many records of a run's topic, the newest and the oldest; none if they cannot be read."""
    try:
        yield from payloads_of(None, "jsonl", stream, kafka, limit)
    except FreshetError:
        return


def _names_of_schema(schema: Schema) -> Iterator[tuple[int, KeyName]]:
    for table in schema.tables:
        yield absent_key(table.key_table), KeyName(table.name, "null")
        if table.bucket == "none":
            yield from ((key_of(table.key_table, number), _name(table, number)) for number in range(WHOLE_NUMBERS))
        else:
            buckets = range(len(BUCKET_STARTS))
            yield from ((key_of(table.key_table, bucket), _bucket(table, bucket)) for bucket in buckets)


def _names_of_records(payloads: list[bytes], schema: Schema, decoder: Decoder) -> Iterator[tuple[int, KeyName]]:
    for payload in payloads:
        fields = all_fields(payload) or {}
        for table in schema.tables:
            yield from _names_of_value(table, fields.get(table.field))
        yield from _names_of_crosses(fields, schema)
    packed = [Record(place, None, payload, 0) for place, payload in enumerate(filter(is_packed, payloads))]
    if packed:
        keys_BF = decoder.decode(packed, Position(0)).samples.keys_BF
        for place, table_name in enumerate(schema.columns):
            yield from ((key, KeyName(table_name, None)) for key in np.unique(keys_BF[:, place]).tolist())


def _names_of_crosses(fields: dict[str, Any], schema: Schema) -> Iterator[tuple[int, KeyName]]:
    """Crosses of values that have a key each, or that are absent."""
    tables = {table.name: table for table in schema.tables}
    for name, cross in zip(schema.cross_names, schema.crosses, strict=True):
        found = [next(_names_of_single(tables[each], fields.get(tables[each].field)), None) for each in cross]
        if all(found):
            values = ", ".join(str(one.value) for _, one in filter(None, found))
            yield cross_key(name, [key for key, _ in filter(None, found)]), KeyName(name, values)


def _names_of_single(table: KeyTable, value: Any) -> Iterator[tuple[int, KeyName]]:
    if value is None:
        yield absent_key(table.key_table), KeyName(table.name, "null")
    elif table.bucket != "none" and type(value) in (int, float) and 0 <= value < INTEGER_LIMIT:
        yield key_of(table.key_table, log_square(value)), _bucket(table, log_square(value))
    else:
        yield from _names_of_value(table, value)


def _names_of_value(table: KeyTable, value: Any) -> Iterator[tuple[int, KeyName]]:
    for one in value if isinstance(value, list | dict) else [value]:
        if table.bucket == "none":
            if isinstance(one, str | int | float):
                yield key_of(table.key_table, one), _name(table, one)
        elif type(one) in (int, float) and one < 0 and abs(one) < INTEGER_LIMIT:
            yield key_of(table.key_table, log_square(one)), _name(table, log_square(one))


def _name(table: KeyTable, value: str | float) -> KeyName:
    return KeyName(table.name, show_value(value))


def _bucket(table: KeyTable, bucket: int) -> KeyName:
    """The numbers of a bucket; for a narrow one the only number."""
    first = BUCKET_STARTS[bucket]
    last = BUCKET_STARTS[bucket + 1] - 1 if bucket + 1 < len(BUCKET_STARTS) else INTEGER_LIMIT
    return KeyName(table.name, f"{first:.0f}" if first >= last else f"{first:.0f} to {last:.0f}")
