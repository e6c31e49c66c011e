"""Statements on SQLite: how often its thread is visited, and what a transaction sees."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from infra.web.store.access import AccessStore
from infra.web.store.engine import Database
from infra.web.store.sqlite_driver import JoinedConnection


@pytest.fixture
def visits(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the threads of connections are asked to do."""
    made: list[Any] = []
    plain: Any = JoinedConnection._execute

    async def counted(self: JoinedConnection, work: Any, *arguments: Any, **named: Any) -> Any:
        made.append(work)
        return await plain(self, work, *arguments, **named)

    monkeypatch.setattr(JoinedConnection, "_execute", counted)
    return made


def test_a_read_is_two_visits_its_statement_and_the_end(tmp_path: Path, visits: list[Any]) -> None:
    async def read() -> None:
        store = await AccessStore.open(f"sqlite:///{tmp_path / 'freshet.db'}")
        await store.check()
        visits.clear()
        assert await store.tokens.list() == ()
        assert len(visits) == 2
        await store.close()

    asyncio.run(read())


def test_a_transaction_that_reads_sees_one_moment(tmp_path: Path) -> None:
    file = tmp_path / "some.db"
    with sqlite3.connect(file) as other:
        other.executescript("PRAGMA journal_mode=WAL; CREATE TABLE t (n); INSERT INTO t VALUES (1);")

    async def read() -> list[Any]:
        database = Database(f"sqlite:///{file}")
        counted = text("SELECT count(*) FROM t")
        async with database.reading() as connection:
            before = await connection.scalar(counted)
            other.execute("INSERT INTO t VALUES (2)")
            other.commit()
            within = await connection.scalar(counted)
        async with database.reading() as connection:
            after = await connection.scalar(counted)
        await database.close()
        return [before, within, after]

    assert asyncio.run(read()) == [1, 1, 2]
    other.close()
