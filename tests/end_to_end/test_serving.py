"""A live run that is served: predictions follow training, and a server that is killed comes back where it was."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.job import database_url
from infra.storage import Storage
from ps.cuts.manifest import manifest_numbers
from tests.api.serving import Served, new_token, until
from tests.end_to_end.processes import named, start, wait_until

pytestmark = pytest.mark.timeout(240)
SETTINGS = (
    *("stream.batch=64", "dispatch.workers=1", "dispatch.links_gbit=", "ps.shards=1", "run=shown"),
    *("cuts.seconds=0.5", "serving.port=0", "api.port=0", "model.mlp=8"),
)
EVENT = {"fields": {"user": 1, "item": 2}}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A demo that serves."""
    folder = tmp_path_factory.mktemp("served") / "run"
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    process = start("demo", "--serve", "--rate", "500", "--folder", folder, *settings)
    try:
        wait_until((folder / "endpoints" / "serve").exists, process)
        yield folder
    finally:
        process.terminate()
        output, _ = process.communicate(timeout=100)
        assert process.returncode == 0, output
        assert named(folder, ["serve"]) == []


def server_of(folder: Path) -> Served:
    database = database_url(None, folder)
    return Served((folder / "endpoints" / "serve").read_text(), new_token(database, ["predict", "read"]), database)


def test_predictions_follow_the_training_and_a_killed_server_comes_back_on_its_port(live: Path) -> None:
    server = server_of(live)
    until(lambda: server.get("/readyz").status == 200)
    first = server.ask("POST", "/v1/predict", EVENT).json["version"]["step"]
    until(lambda: server.ask("POST", "/v1/predict", EVENT).json["version"]["step"] > first)
    (process,) = named(live, ["serve"])
    os.kill(process.pid, signal.SIGKILL)
    process.wait(30)
    until(lambda: (live / "endpoints" / "serve").exists() and server_of(live).address == server.address)
    until(lambda: _is_ready(server))
    told = server.ask("POST", "/v1/predict", EVENT).json
    assert told["version"]["step"] > first
    assert told["version"]["cut"] <= manifest_numbers(Storage.at(live / "cuts"))[-1]
    assert [each.pid for each in named(live, ["serve"])] != [process.pid]


def _is_ready(server: Served) -> bool:
    try:
        return server.get("/readyz").status == 200
    except OSError:  # it does not listen yet
        return False
