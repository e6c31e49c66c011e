"""The API among hostile clients: is a well-behaved client still served, and does memory stay the same?

1. api: ``freshet api`` with its default limits serves a past run, from a database
2. before: one client reads the status of that run, a few times a second
3. siege: the same, while ``benchmarks.control.hostile`` attacks from a separate process
4. after: the memory of the API's process, with all of them gone
"""

import asyncio
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from api.store.store import SqlStore
from benchmarks.control.api import PAST, PATIENCE_SECONDS, listener
from benchmarks.control.hostile import Attack, AttackTally, attack, flood
from benchmarks.control.load import AskingConnection
from benchmarks.control.past import fill
from infra.base.errors import FreshetError
from infra.chaos.main import ChaosJob, end, launch
from infra.web.store.place import database_url
from infra.web.store.rows import Scope

PAST_STEPS = 1000
READS_PER_SECOND = 20.0
MIB = 1 << 20
TOKENS = 5
"""One for reading, the others for an Attack."""
REST_SECONDS = 2.0


@dataclass(frozen=True)
class Siege:
    """Who attacks, and for how long."""

    seconds: float
    idle: int
    slow: int
    flood_per_second: float


@dataclass(frozen=True)
class SiegeResult:
    """Reads are those of the well-behaved client."""

    reads_before: int
    p50_before_ms: float
    p99_before_ms: float
    reads: int
    """Reads during the siege."""
    p50_ms: float
    p99_ms: float
    errors: int
    """Reads that were not answered with 200."""
    reconnects: int
    """How often its connection was closed between two reads."""
    rss_before_mib: float
    rss_highest_mib: float
    rss_after_mib: float
    idle_opened: int
    slow: str
    """Counts of each status code for slow bodies; 0: no answer."""
    large: str
    large_mib: float
    """Most megabytes that were accepted of one body."""
    flood: str
    flood_per_second: float


def run_siege(folder: Path, siege: Siege, tell: Callable[[str], None]) -> SiegeResult:
    """Runs the whole measurement, in a separate folder."""
    tokens = asyncio.run(_prepare(database_url(None, folder)))
    job = ChaosJob(folder, 0, 0.0, 0.0, 0.0, ("--set", "api.port=0"), PATIENCE_SECONDS)
    process = launch(job, "api", "--runs", str(folder))
    try:
        address = _await_address(folder)
        reader = _Reader(address, tokens[0], listener(address))
        tell("before")
        before = reader.read_for(siege.seconds / 3)
        rss_before = reader.rss
        tell("siege")
        what = Attack(address, tokens[1:], siege.idle, siege.slow, siege.flood_per_second, siege.seconds)
        with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
            attacked = [pool.submit(each, what) for each in (attack, flood)]
            during = reader.read_for(siege.seconds)
            tally, flooded = (each.result() for each in attacked)
            tally.statuses["flood"] = flooded.statuses["flood"]
        highest = reader.highest
        time.sleep(REST_SECONDS)
        return _result(siege, before, during, tally, (rss_before, highest, reader.rss))
    finally:
        end(process, PATIENCE_SECONDS)


async def _prepare(database: str) -> list[str]:
    """Fills the database; returns secrets of tokens."""
    store = await SqlStore.open(database)
    scopes: tuple[Scope, ...] = ("read", "ingest")
    try:
        await fill(store, PAST, PAST_STEPS)
        return [(await store.tokens.create(f"bench-{number}", scopes, None))[1] for number in range(TOKENS)]
    finally:
        await store.close()


def _await_address(folder: Path) -> str:
    endpoint = folder / "endpoints" / "api"
    until = time.monotonic() + PATIENCE_SECONDS
    while not endpoint.exists():
        if time.monotonic() > until:
            raise FreshetError(f"no API after {PATIENCE_SECONDS:g} s; expected one that listens; see {folder}")
        time.sleep(0.1)
    return endpoint.read_text().strip()


@dataclass(frozen=True)
class _Reads:
    """What a client experienced."""

    times: list[float]
    errors: int
    reconnects: int


class _Reader:
    """A well-behaved client, which also observes the memory of the API."""

    def __init__(self, address: str, token: str, api: psutil.Process) -> None:
        self._address = address
        self._api = api
        head = f"GET /v1/runs/{PAST} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n\r\n"
        self._request = head.encode()
        self._connection: AskingConnection | None = None
        self.highest = 0.0

    @property
    def rss(self) -> float:
        """Resident memory in MiB."""
        return float(self._api.memory_info().rss / MIB)

    def read_for(self, seconds: float) -> _Reads:
        times: list[float] = []
        errors = reconnects = 0
        due = time.perf_counter()
        until = due + seconds
        while due < until:
            time.sleep(max(0.0, due - time.perf_counter()))
            began = time.perf_counter()
            answer = self._ask()
            if answer is None:  # as any client does: try once more, on a new connection
                reconnects += 1
                answer = self._ask()
            errors += answer is None or not answer.startswith(b"HTTP/1.1 200 ")
            times.append(time.perf_counter() - began)
            self.highest = max(self.highest, self.rss)
            due += 1 / READS_PER_SECOND
        return _Reads(times, errors, reconnects)

    def _ask(self) -> bytes | None:
        """The answer; None if the connection is lost."""
        with suppress(OSError):
            if self._connection is None:
                self._connection = AskingConnection(self._address)
            self._connection.send(self._request, 0.0)
            while (answer := self._connection.receive()) is None:
                pass
            return answer
        if self._connection is not None:
            self._connection.socket.close()
            self._connection = None
        return None


def _result(
    siege: Siege, before: _Reads, during: _Reads, tally: AttackTally, rss: tuple[float, float, float]
) -> SiegeResult:
    p50_before, p99_before = 1000 * np.quantile(before.times, (0.5, 0.99))
    p50, p99 = 1000 * np.quantile(during.times, (0.5, 0.99))
    return SiegeResult(
        reads_before=len(before.times),
        p50_before_ms=float(p50_before),
        p99_before_ms=float(p99_before),
        reads=len(during.times),
        p50_ms=float(p50),
        p99_ms=float(p99),
        errors=before.errors + during.errors,
        reconnects=before.reconnects + during.reconnects,
        rss_before_mib=rss[0],
        rss_highest_mib=rss[1],
        rss_after_mib=rss[2],
        idle_opened=tally.idle_opened,
        slow=_text(tally.statuses["slow"]),
        large=_text(tally.statuses["large"]),
        large_mib=tally.large_bytes / MIB,
        flood=_text(tally.statuses["flood"]),
        flood_per_second=tally.statuses["flood"].total() / siege.seconds,
    )


def _text(statuses: Counter[int]) -> str:
    return ", ".join(f"{status}: {number}" for status, number in sorted(statuses.items()))
