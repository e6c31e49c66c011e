"""Labels of what a real server has served, from its answer to its figures."""

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from infra.base.process import Stop
from infra.base.telemetry import Meter
from infra.cli.steer.client import ApiClient, ApiRefused
from infra.cli.stream import predicting
from ingest.codec.decoder import Decoder
from ingest.config import StreamConfig
from ingest.log.embedded import LogReader, LogWriter
from ingest.main import ProducerJob, run_producer
from ingest.streams.position import Position
from serving.labels.errors import BadPredictionId
from serving.labels.served import ServedLabels, ids_of
from serving.labels.state import JOINED
from tests.api.serving import until
from tests.serving.server import serving
from tests.serving.trained import SCHEMA, Trained

EVENT: dict[str, Any] = {"event_time": 5.0, "fields": {"user": "u-1", "item": 17}}


def test_labels_of_served_predictions_are_found(run: Trained, tmp_path: Path) -> None:
    with (
        closing(LogWriter(tmp_path / "log", "clicks", 1)) as stream,
        serving(run, log=tmp_path / "log", log_predictions=tmp_path / "predictions") as server,
    ):
        told = server.ask("POST", "/v1/predict", [EVENT | {"prediction": "mine"}, EVENT]).json
        assert told["ids"][0] == "mine"
        labels = dict(zip(told["ids"], (1, 0), strict=True))
        lines = [json.dumps(EVENT | {"prediction": name, "label": label}) for name, label in labels.items()]
        stream.append(0, [(None, line.encode()) for line in lines])
        until(lambda: server.get("/v1/quality").json["served"]["labels"] == 2)
        found = server.get("/v1/quality").json
    assert found["served"]["calibration"] == pytest.approx(sum(told["probabilities"]), rel=1e-5)
    assert (found["is_logged"], found["windows"][0]["last_step"]) == (True, told["snapshot"]["step"])


def test_a_producer_asks_first_and_labels_later(run: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = StreamConfig(folder=tmp_path / "log", partitions=2)
    with serving(run, log=tmp_path / "log", log_predictions=tmp_path / "predictions") as server:
        monkeypatch.setenv("FRESHET_TOKEN", server.token)
        with predicting(server.address) as ask:
            assert run_producer(ProducerJob(stream, limit=300, label_seconds=0.05), Stop(), ask=ask).events == 300
        until(lambda: server.get("/v1/quality").json["served"]["labels"] == 300)
        counts = server.get("/v1/quality").json["counts"]
    assert (counts["predictions"], counts["unknown"], counts["duplicates"], counts["waiting"]) == (300, 0, 0, 0)


def test_a_producer_of_a_new_run_goes_on_without_predictions_until_there_is_a_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, told = StreamConfig(folder=tmp_path / "log", partitions=1), list[str]()
    monkeypatch.setattr("serving.main.FIRST_SECONDS", 0.0)
    monkeypatch.setattr("infra.cli.steer.client.pause", lambda _seconds: None)
    with serving(Trained(tmp_path / "new"), is_ready=False) as server:
        monkeypatch.setenv("FRESHET_TOKEN", server.token)
        with predicting(server.address) as ask:
            job = ProducerJob(stream, limit=10, label_seconds=0.0)
            assert run_producer(job, Stop(), ask=ask, tell=told.append).events == 10
    assert len(told) == 1
    assert "waiting for the first snapshot, events are written without predictions meanwhile" in told[0]


def test_a_producer_writes_what_does_not_fit_without_a_prediction(
    run: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = EVENT | {"label": 1, "fields": {"user": ["a"], "item": 17}}
    (tmp_path / "lines").write_text("\n".join([json.dumps(EVENT | {"label": 0}), json.dumps(bad), "no event"]))
    stream = StreamConfig(folder=tmp_path / "log", partitions=1)
    job = ProducerJob(stream, dataset="jsonl", path=tmp_path / "lines", label_seconds=0.0)
    with serving(run, log=tmp_path / "log", log_predictions=tmp_path / "predictions") as server:
        monkeypatch.setenv("FRESHET_TOKEN", server.token)
        with predicting(server.address) as ask:
            run_producer(job, Stop(), ask=ask)
        until(lambda: server.get("/v1/quality").json["served"]["labels"] == 1)
    with closing(LogReader(tmp_path / "log", "clicks")) as log:
        decoded = Decoder(SCHEMA).decode(log.read(0, 0), Position(0))
    assert len(decoded) == 1
    assert sorted(reject.reason.partition(":")[0] for reject in decoded.rejects) == ["not decodable", "wrong type"]


def test_a_refusal_names_the_samples_and_their_reasons(run: Trained) -> None:
    wrong = EVENT | {"fields": {"user": ["a"]}}
    with (
        serving(run) as server,
        ApiClient(server.address, server.token) as client,
        pytest.raises(ApiRefused, match=r"schema of the run; sample 1: wrong type: "),
    ):
        client.ask("/v1/predict", [EVENT, wrong])


def test_an_id_that_cannot_be_used_is_refused(run: Trained, tmp_path: Path) -> None:
    with serving(run, log=tmp_path / "log", log_predictions=tmp_path / "predictions") as server:
        answer = server.ask("POST", "/v1/predict", [EVENT, EVENT | {"prediction": "x" * 201}])
        assert (answer.status, "sample 1" in answer.json["detail"]) == (422, True)


def test_ids_are_taken_or_drawn() -> None:
    mine, drawn, other, deep = ids_of([b'{"prediction": "a"}', b"{}", b'{"prediction": null}', b"[" * 100_000])
    assert (mine, len({drawn, other, deep})) == ("a", 3)
    with pytest.raises(BadPredictionId, match="sample 0 cannot be used"):
        ids_of([b'{"prediction": 7}'])


def labels_in(folder: Path) -> ServedLabels:
    return ServedLabels(folder, 60.0, lambda: LogReader(folder, "clicks"), Meter(CollectorRegistry()))


def test_only_the_first_process_joins_and_others_show_what_it_saved(tmp_path: Path) -> None:
    with closing(labels_in(tmp_path)) as first, closing(labels_in(tmp_path)) as second:
        first.start()
        assert sorted(path.name for path in (tmp_path / "predictions").iterdir()) == ["00000", "00001"]
        until(lambda: first.quality().failure == "" == second.quality().failure)


def test_a_damaged_state_keeps_nobody_from_serving(tmp_path: Path) -> None:
    (tmp_path / JOINED).write_bytes(b"no state")
    with closing(labels_in(tmp_path)) as labels:
        labels.start()
        assert "joined is damaged" in labels.quality().failure
