import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from infra.base.errors import ConfigError
from infra.base.process import Stop
from ingest.config import StreamConfig
from ingest.errors import NothingPredicts
from ingest.log.embedded import LogReader
from ingest.main import ProducerJob, run_producer
from ingest.producing.delayed import ID, delay_labels
from ingest.producing.producer import Unit
from tests.ingest.topics import events


class Predictor:
    """Remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.requests = 0

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[int, str]:
        self.asked += map(dict, samples)
        self.requests += 1
        return {}


def test_events_are_asked_for_without_their_label_and_written_with_it(tmp_path: Path) -> None:
    predictor, stream = Predictor(), StreamConfig(folder=tmp_path, partitions=1)
    job = ProducerJob(stream, limit=300, label_seconds=0.0)
    assert run_producer(job, Stop(), ask=predictor).events == 300
    written = [json.loads(record.payload) for record in LogReader(tmp_path, "clicks").read(0, 0)]
    assert {"label"} == written[0].keys() - predictor.asked[0].keys()
    asked = {sample["prediction"]: sample["fields"] for sample in predictor.asked}
    assert {event["prediction"]: event["fields"] for event in written} == asked
    assert (len(asked), predictor.requests) == (300, 2)
    assert [event["label"] for event in written] == [event.label for event in events(300, seed=0)]


def test_no_event_comes_before_it_is_due() -> None:
    predictor = Predictor()
    pauses: list[float] = []
    given = delay_labels(events(3), predictor, 1000.0, pauses.append)
    assert [next(given) for _ in range(5)] == [None] * 5
    assert len(predictor.asked) == 3
    assert max(pauses) <= 0.1


def test_predictions_are_asked_for_at_the_rate_given() -> None:
    predictor = Predictor()
    given = delay_labels(events(3), predictor, 1000.0, lambda _seconds: None, rate=1e-3)
    assert [next(given) for _ in range(5)] == [None] * 5
    assert len(predictor.asked) == 1


def written_in(folder: Path) -> list[bytes]:
    return [record.payload for record in LogReader(folder, "clicks").read(0, 0)]


def parsed(units: Iterable[Unit]) -> list[dict[str, Any]]:
    return [json.loads(unit) for unit in units if isinstance(unit, bytes)]


def test_lines_that_are_no_events_are_written_as_they_are(tmp_path: Path) -> None:
    lines = [b"no event", b'{"label": 1, "fields": {}}', b"[" * 100]
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    stream = StreamConfig(folder=tmp_path, partitions=1)
    job = ProducerJob(stream, dataset="jsonl", path=tmp_path / "lines", label_seconds=0.0)
    run_producer(job, Stop(), ask=Predictor())
    assert {lines[0], lines[2]} < set(written_in(tmp_path))
    assert sum(b"prediction" in line for line in written_in(tmp_path)) == 1


def test_an_event_that_does_not_fit_is_written_without_an_id_and_the_others_are_asked_for_again() -> None:
    asked: list[int] = []

    def ask(samples: Sequence[Mapping[str, Any]]) -> dict[int, str]:
        asked.append(len(samples))
        return {1: "oversized", 3: "negative"} if len(samples) == 5 else {}

    given = parsed(delay_labels(events(5), ask, 0.0, lambda _: None))
    assert asked == [5, 3]
    assert [event["fields"] for event in given if ID not in event] == [events(5)[at].fields for at in (1, 3)]
    assert all("label" in event for event in given)


def test_until_a_snapshot_is_served_events_go_without_predictions_and_it_is_told_once() -> None:
    told: list[str] = []
    requests = iter(range(10))

    def ask(_samples: Sequence[Mapping[str, Any]]) -> dict[int, str]:
        if next(requests) < 2:
            raise NothingPredicts("no snapshot yet")
        return {}

    units: list[Unit] = [*events(2), None, *events(2), None, *events(2)]
    given = parsed(delay_labels(units, ask, 0.0, lambda _: None, tell=told.append))
    assert [ID in event for event in given] == [False] * 4 + [True] * 2
    assert told == [
        "waiting for the first snapshot, events are written without predictions meanwhile: no snapshot yet",
        "a snapshot is served; 4 events were written without predictions before",
    ]


def test_packed_events_carry_no_ids() -> None:
    with pytest.raises(ConfigError, match="no --packed"):
        ProducerJob(StreamConfig(), samples_per_record=8, label_seconds=1.0).check()
