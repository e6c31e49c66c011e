"""Tokens for the server that is asked: what a refusal says to do works, and its database is found by itself."""

import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.cli.steer.client import explain_problem
from infra.web.client import is_loopback
from tests.api.serving import Served, new_token
from tests.end_to_end.processes import ROOT, environment, freshet, wait_until
from tests.infra.cli.conftest import Invoke


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of somebody who starts an API on a database of its own."""
    return tmp_path_factory.mktemp("place")


@pytest.fixture(scope="module")
def served(place: Path) -> Iterator[Served]:
    database = f"sqlite:///{place / 'own' / 'tokens.db'}"
    (place / "own").mkdir()
    given = ("api", "--runs", place / "runs", "--set", "api.port=0", "--set", f"api.database={database}")
    process = subprocess.Popen(freshet(*given), cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL)
    written = place / "runs" / "endpoints" / "api"
    try:
        wait_until(lambda: written.exists() or process.poll() is not None)
        yield Served(written.read_text(), new_token(f"sqlite:///{place / 'other.db'}", ["read"]), database)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def refusal(served: Served, token: str | None) -> str:
    answer = served.ask("GET", "/v1/runs", token=token)
    assert answer.status == 401
    return str(answer.json["detail"])


@pytest.mark.parametrize("token", ["", None], ids=["of another database", "none"])
def test_the_command_of_a_refusal_makes_a_token_for_this_server(
    invoke: Invoke, served: Served, token: str | None
) -> None:
    command = shlex.split(refusal(served, token).partition("make one with '")[2].partition("'")[0])
    assert command[:3] == ["freshet", "token", "create"]
    secret = invoke(*command[1:]).stdout.strip()
    assert served.ask("GET", "/v1/runs", token=secret).status == 200


def test_a_refusal_on_the_command_line_names_one_command(served: Served) -> None:
    told = explain_problem(served.address, 401, {"detail": refusal(served, "")})
    assert told.count("freshet token create") == 1
    assert told.endswith("and give it with --token-file, FRESHET_TOKEN or --token")


def test_a_token_is_made_for_the_api_that_listens_for_runs_here(
    invoke: Invoke, served: Served, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    secret = invoke("token", "create", "--name", "ann", "--scope", "read").stdout.strip()
    assert served.ask("GET", "/v1/runs", token=secret).status == 200
    assert not (place / "runs" / "freshet.db").exists()


def test_the_database_is_told_to_its_user_alone(served: Served, place: Path) -> None:
    told = place / "runs" / "endpoints" / "api.database"
    assert (told.read_text(), told.stat().st_mode & 0o777) == (served.database, 0o600)


@pytest.mark.parametrize(("client", "is_told"), [("127.0.0.1", True), ("::1", True), ("10.0.0.9", False), ("x", False)])
def test_only_clients_on_this_machine_are_told_where_its_files_are(client: str, is_told: bool) -> None:
    assert is_loopback(client) is is_told
