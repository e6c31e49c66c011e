"""The API as a process that listens, encrypts, and stays light."""

import json
import socket
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from api.access.server import listen, tls_context
from api.config import ApiConfig
from api.main import USUAL_PORT
from infra.base.errors import ConfigError
from tests.api.serving import Served, serving
from tests.certificates import Authority


def test_unknown_path_is_problem_json(api: Served) -> None:
    answer = api.get("/nowhere")
    assert (answer.status, answer.headers["Content-Type"]) == (404, "application/problem+json")
    assert "/nowhere" in answer.json["detail"]
    assert api.ask("DELETE", "/v1/runs").status == 405


def test_port_in_use_is_a_config_error() -> None:
    match = r"choose another api\.host or api\.port"
    with listen("api", "127.0.0.1", 0, USUAL_PORT) as taken, pytest.raises(ConfigError, match=match):
        listen("api", "127.0.0.1", taken.getsockname()[1], USUAL_PORT)


def test_connections_send_small_packets_at_once() -> None:
    with (
        listen("api", "127.0.0.1", 0, USUAL_PORT) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_without_a_port_a_taken_one_is_left_alone() -> None:
    with listen("api", "127.0.0.1", 0, USUAL_PORT) as taken:
        usual = taken.getsockname()[1]
        with listen("api", "127.0.0.1", None, usual) as other:
            assert other.getsockname()[1] != usual
    with listen("api", "127.0.0.1", None, usual) as free:
        assert free.getsockname()[1] == usual


def test_api_does_not_load_torch() -> None:
    code = "import sys, api.main; api.main.create_app(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_https_with_certificate_files(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("api", "127.0.0.1")
    database = f"sqlite:///{tmp_path / 'freshet.db'}"
    with serving(tmp_path, database, tls_certificate=certificate, tls_key=key) as served:
        assert served.address.startswith("https://")
        trusting = ssl.create_default_context(cafile=authority.file)
        with urllib.request.urlopen(f"{served.address}/healthz", timeout=30, context=trusting) as answer:
            assert json.load(answer)["status"] == "ok"


def test_a_certificate_that_cannot_be_used_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "api.pem").write_text("nonsense")
    with pytest.raises(ConfigError, match=r"correct api\.tls_certificate"):
        tls_context(ApiConfig(tls_certificate=tmp_path / "api.pem"))
    with pytest.raises(ValueError, match="a key without a certificate"):
        ApiConfig(tls_key=tmp_path / "api.key")
