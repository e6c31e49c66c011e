"""The only thing the rest of the control plane sees of SQL.

    store = await SqlStore.open("sqlite:///runs/freshet.db")
    store.runs       see, cursor, projected, project, get, list, and the history: generations, alpha_changes,
                     checkpoints, faults, events, steps
    store.commands   submit, pending, settle, get, list
    store.tokens     create, find, list, revoke
    store.audit      add, list

Every method raises ``DatabaseAway`` when the database cannot be reached, is locked for too long, or is full; BadCursor
for an ``after`` that no page gave. The driver is added to a plain ``sqlite:`` or ``postgresql:`` URL.
"""

import asyncio
from typing import Self

from sqlalchemy import select

from api.store.audit import AuditTrail
from api.store.commands import CommandTable
from api.store.engine import Database, migrate
from api.store.reads import RunTables
from api.store.retention import Retention, prune
from api.store.tokens import TokenTable


class SqlStore:
    """A database of the newest schema."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.runs = RunTables(database)
        self.commands = CommandTable(database)
        self.tokens = TokenTable(database)
        self.audit = AuditTrail(database)

    @classmethod
    async def open(cls, url: str) -> Self:
        """Migrates the database at a URL, which it makes if need be, and connects to it; raises DatabaseAway."""
        await asyncio.to_thread(migrate, url)
        return cls(Database(url))

    async def close(self) -> None:
        """Ends all connections."""
        await self.database.close()

    async def check(self) -> None:
        """Asks the database for an answer, for /readyz; raises DatabaseAway."""
        async with self.database.reading() as connection:
            await connection.execute(select(1))

    async def prune(self, retention: Retention) -> int:
        """Removes what need not be kept, in small transactions; returns the number of rows."""
        return await prune(self.database, retention)
