"""Readings: how they are thinned out, what is stored, and what comes back."""

import asyncio
import gzip
import math
import os
from pathlib import Path

import msgspec
import pytest
from starlette.requests import Request

from api.routes.common import LONG_BYTES, history_answer
from api.runs.recent import RecentReadings, RunReading, reading_of, resident_bytes, thinned
from api.store.store import SqlStore
from benchmarks.control.past import CHECKPOINT_STEPS, fill
from dispatch.progress.status import Status, WorkerStatus
from ingest.letters.embedded import DeadLetterLog
from ingest.letters.letter import DeadLetter
from tests.api.serving import Served, new_token, until


def reading(at: float) -> RunReading:
    return msgspec.structs.replace(reading_of(Status(run="r"), {}), at=at)


def filled(seconds: int) -> RecentReadings:
    recent = RecentReadings()
    for at in range(1, seconds + 1):
        recent.add(reading(float(at)))
    return recent


def times(found: list[msgspec.Raw]) -> list[float]:
    return [msgspec.json.decode(each)["at"] for each in found]


def test_a_short_window_has_every_second_and_a_long_one_fewer() -> None:
    recent = filled(1000)
    assert times(thinned(recent.between(990, 1000), 100)) == [float(at) for at in range(991, 1001)]
    long = times(thinned(recent.between(0, 1000), 100))
    assert (long[0], long[-1], len(long) <= 101, long == sorted(long)) == (101.0, 1000.0, True, True)


@pytest.mark.parametrize("points", [1, 2, 3, 7])
def test_the_newest_reading_of_a_window_is_always_there(points: int) -> None:
    assert times(thinned(filled(500).between(100, 400), points))[-1] == 400


def test_readings_wait_for_the_database_at_two_levels() -> None:
    unstored = filled(1000).unstored
    assert [each.at for each in unstored if each.level == 120] == [1.0, *(120.0 * number for number in range(1, 9))]
    assert sum(each.level == 10 for each in unstored) == 101


def test_a_new_run_under_the_same_name_forgets_the_readings_of_the_old_one() -> None:
    recent = filled(20)
    for journal in ("", "one", "", "one"):
        recent.belong_to(journal)
        assert recent.begins_at == 1
    recent.belong_to("two")
    assert (recent.begins_at, list(recent.unstored)) == (math.inf, [])


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


def test_a_run_whose_folder_is_gone_still_has_its_readings_and_records(api: Served) -> None:
    asyncio.run(write_past(api.database, "gone"))
    assert {each["name"]: each["is_here"] for each in api.get("/v1/runs").json["items"]} == {"gone": False, "r": True}
    assert len(api.get("/v1/runs/gone/readings?points=5").json["items"]) in (4, 5, 6)
    records = api.get("/v1/runs/gone/journal?kind=checkpoint&points=5").json["items"]
    assert [each["body"]["number"] for each in records] == [20, 16, 12, 8, 4]


async def write_past(database: str, run: str) -> None:
    store = await SqlStore.open(database)
    await fill(store, run, 20 * CHECKPOINT_STEPS)
    await store.close()


@pytest.mark.parametrize(
    ("client", "accepted", "is_packed"),
    [("10.0.0.9", "br, gzip", True), ("127.0.0.1", "gzip", False), ("10.0.0.9", "", False)],
)
def test_long_answers_are_compressed_for_other_machines(client: str, accepted: str, is_packed: bool) -> None:
    scope = {"type": "http", "headers": [(b"accept-encoding", accepted.encode())], "client": (client, 1)}
    body = b"[" + b"1," * LONG_BYTES + b"1]"
    answer = history_answer(body, Request(scope), {"ETag": '"1"'})
    assert (answer.headers.get("Content-Encoding") == "gzip", answer.headers["ETag"]) == (is_packed, '"1"')
    assert (gzip.decompress(bytes(answer.body)) if is_packed else answer.body) == body


def test_examples_of_dead_letters_need_the_scope_of_those_who_steer(api: Served, folder: Path) -> None:
    topic = api.get("/v1/runs/r/settings").json["started_with"]["stream"]["topic"]
    written = DeadLetterLog(folder / "r" / "topics", origin=f"r/{topic}")
    written.append([DeadLetter(0, number, 0, f"reason {number}", b'{"user": \xff' * 100) for number in range(30)])
    written.close()
    found = api.get("/v1/runs/r/dead-letters?limit=5").json["items"]
    assert [(each["offset"], each["reason"]) for each in found] == [(at, f"reason {at}") for at in range(29, 24, -1)]
    assert (found[0]["bytes"], found[0]["payload"].startswith('{"user": \\xff')) == (1000, True)
    only_read = new_token(api.database, ("read",))
    assert api.ask("GET", "/v1/runs/r/dead-letters", token=only_read).status == 403
