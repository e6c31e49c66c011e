"""A request with an idempotency key is written once, however often it is sent, and whoever is killed meanwhile."""

import json
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from api.runs import requests
from api.runs.places import find_runs
from api.runs.requests import WrittenRequests, parse_tag, request_id
from api.runs.samples import RunSink
from infra.web.errors import KeyReused, NotAvailable
from ingest.codec.packed import PackedCodec
from ingest.config import StreamConfig
from ingest.convert import Event
from ingest.errors import LogError
from ingest.log.embedded import LogReader, LogWriter
from ingest.schema import load_schema
from tests.api.dispatcher import RUN, write_settings
from tests.api.test_samples import event
from tests.brokers import TestBroker
from tests.ingest.kafka.test_sink import records_of

BODY = json.dumps([event(number) for number in range(40)]).encode()
NOW = 1e9


@contextmanager
def sink_in(folder: Path, **settings: Any) -> Iterator[RunSink]:
    """As an API has it that was just started."""
    folder.mkdir(exist_ok=True)
    write_settings(folder, RUN, **settings)
    with closing(RunSink(find_runs(folder)[RUN], {})) as sink:
        yield sink


def written(folder: Path) -> Counter[float]:
    """How often each event is in the log, by its time."""
    reader = LogReader(folder / "topics", StreamConfig().topic)
    records = [record for partition in reader.partitions() for record in reader.read(partition, 0, 1 << 30)]
    return Counter(json.loads(record.payload)["event_time"] for record in records)


def test_events_sent_again_with_their_key_are_written_once(tmp_path: Path) -> None:
    for _ in range(2):  # the second API reads back what the first has written
        with sink_in(tmp_path) as sink:
            assert [sink.write(BODY, "ann", "k").accepted for _ in range(2)] == [40, 40]
    assert written(tmp_path) == Counter({1000.0 + number: 1 for number in range(40)})


def test_another_key_another_sender_and_no_key_are_other_requests(tmp_path: Path) -> None:
    with sink_in(tmp_path) as sink:
        for actor, key in (("ann", "k"), ("ann", "l"), ("bob", "k"), ("ann", None), ("ann", None)):
            sink.write(BODY, actor, key)
    assert set(written(tmp_path).values()) == {5}


def test_a_key_with_other_events_is_refused(tmp_path: Path) -> None:
    with sink_in(tmp_path) as sink:
        sink.write(BODY, "ann", "k")
        with pytest.raises(KeyReused, match="expected the same body"):
            sink.write(json.dumps([event(99)]).encode(), "ann", "k")
    assert 1099.0 not in written(tmp_path)


def test_after_a_crash_between_two_appends_the_rest_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = LogWriter.append

    def fail_after(writer: LogWriter, partition: int, entries: Any, *rest: Any) -> int:
        if partition == 1:
            append(writer, partition, entries[:3], *rest)
            raise LogError("no room")
        return append(writer, partition, entries, *rest)

    with sink_in(tmp_path) as sink:
        with monkeypatch.context() as failing:
            failing.setattr(LogWriter, "append", fail_after)
            with pytest.raises(NotAvailable, match="no room"):
                sink.write(BODY, "ann", "k")
        assert 3 < len(written(tmp_path)) < 40
    with sink_in(tmp_path) as sink:
        assert sink.write(BODY, "ann", "k").accepted == 40
    assert written(tmp_path) == Counter({1000.0 + number: 1 for number in range(40)})


def test_packed_records_and_events_on_kafka_are_written_once(kafka: TestBroker, tmp_path: Path) -> None:
    config, topic = kafka.config(), kafka.new_topic(partitions=2)
    stream = StreamConfig(source="kafka", topic=topic, schema_name="movielens")
    packed = PackedCodec(load_schema("movielens")).encode_events([Event(1.0, 1, {"user": "a", "item": "b"})])
    for _ in range(2):
        with sink_in(tmp_path, stream=stream, kafka=config) as sink:
            for body, key in ((BODY, "k"), (packed, "p"), (BODY, "k")):
                sink.write(body, "ann", key)
    found = [record for records in records_of(config, topic).values() for record in records]
    assert len(found) == 40 + 1
    assert all(parse_tag(key) is not None for key, _ in found)


def test_requests_are_forgotten_after_a_while_and_above_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    known, nothing = WrittenRequests(), LogReader(Path("nowhere"), "clicks")
    monkeypatch.setattr(requests, "time", lambda: NOW)
    monkeypatch.setattr(requests, "KEPT_REQUESTS", 2)
    ages = {"old": requests.KEPT_SECONDS + 1, "surplus": 3.0, "a": 2.0, "b": 1.0}
    for key, age in ages.items():
        known.add(request_id("ann", key, b"", 1), 0, NOW - age)
    known.read_new(nothing)
    assert [key for key in ages if not known.missing(request_id("ann", key, b"", 1))] == ["a", "b"]


@pytest.mark.parametrize("parts", [1, 100, 1000])
def test_a_request_that_is_written_takes_little_memory_however_many_events_it_has(parts: int) -> None:
    known, number = WrittenRequests(), 100
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for key in range(number):
            request = request_id("ann", str(key), b"", parts)
            for part in range(parts):
                known.add(request, part, NOW)
        kept = (tracemalloc.get_traced_memory()[0] - before) / number
    finally:
        tracemalloc.stop()
    assert kept < 1000, f"{kept:.0f} bytes a request of {parts} events"


def test_only_the_newest_records_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "KEPT_RECORDS", 10)
    with sink_in(tmp_path) as sink:
        sink.write(BODY, "ann", "k")
    known = WrittenRequests()
    known.read_new(LogReader(tmp_path / "topics", StreamConfig().topic))
    assert len(known.missing(request_id("ann", "k", BODY, 40))) == 40 - 2 * 10


def test_keys_that_are_values_of_fields_are_no_tags() -> None:
    tag = request_id("ann", "k", BODY, 2).tag(1)
    assert parse_tag(tag) == (request_id("ann", "k", BODY, 2), 1)
    assert [parse_tag(key) for key in (None, b"", b"u17", tag[:-1], b"x" * len(tag))] == [None] * 5


def test_tags_that_no_request_of_ours_has_are_no_tags() -> None:
    most = requests.MOST_EVENTS
    known = {most: 0, most + 1: 0, (1 << 32) - 1: 7, 2: 2, 0: 0}
    tags = [request_id("ann", "k", BODY, parts).tag(part) for parts, part in known.items()]
    assert [parse_tag(tag) is not None for tag in tags] == [True, False, False, False, False]
