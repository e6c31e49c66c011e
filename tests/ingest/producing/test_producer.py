import gzip
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.base.errors import ConfigError
from infra.base.process import Stop
from ingest.codec.decoder import Decoder
from ingest.codec.json_events import encode_json
from ingest.config import StreamConfig
from ingest.convert import Event
from ingest.errors import EncodeError, InputError
from ingest.log.embedded import LogReader, LogWriter
from ingest.main import ProducerJob, run_producer
from ingest.producing.encoder import Encoder
from ingest.producing.producer import TURN_EVENTS, produce
from ingest.streams.position import Position
from tests.ingest.topics import SYNTHETIC, events


def spans(folder: Path) -> list[int]:
    reader = LogReader(folder, "clicks")
    found = [reader.span(partition)[1] for partition in reader.partitions()]
    reader.close()
    return found


def test_events_of_one_user_stay_in_one_partition(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, "clicks", 4)
    produce(events(500), writer, Encoder(SYNTHETIC, writer.partitions), Stop())
    writer.close()
    reader = LogReader(tmp_path, "clicks")
    users = [{record.key for record in reader.read(p, 0)} for p in range(4)]
    assert all(users)
    assert sum(len(u) for u in users) == len(set().union(*users))
    reader.close()


def test_count_ends_the_stream_exactly(tmp_path: Path) -> None:
    made = run_producer(ProducerJob(StreamConfig(folder=tmp_path), limit=100), Stop())
    assert (made.events, made.poisoned, made.reason, sum(spans(tmp_path))) == (100, 0, "count", 100)


def test_end_of_events_ends_the_stream(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, "clicks", 1)
    made = produce(events(30), writer, Encoder(SYNTHETIC, writer.partitions), Stop(), limit=50)
    writer.close()
    assert (made.events, made.reason) == (30, "end of events")


def test_packed_records_hold_the_given_number_of_samples(tmp_path: Path) -> None:
    config = StreamConfig(folder=tmp_path, partitions=1)
    made = run_producer(ProducerJob(config, limit=100, samples_per_record=30), Stop())
    assert (made.events, made.records, spans(tmp_path)) == (100, 4, [4])
    reader = LogReader(tmp_path, "clicks")
    assert len(Decoder(SYNTHETIC).decode(reader.read(0, 0), Position(0))) == 100
    reader.close()


def test_stop_ends_an_endless_stream(tmp_path: Path) -> None:
    stop = Stop()

    def until_stopped() -> Iterator[Event]:
        for number, event in enumerate(events(3000)):
            if number == 2500:
                stop.request("SIGTERM")
            yield event

    writer = LogWriter(tmp_path, "clicks", 1)
    made = produce(until_stopped(), writer, Encoder(SYNTHETIC, writer.partitions), stop)
    writer.close()
    assert (made.reason, made.events) == ("SIGTERM", sum(spans(tmp_path)))


class Clock(Stop):
    """Time that passes only while waiting."""

    now = 1000.0

    def wait(self, seconds: float) -> bool:
        self.now += seconds
        return False


def test_rate_spreads_events_over_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, writer = Clock(), LogWriter(tmp_path, "clicks", 1)
    monkeypatch.setattr("ingest.producing.producer.time.monotonic", lambda: clock.now)
    made = produce(events(50), writer, Encoder(SYNTHETIC, writer.partitions), clock, rate=100.0)
    writer.close()
    assert made.records == 50
    assert made.seconds == pytest.approx(0.5)


def test_time_spent_writing_does_not_slow_the_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, writer = Clock(), LogWriter(tmp_path, "clicks", 1)

    def slow(*_: object) -> int:
        clock.now += 0.02
        return 0

    monkeypatch.setattr("ingest.producing.producer.time.monotonic", lambda: clock.now)
    monkeypatch.setattr(writer, "append", slow)
    assert produce(
        events(50), writer, Encoder(SYNTHETIC, writer.partitions), clock, rate=100.0
    ).seconds == pytest.approx(0.5)
    writer.close()


@pytest.mark.parametrize("samples_per_record", [0, 8])
def test_poison_is_added_in_its_share(tmp_path: Path, samples_per_record: int) -> None:
    writer = LogWriter(tmp_path, "clicks", 2)
    made = produce(
        events(950), writer, Encoder(SYNTHETIC, writer.partitions, samples_per_record, poison_share=0.05), Stop()
    )
    writer.close()
    assert (made.events, made.poisoned) == (1000, 50)


def test_poison_keeps_its_share_over_many_turns_and_is_spread_over_each(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, "clicks", 1)
    made = produce(events(3 * TURN_EVENTS), writer, Encoder(SYNTHETIC, writer.partitions, poison_share=0.2), Stop())
    writer.close()
    assert made.poisoned == 3 * TURN_EVENTS // 4
    reader = LogReader(tmp_path, "clicks")
    first = Decoder(SYNTHETIC).decode(reader.read(0, 0, 1 << 24)[:200], Position(0))
    assert 20 < len(first.rejects) < 60
    reader.close()


def test_event_that_cannot_be_packed_stops_the_producer(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, "clicks", 1)
    with pytest.raises(EncodeError, match="label: 7, expected 0 or 1"):
        produce([Event(1.0, 7, {})], writer, Encoder(SYNTHETIC, writer.partitions, samples_per_record=4), Stop())
    writer.close()


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"rate": 0.0}, "rate = 0.0"),
        ({"limit": -1}, "limit = -1"),
        ({"duration_seconds": 0.0}, "duration = 0.0"),
        ({"samples_per_record": -1}, "samples_per_record = -1"),
        ({"poison_share": 1.0}, "poison_share = 1.0"),
        ({"dataset": "criteo"}, "no file given for dataset 'criteo'"),
        ({"dataset": "jsonl", "path": Path("-"), "samples_per_record": 4}, "no --packed and no --poison"),
        ({"dataset": "jsonl", "path": Path("missing.jsonl")}, "no dataset file at missing.jsonl"),
    ],
)
def test_wrong_argument_is_one_clear_line(tmp_path: Path, wrong: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        run_producer(ProducerJob(StreamConfig(folder=tmp_path), **wrong), Stop())  # type: ignore[arg-type]
    assert spans(tmp_path) == []


def test_a_second_synthetic_stream_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    config = StreamConfig(folder=tmp_path, partitions=1)
    for _ in range(2):
        run_producer(ProducerJob(config, limit=30, seed=1), Stop())
    reader = LogReader(tmp_path, "clicks")
    assert [record.payload for record in reader.read(0, 0)] == [encode_json(event) for event in events(60)]
    reader.close()


OWN = (
    b'{"event_time": 1.5, "label": 1, "fields": {"user": "u17", "item": 42}}',
    b"no event at all",
    b'{"event_time": 1.5, "label": 7, "fields": {"user": "u17"}}',
    b'{"event_time": 2, "label": 0, "fields": {"user": "u18", "new_field": [1, 2]}}',
)


@pytest.mark.parametrize("name", ["own.jsonl", "own.jsonl.gz"])
def test_lines_of_jsonl_are_written_as_they_are_and_keyed(tmp_path: Path, name: str) -> None:
    text = OWN[0] + b"\r\n\n" + b"\n".join(OWN[1:])
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith("gz") else text)
    config = StreamConfig(folder=tmp_path / "log", partitions=1)
    made = run_producer(ProducerJob(config, dataset="jsonl", path=tmp_path / name), Stop())
    reader = LogReader(tmp_path / "log", "clicks")
    records = reader.read(0, 0)
    reader.close()
    assert (made.events, made.reason) == (4, "end of events")
    assert [record.payload for record in records] == list(OWN)
    assert [record.key for record in records] == [b"u17", None, b"u17", b"u18"]
    decoded = Decoder(SYNTHETIC).decode(records, Position(0))
    assert len(decoded) == 2
    assert [reject.reason.split(":")[0] for reject in decoded.rejects] == ["not decodable", "label"]


def test_lines_that_arrive_one_by_one_are_written_at_once_and_a_stop_is_seen(tmp_path: Path) -> None:
    pipe, stop, made = tmp_path / "pipe", Stop(), []
    os.mkfifo(pipe)
    job = ProducerJob(StreamConfig(folder=tmp_path / "log", partitions=1), dataset="jsonl", path=pipe)
    thread = threading.Thread(target=lambda: made.append(run_producer(job, stop)))
    thread.start()
    with pipe.open("wb", buffering=0) as device:
        device.write(OWN[0] + b"\n" + OWN[3][:10])
        deadline = time.monotonic() + 60
        while spans(tmp_path / "log") != [1] and time.monotonic() < deadline:
            time.sleep(0.01)
        stop.request("SIGTERM")
        thread.join(60)
    assert [(m.events, m.reason) for m in made] == [(1, "SIGTERM")]


def test_a_line_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingest.producing.readers.LINE_BYTES", 50)
    (tmp_path / "own.jsonl").write_bytes(b"{}\n" + b"x" * 60)
    job = ProducerJob(StreamConfig(folder=tmp_path / "log"), dataset="jsonl", path=tmp_path / "own.jsonl")
    with pytest.raises(InputError, match="line 2: found a line without an end"):
        run_producer(job, Stop())
