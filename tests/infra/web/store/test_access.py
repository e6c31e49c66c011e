"""Tokens and the audit trail, in real databases."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from infra.base.errors import ConfigError
from infra.web.errors import BadPageToken
from infra.web.store.access import AccessStore
from infra.web.store.rows import NewAudit


def on(url: str, ask: Callable[[AccessStore], Awaitable[None]]) -> None:
    async def run() -> None:
        store = await AccessStore.open(url)
        try:
            await ask(store)
        finally:
            await store.close()

    asyncio.run(run())


def test_a_token_is_found_by_its_secret_and_the_database_has_no_secret(database: str) -> None:
    async def ask(store: AccessStore) -> None:
        token, secret = await store.tokens.create("ann", ["control", "read"], expires_at=2e9)
        assert secret.startswith("fr_")
        assert await store.tokens.find(secret) == token
        assert (token.scopes, token.is_valid(1.9e9), token.is_valid(2e9)) == (("read", "control"), True, False)
        assert await store.tokens.find(secret + "x") is None
        assert secret not in repr(await store.tokens.list())
        revoked = await store.tokens.revoke(token.id)
        assert revoked is not None
        assert not revoked.is_valid(0.0)
        assert await store.tokens.revoke("none") is None
        with pytest.raises(ConfigError, match="expected one or more of read"):
            await store.tokens.create("ann", [])

    on(database, ask)


def test_the_audit_trail_is_read_newest_first_in_pages(database: str) -> None:
    async def ask(store: AccessStore) -> None:
        for number in range(5):
            await store.audit.add(NewAudit("ann", f"POST {number}", 202, run="run", detail={"n": float("nan")}))
        first = await store.audit.list(limit=3)
        rest = await store.audit.list(first.next, 3, run="run")
        assert [one.action[-1] for one in (*first.rows, *rest.rows)] == ["4", "3", "2", "1", "0"]
        assert rest.rows[0].detail == {"n": None}

    on(database, ask)


@pytest.mark.parametrize("cursor", ["", "x", "W10", "WyJhIl0", "é", "WzFlOTldQQ"])
def test_a_cursor_that_no_page_gave_is_refused(database: str, cursor: str) -> None:
    async def ask(store: AccessStore) -> None:
        with pytest.raises(BadPageToken):
            await store.audit.list(cursor)

    on(database, ask)
