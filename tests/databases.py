"""A PostgreSQL for tests: Debian's, started once per test run, with a separate database for every test.

It runs as the user postgres, because it refuses to run as root; without syncing; on a Unix socket in its own folder.
The processes of a test run share it: the first one starts it, the last one stops it.
"""

import asyncio
import fcntl
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from urllib.parse import quote

import asyncpg
import psutil
import pytest

BINARIES = Path("/usr/lib/postgresql/15/bin")
START_SECONDS = 60.0
OPTIONS = {
    "fsync": "off",
    "full_page_writes": "off",
    "listen_addresses": "''",
    "max_connections": "60",
    "shared_buffers": "16MB",
}
_numbers = count()


class PostgresServer:
    """A server with its files and its Unix socket in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = folder / "files"

    def create(self) -> None:
        """Creates its files; raises CalledProcessError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        if os.geteuid() == 0:
            shutil.chown(self.folder, "postgres", "postgres")
        self._run("initdb", "-D", str(self._files), "--no-sync", "-U", "freshet", "-A", "trust", "-E", "UTF8")

    def start(self) -> None:
        given = [f"-c {name}={value}" for name, value in OPTIONS.items()]
        options = " ".join([*given, f"-c unix_socket_directories={self.folder}"])
        log = str(self.folder / "log")
        self._run("pg_ctl", "-D", str(self._files), "-w", "-t", str(START_SECONDS), "-l", log, "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self._files), "-m", "immediate", "stop")

    @property
    def pid(self) -> int:
        return int((self._files / "postmaster.pid").read_text().split()[0])

    def processes(self) -> list[psutil.Process]:
        """The server first, then the processes that it has started, each in its own session."""
        server = psutil.Process(self.pid)
        return [server, *server.children(recursive=True)]

    def kill(self) -> None:
        """Sends SIGKILL, as the system does when memory runs out; returns when none of its processes is left."""
        server = psutil.Process(self.pid)
        server.suspend()  # so that it starts no further processes
        processes = self.processes()
        server.kill()
        deadline = time.monotonic() + START_SECONDS
        while stayed := [process for process in processes if is_there(process)]:
            assert time.monotonic() < deadline, f"processes of the server outlived it: {stayed}"
            time.sleep(0.005)
        for lock in (self._files / "postmaster.pid", *self.folder.glob(".s.PGSQL.*.lock")):
            lock.unlink(missing_ok=True)  # a zombie with the recorded pid would stop the next server from starting

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://freshet@/{database}?host={quote(str(self.folder))}"

    def new_database(self) -> str:
        """Creates a database for one test; returns its URL."""
        name = f"test_{os.getpid()}_{next(_numbers)}"
        asyncio.run(self._execute(f"CREATE DATABASE {name} TEMPLATE template0"))
        return self.url(name)

    async def _connect(self) -> asyncpg.Connection:
        """Connects; tries again if the server is overloaded or has just been started."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return await asyncpg.connect(host=str(self.folder), user="freshet", database="postgres", timeout=10)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)

    async def _execute(self, statement: str) -> None:
        connection = await self._connect()
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    def _run(self, program: str, *arguments: str) -> None:
        account = pwd.getpwnam("postgres") if os.geteuid() == 0 else None
        user = {} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        with (self.folder / "output").open("ab") as output:  # pg_ctl's server would keep a pipe open
            command = [str(BINARIES / program), *arguments]
            subprocess.run(command, check=True, cwd="/", stdout=output, stderr=output, **user)  # type: ignore[call-overload]


def is_there(process: psutil.Process) -> bool:
    """Whether it has not ended; a zombie has ended."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def suspend(processes: list[psutil.Process]) -> None:
    """The server first: it starts no further ones. One of the others may have ended by itself since it was listed."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.suspend()


def resume(processes: list[psutil.Process]) -> None:
    for process in reversed(processes):
        with suppress(psutil.NoSuchProcess):
            process.resume()


def check_postgres() -> None:
    """Skips the test if PostgreSQL is not installed."""
    if not (BINARIES / "postgres").exists():
        pytest.skip(f"no PostgreSQL: {BINARIES}/postgres is missing; install the package postgresql-15")


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """A separate server, for tests that break it."""
    check_postgres()
    folder = Path(tempfile.mkdtemp(prefix="freshet-postgres-"))  # the path of a Unix socket must be short
    server = PostgresServer(folder)
    try:
        server.create()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def shared_postgres(run: Path) -> Iterator[PostgresServer]:
    """The server of a test run, whose processes all name the same folder: the first starts it, the last stops it."""
    check_postgres()
    with _users(run) as users:
        if not users.read_text().split():
            folder = Path(tempfile.mkdtemp(prefix="freshet-postgres-"))
            server = PostgresServer(folder)
            server.create()
            server.start()
            (run / "postgres").write_text(str(folder))
        server = PostgresServer(Path((run / "postgres").read_text()))
        users.write_text(" ".join([*users.read_text().split(), str(os.getpid())]))
    try:
        yield server
    finally:
        with _users(run) as users:
            left = [user for user in users.read_text().split() if user != str(os.getpid())]
            users.write_text(" ".join(left))
            if not left:
                server.stop()
                shutil.rmtree(server.folder, ignore_errors=True)


@contextmanager
def _users(run: Path) -> Iterator[Path]:
    """The file that lists the processes that use the server, locked."""
    with (run / "postgres.users").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield run / "postgres.users"
