"""From keys back to fields and values."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ingest.codec.json_events import encode_json
from ingest.codec.packed import PackedCodec
from ingest.config import StreamConfig
from ingest.convert import Converter, Event
from ingest.kafka.config import KafkaConfig
from ingest.keys import absent_key, key_of
from ingest.names import KeyName, find_names, newest_payloads
from tests.ingest.topics import SMALL, write_json

EVENT = Event(1.0, 1, {"user": "ü-7", "tags": ["a", 40_000, 1.5], "age": 70})


def never() -> Iterator[bytes]:
    raise AssertionError("no event needs to be read")
    yield b""


def test_a_schema_alone_tells_absent_values_buckets_and_small_numbers() -> None:
    keys = [absent_key("user"), key_of("tags", 42), key_of("age_bucket", 0), key_of("age_bucket", 18)]
    found = find_names(keys, SMALL, never())
    assert [(name.field, name.value) for name in map(found.get, keys) if name] == [
        ("user", "null"),
        ("tags", "42"),
        ("age_bucket", "0 to 1"),
        ("age_bucket", "69 to 77"),
    ]


def test_every_key_of_an_event_that_is_looked_at_has_a_name() -> None:
    samples, _ = Converter(SMALL).convert_events([EVENT])
    found = find_names(samples.keys_BF.ravel().tolist(), SMALL, iter([b"{", encode_json(EVENT)]))
    assert {(name.field, name.value) for name in found.values()} == {
        ("user", '"ü-7"'),
        ("tags", '"a"'),
        ("tags", "40000"),
        ("tags", "1.5"),
        ("age_bucket", "69 to 77"),
    }


def test_packed_records_tell_the_field_and_no_value() -> None:
    samples, _ = Converter(SMALL).convert_events([EVENT])
    key = key_of("user", "ü-7")
    packed = PackedCodec(SMALL).encode(samples)
    assert find_names([key], SMALL, iter([packed])) == {key: KeyName("user", None)}
    assert find_names([key], SMALL, iter([packed, encode_json(EVENT)])) == {key: KeyName("user", '"ü-7"')}
    assert find_names([int(np.uint64(1))], SMALL, iter([packed])) == {}


def test_events_that_cannot_be_read_tell_nothing(tmp_path: Path) -> None:
    stream = StreamConfig(folder=tmp_path / "log", topic="clicks")
    assert list(newest_payloads(stream, KafkaConfig(), 10)) == []
    write_json(tmp_path / "log", [EVENT])
    assert list(newest_payloads(stream, KafkaConfig(), 10)) == [encode_json(EVENT)]
