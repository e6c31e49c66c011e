"""Who may predict, read and control, and limits."""

import re
import time

import pytest

from infra.web.rules import OPEN_TO_ALL, rule_of
from infra.web.store.rows import SCOPES
from serving.app import create_app
from tests.api.serving import Served, new_token
from tests.infra.web.test_limits import CLOSE, RARE, head, raw
from tests.serving.server import serving
from tests.serving.trained import Trained

DOCUMENT = create_app().openapi()
OPERATIONS = [
    (method.upper(), path, operation["x-scope"])
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
]
SCOPE_OF = {
    ("POST", "/v1/predict"): "predict",
    ("GET", "/v1/quality"): "read",
    ("GET", "/v1/snapshots"): "read",
    ("GET", "/v1/snapshots/current"): "read",
    ("GET", "/metrics"): "read",
    ("GET", "/v1/openapi.json"): "read",
    ("PUT", "/v1/snapshots/pin"): "control",
    ("DELETE", "/v1/snapshots/pin"): "control",
    ("POST", "/v1/snapshots/rollback"): "control",
    ("POST", "/v1/snapshots/{checkpoint}/release"): "control",
    ("GET", "/healthz"): OPEN_TO_ALL,
    ("GET", "/readyz"): OPEN_TO_ALL,
}


def test_every_route_has_its_scope() -> None:
    assert {(method, path): scope for method, path, scope in OPERATIONS} == SCOPE_OF
    assert all(rule_of(route) for route in create_app().routes)


@pytest.mark.parametrize("kind", ["none", "garbage", "revoked", "expired", "of another scope"])
def test_no_route_lets_a_wrong_token_pass(server: Served, kind: str) -> None:
    refused = {
        "none": None,
        "garbage": "fr_garbage",
        "revoked": new_token(server.database, SCOPES, is_revoked=True),
        "expired": new_token(server.database, SCOPES, expires_at=time.time() - 1),
    }
    for scope in ("predict", "read", "control"):
        others = [other for other in SCOPES if other != scope]
        token = refused[kind] if kind in refused else new_token(server.database, others)
        for method, path, needed in OPERATIONS:
            if needed == scope:
                body = b"{broken" if method != "GET" else None
                answer = server.ask(method, re.sub(r"\{checkpoint\}", "1", path), body, token=token)
                assert (path, answer.status) == (path, 401 if kind in refused else 403)
                assert answer.headers["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("checkpoint", ["0", "-1", "1e3", "..", "%2e%2e", "9" * 400, "%00", "1%2f..%2f2"])
def test_no_checkpoint_of_a_path_reaches_a_file(server: Served, checkpoint: str) -> None:
    assert server.ask("POST", f"/v1/snapshots/{checkpoint}/release", {}).status in (400, 404, 405, 422)


def test_large_and_slow_bodies_are_refused(run: Trained) -> None:
    with serving(run, body_bytes=4096, receive_seconds=0.3) as limited:
        started = head(limited, "POST /v1/predict")
        assert raw(limited, started + b"Content-Length: 100\r\n\r\nx").startswith(b"HTTP/1.1 408")
    with serving(run, body_bytes=4096) as limited:
        assert raw(limited, started + CLOSE + b"Content-Length: 1000000000\r\n\r\n").startswith(b"HTTP/1.1 413")


def test_more_requests_than_allowed_are_refused_and_health_is_not(run: Trained) -> None:
    with serving(run, requests_per_second=RARE) as limited:
        answers = [limited.ask("POST", "/v1/predict", {"fields": {}}) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429], "the first is its address's"
        assert 1 <= int(answers[2].headers["Retry-After"]) <= 1 / RARE
        assert limited.get("/healthz").status == 200
