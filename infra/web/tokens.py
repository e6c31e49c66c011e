"""Checks the bearer tokens of requests and caches them in memory for a while; they are made and stored in ``store``.

A token that was checked in the last two seconds is not looked up again, so a revoked token is refused after two seconds
at most. While the database is unreachable, tokens that were seen before keep their last result, and unknown ones cannot
be checked. After a failed lookup there is none for two seconds; requests that are refused meanwhile do not extend this
time.

Unknown secrets cost little: one that was looked up in vain is not looked up again for two seconds, and only a few are
looked up at a time, so that clients with a token do not wait behind them.
"""

import asyncio
import math
import shlex
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from hmac import compare_digest
from pathlib import Path
from time import monotonic, time

from infra.web.errors import DatabaseAway, Unauthorized
from infra.web.store.rows import StoredToken
from infra.web.store.tokens import LINK_PREFIX, TokenTable, token_hash

FRESH_SECONDS = 2.0
"""Time after which a token is looked up again."""
LOOKUP_SECONDS = 2.0
"""How long a lookup may take."""
AWAY_SECONDS = 2.0
"""Time for which a database that did not answer is not asked again."""
MOST_KEPT = 10_000
"""Most tokens that are cached, and most unknown secrets."""
MOST_STRANGERS = 4
"""Most unseen secrets that are looked up at a time."""
LONGEST = 200
"""Most characters in a secret."""


@dataclass(frozen=True)
class Seen:
    """A token as it was in the database."""

    digest: str
    token: StoredToken
    at: float
    """When it was looked up, by the cache's clock."""


class TokenCache:
    """Finds the token that a secret belongs to."""

    def __init__(self, table: TokenTable, clock: Callable[[], float] = monotonic) -> None:
        self._table = table
        self._clock = clock
        self._seen: dict[str, Seen] = {}
        self._refused: dict[str, float] = {}
        """Digests of secrets that belong to no token, and when that was found, by the cache's clock."""
        self._strangers = asyncio.Semaphore(MOST_STRANGERS)
        self._asks_again_at = -math.inf
        """The time, by the cache's clock, before which the database is not asked again."""

    def known(self, secret: str) -> str | None:
        """Returns the id of the token with this secret if it was valid when it was last looked up, otherwise None."""
        seen = self._get(secret)
        return seen.token.id if seen is not None and seen.token.is_valid(time()) else None

    async def check(self, secret: str) -> StoredToken:
        """Returns the token of a secret.

        Raises Unauthorized if the secret belongs to no valid token, and DatabaseAway if that cannot be checked now.
        """
        is_usable = len(secret) <= LONGEST and not secret.startswith(LINK_PREFIX)  # a link only begins a session
        token = await self._find(secret) if is_usable else None
        if token is None or not token.is_valid(time()):
            raise Unauthorized("the token is not valid here; expected one that is in the database of this server")
        return token

    async def _find(self, secret: str) -> StoredToken | None:
        seen = self._get(secret)
        now = self._clock()
        if seen is not None and now - seen.at < FRESH_SECONDS:
            return seen.token
        if now - self._refused.get(token_hash(secret), -math.inf) < FRESH_SECONDS:
            return None
        if now < self._asks_again_at:
            return self._unchecked(seen)
        try:
            async with nullcontext() if seen is not None else self._strangers:
                token = await asyncio.wait_for(self._table.find(secret), LOOKUP_SECONDS)
        except (DatabaseAway, TimeoutError):
            self._asks_again_at = self._clock() + AWAY_SECONDS
            return self._unchecked(seen)
        self._keep(secret, token, now)
        return token

    def _unchecked(self, seen: Seen | None) -> StoredToken:
        """Returns a token while the database is unreachable; raises DatabaseAway for one that has not been seen."""
        if seen is None:
            raise DatabaseAway("the token cannot be checked: the database is away; try again later")
        return seen.token

    def _get(self, secret: str) -> Seen | None:
        digest = token_hash(secret[:LONGEST])
        seen = self._seen.get(digest)
        return seen if seen is not None and compare_digest(seen.digest, digest) else None

    def _keep(self, secret: str, token: StoredToken | None, now: float) -> None:
        digest = token_hash(secret)
        self._seen.pop(digest, None)
        self._refused.pop(digest, None)
        if token is not None:
            self._seen[digest] = Seen(digest, token, now)
        else:
            self._refused[digest] = now
        for kept in (self._seen, self._refused):
            if len(kept) > MOST_KEPT:
                del kept[next(iter(kept))]


def token_command(folder: Path | None) -> str:
    """Returns the command that makes a token for the process whose address is in this folder, without the scope."""
    of_run = "" if folder is None else f" --run {shlex.quote(str(folder.absolute()))}"
    return f"freshet token create --name NAME{of_run}"
