"""Bad records of every kind, for tests and drills: each of them must become a dead letter and nothing else.

A kind turns a good event into the payload of one bad record. Kinds of packed records corrupt one sample of a record, or
its header; in the former case the other samples of the record stay good.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
import numpy as np

from ingest.codec.json_events import encode_json
from ingest.codec.packed import HEADER, PackedCodec
from ingest.convert import Event
from ingest.samples import Samples
from ingest.schema import Schema

Poison = Callable[[Event, Schema], bytes]


def _with(event: Event, **changes: object) -> bytes:
    return msgspec.json.encode({**msgspec.to_builtins(event), **changes})


def _with_field(event: Event, name: str, value: object) -> bytes:
    return _with(event, fields={**event.fields, name: value})


def _first_text_field(schema: Schema) -> str:
    numeric = {d.field for d in schema.dense_fields} | {t.field for t in schema.tables if t.bucket != "none"}
    return next((t.field for t in schema.tables if t.field not in numeric), schema.tables[0].field)


def _negative(event: Event, schema: Schema) -> bytes:
    """A dense field below its limit, or the time if the schema has no dense field."""
    if not schema.dense_fields:
        return _with(event, event_time=-2.0)
    return _with_field(event, schema.dense_fields[0].field, schema.dense_fields[0].min - 1)


def _too_many(event: Event, schema: Schema) -> bytes:
    table = max(schema.tables, key=lambda t: t.values)
    return _with_field(event, table.field, ["x"] * (table.values + 1))


POISON: Mapping[str, Poison] = {
    "not_json": lambda event, schema: b"\xff\xfe" + encode_json(event),
    "cut_off": lambda event, schema: encode_json(event)[:-2],
    "empty": lambda event, schema: b"",
    "nested": lambda event, schema: b'{"x":' + b"[" * 100_000,
    "no_label": lambda event, schema: msgspec.json.encode({"event_time": event.event_time, "fields": event.fields}),
    "bad_label": lambda event, schema: _with(event, label=2),
    "wrong_type": lambda event, schema: _with_field(event, schema.tables[0].field, {"a": 1}),
    "not_a_number": lambda event, schema: encode_json(event).replace(b'"fields":{', b'"fields":{"x":NaN,'),
    "negative_time": lambda event, schema: _with(event, event_time=-1.0),
    "negative": _negative,
    "oversized": lambda event, schema: _with_field(
        event, _first_text_field(schema), "x" * (schema.limits.string_bytes + 1)
    ),
    "oversized_record": lambda event, schema: _with(event, note="x" * schema.limits.record_bytes),
    "too_many_values": _too_many,
    "name_twice": lambda event, schema: encode_json(event).replace(b'"label":', b'"label":0,"label":'),
    "not_utf8": lambda event, schema: encode_json(event).replace(b'"fields":{', b'"fields":{"x":"\xff",'),
    "endless_integer": lambda event, schema: encode_json(event).replace(
        b'"fields":{', b'"fields":{"%s":%s,' % (_first_text_field(schema).encode(), b"9" * 5000)
    ),
}
"""JSON records, by what is wrong with them."""

PACKED_SAMPLE_POISON = ("nan_dense", "bad_label", "nan_label", "negative_time")
PACKED_RECORD_POISON = ("version", "fingerprint", "count", "cut_off")


def poison_sample(samples: Samples, row: int, kind: str) -> Samples:
    """The samples with one of them made bad."""
    labels_B = samples.labels_B.copy()
    dense_BN = samples.dense_BN.copy()
    times_B = samples.times_B.copy()
    if kind == "nan_dense" and samples.dense_BN.shape[1]:
        dense_BN[row, 0] = np.nan
    elif kind == "negative_time":
        times_B[row] = -1.0
    else:
        labels_B[row] = 2.0 if kind == "bad_label" else np.nan
    return replace(samples, labels_B=labels_B, dense_BN=dense_BN, times_B=times_B)


def poison_record(payload: bytes, kind: str) -> bytes:
    """A packed record with an unusable header: one bad event, whatever it held."""
    magic, version, zero, fingerprint, count, fields, dense = HEADER.unpack_from(payload)
    if kind == "cut_off":
        return payload[:-1]
    changed = HEADER.pack(
        magic,
        version + (kind == "version"),
        zero,
        fingerprint ^ (kind == "fingerprint"),
        count + (kind == "count"),
        fields,
        dense,
    )
    return changed + payload[HEADER.size :]


def poison_packed(codec: PackedCodec, samples: Samples, row: int, kind: str) -> bytes:
    """One packed record with one bad event: a sample, or the record as a whole."""
    if kind in PACKED_RECORD_POISON:
        return poison_record(codec.encode(samples), kind)
    return codec.encode(poison_sample(samples, row, kind))
