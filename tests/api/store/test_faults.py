"""Databases that are killed, full, locked or not there."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from api.store.store import SqlStore
from infra.web.errors import DatabaseAway
from infra.web.store import engine
from infra.web.store.rows import NewAudit
from tests.api.store import journals
from tests.api.store.journals import Frame, page, trained
from tests.databases import PostgresServer, resume, running_postgres, suspend
from tests.disks import fill, small_disk

FRAMES: list[Frame] = [[journals.begun()], *trained(1, 50)]


async def read_all(store: SqlStore) -> tuple[int, int]:
    """The cursor, and how many steps there are."""
    return await store.runs.cursor("run"), sum(point.steps for point in await store.runs.steps("run"))


def test_a_postgres_killed_in_the_middle_of_a_projection_loses_and_doubles_nothing() -> None:
    async def run(server: PostgresServer) -> None:
        store = await SqlStore.open(server.url())
        await store.runs.project("run", page(FRAMES, 0, 41))
        with pytest.raises(DatabaseAway):
            await kill_inside(store, server)
        with pytest.raises(DatabaseAway, match="does not answer"):
            await store.check()
        server.start()
        assert await read_all(store) == (41, 20)
        await store.runs.project("run", page(FRAMES, 41))
        assert await read_all(store) == (101, 50)
        await store.close()

    with running_postgres() as server:
        asyncio.run(run(server))


async def kill_inside(store: SqlStore, server: PostgresServer) -> None:
    """Projects a page, and kills the server before the transaction ends."""
    from api.store.projection import project

    async with store.database.writing() as connection:
        await project(connection, "run", page(FRAMES, 41))
        server.kill()


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_postgres_that_stops_inside_a_transaction_holds_nobody_up_for_long(
    is_cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connections stay open and nothing comes from them; so do those that are opened meanwhile."""
    monkeypatch.setattr(engine, "COMMAND_SECONDS", 0.2)
    monkeypatch.setattr(engine, "CONNECT_SECONDS", 0.2)
    monkeypatch.setattr(engine.new_engine, "__defaults__", (0.1,))

    async def run(server: PostgresServer) -> None:
        store = await SqlStore.open(server.url())
        entering = asyncio.Event()
        transaction = asyncio.create_task(stop_inside(store, server, entering))
        await entering.wait()
        if is_cancelled:  # by a client that has gone
            await asyncio.sleep(0)
            transaction.cancel()
        (ended,) = await asyncio.gather(transaction, return_exceptions=True)
        assert isinstance(ended, asyncio.CancelledError if is_cancelled else DatabaseAway)
        for _ in range(2):  # on the same connection, and on another one
            with pytest.raises(DatabaseAway, match="does not answer"):
                await store.check()
        statuses = {process.status() for process in server.processes()}
        assert statuses - {psutil.STATUS_ZOMBIE} == {psutil.STATUS_STOPPED}  # a stopped server buries no child
        resume(server.processes())
        await store.audit.add(NewAudit("ann", "x", 200))
        await store.close()

    with running_postgres() as server:
        asyncio.run(run(server))


def test_a_postgres_may_take_longer_for_a_first_connection_than_for_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CONNECT_SECONDS", 0.1)
    monkeypatch.setattr(engine, "FIRST_CONNECT_SECONDS", 3600.0)

    async def run(server: PostgresServer) -> None:
        store = SqlStore(engine.Database(server.url()))
        suspend(processes := server.processes())
        first = asyncio.create_task(store.check())
        done, _ = await asyncio.wait([first], timeout=1.0)  # in which one with the limit of later ones would fail
        assert not done
        resume(processes)
        await first
        async with store.database.reading():  # the second connection is another one
            suspend(processes := server.processes())
            with pytest.raises(DatabaseAway, match="does not answer"):
                await store.check()
            resume(processes)
        await store.close()

    with running_postgres() as server:
        asyncio.run(run(server))


async def stop_inside(store: SqlStore, server: PostgresServer, entering: asyncio.Event) -> None:
    async with store.database.writing() as connection:
        await connection.execute(text("SELECT 1"))
        suspend(server.processes())
        entering.set()
        await connection.execute(text("SELECT 2"))


async def write_much(store: SqlStore) -> None:
    for _ in range(1000):
        await store.audit.add(NewAudit("ann", "x" * 10_000, 200))


def test_a_full_disk_loses_nothing_and_is_told(tmp_path: Path) -> None:
    async def run(disk: Path) -> None:
        store = await SqlStore.open(f"sqlite:///{disk / 'freshet.db'}")
        await store.runs.project("run", page(FRAMES, 0, 41))
        filling = fill(disk)
        with pytest.raises(DatabaseAway, match=r"full|disk I/O error"):
            await write_much(store)
        assert await read_all(store) == (41, 20)
        filling.unlink()
        await store.runs.project("run", page(FRAMES, 41))
        assert await read_all(store) == (101, 50)
        await store.close()

    with small_disk(tmp_path / "disk", 2000) as disk:
        asyncio.run(run(disk))


def test_a_locked_database_can_be_read_and_is_told_to_who_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        store = await SqlStore.open(f"sqlite:///{tmp_path / 'freshet.db'}")
        other = sqlite3.connect(tmp_path / "freshet.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert await store.runs.cursor("run") == 0
        with pytest.raises(DatabaseAway, match="database is locked"):
            await store.audit.add(NewAudit("ann", "x", 200))
        other.execute("COMMIT")
        other.close()
        await store.audit.add(NewAudit("ann", "x", 200))
        await store.close()

    monkeypatch.setattr(engine.new_engine, "__defaults__", (0.05,))
    asyncio.run(run())


def test_a_connection_that_the_driver_gives_up_is_told_as_away_and_not_used_again(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = postgres.new_database()
    broken: list[asyncpg.Connection] = []
    prepare = asyncpg.Connection.prepare

    async def fail_once(connection: asyncpg.Connection, *given: Any, **named: Any) -> Any:
        if not broken:
            broken.append(connection)
            raise asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")
        assert connection is not broken[0]
        return await prepare(connection, *given, **named)

    async def run() -> None:
        store = await SqlStore.open(database)
        with monkeypatch.context() as patched:
            patched.setattr(asyncpg.Connection, "prepare", fail_once)
            with pytest.raises(DatabaseAway, match="another operation"):
                await store.runs.cursor("run")
            assert await store.runs.cursor("run") == 0
        await store.close()

    asyncio.run(run())
    assert len(broken) == 1


@pytest.mark.parametrize("url", ["postgresql://ann:secret@127.0.0.1:1/x", "sqlite:////proc/no/freshet.db"])
def test_a_database_that_is_not_there_is_told_without_its_password(url: str) -> None:
    with pytest.raises(DatabaseAway) as raised:
        asyncio.run(SqlStore.open(url))
    assert "secret" not in str(raised.value)


def test_a_mistake_of_ours_is_not_taken_for_a_database_that_is_away(database: str) -> None:
    async def run() -> None:
        store = await SqlStore.open(database)
        try:
            await store.audit.add(NewAudit(None, "x", 200))  # type: ignore[arg-type]
        finally:
            await store.close()

    with pytest.raises(DBAPIError, match=r"(?i)null"):
        asyncio.run(run())
