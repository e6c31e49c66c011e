from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.errors import ConfigError
from infra.process import Stop
from ingest.codec import Decoder
from ingest.config import StreamConfig
from ingest.convert import Event
from ingest.errors import EncodeError
from ingest.log import LogReader, LogWriter
from ingest.main import run_producer
from ingest.manifest import Position
from ingest.producer import produce
from tests.ingest.streams import SYNTHETIC, events


def spans(folder: Path) -> list[int]:
    reader = LogReader(folder, "clicks")
    found = [reader.span(partition)[1] for partition in reader.partitions()]
    reader.close()
    return found


def test_events_of_one_user_stay_in_one_partition(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, "clicks", 4)
    produce(events(500), writer, SYNTHETIC, Stop())
    writer.close()
    reader = LogReader(tmp_path, "clicks")
    users = [{record.key for record in reader.read(p, 0)} for p in range(4)]
    assert all(users)
    assert sum(len(u) for u in users) == len(set().union(*users))
    reader.close()


def test_count_ends_the_stream_exactly(tmp_path: Path) -> None:
    made = run_producer(StreamConfig(folder=tmp_path), Stop(), limit=100)
    assert (made.events, made.poisoned, made.reason, sum(spans(tmp_path))) == (100, 0, "count", 100)


def test_end_of_events_ends_the_stream(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, "clicks", 1)
    made = produce(events(30), writer, SYNTHETIC, Stop(), limit=50)
    writer.close()
    assert (made.events, made.reason) == (30, "end of events")


def test_packed_records_hold_the_given_number_of_samples(tmp_path: Path) -> None:
    made = run_producer(StreamConfig(folder=tmp_path, partitions=1), Stop(), limit=100, samples_per_record=30)
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
    made = produce(until_stopped(), writer, SYNTHETIC, stop)
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
    monkeypatch.setattr("ingest.producer.time.monotonic", lambda: clock.now)
    made = produce(events(50), writer, SYNTHETIC, clock, rate=100.0)
    writer.close()
    assert made.records == 50
    assert made.seconds == pytest.approx(0.5)


@pytest.mark.parametrize("samples_per_record", [0, 8])
def test_poison_is_added_in_its_share(tmp_path: Path, samples_per_record: int) -> None:
    writer = LogWriter(tmp_path, "clicks", 2)
    made = produce(events(950), writer, SYNTHETIC, Stop(), samples_per_record, poison_share=0.05)
    writer.close()
    assert (made.events, made.poisoned) == (1000, 50)


def test_event_that_cannot_be_packed_stops_the_producer(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, "clicks", 1)
    with pytest.raises(EncodeError, match="label: 7, expected 0 or 1"):
        produce([Event(1.0, 7, {})], writer, SYNTHETIC, Stop(), samples_per_record=4)
    writer.close()


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"rate": 0.0}, "rate = 0.0"),
        ({"limit": -1}, "limit = -1"),
        ({"samples_per_record": -1}, "samples_per_record = -1"),
        ({"poison_share": 1.0}, "poison_share = 1.0"),
        ({"dataset": "criteo"}, "no file given for dataset 'criteo'"),
    ],
)
def test_wrong_argument_is_one_clear_line(tmp_path: Path, wrong: dict[str, float], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        run_producer(StreamConfig(folder=tmp_path), Stop(), **wrong)  # type: ignore[arg-type]
    assert spans(tmp_path) == []
