"""Predictions and snapshots over HTTP, with a real server."""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from ingest.codec.json_events import JsonCodec
from ingest.codec.packed import PackedCodec
from ingest.samples import join_samples
from tests.api.serving import Served, until
from tests.serving.server import serving
from tests.serving.trained import PROBE, SCHEMA, Trained

EVENT = {"fields": {"user": "u-1", "item": 17, "tags": ["a", "b"], "price": 3.5, "idle_seconds": 60}}
PACKED = PackedCodec(SCHEMA).encode(PROBE)
MANY_PACKED = PackedCodec(SCHEMA).encode(join_samples([PROBE.slice(0, 1)] * 200))


def predicted(server: Served, body: Any) -> Any:
    answer = server.ask("POST", "/v1/predict", body)
    assert answer.status == 200, answer.body
    return answer.json


def test_packed_samples_get_the_predictions_of_the_newest_good_checkpoint(server: Served, run: Trained) -> None:
    told = predicted(server, PACKED)
    assert np.abs(np.array(told["probabilities"]) - run.expected[3]).max() < 1e-6
    assert told["snapshot"] == {"timeline": 0, "step": 6, "checkpoint": 3}
    assert told["age_seconds"] > 0


def test_answers_have_the_earlier_name_of_a_snapshot_for_one_more_release(server: Served) -> None:
    listed = server.get("/v1/snapshots").json["items"][0]
    schemas = server.get("/v1/openapi.json").json["components"]["schemas"]
    answers = (("Predictions", "snapshot", predicted(server, PACKED)), ("SnapshotReading", "id", listed))
    for name, present, told in answers:
        assert told["version"] == told[present]
        assert schemas[name]["properties"]["version"]["deprecated"]


def test_one_event_many_and_one_a_line_are_answered_alike(server: Served) -> None:
    (one,) = predicted(server, EVENT)["probabilities"]
    assert predicted(server, [EVENT, EVENT])["probabilities"] == pytest.approx([one, one], abs=1e-6)
    lines = json.dumps(EVENT).encode() + b"\n" + json.dumps({**EVENT, "label": 1, "event_time": 5}).encode()
    assert predicted(server, lines)["probabilities"] == pytest.approx([one, one], abs=1e-6)


def test_fields_that_the_schema_does_not_know_are_named_and_change_nothing(server: Served) -> None:
    misspelt = {"fields": {**EVENT["fields"], "usr": "u-2"}}
    told = predicted(server, [EVENT, misspelt])
    assert told["unknown_fields"] == ["usr"]
    assert told["probabilities"] == predicted(server, [EVENT, EVENT])["probabilities"]
    assert "unknown_fields" not in predicted(server, EVENT)


def test_strictly_samples_with_unknown_fields_are_refused(server: Served) -> None:
    misspelt = {"fields": {"usr": "u-2", "item": 17}}
    answer = server.ask("POST", "/v1/predict?strict=true", [EVENT, misspelt])
    assert answer.status == 400
    assert "does not know: 'usr' (perhaps 'user'); expected some of user, item" in answer.json["detail"]
    assert server.ask("POST", "/v1/predict?strict=true", EVENT).status == 200
    assert server.ask("POST", "/v1/predict?strict=true", PACKED).status == 200


def test_json_and_packed_are_the_same_sample(server: Served) -> None:
    samples, faults = JsonCodec(SCHEMA, needs_label=False).decode([json.dumps(EVENT).encode()])
    assert not faults
    assert (
        predicted(server, PackedCodec(SCHEMA).encode(samples))["probabilities"]
        == predicted(server, EVENT)["probabilities"]
    )


@pytest.mark.parametrize(
    ("body", "status", "part"),
    [
        (b"", 400, "empty"),
        (b"[", 400, "no list of events"),
        (b"[]", 400, "the list is empty"),
        (b"[" * 100_000, 400, "nested"),
        ([EVENT, {"fields": {"price": -1}}], 422, "not every sample"),
        ({"label": 2, "fields": {}}, 422, "not every sample"),
        ({"fields": {"user": {}}}, 422, "not every sample"),
        (PACKED[:-1], 422, "not every sample"),
        ([EVENT] * 200, 413, "more than 100 events"),
        (MANY_PACKED, 413, "200 samples; expected 100"),
    ],
)
def test_what_does_not_fit_is_a_problem(body: Any, status: int, part: str, server: Served) -> None:
    answer = server.ask("POST", "/v1/predict", body)
    assert (answer.status, answer.headers["Content-Type"]) == (status, "application/problem+json")
    assert part in answer.json["detail"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_every_bad_sample_is_named(server: Served) -> None:
    answer = server.ask("POST", "/v1/predict", [EVENT, {"fields": {"price": -1}}, {"label": 7, "fields": {}}])
    assert [error["index"] for error in answer.json["errors"]] == [1, 2]


def test_snapshots_are_listed_with_what_speaks_against_them(server: Served) -> None:
    items = server.get("/v1/snapshots").json["items"]
    assert [(item["id"]["checkpoint"], item["reasons"]) for item in items] == [
        (3, []),
        (2, ["logloss 0.9"]),
        (1, []),
    ]
    assert [item["is_served"] for item in items] == [True, False, False]
    current = server.get("/v1/snapshots/current").json
    assert (current["snapshot"]["id"], current["failure"]) == (items[0]["id"], "")
    assert current["bytes"] > 0


def test_pin_rollback_release_and_restart(own_folder: Path) -> None:
    run = Trained(own_folder)
    run.train().take()
    with serving(run) as server:

        def current(method: str, path: str, body: Any = None) -> tuple[int, bool]:
            snapshot = server.ask(method, path, body).json["snapshot"]
            return snapshot["id"]["checkpoint"], snapshot["is_pinned"]

        assert server.ask("POST", "/v1/snapshots/rollback", {}).status == 409
        run.train().take()
        run.train().take()
        until(lambda: predicted(server, PACKED)["snapshot"]["checkpoint"] == 3)
        assert server.get("/v1/snapshots/current").json["previous"]["checkpoint"] == 2
        assert current("POST", "/v1/snapshots/rollback", {"reason": "odd"}) == (2, True)
        assert current("POST", "/v1/snapshots/rollback", {}) == (1, True)
        assert server.ask("POST", "/v1/snapshots/rollback", {}).status == 409
        assert current("DELETE", "/v1/snapshots/pin") == (3, False)
        run.train().take("logloss is 0.9")
        until(lambda: server.get("/v1/snapshots/current").json["failure"] != "")
        told = server.get("/v1/snapshots/current").json["failure"]
        assert "1 newer snapshot is held back; the newest, checkpoint 4 after step 8: logloss is 0.9;" in told
        assert current("PUT", "/v1/snapshots/pin", {"checkpoint": 4}) == (4, True)
        assert np.abs(np.array(predicted(server, PACKED)["probabilities"]) - run.expected[4]).max() < 1e-6
        assert server.ask("PUT", "/v1/snapshots/pin", {"checkpoint": 77}).status == 404
    with serving(run) as server:
        assert predicted(server, PACKED)["snapshot"]["checkpoint"] == 4
        assert current("DELETE", "/v1/snapshots/pin") == (3, False)
        assert current("POST", "/v1/snapshots/4/release", {}) == (4, False)
        assert server.ask("POST", "/v1/snapshots/77/release", {}).status == 404
        assert msgspec.json.decode((own_folder / "serving.json").read_bytes())["actor"] == "ann"


def test_what_the_command_line_refuses_is_refused_over_rest_in_the_same_words(own_folder: Path) -> None:
    run = Trained(own_folder)
    run.train().take()
    with serving(run) as server:
        released = server.ask("POST", "/v1/snapshots/1/release", {})
        unpinned = server.ask("DELETE", "/v1/snapshots/pin")
    assert (released.status, unpinned.status) == (409, 409)
    assert "checkpoint 1 is not held back; expected one that is" in released.json["detail"]
    assert "no snapshot is pinned; expected one that is" in unpinned.json["detail"]
    assert not (own_folder / "serving.json").exists()


def test_without_a_checkpoint_it_is_not_ready_and_becomes_so(own_folder: Path) -> None:
    run = Trained(own_folder)
    with serving(run, is_ready=False) as server:
        assert server.get("/healthz").status == 200
        assert server.get("/readyz").status == 503
        answer = server.ask("POST", "/v1/predict", PACKED)
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert server.get("/v1/snapshots/current").status == 503
        run.train().take()
        until(lambda: server.get("/readyz").status == 200)
        assert predicted(server, PACKED)["snapshot"]["checkpoint"] == 1


def test_two_servers_share_a_port(run: Trained, server: Served) -> None:
    with serving(run, shares=server.port) as other:
        assert other.port == server.port
        for _ in range(8):  # connections go to either
            assert predicted(server, PACKED)["snapshot"]["checkpoint"] == 3


def test_metrics_tell_what_is_served(server: Served) -> None:
    predicted(server, PACKED)
    until(lambda: b"freshet_serving_step 6.0" in server.get("/metrics").body)
    text = server.get("/metrics").body.decode()
    assert "freshet_serving_predictions_total" in text
    assert 'freshet_api_requests_total{method="POST",route="/v1/predict",status="200"}' in text
