"""Who may do what: every route of the OpenAPI document, with every kind of token that must not pass."""

import re
import time

import pytest
from fastapi import FastAPI

from api.app import create_app
from infra.web.rules import OPEN_TO_ALL, rule_of
from infra.web.store.rows import SCOPES
from tests.api.serving import Served, new_token

DOCUMENT = create_app().openapi()
OPERATIONS = [
    (method.upper(), path, operation["x-scope"])
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
]
GUARDED = [operation for operation in OPERATIONS if operation[2] != OPEN_TO_ALL]
TRICKS = [
    "..",
    "%2e%2e",
    "..%2f..",
    "%00",
    "r%00",
    "r%2f..%2fr",
    "%C3%A9",
    "%F0%9F%92%A7",
    "a" * 5000,
    "%ff",
    "-r",
    "r%0d%0a",
]


def test_every_route_has_a_rule_that_openapi_shows() -> None:
    app = create_app()
    assert [route for route in app.routes if rule_of(route) not in (*SCOPES, OPEN_TO_ALL)] == []
    is_open = {(method, path) for method, path, scope in OPERATIONS if scope == OPEN_TO_ALL}
    assert is_open == {("GET", "/healthz"), ("GET", "/readyz"), ("POST", "/v1/session")}
    for method, path, scope in OPERATIONS:
        security = DOCUMENT["paths"][path][method.lower()]["security"]
        assert security == ([] if scope == OPEN_TO_ALL else [{"bearer": []}])


@pytest.mark.parametrize("path", ["/healthz", "/v1/runs/r", "/v1/runs/r/steps", "/v1/nowhere", "/v1/runs/%00"])
def test_no_answer_may_be_taken_for_anything_but_its_type(api: Served, path: str) -> None:
    for token in ("", None):
        assert api.ask("GET", path, token=token).headers["X-Content-Type-Options"] == "nosniff"


def test_a_route_without_a_rule_is_found() -> None:
    app = FastAPI(openapi_url=None)
    app.add_api_route("/new", lambda: None)
    assert rule_of(app.routes[-1]) is None


def filled(path: str) -> str:
    return re.sub(r"\{[a-z]+\}", "r", path)


@pytest.mark.parametrize("kind", ["none", "garbage", "revoked", "expired", "of another scope"])
def test_no_route_lets_a_wrong_token_pass(api: Served, kind: str) -> None:
    refused = {
        "none": None,
        "garbage": "fr_garbage",
        "revoked": new_token(api.database, SCOPES, is_revoked=True),
        "expired": new_token(api.database, SCOPES, expires_at=time.time() - 1),
    }
    for scope in SCOPES:
        others = [other for other in SCOPES if other != scope]
        token = refused[kind] if kind in refused else new_token(api.database, others)
        for method, path, needed in GUARDED:
            if needed == scope:
                answer = api.ask(method, filled(path), b"{broken" if method != "GET" else None, token=token)
                assert (path, answer.status) == (path, 401 if kind in refused else 403)
                assert answer.headers["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("trick", TRICKS)
def test_names_in_paths_reach_no_file(api: Served, trick: str) -> None:
    for method, path, _ in GUARDED:
        if "{" in path:
            answer = api.ask(method, re.sub(r"\{[a-z]+\}", trick, path))
            assert answer.status in (400, 404, 405, 422), (method, path)
            assert answer.headers["Content-Type"] == "application/problem+json"
