"""Readings: how they are thinned out, what is stored, and what comes back."""

import os

import msgspec

from api.runs.recent import RecentReadings, RunReading, reading_of, resident_bytes
from api.store.rows import StoredReading
from dispatch.progress.status import Status, WorkerStatus
from tests.api.serving import Served, until


def reading(at: float) -> RunReading:
    return msgspec.structs.replace(reading_of(Status(run="r"), {}), at=at)


def filled(seconds: int) -> tuple[RecentReadings, list[StoredReading]]:
    recent, stored = RecentReadings(), list[StoredReading]()
    for at in range(1, seconds + 1):
        stored += recent.add(reading(float(at)))
    return recent, stored


def times(found: list[msgspec.Raw]) -> list[float]:
    return [msgspec.json.decode(each)["at"] for each in found]


def test_a_short_window_has_every_second_and_a_long_one_fewer() -> None:
    recent, _ = filled(3000)
    assert times(recent.between(2990, 3000, 100)) == [float(at) for at in range(2991, 3001)]
    hour = times(recent.between(0, 3000, 100))
    assert (hour[0], hour[-1], len(hour) <= 101, hour == sorted(hour)) == (1.0, 3000.0, True, True)


def test_what_is_older_than_the_finest_level_comes_from_a_coarser_one() -> None:
    recent, _ = filled(2000)
    found = times(recent.between(1000, 1200, 1000))
    fine = [float(at) for at in range(1101, 1201)]
    assert (found[-100:], 8 <= len(found[:-100]) <= 12) == (fine, True)


def test_the_newest_reading_of_a_window_is_always_there() -> None:
    recent, _ = filled(500)
    for points in (1, 2, 3, 7):
        assert times(recent.between(100, 400, points))[-1] == 400


def test_readings_that_were_stored_come_back_before_those_that_are_new() -> None:
    _, stored = filled(1000)
    assert {each.level for each in stored} == {10, 120}
    later = RecentReadings()
    later.add(reading(1005.0))
    later.restore(stored)
    later.restore(stored)
    found = times(later.between(0, 2000, 2000))
    assert (found[0], found[-1], found == sorted(set(found))) == (1.0, 1005.0, True)


def test_a_worker_that_left_or_is_parked_is_told_apart() -> None:
    workers = (WorkerStatus(name="a", has_left=True), WorkerStatus(name="b", is_parked=True), WorkerStatus(name="c"))
    moments = reading_of(Status(run="r", workers=workers), {}).workers
    assert {name: each.state for name, each in moments.items()} == {"a": "left", "b": "parked", "c": "training"}


def test_memory_of_a_process_that_has_ended_is_left_out() -> None:
    assert list(resident_bytes({"self": os.getpid(), "gone": (1 << 31) - 1})) == ["self"]


def test_rest_answers_with_readings_and_with_records_by_time(api: Served) -> None:
    until(lambda: api.get("/v1/runs/r/readings").json["items"])
    newest = api.get("/v1/runs/r/readings").json["items"][-1]
    assert api.get(f"/v1/runs/r/readings?first={newest['at'] + 1000}").json["items"] == []
    records = api.get("/v1/runs/r/journal?kind=generation").json["items"]
    assert {each["kind"] for each in records} == {"generation"}
    assert api.get(f"/v1/runs/r/journal?kind=generation&first={records[0]['at'] + 1}").json["items"] == []
    assert api.get("/v1/runs/r/processes").json["items"] == []


def test_a_run_without_a_server_says_so(api: Served) -> None:
    answer = api.ask("POST", "/v1/runs/r/served/predict", {"fields": {}})
    assert (answer.status, "has no server" in answer.json["detail"]) == (404, True)
