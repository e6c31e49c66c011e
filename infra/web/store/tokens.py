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

from sqlalchemy import insert, update

from infra.base.errors import ConfigError
from infra.web.store.engine import Database
from infra.web.store.paging import columns, to_row
from infra.web.store.rows import SCOPES, Scope, StoredToken
from infra.web.store.tables import TokenRow
from infra.web.store.values import plain

PREFIX = "fr_"
"""Prefix by which a leaked secret can be found."""
SECRET_BYTES = 32


def token_hash(secret: str) -> str:
    """Returns what the database stores of a secret: its SHA-256, in hex."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


class TokenTable:
    """Bearer tokens. A secret is shown when it is created, and never again."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create(
        self, name: str, scopes: Collection[Scope], expires_at: float | None = None
    ) -> tuple[StoredToken, str]:
        """Creates a token; returns it with its secret, ``fr_…``. Raises ConfigError for unknown scopes, or none."""
        wanted = tuple(scope for scope in SCOPES if scope in scopes)
        if not wanted or set(scopes) - set(SCOPES):
            raise ConfigError(
                f"a token cannot have the scopes {sorted(scopes)}; expected one or more of {', '.join(SCOPES)}; "
                "correct them"
            )
        secret = PREFIX + secrets.token_urlsafe(SECRET_BYTES)
        new = StoredToken(uuid.uuid4().hex[:12], plain(name), wanted, time.time(), expires_at, None)
        values = vars(new) | {"scopes": list(wanted), "hash": token_hash(secret)}
        async with self._database.writing() as connection:
            await connection.execute(insert(TokenRow).values(values))
        return new, secret

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
