import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from infra.errors import ConfigError
from infra.process import Stop
from ingest.config import StreamConfig
from ingest.errors import InputError
from ingest.log.embedded import LogReader
from ingest.main import ProducerJob, run_producer
from ingest.producing.delayed import delay_labels
from tests.ingest.topics import events


class Predictor:
    """Remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.requests = 0

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> None:
        self.asked += map(dict, samples)
        self.requests += 1


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


def test_a_line_that_is_no_event_is_named() -> None:
    with pytest.raises(InputError, match=r"cannot ask for a prediction of b'no event': .*; correct or remove the line"):
        list(delay_labels([b"no event"], Predictor(), 0.0, lambda _seconds: None))


def test_packed_events_carry_no_ids() -> None:
    with pytest.raises(ConfigError, match="no --packed"):
        ProducerJob(StreamConfig(), samples_per_record=8, label_seconds=1.0).check()
