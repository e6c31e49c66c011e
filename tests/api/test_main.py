"""The API as a process that listens, encrypts, and stays light."""

import json
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.api.dispatcher import PretendDispatcher
from tests.api.serving import Served, serving
from tests.certificates import Authority


def test_unknown_path_is_problem_json(api: Served) -> None:
    answer = api.get("/nowhere")
    assert (answer.status, answer.headers["Content-Type"]) == (404, "application/problem+json")
    assert "/nowhere" in answer.json["detail"]
    assert api.ask("DELETE", "/v1/runs").status == 405


def test_api_does_not_load_torch() -> None:
    code = "import sys, api.main, api.app; api.app.create_app(); print('torch' in sys.modules)"
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


class _Snapshots(BaseHTTPRequestHandler):
    """A run's server, as far as it lists snapshots: it says which token it was asked with."""

    def do_GET(self) -> None:
        body = json.dumps({"path": self.path, "token": self.headers["Authorization"]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def https_server(certificate: Path, key: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Snapshots) as server:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("is_same", [True, False])
def test_requests_are_passed_on_over_tls_to_the_server_with_the_same_certificate(tmp_path: Path, is_same: bool) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("freshet", "freshet.example")
    theirs = (certificate, key) if is_same else authority.issue("other", "freshet.example")
    database = f"sqlite:///{tmp_path / 'freshet.db'}"
    trusting = ssl.create_default_context(cafile=authority.file)
    trusting.check_hostname = False
    with PretendDispatcher(tmp_path / "r"), https_server(*theirs) as address:
        (tmp_path / "r" / "endpoints" / "serve").write_text(address)
        with serving(tmp_path, database, tls_certificate=certificate, tls_key=key) as served:
            request = urllib.request.Request(f"{served.address}/v1/runs/r/served/snapshots")
            request.add_header("Authorization", f"Bearer {served.token}")
            answer = answered(request, trusting)
            expected = {"path": "/v1/snapshots", "token": f"Bearer {served.token}"}
            assert answer == expected if is_same else "does not answer" in answer["detail"]


def answered(request: urllib.request.Request, trusting: ssl.SSLContext) -> Any:
    try:
        with urllib.request.urlopen(request, timeout=30, context=trusting) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return json.load(error)
