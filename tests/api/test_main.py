"""The API as a real server, and as a process that must stay light."""

import json
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from queue import Queue

import pytest

from api.app import create_app
from api.main import listen, run_api
from infra.errors import ConfigError
from infra.process import Stop


@pytest.fixture
def server() -> Iterator[str]:
    stop, ready = Stop(), Queue[str]()
    thread = threading.Thread(target=run_api, args=("127.0.0.1", 0, stop, ready.put))
    thread.start()
    yield ready.get(timeout=30)
    stop.request("test over")
    thread.join(30)
    assert not thread.is_alive()


def test_healthz_answers_ok(server: str) -> None:
    with urllib.request.urlopen(f"{server}/healthz", timeout=10) as answer:
        assert json.load(answer)["status"] == "ok"


def test_metrics_are_prometheus_text(server: str) -> None:
    with urllib.request.urlopen(f"{server}/metrics", timeout=10) as answer:
        assert answer.headers["content-type"].startswith("text/plain")
        assert b"# TYPE" in answer.read()


def test_unknown_path_is_problem_json(server: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{server}/nowhere", timeout=10)
    with caught.value as answer:
        assert answer.headers["content-type"] == "application/problem+json"
        body = json.load(answer)
    assert (body["status"], body["title"]) == (404, "Not Found")
    assert "/nowhere" in body["detail"]


def test_port_in_use_is_a_config_error() -> None:
    with listen("127.0.0.1", 0) as taken, pytest.raises(ConfigError, match=r"choose another api\.host or api\.port"):
        listen("127.0.0.1", taken.getsockname()[1])


def test_without_a_port_a_taken_one_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with listen("127.0.0.1", 0) as taken:
        usual = taken.getsockname()[1]
        monkeypatch.setattr("api.main.USUAL_PORT", usual)
        with listen("127.0.0.1", None) as other:
            assert other.getsockname()[1] != usual
    with listen("127.0.0.1", None) as free:
        assert free.getsockname()[1] == usual


def test_api_does_not_load_torch() -> None:
    code = "import sys, api.main; api.main.create_app(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_openapi_lists_the_routes() -> None:
    assert set(create_app().openapi()["paths"]) == {"/healthz", "/metrics"}
