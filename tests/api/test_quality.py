"""Quality over time as REST answers it."""

import msgspec

from dispatch.progress.quality import CurveBin, DriftAlarm, DriftStatus, QualityOverTime, QualityWindow, SliceQuality
from tests.api.dispatcher import PretendDispatcher
from tests.api.serving import Served, until

WINDOW = QualityWindow(
    first_step=1,
    last_step=4,
    samples_before=0,
    quality=SliceQuality(
        samples=100, clicks=20, weight=100.0, logloss=0.5, auc=0.7, mean_prediction=0.25, click_rate=0.2
    ),
    slices=(
        SliceQuality(
            field="site", key="00000000000000ff", samples=60, clicks=0, weight=60.0, logloss=0.1, click_rate=0.0
        ),
    ),
    curve=(CurveBin(samples=100, weight=100.0, mean_prediction=0.25, click_rate=0.2),),
)


def test_windows_slices_and_curve_are_read_over_rest(api: Served, dispatcher: PretendDispatcher) -> None:
    assert api.get("/v1/runs/r/quality").json == {"window_samples": 0, "windows": [], "run": None}
    found = QualityOverTime(window_samples=100, windows=(WINDOW,), run=WINDOW)
    dispatcher.status = msgspec.structs.replace(dispatcher.status, over_time=found)
    until(lambda: api.get("/v1/runs/r/quality").json["windows"])
    answer = api.get("/v1/runs/r/quality").json
    expected = msgspec.json.decode(msgspec.json.encode(found))
    for window in (*expected["windows"], expected["run"]):
        for each in (window["quality"], *window["slices"]):
            each["value"] = None  # no event of this run's stream has it
    assert answer == expected
    assert answer["run"]["slices"][0]["auc"] is None


def test_changes_of_the_stream_are_read_over_rest(api: Served, dispatcher: PretendDispatcher) -> None:
    alarm = DriftAlarm(what="label", step=9, sample=900, before=0.1, after=0.2)
    found = DriftStatus(fields={"site": 0.4}, alarms=(alarm,), label_alarms=1)
    dispatcher.status = msgspec.structs.replace(dispatcher.status, drift=found)
    until(lambda: api.get("/v1/runs/r/drift").json["alarms"])
    assert api.get("/v1/runs/r/drift").json == msgspec.json.decode(msgspec.json.encode(found))


def test_a_run_that_is_not_there_has_no_quality(api: Served) -> None:
    assert api.get("/v1/runs/nobody/quality").status == 404
