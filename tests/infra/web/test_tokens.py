"""The cache of tokens, on a clock of its own: how often it asks the database, and how long a failure lasts."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from infra.web.errors import DatabaseAway, Unauthorized
from infra.web.store.access import AccessStore
from infra.web.store.rows import StoredToken
from infra.web.tokens import AWAY_SECONDS, FRESH_SECONDS, MOST_STRANGERS, Seen, TokenCache

ANN = StoredToken("1", "ann", ("read",), created_at=0.0, expires_at=None, revoked_at=None)


class ScriptedTokens:
    """A table of tokens that fails when it is told to, and counts who asked when."""

    def __init__(self) -> None:
        self.now = 100.0
        self.tokens = {"fr_ann": ANN}
        self.is_away = False
        self.asked: list[tuple[float, str]] = []

    async def find(self, secret: str) -> StoredToken | None:
        self.asked.append((self.now, secret))
        if self.is_away:
            raise DatabaseAway("away")
        return self.tokens.get(secret)


@pytest.fixture
def tokens() -> ScriptedTokens:
    return ScriptedTokens()


@pytest.fixture
def cache(tokens: ScriptedTokens) -> TokenCache:
    return TokenCache(tokens, lambda: tokens.now)  # type: ignore[arg-type]


def outcome(check: Awaitable[StoredToken]) -> str:
    async def wait() -> StoredToken:
        return await check

    try:
        return asyncio.run(wait()).name
    except (DatabaseAway, Unauthorized) as error:
        return type(error).__name__


def ask_every_half_second(tokens: ScriptedTokens, seconds: float, ask: Callable[[], str]) -> list[str]:
    """What is answered at the beginning, every half second, and at the end."""
    began, answers = tokens.now, []
    for half in range(int(2 * seconds) + 1):
        tokens.now = began + half / 2
        answers.append(ask())
    return answers


def test_a_database_that_failed_once_is_asked_again_after_the_pause_however_often_one_asks(
    tokens: ScriptedTokens, cache: TokenCache
) -> None:
    tokens.is_away = True

    def ask() -> str:
        answer = outcome(cache.check("fr_ann"))
        tokens.is_away = False
        return answer

    assert ask_every_half_second(tokens, AWAY_SECONDS, ask) == ["DatabaseAway"] * 4 + ["ann"]
    assert [at for at, _ in tokens.asked] == [100.0, 100.0 + AWAY_SECONDS]


def test_a_revoked_token_is_refused_after_the_pause_though_unknown_secrets_come_all_the_time(
    tokens: ScriptedTokens, cache: TokenCache
) -> None:
    assert outcome(cache.check("fr_ann")) == "ann"
    tokens.tokens["fr_ann"] = StoredToken("1", "ann", ("read",), 0.0, None, revoked_at=time.time())
    tokens.now += FRESH_SECONDS
    tokens.is_away = True
    assert outcome(cache.check("fr_garbage")) == "DatabaseAway"
    tokens.is_away = False

    def ask() -> str:
        outcome(cache.check("fr_garbage"))
        return outcome(cache.check("fr_ann"))

    assert ask_every_half_second(tokens, AWAY_SECONDS, ask) == ["ann"] * 4 + ["Unauthorized"]


def test_the_pause_begins_when_a_lookup_fails_and_not_when_it_was_begun(
    tokens: ScriptedTokens, cache: TokenCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(secret: str) -> StoredToken | None:
        tokens.now += 5.0
        raise DatabaseAway("away")

    with monkeypatch.context() as patched:
        patched.setattr(tokens, "find", hang)
        assert outcome(cache.check("fr_ann")) == "DatabaseAway"
    tokens.now += AWAY_SECONDS / 2
    assert (outcome(cache.check("fr_ann")), tokens.asked) == ("DatabaseAway", [])


def test_a_secret_that_is_no_tokens_is_looked_up_once_in_two_seconds(tokens: ScriptedTokens, cache: TokenCache) -> None:
    answers = ask_every_half_second(tokens, 2 * FRESH_SECONDS, lambda: outcome(cache.check("fr_bob")))
    assert set(answers) == {"Unauthorized"}
    assert [at for at, _ in tokens.asked] == [100.0, 100.0 + FRESH_SECONDS, 100.0 + 2 * FRESH_SECONDS]


def test_a_token_that_is_known_waits_behind_no_secret_that_is_not(tokens: ScriptedTokens, cache: TokenCache) -> None:
    assert outcome(cache.check("fr_ann")) == "ann"
    tokens.now += FRESH_SECONDS
    find, most = tokens.find, 0

    async def use() -> None:
        nonlocal most
        answers, looking = asyncio.Event(), 0

        async def held(secret: str) -> StoredToken | None:
            nonlocal looking, most
            looking += 1
            most = max(most, looking)
            if secret != "fr_ann":
                await answers.wait()
            looking -= 1
            return await find(secret)

        tokens.find = held  # type: ignore[method-assign]
        strangers = [asyncio.create_task(cache.check(f"fr_{number}")) for number in range(50)]
        assert (await cache.check("fr_ann")).name == "ann"
        answers.set()
        refused = await asyncio.gather(*strangers, return_exceptions=True)
        assert all(isinstance(each, Unauthorized) for each in refused)

    asyncio.run(use())
    assert most <= MOST_STRANGERS + 1


def test_a_revoked_token_is_refused_soon_and_a_known_one_outlives_the_database(tmp_path: Path) -> None:
    async def check() -> None:
        store = await AccessStore.open(f"sqlite:///{tmp_path / 'freshet.db'}")
        token, secret = await store.tokens.create("ann", ["read"])
        cache = TokenCache(store.tokens)
        assert (await cache.check(secret)).id == token.id
        await store.tokens.revoke(token.id)
        cache._seen = {digest: _aged(seen) for digest, seen in cache._seen.items()}
        with pytest.raises(Unauthorized):
            await cache.check(secret)
        _, other = await store.tokens.create("bob", ["read"])
        await cache.check(other)
        cache._seen = {digest: _aged(seen) for digest, seen in cache._seen.items()}
        cache._table.find = _away  # type: ignore[method-assign]
        assert (await cache.check(other)).name == "bob"
        with pytest.raises(DatabaseAway):
            await cache.check("fr_unknown")
        await store.close()

    asyncio.run(check())


def _aged(seen: Seen) -> Seen:
    return replace(seen, at=seen.at - 60)


async def _away(secret: str) -> None:
    raise DatabaseAway("away")
