"""Every route against a run of real sockets and a real journal, on both databases."""

import json
import socket

import msgspec
import pytest

from dispatch.journal.records import Commanded
from tests.api.dispatcher import PretendDispatcher
from tests.api.serving import WAIT_SECONDS, Served, until

pytestmark = pytest.mark.parametrize("database_kind", ["sqlite", "postgresql"], scope="module")


def test_a_run_is_listed_and_read_with_its_cursor(api: Served) -> None:
    listed = api.get("/v1/runs").json["items"]
    assert [(run["name"], run["state"]) for run in listed] == [("r", "training")]
    read = api.get("/v1/runs/r")
    assert read.json["status"]["policy"] == "esd:1"
    assert read.headers["ETag"] == f'"{read.json["cursor"]}"'


def test_answers_have_the_cursor_under_its_earlier_name_too(api: Served, dispatcher: PretendDispatcher) -> None:
    done = api.ask("POST", "/v1/runs/r/resume").json
    assert done["version"] == done["cursor"] == dispatcher.journal.cursor
    (listed,) = api.get("/v1/runs").json["items"]
    for run in (listed, api.get("/v1/runs/r").json):
        assert run["version"] == run["cursor"] > 0


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dispatcher that answers is waited for, however busy the machine is."""
    monkeypatch.setattr("api.routes.common.SETTLE_SECONDS", WAIT_SECONDS)


def test_alpha_is_journalled_and_answered(api: Served, dispatcher: PretendDispatcher) -> None:
    before = dispatcher.journal.cursor
    answer = api.ask("PUT", "/v1/runs/r/alpha", {"value": 0.25, "reason": "shared today"})
    assert (answer.status, answer.json["state"], answer.json["value"]) == (200, "done", 0.25)
    assert dispatcher.journal.cursor == before + 1
    assert answer.headers["ETag"] == f'"{before + 1}"'
    alpha = until(lambda: (told := api.get("/v1/runs/r/alpha").json)["set_value"] == 0.25 and told)
    assert (alpha["mode"], alpha["reason"]) == ("manual", "shared today")
    assert api.ask("DELETE", "/v1/runs/r/alpha").json["value"] == "auto"


def test_one_key_is_one_command(api: Served, dispatcher: PretendDispatcher) -> None:
    before = dispatcher.journal.cursor
    first = api.ask("POST", "/v1/runs/r/pause", Idempotency_Key="k1")
    again = api.ask("POST", "/v1/runs/r/pause", Idempotency_Key="k1")
    # its time is the API's own until the journal's is known
    assert {**first.json, "done_at": None} == {**again.json, "done_at": None}
    assert dispatcher.journal.cursor == before + 1
    other = api.ask("POST", "/v1/runs/r/resume", Idempotency_Key="k1")
    assert (other.status, other.headers["Content-Type"]) == (422, "application/problem+json")


def test_a_command_nobody_takes_yet_is_pending_and_then_done(
    api: Served, dispatcher: PretendDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.routes.common.SETTLE_SECONDS", 0.05)
    dispatcher.answers.clear()
    answer = api.ask("POST", "/v1/runs/r/resume")
    assert (answer.status, answer.json["state"]) == (202, "pending")
    dispatcher.answers.set()
    done = until(lambda: (told := api.get(answer.headers["Location"]).json)["state"] == "done" and told)
    assert done["cursor"] == dispatcher.journal.cursor


def test_a_refused_command_is_a_conflict_that_says_why(api: Served) -> None:
    answer = api.ask("POST", "/v1/runs/r/workers/nobody/drain")
    assert (answer.status, answer.json["command"]["outcome"]) == (409, "refused")
    assert "there is no worker 'nobody'" in answer.json["detail"]


def test_an_alpha_above_that_of_the_policy_is_a_conflict(api: Served, dispatcher: PretendDispatcher) -> None:
    before, dispatcher.status = dispatcher.status, msgspec.structs.replace(dispatcher.status, policy="esd:0.5")
    try:
        answer = api.ask("PUT", "/v1/runs/r/alpha", {"value": 0.75})
    finally:
        dispatcher.status = before
    assert (answer.status, answer.json["command"]["outcome"]) == (409, "refused")
    assert "alpha cannot be 0.75: policy 'esd:0.5' has 0.5" in answer.json["detail"]


def test_a_change_based_on_an_older_cursor_is_outdated(api: Served) -> None:
    read = api.get("/v1/runs/r/alpha")
    assert api.ask("POST", "/v1/runs/r/pause", If_Match=read.headers["ETag"]).status == 200
    late = api.ask("POST", "/v1/runs/r/resume", If_Match=read.headers["ETag"])
    assert (late.status, late.json["title"], late.json["command"]["outcome"]) == (412, "Outdated", "outdated")
    assert api.ask("POST", "/v1/runs/r/resume", If_Match="nonsense").status == 422


def test_any_command_is_given_by_its_name(api: Served) -> None:
    checkpoint = api.ask("POST", "/v1/runs/r/commands", {"verb": "checkpoint"}).json
    assert (checkpoint["verb"], checkpoint["worker"], checkpoint["value"]) == ("checkpoint", None, None)
    for value in (0.5, "unknown"):
        link = api.ask("POST", "/v1/runs/r/commands", {"verb": "link", "worker": "worker-0", "value": value}).json
        assert (link["verb"], link["worker"], link["value"], link["outcome"]) == ("link", "worker-0", value, "accepted")
    unknown = api.ask("POST", "/v1/runs/r/commands", {"verb": "sing"})
    assert (unknown.status, "there is no command 'sing'" in unknown.json["detail"]) == (422, True)
    assert api.ask("POST", "/v1/runs/r/commands", {"verb": "deadline", "value": 7}).status == 422


def test_settings_change_one_at_a_time(api: Served) -> None:
    assert api.ask("PATCH", "/v1/runs/r/settings", {"policy": "joint"}).json["value"] == "joint"
    assert api.ask("PATCH", "/v1/runs/r/settings", {"deadline": True}).json["value"] is True
    assert api.ask("PATCH", "/v1/runs/r/settings", {"skip_above": "none"}).json["value"] == "none"
    assert api.ask("PATCH", "/v1/runs/r/settings", {"skip_above": 5, "deadline": True}).status == 422
    assert api.ask("PATCH", "/v1/runs/r/settings", {"policy": "nosuch"}).status == 422
    plugged = api.ask("PATCH", "/v1/runs/r/settings", {"policy": "json:JSONDecoder"})
    assert (plugged.status, "api.plugins=true" in plugged.json["detail"]) == (422, True)
    settings = api.get("/v1/runs/r/settings").json
    assert settings["started_with"]["run"] == "r"
    assert settings["changed"] == {"policy": "joint", "deadline": True, "skip_above": "none"}


def test_a_setting_that_was_changed_without_the_api_is_told(api: Served, dispatcher: PretendDispatcher) -> None:
    dispatcher.journal.steer(Commanded("by-hand", "skip_above", "", 0, "", "77", at_seconds=1.0))
    until(lambda: api.get("/v1/runs/r/settings").json["changed"]["skip_above"] == 77)


def test_workers_are_listed_and_changed(api: Served) -> None:
    workers = api.get("/v1/runs/r/workers").json["items"]
    assert workers[0]["uplink_gbit"] is None
    assert workers[0]["link_gbit"] == 0.25  # as the dispatcher says now: its status is older
    assert [(worker["name"], worker["state"]) for worker in workers] == [("worker-0", "training")]
    link = api.ask("PATCH", "/v1/runs/r/workers/worker-0", {"link_gbit": 0.5})
    assert (link.json["verb"], link.json["value"]) == ("link", 0.5)
    skewed = api.ask("PATCH", "/v1/runs/r/workers/worker-0", {"link_gbit": 0.5, "uplink_gbit": 0.05})
    assert (skewed.json["verb"], skewed.json["value"]) == ("link", "0.5/0.05")
    for alone in ({"uplink_gbit": 0.05}, {"link_gbit": "unknown", "uplink_gbit": 0.05}):
        assert api.ask("PATCH", "/v1/runs/r/workers/worker-0", alone).status == 422
    shares = api.ask("PATCH", "/v1/runs/r/workers/worker-0", {"shares": {"least": 0.5, "largest": 2}})
    assert (shares.json["verb"], shares.json["value"]) == ("shares", {"least": 0.5, "largest": 2.0})
    assert api.ask("DELETE", "/v1/runs/r/workers/worker-0").json["verb"] == "remove"
    assert api.ask("POST", "/v1/runs/r/workers", {}).status == 409  # nobody supervises this run


def test_history_is_paged(api: Served, dispatcher: PretendDispatcher) -> None:
    for _ in range(3):
        api.ask("POST", "/v1/runs/r/resume")
    first = api.get("/v1/runs/r/commands?limit=2")
    assert len(first.json["items"]) == 2
    assert first.headers["Link"] == f'</v1/runs/r/commands?limit=2&after={first.json["next"]}>; rel="next"'
    rest = api.get(f"/v1/runs/r/commands?limit=2&after={first.json['next']}").json["items"]
    assert rest[0]["id"] not in {item["id"] for item in first.json["items"]}
    assert api.get("/v1/runs/r/commands?after=nonsense").status == 400


def test_generations_checkpoints_faults_and_steps_are_lists(api: Served) -> None:
    assert api.get("/v1/runs/r/generations").json["items"][0]["number"] == 1
    for name in ("checkpoints", "faults", "steps"):
        assert api.get(f"/v1/runs/r/{name}").json == {"items": [], "next": None}


def test_the_path_of_earlier_releases_leads_to_checkpoints(api: Served) -> None:
    moved, present = (api.get(f"/v1/runs/r/{name}?limit=2") for name in ("cuts", "checkpoints"))
    assert (moved.status, moved.json) == (200, present.json)
    assert api.get("/v1/runs/r/cuts?limit=0").status == 422


def test_events_resume_after_the_last_one(api: Served, dispatcher: PretendDispatcher) -> None:
    api.ask("POST", "/v1/runs/r/pause", {"reason": "one"})
    mark = until(
        lambda: api.get("/v1/runs/r").json["cursor"] == dispatcher.journal.cursor and dispatcher.journal.cursor
    )
    api.ask("POST", "/v1/runs/r/resume", {"reason": "two"})
    ids = events(api, f"/v1/runs/r/events?after={mark - 1}", 2)
    assert [cursor for cursor, _ in ids] == [f"{mark}.0", f"{mark + 1}.0"]
    assert [json.loads(body)["reason"] for _, body in ids] == ["one", "two"]
    assert events(api, "/v1/runs/r/events", 1, f"{mark}.0") == ids[1:]


def events(api: Served, path: str, count: int, last: str = "") -> list[tuple[str, str]]:
    """Ids and bodies of the next events of a stream."""
    found: list[tuple[str, str]] = []
    resumed = f"Last-Event-ID: {last}\r\n" if last else ""
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.token}\r\n{resumed}\r\n"
    with (
        socket.create_connection(("127.0.0.1", api.port), timeout=30) as connection,
        connection.makefile("rb") as lines,
    ):
        connection.sendall(head.encode())
        current = ""
        while len(found) < count:
            line = lines.readline().decode().strip()
            if line.startswith("id: "):
                current = line[4:]
            elif line.startswith("data: ") and current:
                found.append((current, line[6:]))
                current = ""
    return found


def test_creating_a_run_needs_an_agent(api: Served) -> None:
    answer = api.ask("POST", "/v1/runs", {"name": "new"})
    assert (answer.status, answer.headers["Content-Type"]) == (409, "application/problem+json")


def test_targets_name_the_metrics_of_all_processes(api: Served) -> None:
    labels = {"run": "r", "process": "dispatcher", "__metrics_path__": "/metrics"}
    assert api.get("/v1/targets").json == [{"targets": ["127.0.0.1:9001"], "labels": labels}]
    assert b"# TYPE" in api.get("/metrics").body


def test_requests_are_counted_by_route_and_what_a_client_makes_up_is_no_label(api: Served) -> None:
    api.get("/v1/runs/r")
    api.get("/v1/nothing/like/this")
    api.ask("REPORT", "/v1/runs/r")
    lines = api.get("/metrics").body.decode().splitlines()
    for labels in (
        'method="GET",route="/v1/runs/{run}",status="200"',
        'method="GET",route="none",status="404"',
        'method="other",route="none",status="405"',
    ):
        assert any(line.startswith(f"freshet_api_requests_total{{{labels}}} ") for line in lines), labels
    assert any(line.startswith("freshet_api_request_seconds_bucket") for line in lines)
    assert not any("nothing" in line or "REPORT" in line for line in lines)


def test_how_far_sql_is_behind_and_how_many_commands_wait_is_told(
    api: Served, dispatcher: PretendDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.routes.common.SETTLE_SECONDS", 0.05)
    dispatcher.answers.clear()
    try:
        assert api.ask("POST", "/v1/runs/r/pause").status == 202
        until(lambda: b'freshet_api_pending_commands{run="r"} 1.0' in api.get("/metrics").body)
    finally:
        dispatcher.answers.set()
    until(lambda: b'freshet_api_pending_commands{run="r"} 0.0' in api.get("/metrics").body)
    until(lambda: b'freshet_api_projection_lag_frames{run="r"} 0.0' in api.get("/metrics").body)


def test_writes_are_audited_those_denied_too(api: Served) -> None:
    api.ask("POST", "/v1/runs/r/stop", token="garbage")
    denied = until(lambda: [e for e in api.get("/v1/audit").json["items"] if e["status"] == 401])
    assert denied[0]["action"] == "POST /v1/runs/{run}/stop"
    kept = [e for e in api.get("/v1/audit?run=r").json["items"] if e["status"] == 200]
    assert kept[0]["actor"] == "ann"


def test_health_needs_no_token(api: Served) -> None:
    assert api.ask("GET", "/healthz", token=None).json["status"] == "ok"
    assert api.ask("GET", "/readyz", token=None).json == {"database": True, "runs": 1}
