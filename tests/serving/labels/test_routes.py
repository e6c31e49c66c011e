from fastapi import FastAPI
from fastapi.testclient import TestClient

from infra.web.rules import rule_of
from ps.checkpoints.manifest import CheckpointFigures, CheckpointManifest
from ps.protocol import FilePart
from serving.labels.join import LabelJoin
from serving.labels.predictions import Prediction
from serving.labels.quality import quality_of
from serving.labels.routes import quality_router
from serving.labels.state import JoinState

CHECKPOINT = CheckpointManifest(
    run="r",
    number=3,
    step=9,
    generation=1,
    at_seconds=0.0,
    shards=(),
    dispatcher=FilePart("", 0, ""),
    figures=CheckpointFigures(samples=100, logloss=0.4, calibration=1.1),
)


def test_served_and_trained_are_shown_side_by_side() -> None:
    join = LabelJoin(JoinState(since_ms=0), 1000)
    join.add_prediction(Prediction("a", 0, 0.5, 2, 7))
    join.add_label("a", 1, 5, 5)
    app = FastAPI()
    app.include_router(quality_router(lambda: quality_of(join.state, "away"), lambda: CHECKPOINT))
    found = TestClient(app).get("/v1/quality").json()
    assert (found["is_logged"], found["failure"]) == (True, "away")
    assert found["served"]["labels"] == found["served"]["clicks"] == found["counts"]["predictions"] == 1
    assert (found["served"]["calibration"], found["trained"]["calibration"]) == (0.5, 1.1)
    assert (found["windows"][0]["first_step"], found["windows"][0]["last_step"]) == (7, 7)
    assert (found["windows"][0]["first_timeline"], found["windows"][0]["last_timeline"]) == (2, 2)
    assert (found["windows"][0]["first_line"], found["windows"][0]["last_line"]) == (2, 2)


def test_where_nothing_is_logged_the_route_says_so() -> None:
    router = quality_router(lambda: None, lambda: None)
    app = FastAPI()
    app.include_router(router)
    found = TestClient(app).get("/v1/quality").json()
    assert (found["is_logged"], found["served"]["labels"], found["trained"]) == (False, 0, None)
    assert [rule_of(route) for route in router.routes] == ["read"]
