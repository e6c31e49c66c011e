"""Statements on SQLite: how often its thread is visited, and what a transaction sees."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

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


def test_a_read_waits_for_its_statement_alone(tmp_path: Path, visits: list[Any]) -> None:
    async def read() -> None:
        store = await AccessStore.open(f"sqlite:///{tmp_path / 'freshet.db'}")
        await store.check()
        visits.clear()
        assert await store.tokens.list() == ()
        assert len(visits) == 1
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


def test_a_transaction_that_is_rolled_back_has_changed_nothing_when_it_ends(tmp_path: Path) -> None:
    file = tmp_path / "some.db"
    with sqlite3.connect(file) as other:
        other.executescript("PRAGMA journal_mode=WAL; CREATE TABLE t (n NOT NULL);")

    async def write() -> None:
        database = Database(f"sqlite:///{file}")
        with pytest.raises(IntegrityError):
            async with database.writing() as connection:
                await connection.execute(text("INSERT INTO t VALUES (1), (NULL)"))
        other.execute("INSERT INTO t VALUES (2)")  # the lock is free
        other.commit()
        async with database.reading() as connection:
            assert (await connection.scalars(text("SELECT n FROM t"))).all() == [2]
        await database.close()

    asyncio.run(write())
    other.close()
