"""One run in real processes that is steered over REST alone, with a control plane on each kind of database.

The run's own API uses PostgreSQL; a second one, ``freshet api --runs``, follows the run with SQLite on a small disk.

1. Commands are given. At each seam that they pass the process that is there is killed; and once it stands still there
   while the database and the other process are killed, the API after it has acknowledged the command.
2. Everything that can be set is set, α follows a process that takes the dispatcher's processor away, workers come and
   go, the run pauses and goes on.
3. Databases are stopped and killed, and their disk is full, while the run trains.
4. The run is stopped.

Tests look at the facts noted here.
"""

import asyncio
import re
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil

from api.store.reads import RunTables
from dispatch.journal.history import read_history
from infra.base.faults import ALLOWED, FAULT, Fired, read_fired
from infra.base.run_folder import is_run
from infra.web.store.engine import Database
from infra.web.store.rows import SCOPES
from ingest.config import StreamConfig
from tests.api.serving import new_token
from tests.control_plane.contending import contending, favoured, may_set_priorities
from tests.control_plane.folding import Frame, cursor_of, read_journal
from tests.databases import PostgresServer, resume, suspend
from tests.disks import fill
from tests.end_to_end.living import given, producing
from tests.end_to_end.processes import named, start, wait_until

RUN = "steered"
SETTINGS = (
    *(f"run={RUN}", "stream.batch=64", "stream.linger_seconds=0.2", "rows.dim=4", "api.port=0"),
    *("dispatch.workers=2", "dispatch.policy=esd:1", "dispatch.silence_seconds=20", "ps.shards=1"),
    "dispatch.alpha_dwell_seconds=0.1",
    *("checkpoints.seconds=1", "checkpoints.kept=100000"),
)
FAULTS = (
    *("api:command_stored:kill", "dispatcher:command_received:kill", "dispatcher:command_journalled:kill"),
    *("api:command_answered:kill", "api:command_settled:kill"),
    *("api:command_stored:stop", "dispatcher:command_received:stop", "dispatcher:command_journalled:stop"),
    *("api:command_answered:stop", "api:command_settled:stop"),
)
"""processes end themselves, or stand still while others are killed"""
DATABASE = "database"
MOST_STRUCK = 16
FURTHER = 4
"""steps in which a run shows that it goes on"""
ASK_SECONDS = 60.0
LOOK_SECONDS = 0.1
"""between two looks: each of them takes some milliseconds of processor time"""
Told = dict[str, Any]


@dataclass
class Outage:
    """What was answered while a database was away."""

    steps: int = 0
    """that were decided meanwhile"""
    reads: dict[str, int] = field(default_factory=dict)
    """status of the answer, by path"""
    write: tuple[int, str] = (0, "")
    """status and type of the answer"""


@dataclass
class SteeredFacts:
    """What was seen."""

    struck: dict[str, Told] = field(default_factory=dict)
    """commands under which processes were killed, as they were answered in the end, by key"""
    acknowledged: list[Told] = field(default_factory=list)
    """what was answered with 202"""
    fired: list[Fired] = field(default_factory=list)
    killed: set[tuple[str, str]] = field(default_factory=set)
    """at which seam, and who"""
    told: dict[str, Told] = field(default_factory=dict)
    """answers to commands, by what they do"""
    alphas: dict[str, tuple[Told, Told]] = field(default_factory=dict)
    """status and α as they were read after each change"""
    contended: list[Told] = field(default_factory=list)
    """α as it was read while another process took the dispatcher's processor away, and afterwards"""
    paused: tuple[int, int] = (0, 0)
    """end of the journal when the run was at rest, and some reads later"""
    outages: dict[str, Outage] = field(default_factory=dict)
    status: int | None = None
    """with which the run ended"""


class Steered:
    """The run, and whoever steers it."""

    def __init__(self, folder: Path, disk: Path | None, postgres: PostgresServer) -> None:
        self.folder, self.disk, self.postgres = folder / "run", disk, postgres
        self.facts = SteeredFacts()
        self.stream = StreamConfig(folder=folder / "log", partitions=2)
        self.databases = {
            "postgresql": postgres.new_database(),
            "sqlite": f"sqlite:///{(disk or folder) / 'freshet.db'}",
        }
        self._tokens = {kind: new_token(url, SCOPES) for kind, url in self.databases.items()}
        self._client = httpx2.Client(timeout=ASK_SECONDS)
        self.process: subprocess.Popen[Any] | None = None
        self.second: subprocess.Popen[Any] | None = None

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def ask(self, method: str, path: str = "", body: Any = None, kind: str = "postgresql", key: str = "") -> Any:
        """A response of the API with that database; the path follows that of the run."""
        name = "api" if kind == "postgresql" else "api-2"
        headers = {"Authorization": f"Bearer {self._tokens[kind]}"} | ({"Idempotency-Key": key} if key else {})
        address = (self.folder / "endpoints" / name).read_text().strip()
        url = f"{address}{path}" if path.startswith("/readyz") else f"{address}/v1/runs/{RUN}{path}"
        return self._client.request(method, url, json=body, headers=headers)

    def read(self, path: str = "", kind: str = "postgresql") -> Any:
        answer = self.ask("GET", path, kind=kind)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def journal(self) -> list[Frame]:
        return read_journal(self.folder / "journal")

    def cursor(self) -> int:
        return cursor_of(self.folder / "journal")

    def step(self) -> int:
        """The newest, as the second control plane has heard of it."""
        return int(self.read(kind="sqlite")["step"] or 0)

    def wait(self, condition: Callable[[], Any]) -> None:
        def holds() -> bool:
            try:
                return bool(condition())
            except (httpx2.HTTPError, FileNotFoundError):
                return False

        wait_until(holds, self.process, LOOK_SECONDS)

    def wait_for_steps(self, more: int) -> None:
        until = self.step() + more
        self.wait(lambda: self.step() >= until)

    # ── starting and ending ───────────────────────────────────────────────────────────────────────────────────────────
    def start(self, wanted: Sequence[str] = FAULTS) -> None:
        """wanted: faults"""
        settings = given(
            *SETTINGS, f"stream.folder={self.stream.folder}", f"api.database={self.databases['postgresql']}"
        )
        faults = {FAULT: ",".join(wanted), ALLOWED: "1"} if wanted else {}
        self.process = start("up", "--run", self.folder, *settings, **faults)
        self.wait(lambda: is_run(self.folder))
        settings = given("api.port=0", f"api.database={self.databases['sqlite']}")
        self.second = start("api", "--name", "api-2", "--runs", self.folder, *settings)
        for kind in self.databases:
            self.wait(lambda kind=kind: self.ask("GET", kind=kind).json().get("is_live", False))  # type: ignore[misc]
        self.wait(lambda: self.step() > FURTHER)

    def stop(self) -> None:
        self.facts.told["stop"] = self.give("POST", "/stop")
        assert self.process is not None
        self.process.communicate(timeout=ASK_SECONDS)
        self.facts.status = self.process.returncode

    def close(self) -> None:
        self._client.close()
        for process in (self.process, self.second):
            if process is not None and process.poll() is None:
                process.kill()
                process.communicate()

    # ── commands ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def give(self, method: str, path: str, body: Any = None, kind: str = "postgresql") -> Told:
        """Has a command carried out; returns the answer."""
        answer = self.ask(method, path, body, kind)
        told: Told = answer.json()
        if answer.status_code == 202:
            self.wait(lambda: self.read(f"/commands/{told['id']}", kind)["state"] != "pending")
            told = self.read(f"/commands/{told['id']}", kind)
        assert told["state"] == "done", answer.text
        return told

    def strike(self) -> None:
        """Gives one command after the other until every fault has fired."""
        number = 0
        while len(read_fired(self.folder)) < len(FAULTS):
            assert number < MOST_STRUCK, read_fired(self.folder)
            self._give_under_fire(f"struck-{number}", (number + 1) / 64)
            number += 1
        self.facts.fired = read_fired(self.folder)
        self.facts.killed |= {(fired.seam, fired.process) for fired in self.facts.fired if fired.action == "kill"}
        self.wait_for_steps(FURTHER)

    def _give_under_fire(self, key: str, value: float) -> None:
        """Asks until it is answered that the command has been carried out, whatever happens meanwhile."""
        answers: list[Any] = []

        def has_happened() -> bool:
            with suppress(httpx2.HTTPError, FileNotFoundError):
                answers.append(self.ask("PUT", "/alpha", {"value": value}, key=key))
            return bool(answers) and answers[-1].status_code == 200

        with ThreadPoolExecutor(1) as threads:
            asking = threads.submit(wait_until, has_happened, self.process, LOOK_SECONDS)
            handled = len(read_fired(self.folder))
            while wait([asking], LOOK_SECONDS).not_done:
                for fired in read_fired(self.folder)[handled:]:
                    handled += 1
                    if fired.action == "stop":
                        self._strike_others(fired, answers)
            asking.result()
        self.facts.struck[key] = answers[-1].json()
        self.facts.acknowledged += [answer.json() for answer in answers if answer.status_code == 202]

    def _strike_others(self, fired: Fired, answers: list[Any]) -> None:
        """Kills the database and the other process while one stands still at its seam."""
        standing, other = psutil.Process(fired.pid), "dispatcher" if fired.process == "api" else "api"
        if other == "api":
            try:
                self.wait(lambda: any(answer.status_code == 202 for answer in answers))
            except AssertionError as error:
                answered = [(answer.status_code, answer.text) for answer in answers]
                raise AssertionError(f"{fired}: nobody was told to wait, but {answered}") from error
        self.wait(lambda: self._own(other))  # it may have been killed at its own seam just before
        (struck,) = self._own(other)
        struck.kill()
        self.postgres.kill()
        psutil.wait_procs([struck])
        with suppress(psutil.NoSuchProcess):  # its supervisor has replaced it, if this took long
            if standing.status() == psutil.STATUS_STOPPED:
                self.facts.killed |= {(fired.seam, other), (fired.seam, DATABASE)}
            standing.resume()
        self.postgres.start()

    def _own(self, name: str) -> list[psutil.Process]:
        """The run's own process of that name, if it is there."""
        return [process for process in named(self.folder, [name]) if process not in named(self.folder, ["api-2"])]

    # ── steering ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def steer(self) -> None:
        for kind, value in (("postgresql", 0.25), ("sqlite", 0.5)):
            self._set_alpha(kind, value)
        self._release_alpha()
        self.facts.told["policy"] = self.give("PATCH", "/settings", {"policy": "joint:elastic"}, "sqlite")
        self.wait(lambda: self.read()["status"]["policy"] == "joint:elastic")
        for name, value in (("deadline", True), ("skip_above", 1_000_000)):
            self.facts.told[name] = self.give("PATCH", "/settings", {name: value})
        changes: Told = {"link": {"link_gbit": 0.5}, "shares": {"shares": {"least": 0.5, "largest": 1.5}}}
        for name, body in changes.items():
            self.facts.told[name] = self.give("PATCH", "/workers/worker-0", body, "sqlite")
        self._pause()
        self._change_members()

    def _set_alpha(self, kind: str, value: float) -> None:
        told = self.facts.told[f"alpha {value}"] = self.give(
            "PUT", "/alpha", {"value": value, "reason": "by hand"}, kind
        )
        self.wait(lambda: self.read(kind=kind)["status"]["cursor"] >= told["cursor"])
        status, alpha = self.read(kind=kind)["status"], self.read("/alpha", kind)
        self.wait(lambda: read_cursor(self.databases[kind]) >= told["cursor"])  # the reason is from there
        self.facts.alphas[kind] = status, alpha | {"reason": self.read("/alpha", kind)["reason"]}
        first = re.search(r"from step (\d+) on", told["text"])
        assert first is not None, told
        self.wait(lambda: self.step() >= int(first[1]))  # or the next command comes before a step is decided

    def _release_alpha(self) -> None:
        """Has α follow contention, where that can be caused and ended for certain."""
        if not may_set_priorities():
            self.facts.told["auto"] = self.give("DELETE", "/alpha")
            return
        (dispatcher,) = self._own("dispatcher")
        with favoured(dispatcher) as processor:
            self.facts.told["auto"] = self.give("DELETE", "/alpha")
            self._contend(dispatcher, processor)

    def _contend(self, dispatcher: psutil.Process, processor: int) -> None:
        """Takes the dispatcher's processor away until α falls, and gives it back until α rises."""
        seen = self.facts.contended

        def values() -> list[float]:
            seen.append(self.read("/alpha"))
            return [alpha["value"] for alpha in seen if alpha["mode"] == "auto"]

        with contending(dispatcher, processor):
            self.wait(lambda: (read := values()) and read[-1] < read[0])
        self.wait(lambda: (read := values())[-1] > min(read))

    def _pause(self) -> None:
        self.facts.told["pause"] = self.give("POST", "/pause")
        self.wait(lambda: self.read()["state"] == "paused")
        self.wait(lambda: self._rests())
        before = self.cursor()
        for _ in range(FURTHER):
            self.read("/workers")
        self.facts.paused = before, self.cursor()
        self.facts.told["resume"] = self.give("POST", "/resume", kind="sqlite")
        self.wait_for_steps(FURTHER)

    def _rests(self) -> bool:
        history = read_history(self.folder / "journal")
        return bool(history.checkpoints) and history.checkpoints[-1].step == history.step

    def _change_members(self) -> None:
        """2 → 3 → 2 → 1 workers, while the run trains."""
        self.facts.told["add"] = self.give("POST", "/workers", {"link_gbit": 1})
        self._await_members("worker-0", "worker-1", "worker-2")
        self.facts.told["drain"] = self.give("POST", "/workers/worker-0/drain", kind="sqlite")
        self._await_members("worker-1", "worker-2")
        self.facts.told["remove"] = self.give("DELETE", "/workers/worker-1")
        self._await_members("worker-2")

    def _await_members(self, *names: str) -> None:
        """Until the API lists these as taking part, and no others."""

        def listed() -> list[str]:
            taking_part = "training", "parked"
            return sorted(worker["name"] for worker in self.read("/workers")["items"] if worker["state"] in taking_part)

        self.wait(lambda: listed() == list(names))
        self.wait_for_steps(FURTHER)

    # ── databases that are away ───────────────────────────────────────────────────────────────────────────────────────
    def lose_databases(self) -> None:
        server = self.postgres.processes()
        self._lose("stopped", "postgresql", lambda: suspend(server), lambda: resume(server))
        self._lose("killed", "postgresql", self.postgres.kill, self.postgres.start)
        if (disk := self.disk) is not None:
            self._lose("full", "sqlite", lambda: self._fill(disk), lambda: (disk / "filling").unlink())

    def _fill(self, disk: Path) -> None:
        """Leaves no room, neither on a disk nor in the file of SQLite that is written first."""
        with closing(sqlite3.connect(disk / "freshet.db", timeout=ASK_SECONDS)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        fill(disk)

    def _lose(self, name: str, kind: str, begin: Callable[[], Any], end: Callable[[], Any]) -> None:
        """Looks at a run whose history has no database, and waits until it has caught up afterwards."""
        outage, before = self.facts.outages.setdefault(name, Outage()), self.step()
        answers: list[Any] = []

        def give() -> int:
            answers.append(self.ask("PUT", "/alpha", {"value": 0.625}, kind, key=f"{name}-{len(answers)}"))
            return int(answers[-1].status_code)

        begin()
        try:
            for path in ("", "/alpha", "/workers"):
                outage.reads[path] = self.ask("GET", path, kind=kind).status_code
            self.wait(lambda: give() not in (200, 202))  # a file of SQLite may have some room left in itself
            outage.write = answers[-1].status_code, answers[-1].headers["Content-Type"]
            self.wait_for_steps(FURTHER)
            outage.steps = self.step() - before
        finally:
            end()
        newest = self.cursor()
        self.wait(lambda: give() == 200)
        self.wait(lambda: self.read("/generations", kind) and read_cursor(self.databases[kind]) >= newest)


def read_cursor(url: str, run: str = RUN) -> int:
    """Up to which a database has the journal of a run."""

    async def read() -> int:
        database = Database(url)
        try:
            return await RunTables(database).cursor(run)
        finally:
            await database.close()

    return asyncio.run(read())


@contextmanager
def living(folder: Path, disk: Path | None, postgres: PostgresServer) -> Iterator[Steered]:
    """Lives all of it; the second control plane is there until the end of the context."""
    run = Steered(folder, disk, postgres)
    with ExitStack() as undo:
        undo.callback(run.close)
        with producing(run.stream):
            run.start()
            run.strike()
            run.steer()
            run.lose_databases()
            run.stop()
        yield run
