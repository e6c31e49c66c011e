"""The command line as a client, against a real API with a run of real sockets."""

import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from dispatch.journal.log import read_records
from dispatch.journal.records import Commanded
from infra.cli.steer.client import ApiAway, ApiClient
from infra.run.settings import check_environment, load_settings
from tests.api.dispatcher import PretendDispatcher
from tests.api.serving import Served, new_token, serving, until
from tests.certificates import Authority
from tests.infra.cli.conftest import Invoke


def commanded(dispatcher: PretendDispatcher) -> list[tuple[str, str]]:
    found = read_records(dispatcher.folder / "journal")
    return [(each.verb, each.worker + each.value) for each in found if isinstance(each, Commanded)]


def test_alpha_is_read_and_set(steer: Invoke, api: Served, dispatcher: PretendDispatcher) -> None:
    done = steer("alpha", "set", "0.25", "--reason", "shared")
    assert (done.returncode, done.stdout) == (0, "alpha 0.25 after step 0\n")
    assert commanded(dispatcher)[-1] == ("alpha", "0.25")
    until(lambda: api.get("/v1/runs/r/alpha").json["set_value"] == 0.25)
    assert steer("alpha", "get").stdout.startswith("alpha is 0.25 (manual")
    assert json.loads(steer("alpha", "get", "--json").stdout)["mode"] == "manual"
    assert json.loads(steer("alpha", "auto", "--json").stdout)["state"] == "done"


def test_an_alpha_above_that_of_the_policy_is_refused(steer: Invoke, dispatcher: PretendDispatcher) -> None:
    before, dispatcher.status = dispatcher.status, msgspec.structs.replace(dispatcher.status, policy="esd:0.5")
    try:
        refused = steer("alpha", "set", "0.75")
    finally:
        dispatcher.status = before
    assert refused.returncode != 0
    assert "alpha cannot be 0.75: policy 'esd:0.5' has 0.5" in " ".join(refused.stderr.split())
    assert commanded(dispatcher)[-1:] != [("alpha", "0.75")]


def test_a_run_is_shown_once(steer: Invoke) -> None:
    shown = steer("status", "--once").stdout
    assert all(word in shown for word in ("r · ● training", "worker-0"))
    assert json.loads(steer("status", "--json").stdout)["status"]["policy"] == "esd:1"


def test_runs_workers_and_the_audit_are_listed(steer: Invoke) -> None:
    assert [line.split()[:2] for line in steer("runs", "list").stdout.splitlines()[1:]] == [["r", "training"]]
    assert json.loads(steer("runs", "show", "--json").stdout)["name"] == "r"
    assert [worker["name"] for worker in json.loads(steer("workers", "list", "--json").stdout)] == ["worker-0"]
    assert "worker-0  training" in steer("workers", "list").stdout
    assert steer("runs", "pause").returncode == 0
    newest = json.loads(steer("audit", "--limit", "1", "--json").stdout)[0]
    assert (newest["action"], newest["actor"], newest["run"]) == ("POST /v1/runs/{run}/pause", "ann", "r")


def test_alpha_alone_shows_it(steer: Invoke) -> None:
    shown = steer("alpha")
    assert (shown.returncode, shown.stdout) == (0, steer("alpha", "get").stdout), shown.stderr
    assert "alpha is" in shown.stdout
    assert json.loads(steer("alpha", "--json").stdout) == json.loads(steer("alpha", "get", "--json").stdout)
    misplaced = steer("alpha", "--json", "get")
    assert (misplaced.returncode, "options are given before 'get'" in misplaced.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "verb"),
    [
        (("pause", "--reason", "x"), ("pause", "")),
        (("runs", "resume"), ("resume", "")),
        (("workers", "drain", "worker-0"), ("drain", "worker-0")),
        (("workers", "remove", "worker-0"), ("remove", "worker-0")),
        (("command", "checkpoint"), ("checkpoint", "")),
        (("command", "shares", "0.5:2", "--worker", "worker-0", "--reason", "x"), ("shares", "worker-00.5:2")),
        (("runs", "stop"), ("stop", "")),
    ],
)
def test_commands_are_carried_out(
    steer: Invoke, dispatcher: PretendDispatcher, arguments: tuple[str, ...], verb: tuple[str, str]
) -> None:
    before = len(commanded(dispatcher))
    done = steer(*arguments)
    assert done.returncode == 0, done.stderr
    assert commanded(dispatcher)[before:] == [verb]


def test_a_command_that_is_pending_is_followed(
    steer: Invoke, dispatcher: PretendDispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.routes.common.SETTLE_SECONDS", 0.05)
    paused = list[float]()

    def pause(seconds: float) -> None:
        paused.append(seconds)
        dispatcher.answers.set()

    monkeypatch.setattr("infra.cli.steer.client.pause", pause)
    dispatcher.answers.clear()
    done = steer("resume")
    assert (done.returncode, done.stdout) == (0, "resume  after step 0\n")
    assert paused
    before = len(commanded(dispatcher))
    dispatcher.answers.clear()
    late = steer("resume", "--wait", "0")
    dispatcher.answers.set()
    until(lambda: commanded(dispatcher)[before:] == [("resume", "")])
    assert late.returncode == 1
    assert "is still waiting after 0 seconds" in late.stderr


def whole_request(near: socket.socket) -> bytes:
    """A request with its body, which may arrive after the headers."""
    request = near.recv(65536)
    length = re.search(rb"content-length: (\d+)", request, re.IGNORECASE)
    wanted = int(length[1]) if length else 0
    while len(request.partition(b"\r\n\r\n")[2]) < wanted and (more := near.recv(65536)):
        request += more
    return request


@contextmanager
def losing_the_first_answer(port: int) -> Iterator[tuple[str, list[bytes]]]:
    """A relay to a port that closes the first connection once the answer is there; yields its address and requests."""
    seen: list[bytes] = []

    def relay(listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            with near, socket.create_connection(("127.0.0.1", port)) as far, suppress(OSError):
                request = whole_request(near)
                seen.append(request)
                far.sendall(request.replace(b"keep-alive", b"close"))
                answer = b"".join(iter(lambda: far.recv(65536), b""))
                if len(seen) > 1:
                    near.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=relay, args=(listener,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", seen
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_lost_answer_is_asked_for_again_and_has_one_effect(
    invoke: Invoke, api: Served, dispatcher: PretendDispatcher
) -> None:
    before = len(commanded(dispatcher))
    with losing_the_first_answer(api.port) as (address, seen):
        done = invoke("alpha", "set", "0.5", "--run", "r", "--api", address, "--token", api.token)
    assert (done.returncode, len(seen)) == (0, 2), done.stderr
    assert commanded(dispatcher)[before:] == [("alpha", "0.5")]


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_refusals_are_one_line_with_the_detail(steer: Invoke, invoke: Invoke, api: Served) -> None:
    told = {
        ("alpha", "get", "--run", "nosuch"): "there is no run 'nosuch' here; expected one of GET /v1/runs: r",
        ("workers", "drain", "nobody"): "there is no worker 'nobody'; expected one of worker-0",
        ("pause", "--if-cursor", "0"): "expected cursor ",
        ("runs", "create", "--name", "x"): "no agent starts runs here",
        ("runs", "create", "--name", "x", "--set", "A=1"): "the request does not fit its schema; body.settings",
        ("workers", "add"): "nobody supervises run 'r'",
    }
    for arguments, detail in told.items():
        done = steer(*arguments)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert detail in done.stderr
    reader = new_token(api.database, ["read"])
    denied = invoke("pause", "--api", api.address, "--token", reader)
    assert "the token has the scopes read; expected control" in denied.stderr
    wrong = invoke("pause", "--api", api.address, "--token", "fr_wrong")
    assert f"the API at {api.address} refuses the token" in wrong.stderr


def test_the_earlier_name_of_if_cursor_works_with_a_notice(steer: Invoke, api: Served) -> None:
    cursor = api.get("/v1/runs/r").json["cursor"]
    done = steer("pause", "--if-version", str(cursor))
    notice = "freshet: --if-version is now --if-cursor; the old name works for one more release\n"
    assert (done.returncode, done.stderr) == (0, notice)
    late = steer("resume", "--if-version", "0")
    assert late.returncode == 1
    assert late.stderr.startswith(notice)
    both = steer("resume", "--if-version", "0", "--if-cursor", "0")
    assert "--if-cursor 0 and --if-version 0 are both given" in both.stderr


def test_what_is_given_wrongly_is_told_before_anything_is_sent(invoke: Invoke, tmp_path: Path) -> None:
    assert "there is no token" in invoke("status", "--api", "http://127.0.0.1:1").stderr
    assert "cannot be used" in invoke("status", "--api", "ftp://h", "--token", "t").stderr
    assert "both given" in invoke("status", "--api", "http://h", "--run", tmp_path, "--token", "t").stderr
    assert "no API listens for the runs in runs" in invoke("status").stderr, "without one no token is missed"
    assert "need the API" in invoke("pause", "--run", tmp_path, "--reason", "x").stderr
    missing = invoke("status", "--api", "http://h", "--token-file", tmp_path / "none")
    assert (missing.returncode, "no token can be read" in missing.stderr) == (2, True)


def test_an_api_that_is_away_is_told(invoke: Invoke) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    done = invoke("runs", "list", "--api", f"http://127.0.0.1:{port}", "--token", "t")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"the API at http://127.0.0.1:{port} does not answer" in done.stderr


def test_a_stop_that_ends_the_api_before_it_answers_has_been_given() -> None:
    stop = {"run": "mine", "id": "1", "verb": "stop", "state": "pending"}
    with ApiClient("http://127.0.0.1:1", "t") as client:
        assert client.await_answer(stop, 10)["text"] == "the stop was recorded, and the API has ended since"
        with pytest.raises(ApiAway):
            client.await_answer({**stop, "verb": "pause"}, 10)


@contextmanager
def silent_server() -> Iterator[tuple[str, list[socket.socket]]]:
    """Takes connections and answers nothing; its address, and the connections so far."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def take() -> None:
            with suppress(OSError):
                while True:
                    taken.append(listener.accept()[0])

        thread = threading.Thread(target=take)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", taken
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in taken:
        connection.close()


@pytest.mark.parametrize(
    ("command", "limit", "asked"),
    [
        (("runs", "list"), "QUESTION_SECONDS", "GET /v1/runs"),
        (("alpha", "set", "0.5", "--run", "r"), "CHANGE_SECONDS", "PUT /v1/runs/r/alpha"),
    ],
)
def test_an_api_that_takes_a_request_and_never_answers_is_given_up_once_for_all_attempts(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], limit: str, asked: str
) -> None:
    monkeypatch.setattr(f"infra.cli.steer.client.{limit}", 0.25)
    with silent_server() as (address, taken):
        done = invoke(*command, "--api", address, "--token", "t")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    told = f"the API at {address} does not answer: timed out (asked once for {asked}, for at most 0.25 seconds)"
    assert told in done.stderr
    assert "expected a control plane there" in done.stderr
    assert len(taken) <= 1


# ── where the API and the token are found ─────────────────────────────────────────────────────────────────────────────
def test_the_environment_names_api_and_token_and_is_no_setting(invoke: Invoke, api: Served) -> None:
    os.environ.update({"FRESHET_API_URL": api.address, "FRESHET_TOKEN": api.token, "FRESHET_CA_FILE": ""})
    assert json.loads(invoke("runs", "list", "--json").stdout)[0]["name"] == "r"
    check_environment(os.environ)
    os.environ["FRESHET_API__PORT"] = "8123"
    assert load_settings().api.port == 8123


def test_a_folder_finds_the_api_and_its_run(invoke: Invoke, api: Served, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{api.token}\n")
    for given in (folder, folder / "r"):
        done = invoke("runs", "show", "--run", given, "--token-file", tmp_path / "secret", "--json")
        assert json.loads(done.stdout)["name"] == "r", done.stderr
    (tmp_path / "runs").symlink_to(folder)
    assert invoke("runs", "show", "--token", api.token).returncode == 0


def test_of_several_runs_one_must_be_named(invoke: Invoke, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'freshet.db'}"
    for name in ("one", "two"):
        (tmp_path / name / "journal").mkdir(parents=True)
        (tmp_path / name / "settings.json").write_text(json.dumps({"run": name, "stream": {"topic": "clicks"}}))
    with serving(tmp_path, database) as served:
        until(lambda: len(served.get("/v1/runs").json["items"]) == 2)
        done = invoke("status", "--once", "--api", served.address, "--token", served.token)
    assert done.returncode == 2
    assert "there are one, two; expected exactly one; name one, as in 'freshet status --once " in done.stderr
    assert "--token SECRET --run two'" in done.stderr


def test_https_is_trusted_by_its_authority_alone(invoke: Invoke, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("api", "127.0.0.1")
    database = f"sqlite:///{tmp_path / 'freshet.db'}"
    with serving(tmp_path, database, tls_certificate=certificate, tls_key=key) as served:
        given = ("runs", "list", "--api", served.address, "--token", served.token)
        assert invoke(*given, "--ca-file", authority.file).returncode == 0
        refused = invoke(*given)
    assert (refused.returncode, "--ca-file" in refused.stderr) == (1, True)


# ── tokens ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_tokens_are_made_in_the_database_of_the_settings(invoke: Invoke, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'set.db'}"
    named = ("token", "create", "--name", "ann", "--scope", "read")
    assert invoke(*named, "--set", f"api.database={database}").returncode == 0
    assert (tmp_path / "set.db").exists()
    os.environ["FRESHET_API__DATABASE"] = database
    assert len(json.loads(invoke("token", "list", "--json").stdout)) == 1
    del os.environ["FRESHET_API__DATABASE"]
    assert invoke(*named).returncode == 0
    assert (tmp_path / "runs" / "freshet.db").exists()


def test_a_misspelt_variable_is_refused(invoke: Invoke, api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FRESHET_TOKN", api.token)
    refused = invoke("alpha", "get", "--api", api.address)
    assert refused.returncode == 2
    assert "environment variable FRESHET_TOKN sets nothing" in refused.stderr
