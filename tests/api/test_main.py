"""The API as a process that listens, encrypts, and stays light."""

import json
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

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
