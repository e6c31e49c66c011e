"""Signing in to the page, and what a session may and may not do."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from infra.web.store.access import AccessStore
from infra.web.store.rows import Scope
from tests.api.serving import Answered, Served, new_token, until

PAGE = {"X_Freshet_Page": "1"}


def new_link(api: Served, *scopes: Scope) -> str:
    async def make() -> str:
        store = await AccessStore.open(api.database)
        try:
            return await store.tokens.create_link(scopes)
        finally:
            await store.close()

    return asyncio.run(make())


def sign_in(api: Served, secret: str) -> Answered:
    return api.ask("POST", "/v1/session", {"secret": secret}, token=None)


def cookie_of(answer: Answered) -> str:
    return str(answer.headers["Set-Cookie"]).partition(";")[0]


def test_a_link_begins_one_session_with_its_scopes(api: Served) -> None:
    link = new_link(api, "read")
    begun = sign_in(api, link)
    assert (begun.status, begun.json["name"], begun.json["scopes"]) == (200, "dashboard", ["read"])
    parts = {part.strip() for part in begun.headers["Set-Cookie"].split(";")}
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= parts
    assert api.ask("GET", "/v1/runs/r", token=None, Cookie=cookie_of(begun)).status == 200
    again = sign_in(api, link)
    assert (again.status, again.headers["Set-Cookie"]) == (401, None)
    assert "used before or is too old" in again.json["detail"]


def test_a_link_that_many_use_at_once_begins_one_session(api: Served) -> None:
    link = new_link(api, "read")
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda _: sign_in(api, link).status, range(8)))
    assert sorted(statuses) == [200] + [401] * 7


def test_a_link_is_no_token(api: Served) -> None:
    assert api.ask("GET", "/v1/runs", token=new_link(api, "read")).status == 401


def test_a_link_that_is_too_old_begins_nothing(api: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.web.store.tokens.LINK_SECONDS", -1.0)
    assert sign_in(api, new_link(api, "read")).status == 401


def test_a_token_signs_in_too_and_a_wrong_one_does_not(api: Served) -> None:
    begun = sign_in(api, api.token)
    assert (begun.status, api.ask("GET", "/v1/runs", token=None, Cookie=cookie_of(begun)).status) == (200, 200)
    for wrong in ("fr_wrong", "fl_wrong", "fs_wrong"):
        assert sign_in(api, wrong).status == 401


def test_a_change_with_a_cookie_needs_the_header_of_our_page(api: Served) -> None:
    cookie = cookie_of(sign_in(api, new_link(api, "read", "control")))
    foreign = api.ask("POST", "/v1/runs/r/pause", token=None, Cookie=cookie)
    assert (foreign.status, "without the header x-freshet-page" in foreign.json["detail"]) == (403, True)
    ours = api.ask("POST", "/v1/runs/r/pause", token=None, Cookie=cookie, **PAGE)
    assert ours.status == 200


def test_a_session_that_reads_changes_nothing(api: Served) -> None:
    cookie = cookie_of(sign_in(api, new_link(api, "read")))
    assert api.ask("POST", "/v1/runs/r/pause", token=None, Cookie=cookie, **PAGE).status == 403


def test_signing_out_ends_a_session_for_good_but_not_a_token(api: Served) -> None:
    token = new_token(api.database, ["read"])
    for secret, status in ((new_link(api, "read"), 401), (token, 200)):
        cookie = cookie_of(sign_in(api, secret))
        assert api.ask("DELETE", "/v1/session", token=None, Cookie=cookie, **PAGE).status == 204
        until_looked_up(api, cookie, status)


def until_looked_up(api: Served, cookie: str, status: int) -> None:
    """Waits until the cache has looked the session up again."""
    until(lambda: api.ask("GET", "/v1/runs", token=None, Cookie=cookie).status == status)


def test_who_is_signed_in_is_told(api: Served) -> None:
    told = api.get("/v1/session")
    assert (told.status, told.json["scopes"]) == (200, ["read", "control", "predict", "ingest"])


def test_signing_in_is_on_record_with_the_name_of_the_session(api: Served) -> None:
    begun = sign_in(api, new_link(api, "read"))
    assert begun.status == 200
    entries = api.get("/v1/audit?limit=20").json["items"]
    newest = next(entry for entry in entries if entry["action"] == "POST /v1/session")
    assert (newest["actor"], newest["status"], bool(newest["token"])) == ("dashboard", 200, True)
