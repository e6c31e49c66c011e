"""The joiner on real logs; it is broken off before each of its calls to them, and goes on from what it saved."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from infra.base.process import Stop
from infra.base.storage import Storage
from infra.base.telemetry import Meter
from ingest.codec.decoder import Decoder
from ingest.codec.json_events import encode_json
from ingest.codec.packed import PackedCodec
from ingest.config import StreamConfig
from ingest.convert import Event
from ingest.errors import SourceUnavailable
from ingest.kafka.sink import KafkaSink
from ingest.log.embedded import LogReader, LogWriter
from ingest.opening import open_source
from ingest.streams.position import Position
from ingest.streams.source import Record
from serving.labels.errors import LabelsDamaged
from serving.labels.join import GRACE_MS
from serving.labels.joiner import Joiner, label_of
from serving.labels.predictions import TOPIC, Prediction, encode_predictions, now_ms
from serving.labels.state import JOINED, JoinState, load_state
from tests.brokers import TestBroker
from tests.ingest.topics import SYNTHETIC, events, json_records

EVENT = events(1)[0]
NOW_MS = 10_000_000
LABEL_SECONDS = 60.0
CALLS = 26
"""of the stream in eight turns: where partitions begin, which there are, and what is in each"""


class Crash(Exception):
    """Ends a joiner as a kill would: nothing of it is closed or saved."""


class CrashingSource:
    """A stream that breaks off whoever reads it, at the n-th call."""

    def __init__(self, source: LogReader, calls: int) -> None:
        self._source, self._calls = source, calls

    def _count(self) -> None:
        self._calls -= 1
        if self._calls == 0:
            raise Crash

    def partitions(self) -> list[int]:
        self._count()
        return self._source.partitions()

    @property
    def clock(self) -> str:
        return self._source.clock

    def span(self, partition: int) -> tuple[int, int]:
        self._count()
        return self._source.span(partition)

    def read(self, partition: int, offset: int, max_bytes: int) -> list[Record]:
        self._count()
        return self._source.read(partition, offset, max_bytes)

    def offset_at(self, partition: int, time_ms: int) -> int:
        self._count()
        return self._source.offset_at(partition, time_ms)

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Nothing to commit."""

    def close(self) -> None:
        self._source.close()


def labelled(name: str, label: int = 1, event: Event | None = None) -> bytes:
    given = event or EVENT
    return json.dumps({**msgspec.to_builtins(given), "label": label, "prediction": name}).encode()


class World:
    """Both logs, and joiners that read them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.now_ms = folder, NOW_MS
        self.made = LogWriter(folder / "predictions", TOPIC, 2)
        self.stream = LogWriter(folder / "log", "clicks", 2)
        self.registry = CollectorRegistry()
        self.crashes = 0

    def joiner(self, calls: int = 0, **given: Any) -> Joiner:
        """calls: of the stream, after which it is broken off."""
        self.registry = CollectorRegistry()
        return Joiner(
            self.folder / "predictions",
            lambda: CrashingSource(LogReader(self.folder / "log", "clicks"), calls),
            LABEL_SECONDS,
            Meter(self.registry),
            clock_ms=lambda: self.now_ms,
            **given,
        )

    def predict(self, *names: str, partition: int = 0, at_ms: int = NOW_MS, probability: float = 0.5) -> None:
        batch = [Prediction(name, at_ms, probability, 0, 7) for name in names]
        self.made.append(partition, [(None, encode_predictions(batch))], at_ms)

    def label(self, *names: str, partition: int = 0, label: int = 1, at_ms: int = NOW_MS + 1) -> None:
        self.stream.append(partition, [(None, labelled(name, label)) for name in names], at_ms)

    def close(self) -> None:
        self.made.close()
        self.stream.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with closing(World(tmp_path)) as made:
        yield made


def settle(joiner: Joiner) -> JoinState:
    """Turns until nothing is new; what it has saved then."""
    while joiner.turn():
        pass
    joiner.save()
    saved = load_state(Storage.at(joiner._folder))
    assert saved is not None
    return saved


def test_an_event_that_carries_an_id_trains_as_if_it_carried_none() -> None:
    given = events(20)
    plain = [encode_json(event) for event in given]
    carrying = [labelled("x", event.label, event) for event in given]
    decoder = Decoder(SYNTHETIC)
    one, two = (decoder.decode(json_records(payloads), Position(0)) for payloads in (plain, carrying))
    assert one.samples.equals(two.samples)
    assert two.rejects == ()


@pytest.mark.parametrize(
    "payload",
    [
        b"{}",
        b"no json",
        b'{"label": 1}',
        b'{"prediction": "a"}',
        b'{"prediction": "a", "label": 2}',
        b'{"prediction": "", "label": 1}',
        b'{"prediction": 7, "label": 1}',
        b'{"prediction": "a", "label": 1, "fields": ' + b"[" * 100_000,
    ],
)
def test_records_without_an_id_and_a_label_are_passed_over(payload: bytes) -> None:
    assert label_of(payload) is None
    assert label_of(b'{"prediction": "a", "label": 0}') == ("a", 0)
    assert label_of(b'{"prediction": "a", "labels": {"click": 1}}', "click") == ("a", 1)


def test_labels_that_come_later_are_joined_and_counted(world: World) -> None:
    world.predict("a", "b", "c", probability=0.25)
    world.predict("d", partition=1, probability=0.75)
    joiner = world.joiner()
    assert joiner.turn()
    assert (joiner.quality.waiting, joiner.quality.total.labels) == (4, 0)
    world.label("a", "a", "nobody", label=0)
    world.label("d", partition=1)
    world.stream.append(1, [(None, b"no json"), (None, packed())], NOW_MS)
    settle(joiner)
    world.now_ms += int(1000 * LABEL_SECONDS) + 2 * GRACE_MS
    settle(joiner)
    total, counts = joiner.quality.total, joiner.quality.counts
    assert (total.labels, total.clicks, total.missing, total.predicted) == (2, 1, 2, 1.0)
    assert (counts.predictions, counts.duplicates, counts.unknown, joiner.quality.waiting) == (4, 1, 1, 0)
    shown = {
        outcome: world.registry.get_sample_value("freshet_served_labels_total", {"outcome": outcome})
        for outcome in ("joined", "missing", "unknown", "duplicate")
    }
    assert shown == {"joined": 2, "missing": 2, "unknown": 1, "duplicate": 1}


def packed() -> bytes:
    given = events(2)
    samples = Decoder(SYNTHETIC).decode(json_records([encode_json(event) for event in given]), Position(0)).samples
    return PackedCodec(SYNTHETIC).encode(samples)


def test_a_joiner_that_is_broken_off_anywhere_counts_every_label_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two of its steps, saving after every turn or after none."""
    monkeypatch.setattr("serving.labels.joiner.READ_BYTES", 400)
    monkeypatch.setattr("os.fsync", lambda _file: None)  # a crash, not a power cut
    monkeypatch.setattr("os.fdatasync", lambda _file: None)
    with closing(World(tmp_path / "whole")) as world:
        expected = crash_and_settle(world, 0, saves=False)
    assert (expected.total.labels, expected.counts.duplicates, len(expected.early)) == (8, 2, 1)
    crashes = 0
    for saves in (False, True):
        for calls in range(1, CALLS + 1):
            with closing(World(tmp_path / f"{saves}-{calls}")) as world:
                assert crash_and_settle(world, calls, saves) == expected
                crashes += world.crashes
    assert crashes == 2 * CALLS


def crash_and_settle(world: World, calls: int, saves: bool) -> JoinState:
    """Both logs grow; the joiner is broken off at a call, once, and another goes on."""
    names = [f"id-{number}" for number in range(10)]
    joiner = world.joiner(calls)
    steps: list[Callable[[], None]] = [
        lambda: world.predict(*names[:5]),
        lambda: world.label(*names[:3], names[0]),
        lambda: world.predict(*names[5:], partition=1),
        lambda: world.label(*names[4:9], names[1], "nobody", partition=1),
    ]
    for step in steps:
        step()
        for _ in range(2):
            try:
                joiner.turn()
            except Crash:
                world.crashes += 1
                joiner = world.joiner()
            if saves:
                joiner.save()
    state = settle(joiner)
    world.close()
    return state


@pytest.mark.parametrize("breaks", ["before_write", "before_rename", "after_write"])
def test_a_joiner_that_is_broken_off_while_it_saves_counts_every_label_once(
    world: World, monkeypatch: pytest.MonkeyPatch, breaks: str
) -> None:
    world.predict("a", "b")
    joiner = world.joiner()
    joiner.turn()
    world.label("a", "b")
    joiner.turn()
    seam = {
        "before_write": "serving.labels.joiner.save_state",
        "before_rename": "infra.base.storage.os.replace",
        "after_write": "serving.labels.joiner.write_floor",
    }[breaks]

    def broken(*_: object) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(seam, broken)
        with pytest.raises(Crash):
            joiner.save()
    world.label("a")
    assert settle(world.joiner()).total.labels == 2


def test_events_before_the_first_prediction_are_not_read_and_those_after_it_are(world: World) -> None:
    world.label("old", at_ms=NOW_MS - 100_000)
    world.joiner()  # and a crash before its first turn
    world.predict("a")
    world.label("a")
    world.now_ms += 1_000_000
    state = settle(world.joiner())
    assert (state.total.labels, state.counts.unknown, state.events) == (1, 0, {0: 2, 1: 0})


def test_what_retention_removed_is_counted(world: World, tmp_path: Path) -> None:
    world.stream.close()
    with closing(LogWriter(tmp_path / "log", "clicks", 1, segment_bytes=4096, retention_bytes=8192)) as stream:
        stream.append(0, [(None, bytes(100))], NOW_MS)
        joiner = world.joiner()
        joiner.turn()
        for _ in range(9):
            stream.append(0, [(None, bytes(5000))], NOW_MS)
        first = LogReader(tmp_path / "log", "clicks").span(0)[0]
        state = settle(joiner)
    assert first > 1
    assert (state.counts.skipped, state.events[0]) == (first - 1, 10)


def test_labels_come_from_kafka_too(kafka: TestBroker, world: World) -> None:
    config, topic = kafka.config(), kafka.new_topic(partitions=2)
    stream = StreamConfig(source="kafka", topic=topic)
    with closing(KafkaSink(config, topic, Stop())) as sink:
        sink.write({0: [(None, labelled("before")), (None, b"no json")]})
        at_ms = now_ms()
        meter, folder = Meter(CollectorRegistry()), world.folder / "predictions"
        joiner = Joiner(folder, lambda: open_source(stream, config), LABEL_SECONDS, meter)
        world.predict("a", "b", at_ms=at_ms)
        sink.write({0: [(None, labelled("a"))], 1: [(None, labelled("b", 0))]})
    state = settle(joiner)
    assert (state.total.labels, state.total.clicks, state.events) == (2, 1, {0: 3, 1: 1})
    joiner.start()
    joiner.close()


def test_a_state_that_was_changed_is_refused_by_name(world: World) -> None:
    world.joiner()
    path = world.folder / "predictions" / JOINED
    content = bytearray(path.read_bytes())
    content[3] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(LabelsDamaged, match=r"joined is damaged: .*; expected .*; restore it"):
        world.joiner()


def test_the_thread_goes_on_after_an_outage_and_saves_at_its_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.labels.joiner.RETRY_SECONDS", 0.01)
    outages = 0

    def opened() -> LogReader:
        nonlocal outages
        outages += 1
        if outages < 3:
            raise SourceUnavailable("the broker does not answer; expected an answer; wait")
        return LogReader(world.folder / "log", "clicks")

    meter = Meter(CollectorRegistry())
    joiner = Joiner(world.folder / "predictions", opened, LABEL_SECONDS, meter, clock_ms=lambda: NOW_MS)
    world.predict("a")
    world.label("a")
    joiner.start()
    while not joiner.quality.total.labels:
        joiner._is_closing.wait(0.001)
    joiner.close()
    saved = load_state(Storage.at(world.folder / "predictions"))
    assert saved is not None
    assert (outages, saved.total.labels, joiner.quality.failure) == (3, 1, "")
