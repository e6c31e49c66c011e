"""The database of a process that checks tokens and audits; ``api.store.store`` adds runs and commands.

    store = await AccessStore.open("sqlite:///runs/freshet.db")
    store.tokens     create, find, list, revoke
    store.audit      add, list

Every method raises ``DatabaseAway`` when the database cannot be reached, is locked for too long, or is full, and
``BadPageToken`` for an ``after`` that no page returned. The driver is added to a plain ``sqlite:`` or ``postgresql:``
URL.
"""

import asyncio
from collections.abc import Collection
from typing import Self

from sqlalchemy import select

from infra.web.store.audit import AuditTrail
from infra.web.store.engine import Database, migrate
from infra.web.store.rows import Scope
from infra.web.store.tokens import TokenTable


class AccessStore:
    """A database with the newest schema."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.tokens = TokenTable(database)
        self.audit = AuditTrail(database)

    @classmethod
    async def open(cls, url: str) -> Self:
        """Creates the database at a URL if necessary, migrates it, and connects to it; raises DatabaseAway."""
        await asyncio.to_thread(migrate, url)
        return cls(Database(url))

    async def close(self) -> None:
        """Closes all connections."""
        await self.database.close()

    async def check(self) -> None:
        """Checks that the database answers; raises DatabaseAway."""
        async with self.database.reading() as connection:
            await connection.execute(select(1))


async def make_token(url: str, name: str, scopes: Collection[Scope]) -> str:
    """Makes a new token in the database at a URL and returns its secret; raises DatabaseAway."""
    store = await AccessStore.open(url)
    try:
        _, secret = await store.tokens.create(name, scopes)
        return secret
    finally:
        await store.close()
