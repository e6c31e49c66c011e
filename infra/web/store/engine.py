"""Connections to the database, its migrations, and the meaning of its errors; no tables and no queries.

A SQLite file is in WAL mode: readers do not wait for the writer. Every commit is synced, so what was acknowledged
survives a power failure. A transaction that writes takes the lock when it begins, so that it cannot fail halfway for
lack of it. PostgreSQL is used with short timeouts, once a first connection has been made.
"""

import asyncio
import fcntl
import hashlib
import os
import socket
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import URL, Connection, ExceptionContext, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as NoneFree
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from alembic import command
from infra.base.errors import ConfigError
from infra.base.files import make_private, refusal
from infra.base.parts import ROOT
from infra.web.errors import DatabaseAway
from infra.web.store import sqlite_driver

SQLITE_BESIDE = ("-wal", "-shm")
"""Suffixes of SQLite's own files beside a database."""
DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "postgres": "postgresql+asyncpg"}
BUSY_SECONDS = 5.0
"""How long to wait for a lock."""
FIRST_CONNECT_SECONDS = 10.0
"""Timeout of the first connection: process and database may both have just started, on a busy machine."""
CONNECT_SECONDS = 3.0
"""Timeout of later connections, for which HTTP clients wait."""
COMMAND_SECONDS = 8.0
"""Timeout of a statement; longer than the wait for a lock, and short enough for waiting HTTP clients."""
MIGRATION_SECONDS = 60.0
"""How long another process may take to migrate."""
MIGRATION_LOCK = 0x46524553
"""Number of PostgreSQL's advisory lock for migrations."""
WRITES = "freshet_writes"
JSON: dict[str, Any] = {
    "json_serializer": lambda value: msgspec.json.encode(value).decode(),
    "json_deserializer": msgspec.json.decode,
}
"""How columns of JSON are written and read: a list of records is mostly that."""
SQLITE_AWAY = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PROTOCOL,
}
POSTGRES_AWAY = ("08", "28", "3D", "40", "53", "55P03", "57", "58", "25006")
"""Prefixes of the SQLSTATE codes that mean: no connection, not permitted, no such database, a conflict, no room or
memory, locked, stopped or cancelled, a fault of its machine, a replica that cannot be written.
"""
_migrating = threading.Lock()


class Database:
    """An open database. Errors that a later attempt may not meet are raised as DatabaseAway; others are our bugs."""

    def __init__(self, url: str) -> None:
        self.url = driver_url(url)
        self.engine = new_engine(self.url)

    @property
    def is_sqlite(self) -> bool:
        return self.url.get_backend_name() == "sqlite"

    @property
    def identity(self) -> str:
        """A name that is the same for all users of this database and reveals nothing about it."""
        where = Path(str(self.url.database)).resolve() if self.is_sqlite else self.url.host or self.url.query
        named = f"{socket.gethostname() if self.is_sqlite else ''} {where} {self.url.port} {self.url.database}"
        return f"database-{hashlib.sha256(named.encode()).hexdigest()[:16]}"

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """Opens a connection that sees the database at one moment."""
        with translated(self.url):
            async with self.engine.connect() as connection:
                yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """Opens a transaction: committed at the end, or rolled back by an error."""
        with translated(self.url):
            async with self.engine.connect() as connection:
                await connection.execution_options(**{WRITES: True})
                async with connection.begin():
                    yield connection

    async def close(self) -> None:
        await self.engine.dispose()


def driver_url(url: str) -> URL:
    """Returns the URL with the driver that we use; raises ConfigError."""
    expected = "expected as in sqlite:///runs/freshet.db or postgresql://user@host/name; correct api.database"
    try:
        given = make_url(url)
    except ArgumentError as error:
        raise ConfigError(f"the URL of the database cannot be read; {expected}") from error
    backend = given.drivername.partition("+")[0]
    if backend not in DRIVERS:
        raise ConfigError(f"a database of kind {backend!r} is not supported; {expected}")
    if backend == "sqlite" and given.database in (None, "", ":memory:"):
        raise ConfigError(f"the URL of the database names no file; {expected}")
    return given.set(drivername=DRIVERS[backend])


def new_engine(url: URL, wait_seconds: float = BUSY_SECONDS) -> AsyncEngine:
    if url.get_backend_name() == "postgresql":
        server = {"application_name": "freshet", "lock_timeout": str(round(wait_seconds * 1000))}
        command_seconds = max(COMMAND_SECONDS, wait_seconds)
        arguments = {"command_timeout": command_seconds, "server_settings": server}
        engine = create_async_engine(url, pool_pre_ping=True, pool_timeout=wait_seconds, connect_args=arguments, **JSON)
        engine.sync_engine.dialect.do_terminate = _terminate  # type: ignore[assignment, method-assign]
        event.listen(engine.sync_engine, "handle_error", _drop_confused)
        _limit_connecting(engine)
        return engine
    joined = {"timeout": wait_seconds, "async_creator_fn": sqlite_driver.connect}
    engine = create_async_engine(url, pool_timeout=wait_seconds, connect_args=joined, **JSON)
    event.listen(engine.sync_engine, "connect", _set_up_sqlite)
    event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def _limit_connecting(engine: AsyncEngine) -> None:
    """Sets how long PostgreSQL may take to accept a connection: longer until it has accepted one."""
    has_connected = threading.Event()

    def set_timeout(_dialect: Any, _record: Any, _arguments: Any, named: dict[str, Any]) -> None:
        named["timeout"] = CONNECT_SECONDS if has_connected.is_set() else FIRST_CONNECT_SECONDS

    event.listen(engine.sync_engine, "do_connect", set_timeout)
    event.listen(engine.sync_engine, "connect", lambda _connection, _record: has_connected.set())


def _drop_confused(context: ExceptionContext) -> None:
    """Marks a connection that was lost in the middle of an operation as unusable; SQLAlchemy would keep it."""
    if isinstance(context.original_exception, context.dialect.loaded_dbapi.InternalClientError):
        context.is_disconnect = True


def _terminate(connection: Any) -> None:
    """Drops an unusable connection without saying goodbye to a server that may not answer."""
    connection.driver_connection.terminate()


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions begin where we say so, and not only at the first change
    cursor = connection.cursor()
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    begin = "BEGIN IMMEDIATE" if connection.get_execution_options().get(WRITES) else sqlite_driver.BEGIN
    connection.exec_driver_sql(begin)


# ── errors ────────────────────────────────────────────────────────────────────────────────────────────────────────────
@contextmanager
def translated(url: URL) -> Iterator[None]:
    """Turns the errors of a database that is unreachable, locked or full into DatabaseAway."""
    try:
        yield
    except (OSError, TimeoutError, NoneFree, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise _away(url, error) from error
    except DBAPIError as error:
        if not is_away(error):
            raise
        raise _away(url, error.orig or error) from error


def is_away(error: DBAPIError) -> bool:
    """Whether the error means that the database cannot answer now, rather than that the statement was wrong."""
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is not None:
        return (code & 0xFF) in SQLITE_AWAY
    state = getattr(error.orig, "sqlstate", None) or ""
    return error.connection_invalidated or state.startswith(POSTGRES_AWAY)


def _away(url: URL, error: BaseException) -> DatabaseAway:
    where = url.render_as_string(hide_password=True)
    why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return DatabaseAway(
        f"the database {where} does not answer: {why}; expected one that can be reached, is not locked and has room; "
        "start it, or make room, and try again"
    )


# ── migrations ────────────────────────────────────────────────────────────────────────────────────────────────────────
def migrate(url: str) -> None:
    """Migrates a database to the newest schema and creates it if necessary; one process at a time, others wait.

    Raises ConfigError for a database that a newer Freshet has migrated, and DatabaseAway.
    """
    where = driver_url(url)
    with _migrating, translated(where):
        if where.get_backend_name() == "sqlite":
            with _file_lock(where):
                asyncio.run(_migrate(where))
        else:
            asyncio.run(_migrate(where))


def make_folder(url: URL) -> None:
    """Creates the folder of a SQLite file if it is missing."""
    if url.get_backend_name() == "sqlite":
        Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)


@contextmanager
def _file_lock(url: URL) -> Iterator[None]:
    """Holds the lock for migrating a SQLite file: SQLite's own locks do not cover the change to WAL mode."""
    file = Path(str(url.database))
    try:
        make_folder(url)
        make_private(file)
        for beside in SQLITE_BESIDE:  # new ones get the mode of the database
            if (other := file.with_name(f"{file.name}{beside}")).exists():
                make_private(other)
        handle = os.open(file.with_name(f"{file.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise DatabaseAway(refusal(error)) from error
    try:
        deadline = time.monotonic() + MIGRATION_SECONDS
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield
    finally:
        os.close(handle)


async def _migrate(url: URL) -> None:
    engine = new_engine(url, MIGRATION_SECONDS)
    try:
        async with engine.connect() as connection:
            if url.get_backend_name() == "sqlite":
                driver: Any = (await connection.get_raw_connection()).driver_connection
                await driver.execute("PRAGMA journal_mode=WAL")  # outside of a transaction; the file remembers it
                await connection.execution_options(**{WRITES: True})
            async with connection.begin():
                if url.get_backend_name() == "postgresql":
                    await connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
                await connection.run_sync(_upgrade)
    finally:
        await engine.dispose()


def _upgrade(connection: Connection) -> None:
    config = migrations()
    config.attributes["connection"] = connection
    scripts = ScriptDirectory.from_config(config)
    for revision in MigrationContext.configure(connection).get_current_heads():
        try:
            scripts.get_revision(revision)
        except CommandError as error:
            where = connection.engine.url.render_as_string(hide_password=True)
            raise ConfigError(
                f"the database {where} is newer than this Freshet: its schema is {revision}; expected "
                f"{scripts.get_current_head()} or an older one; install the Freshet that migrated it, or use another "
                "api.database"
            ) from error
    command.upgrade(config, "head")


def migrations() -> Config:
    """Returns Alembic's configuration, with the scripts of an installed Freshet or of a checkout."""
    installed = ROOT / "infra" / "deploy" / "alembic"
    config = Config()
    config.set_main_option("script_location", str(installed if installed.is_dir() else ROOT / "alembic"))
    config.set_main_option("path_separator", "os")
    return config
