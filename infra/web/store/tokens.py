"""Bearer tokens in SQL: created, found by their secret, listed and revoked.

A secret is 32 random bytes, so nobody can try them all. A plain SHA-256 is therefore as good as a slow hash, which
passwords need because people choose them. Secrets are neither stored nor logged.
"""

import hashlib
import hmac
import secrets
import time
import uuid
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from sqlalchemy import insert, update

from infra.base.errors import ConfigError
from infra.web.store.engine import Database
from infra.web.store.paging import columns, to_row
from infra.web.store.rows import SCOPES, Scope, StoredToken
from infra.web.store.tables import TokenRow
from infra.web.store.values import plain

PREFIX = "fr_"
"""Prefix by which a leaked secret can be found."""
LINK_PREFIX = "fl_"
"""Prefix of the secret in a sign-in link: it begins one session, and is refused as a token."""
SESSION_PREFIX = "fs_"
"""Prefix of the secret of a session, which is in a cookie."""
SECRET_BYTES = 32
LINK_SCOPES: tuple[Scope, ...] = ("read", "control", "predict")
"""What a session that begins with a link may do, unless the link says otherwise."""
LINK_NAME = "sign-in link"
LINK_SECONDS = 900.0
"""How long a sign-in link may be used."""
SESSION_NAME = "dashboard"
SESSION_SECONDS = 12 * 3600.0


def token_hash(secret: str) -> str:
    """Returns what the database stores of a secret: its SHA-256, in hex."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class TokenTable:
    """Bearer tokens. A secret is shown when it is created, and never again."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self, name: str, scopes: Collection[Scope], expires_at: float | None = None, prefix: str = PREFIX
    ) -> tuple[StoredToken, str]:
        """Creates a token; returns it with its secret, ``fr_…``. Raises ConfigError for unknown scopes, or none."""
        wanted = tuple(scope for scope in SCOPES if scope in scopes)
        if not wanted or set(scopes) - set(SCOPES):
            raise ConfigError(
                f"a token cannot have the scopes {sorted(scopes)}; expected one or more of {', '.join(SCOPES)}; "
                "correct them"
            )
        secret = prefix + secrets.token_urlsafe(SECRET_BYTES)
        new = StoredToken(uuid.uuid4().hex[:12], plain(name), wanted, time.time(), expires_at, None)
        values = vars(new) | {"scopes": list(wanted), "hash": token_hash(secret)}
        async with self._database.writing() as connection:
            await connection.execute(insert(TokenRow).values(values))
        return new, secret

    async def create_link(self, scopes: Collection[Scope]) -> str:
        """Creates the secret of a sign-in link, ``fl_…``, for a session with these scopes."""
        _, secret = await self.create(LINK_NAME, scopes, time.time() + LINK_SECONDS, LINK_PREFIX)
        return secret

    async def begin_session(self, link: str) -> tuple[StoredToken, str] | None:
        """Exchanges the secret of a sign-in link for a session; None if the link is unknown, used or too old.

        The link is marked as used in the same statement that checks it, so two requests never get two sessions.
        """
        if not link.startswith(LINK_PREFIX):
            return None
        is_usable = (
            TokenRow.hash == token_hash(link),
            TokenRow.revoked_at.is_(None),
            TokenRow.expires_at > time.time(),
        )
        used = update(TokenRow).where(*is_usable).values(revoked_at=time.time()).returning(TokenRow.scopes)
        async with self._database.writing() as connection:
            scopes: Any = (await connection.execute(used)).scalar_one_or_none()
        if scopes is None:
            return None
        return await self.create(SESSION_NAME, scopes, time.time() + SESSION_SECONDS, SESSION_PREFIX)

    async def find(self, secret: str) -> StoredToken | None:
        """Returns the token with this secret, valid or not (``is_valid``); None if there is none."""
        wanted = token_hash(secret)
        query = columns(StoredToken, TokenRow).add_columns(TokenRow.hash).where(TokenRow.hash == wanted)
        async with self._database.reading() as connection:
            found = (await connection.execute(query)).one_or_none()
        if found is None or not hmac.compare_digest(found.hash, wanted):
            return None
        *values, _ = found
        token = StoredToken(*values)
        return replace(token, scopes=tuple(token.scopes))

    async def list(self) -> tuple[StoredToken, ...]:
        """Lists all tokens, oldest first, including revoked and expired ones."""
        query = columns(StoredToken, TokenRow).order_by(TokenRow.created_at, TokenRow.id)
        async with self._database.reading() as connection:
            return tuple(to_row(StoredToken, row) for row in await connection.execute(query))

    async def revoke(self, token_id: str) -> StoredToken | None:
        """Revokes a token, unless it is already revoked; returns None if there is none with that id."""
        async with self._database.writing() as connection:
            await connection.execute(
                update(TokenRow)
                .where(TokenRow.id == token_id, TokenRow.revoked_at.is_(None))
                .values(revoked_at=time.time())
            )
            query = columns(StoredToken, TokenRow).where(TokenRow.id == token_id)
            found = (await connection.execute(query)).one_or_none()
        return None if found is None else to_row(StoredToken, found)
