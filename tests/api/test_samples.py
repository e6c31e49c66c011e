"""Events over HTTP, read back from the log they were written to."""

import json
from pathlib import Path
from typing import Any

from ingest.codec.packed import PackedCodec
from ingest.config import StreamConfig
from ingest.convert import Event
from ingest.log.embedded import LogReader, LogWriter
from ingest.schema import load_schema
from tests.api.dispatcher import write_settings
from tests.api.serving import Served, serving, until
from tests.brokers import TestBroker, producer, send
from tests.ingest.kafka.test_sink import records_of


def event(number: int, label: int = 1) -> dict[str, Any]:
    return {"event_time": 1000.0 + number, "label": label, "fields": {"user": f"u{number}", "item": "i"}}


def payloads(folder: Path) -> list[bytes]:
    reader = LogReader(folder / "r" / "topics", StreamConfig().topic)
    return [record.payload for partition in reader.partitions() for record in reader.read(partition, 0)]


def test_good_events_are_durable_and_bad_ones_are_told(api: Served, folder: Path) -> None:
    answer = api.ask("POST", "/v1/samples", [event(0), event(1, label=7), event(2)])
    assert (answer.status, answer.json["accepted"]) == (200, 2)
    assert [rejected["index"] for rejected in answer.json["rejected"]] == [1]
    assert sorted(json.loads(each)["event_time"] for each in payloads(folder)) == [1000.0, 1002.0]


def test_one_event_or_one_a_line_will_do(api: Served) -> None:
    assert api.ask("POST", "/v1/samples", event(3)).json["accepted"] == 1
    lines = b"\n".join(json.dumps(event(number)).encode() for number in (4, 5))
    assert api.ask("POST", "/v1/samples", lines, Content_Type="application/x-ndjson").json["accepted"] == 2


def test_an_idempotency_key_is_honoured(api: Served, folder: Path) -> None:
    events = [event(number) for number in range(100, 110)]
    answers = [api.ask("POST", "/v1/samples", events, Idempotency_Key="k") for _ in range(3)]
    assert [(answer.status, answer.json["accepted"]) for answer in answers] == [(200, 10)] * 3
    assert sum(json.loads(each)["event_time"] >= 1100 for each in payloads(folder) if each[:1] == b"{") == 10
    assert api.ask("POST", "/v1/samples", [event(1)], Idempotency_Key="k").status == 422


def test_a_packed_record_is_written_without_its_bad_samples(api: Served) -> None:
    codec = PackedCodec(load_schema("movielens"))
    record = bytearray(codec.encode_events([Event(1.0, 1, {"user": "a", "item": "b"}) for _ in range(3)]))
    record[-4:] = b"\0\0\0\x41"  # a label of 8
    answer = api.ask("POST", "/v1/samples", bytes(record), Content_Type="application/octet-stream")
    assert (answer.status, answer.json["accepted"]) == (200, 2)
    assert [rejected["index"] for rejected in answer.json["rejected"]] == [2]


def test_nothing_good_is_an_error(api: Served) -> None:
    for body in ([event(0, label=7)], b"{nonsense", b"[nonsense", b"", b"[" * 100_000):
        answer = api.ask("POST", "/v1/samples?run=r", body)
        assert answer.status in (400, 422)
        assert answer.headers["Content-Type"] == "application/problem+json"
    assert api.ask("POST", "/v1/samples?run=nosuch", [event(0)]).status == 404


def test_another_writer_is_a_conflict_until_it_is_done(api: Served, folder: Path) -> None:
    def taken() -> LogWriter | None:
        from ingest.errors import LogBusy

        try:
            return LogWriter(folder / "r" / "topics", StreamConfig().topic, 2)
        except LogBusy:  # until the API has let go of it
            return None

    writer: LogWriter = until(taken)
    assert api.ask("POST", "/v1/samples", [event(0)]).status == 409
    writer.close()
    assert api.ask("POST", "/v1/samples", [event(0)]).status == 200


def test_events_of_a_run_on_kafka_are_in_its_topic_while_others_write_there(kafka: TestBroker, tmp_path: Path) -> None:
    config, topic = kafka.config(), kafka.new_topic(partitions=2)
    (tmp_path / "k").mkdir()
    write_settings(tmp_path / "k", "k", StreamConfig(source="kafka", topic=topic, schema_name="movielens"), config)
    codec = PackedCodec(load_schema("movielens"))
    packed = codec.encode_events([Event(1.0, 1, {"user": "a", "item": "b"}) for _ in range(3)])
    with serving(tmp_path, f"sqlite:///{tmp_path / 'freshet.db'}") as served, producer(config) as other:
        send(other, topic, 0, [b"before"])
        until(lambda: served.get("/v1/runs/k").status == 200)
        answer = served.ask("POST", "/v1/samples", [event(number) for number in range(8)]).json
        assert answer == {"accepted": 8, "rejected": []}
        send(other, topic, 0, [b"after"])
        written = served.ask("POST", "/v1/samples", packed, Content_Type="application/octet-stream")
        assert (written.status, written.json["accepted"]) == (200, 3)
        found = records_of(config, topic)
    payloads = [payload for records in found.values() for _, payload in records]
    events = [json.loads(each) for each in payloads if each.startswith(b"{")]
    assert sorted(each["event_time"] for each in events) == [1000.0 + number for number in range(8)]
    assert payloads.count(packed) == 1
    assert len(payloads) == 8 + 1 + 2
    assert all(found.values()), "keys spread over both partitions"
