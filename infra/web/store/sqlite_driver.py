"""Connections to SQLite that visit their thread once for a statement and its rows; no pools and no SQL of ours.

SQLite is called in a thread for each connection, because it may wait for a lock or the disk. aiosqlite goes there for
the cursor, the statement, its rows and the end of the cursor, one after the other, and on a machine that trains each
visit waits for a processor twice. Here it is one visit. The BEGIN of a transaction that reads, which takes no lock,
goes along with the first statement, and nobody waits for its end.
"""

import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any, Self

import aiosqlite

BEGIN = "BEGIN"
"""Begins a transaction that takes no lock before its first statement."""
CHUNK_ROWS = 64
"""Rows that aiosqlite's own cursors fetch at once."""


class JoinedConnection(aiosqlite.Connection):
    """A connection with the cursors that SQLAlchemy uses."""

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, CHUNK_ROWS)
        self._thread.daemon = True  # as SQLAlchemy sets it for connections of its own making
        self.is_to_begin = False
        """Whether the next statement is the first of a transaction."""
        self.is_reading = False
        """Whether the transaction only reads."""

    def cursor(self) -> "JoinedCursor":  # type: ignore[override]
        return JoinedCursor(self)

    async def visit(self, work: Callable[..., None], *arguments: Any) -> None:
        """Calls a function in the thread of the connection."""
        await self._execute(work, self._conn, *arguments)  # type: ignore[no-untyped-call]

    async def rollback(self) -> None:
        """Ends a transaction without changes. Of one that reads nothing can be lost, so its end is not waited for."""
        if self.is_to_begin:
            self.is_to_begin = False
        elif self.is_reading:
            self._tx.put_nowait((None, self._conn.rollback))
        else:
            await super().rollback()
        self.is_reading = False


class JoinedCursor:
    """One statement, with all rows of its answer."""

    def __init__(self, connection: JoinedConnection) -> None:
        self._connection = connection
        self._rows = list[Any]()
        self.description: Any = None
        self.rowcount = -1
        self.lastrowid: int | None = None
        self.arraysize = 1

    async def __aenter__(self) -> Self:
        return self

    async def execute(self, statement: str, parameters: Any = ()) -> None:
        if statement == BEGIN:
            self._connection.is_to_begin = True
            self._connection.is_reading = True
        else:
            await self._connection.visit(self._run, sqlite3.Cursor.execute, statement, parameters)

    async def executemany(self, statement: str, parameters: Any) -> None:
        await self._connection.visit(self._run, sqlite3.Cursor.executemany, statement, parameters)

    async def fetchall(self) -> list[Any]:
        return self._rows

    async def close(self) -> None:
        """Does nothing: the cursor of SQLite was closed when it had given all rows."""

    def _run(self, connection: sqlite3.Connection, method: Callable[..., Any], statement: str, parameters: Any) -> None:
        """In the thread: runs the statement, and keeps what it answers."""
        cursor = connection.cursor()
        try:
            if self._connection.is_to_begin:
                self._connection.is_to_begin = False
                cursor.execute(BEGIN)
            method(cursor, statement, parameters)
            self.description = cursor.description
            self.rowcount = cursor.rowcount
            self.lastrowid = cursor.lastrowid
            self._rows = cursor.fetchall()
        finally:
            cursor.close()


def connect(database: str, **arguments: Any) -> JoinedConnection:
    """Returns a connection that is opened when it is awaited; the arguments are those of ``sqlite3.connect``."""
    return JoinedConnection(partial(sqlite3.connect, database, **arguments))
