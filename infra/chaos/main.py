"""One run of chaos: real processes, killed or stopped at random while events keep coming; then it is ended and checked.

1. produce: ``freshet produce`` writes events into the run's own log, all the time; or a device sends them to the API,
   while others request predictions and the status of the run (``infra.chaos.clients``)
2. up: ``freshet up`` trains them; if the supervisor is struck, it is started again, as an operator would
3. strike: every few seconds a process is killed, or stopped for a while (``infra.chaos.strikes``)
4. settle: without further faults, until steps are completed again and everyone who was struck is back
5. stop: SIGTERM; clients end, then the run drains and ends
6. verify: ``freshet verify`` in a separate process; and what clients were promised (``infra.chaos.promises``)

Every fault is a line of chaos.jsonl in the run's folder; what the run uses is a line of usage.jsonl every 10 s. Only
processes of this run are touched: the ones started here, and those that have this folder in their command line.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import psutil

from dispatch.journal.history import JOURNAL, read_history
from infra.base.errors import ProcessFailed
from infra.base.faults import ALLOWED, FAULT
from infra.base.parts import COMMAND, module
from infra.base.process import SUPERVISED, Stop
from infra.chaos.census import Census
from infra.chaos.clients import KINDS, TOKEN_NAME, ClientJob, Kind
from infra.chaos.progress import Progress
from infra.chaos.promises import check_promises
from infra.chaos.report import ChaosReport
from infra.chaos.strikes import MOST_STOPPED_SECONDS, WEIGHTS, Strike, Struck, Target, draw_strikes
from infra.chaos.usage import UsageLog, level_off
from infra.chaos.witness import Witness
from infra.run.folder import as_path
from infra.run.settings import TOKEN, read_stored
from infra.run.supervision.nursery import nursery_in
from infra.verify.finding import Finding
from infra.verify.leftovers import processes_of
from infra.web.store.access import make_token
from infra.web.store.place import database_url
from infra.web.store.rows import SCOPES

RECORD = "chaos.jsonl"
OUTPUT = "chaos.log"
"""Output of the commands, in the run's folder."""
TICK_SECONDS = 0.2
SAMPLE_SECONDS = 1.0
ORPHAN_SECONDS = 10.0
"""How long processes may outlive a supervisor that was killed."""
SUPERVISOR = "supervisor"
NURSERY = "nursery"
SERVER = "serve"
API = "api"
ENDPOINTS = "endpoints"
"""Folder in the run's folder with a file for each process that is ready; without its file a process is starting."""
VERIFY_SECONDS = 3600.0
MOST_IN_A_ROW = 3
"""How often a process is struck while the run makes no progress: a supervisor gives up one that fails more often."""
MOST_ENDS = 3
"""How often a run is started again because it was recovering when it was asked to stop."""
MOST_SURPRISES = 20
"""Ends of the run that no fault explains, after which it is not started again."""
POISON_SHARE = "0.01"
"""Share of events that become dead letters."""


@dataclass(frozen=True)
class ChaosJob:
    """What to do to which run."""

    folder: Path
    seed: int
    seconds: float
    every_seconds: float
    """Mean time between two faults; 0: none."""
    rate: float
    """Events per second."""
    settings: tuple[str, ...]
    """Options of the run: --set and --config with their values."""
    patience_seconds: float = 300.0
    """How long the run may take to complete steps again after the last fault, and to end."""
    faults: str = ""
    """Fault points at which processes of the run end, as ``infra.base.faults`` reads them."""
    serves: bool = False
    """Whether the run serves predictions, too; servers are struck like all others."""
    most_stopped_seconds: float = MOST_STOPPED_SECONDS
    """How long a process is stopped at most."""
    has_clients: bool = False
    """Whether events come from a device, through the API, and others query the API and the server meanwhile."""


def run_chaos(job: ChaosJob, stop: Stop, tell: Callable[[str], None]) -> ChaosReport:
    """Runs all steps to their end; a requested stop shortens step 3."""
    job.folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with ExitStack() as resources:
        producing = [] if job.has_clients else [resources.enter_context(producing_events(job))]
        run = resources.enter_context(running(job))
        storm = Storm(job, run, tell)
        resources.callback(storm.witness.close)
        resources.callback(storm.release)
        if job.has_clients:
            storm.witness.start()
            storm.clients = resources.enter_context(asking(job))
        storm.inject_faults(began + job.seconds, stop)
        storm.wait_until_calm(job.patience_seconds)
        for process in producing:
            end(process, job.patience_seconds)
        storm.dismiss_clients(job.patience_seconds)
        storm.finish(job.patience_seconds)
        if job.has_clients:
            storm.witness.finish()
        struck_seconds = time.monotonic() - began
    tell("checking")
    promised = check_promises(job.folder, storm.witness) if job.has_clients else []
    return ChaosReport(
        folder=str(job.folder),
        seed=job.seed,
        seconds=struck_seconds,
        struck=tuple(storm.struck),
        missed=storm.missed,
        steps=(storm.progress.read_newest() or (0, 0))[1],
        longest_seconds=storm.progress.longest_seconds,
        measured=tuple(storm.census.measured()),
        findings=(*verified(job.folder), *promised),
        surprises=tuple(run.surprises),
        levels=level_off(storm.usage.read()),
    )


@dataclass
class SupervisedRun:
    """The command ``freshet up``, started again whenever it ends."""

    job: ChaosJob
    process: "subprocess.Popen[bytes]"
    was_killed: bool = False
    surprises: list[str] = field(default_factory=list)

    def revive(self) -> None:
        """Starts it again if it has ended; notes an unexpected end."""
        status = self.process.poll()
        if status is None:
            return
        if not self.was_killed:
            self.surprises.append(f"freshet up ended by itself with status {status}; see {self.job.folder / OUTPUT}")
        if len(self.surprises) > MOST_SURPRISES:
            raise ProcessFailed(
                f"freshet up ended by itself {len(self.surprises)} times, with status {status} in the end; expected it "
                f"to go on; see {self.job.folder / OUTPUT}"
            )
        self._await_orphans()
        self.process = _launch_run(self.job)
        self.was_killed = False

    def processes(self) -> dict[str, psutil.Process]:
        """The processes that exist now, by name."""
        found = dict(processes_of(self.job.folder))
        with suppress(psutil.NoSuchProcess):
            found[SUPERVISOR] = psutil.Process(self.process.pid)
        return found

    def _await_orphans(self) -> None:
        until = time.monotonic() + ORPHAN_SECONDS
        for _, process in processes_of(self.job.folder):
            with suppress(psutil.NoSuchProcess):  # a process stopped while it started is not tied to its supervisor yet
                process.resume()
        while names := [name for name, _ in processes_of(self.job.folder)]:
            if time.monotonic() > until:
                self.surprises.append(f"processes {sorted(names)} outlived their supervisor by {ORPHAN_SECONDS:g} s")
                return
            time.sleep(TICK_SECONDS)


class Storm:
    """Strikes a run, and observes its recovery."""

    def __init__(self, job: ChaosJob, run: SupervisedRun, tell: Callable[[str], None]) -> None:
        self._job = job
        self.run = run
        self._tell = tell
        self.struck: list[Struck] = []
        self.missed = 0
        self.census = Census()
        self.progress = Progress(job.folder)
        self.witness = Witness(job.folder)
        self.usage = UsageLog(job.folder)
        self.clients: Clients = {}
        self._stopped: list[tuple[float, psutil.Process]] = []
        """When to continue which process."""
        self._sample_at = 0.0
        self._in_a_row: Counter[str] = Counter()
        """How often each process was struck since the run last recovered."""

    def inject_faults(self, until: float, stop: Stop) -> None:
        """Strikes until that time, beginning with the first step."""
        while not self.progress.steps and time.monotonic() < until and not stop.requested:
            self.watch()
        job = self._job
        for strike in draw_strikes(job.seed, job.every_seconds, job.most_stopped_seconds, targets_of(job)):
            if not self._wait(strike.pause_seconds, until, stop):
                break
            self.strike_once_there(strike, min(until, time.monotonic() + job.patience_seconds), stop)
        self._wait(until - time.monotonic(), until, stop)

    def strike_once_there(self, strike: Strike, until: float, stop: Stop) -> None:
        """Waits for a process that may be struck: it may just be starting, or has been struck too often lately."""
        while not self.strike(strike):
            if time.monotonic() > until or stop.requested:
                self.missed += 1
                return
            self.watch()

    def wait_until_calm(self, patience_seconds: float) -> None:
        """Waits until stopped processes have continued, steps are completed again and everyone struck is ready."""
        until = time.monotonic() + patience_seconds
        while self._stopped or not self.progress.is_over_it or self.away():
            if time.monotonic() > until:
                away = f"; {', '.join(self.away())} did not come back" if self.away() else ""
                self.run.surprises.append(f"not over the last fault within {patience_seconds:g} s{away}")
                return
            self.watch()
        self.census.sample(self.run.processes())

    def dismiss_clients(self, patience_seconds: float) -> None:
        """Asks clients to stop, while there is still a server that answers their last requests."""
        for kind, process in self.clients.items():
            if status := end(process, patience_seconds):
                self.run.surprises.append(f"the {kind} ended with status {status}; see {self._job.folder / OUTPUT}")

    def finish(self, patience_seconds: float) -> None:
        """Asks the run to stop, and waits for its end.

        A run that is asked in the middle of a recovery ends without a record of its last rows, with which a replay is
        compared. It is started again, and asked once it has recovered.
        """
        for _ in range(MOST_ENDS):
            if status := end(self.run.process, patience_seconds):
                self.run.surprises.append(f"freshet up ended with status {status} when it was asked to stop")
                return
            history = read_history(self._job.folder / JOURNAL)
            if any(record is not None and record.step == history.step for record in (history.stopped, history.ended)):
                return
            self._tell("it was recovering when it was asked to stop; it is started again")
            self.run.process = _launch_run(self._job)
            self._wait_until_recovered(history.last_generation, patience_seconds)
        self.run.surprises.append(f"{MOST_ENDS} times freshet up was recovering when it was asked to stop")

    def _wait_until_recovered(self, last_generation: int, patience_seconds: float) -> None:
        until = time.monotonic() + patience_seconds
        while time.monotonic() < until and self.run.process.poll() is None:
            newest = self.progress.read_generation()
            if newest is not None and newest.number > last_generation and not newest.is_replay:
                return
            time.sleep(TICK_SECONDS)

    def release(self) -> None:
        """Continues every stopped process."""
        for _, process in self._stopped:
            with suppress(psutil.Error):
                process.resume()
        self._stopped.clear()

    def watch(self) -> None:
        """Continues processes that are due, starts the supervisor again, takes samples."""
        now = time.monotonic()
        due = [process for at, process in self._stopped if at <= now]
        self._stopped = [(at, process) for at, process in self._stopped if at > now]
        for process in due:
            with suppress(psutil.Error):
                process.resume()
        self.run.revive()
        if now >= self._sample_at:
            self._sample_at = now + SAMPLE_SECONDS
            self._sample()
        self.progress.read_if_due()
        if self.progress.is_over_it:
            self._in_a_row.clear()
        time.sleep(TICK_SECONDS)

    def _sample(self) -> None:
        processes = self.run.processes()
        self.census.sample(processes)
        for kind, client in self.clients.items():
            with suppress(psutil.NoSuchProcess):
                processes[kind] = psutil.Process(client.pid)
        self.usage.sample_if_due(processes)

    def strike(self, strike: Strike) -> bool:
        """Strikes an existing process; returns whether there was one."""
        processes = self.run.processes()
        name = strike.choose(name for name in processes if self._may_fail(name, processes))
        if name is None:
            return False
        process = processes[name]
        stopped = strike.stopped_seconds if strike.kind == "stop" else None
        self.census.sample({name: process})
        try:
            self._do(process, stopped)
        except psutil.NoSuchProcess:  # it has just ended
            return False
        self.run.was_killed |= name == SUPERVISOR and stopped is None
        self._record(Struck(time.time(), strike.kind, name, process.pid, stopped))
        self._in_a_row.update(list(processes) if name == NURSERY else [name])
        self.progress.strike()
        return True

    def _may_fail(self, name: str, processes: Iterable[str]) -> bool:
        """Whether nobody fails too often if this one does: with a nursery all others end."""
        return all(self._in_a_row[each] < MOST_IN_A_ROW for each in (processes if name == NURSERY else [name]))

    def _do(self, process: psutil.Process, stopped_seconds: float | None) -> None:
        if stopped_seconds is None:
            process.kill()
        else:
            process.suspend()
            self._stopped.append((time.monotonic() + stopped_seconds, process))

    def away(self) -> list[str]:
        """Processes that were struck and do not exist, or are not ready, now."""
        killed = {(struck.process, struck.pid) for struck in self.struck if struck.kind == "kill"}
        there = {name for name, process in self.run.processes().items() if (name, process.pid) not in killed}
        ready = {name for name in there if name in (SUPERVISOR, NURSERY) or self._is_ready(name)}
        return sorted({struck.process for struck in self.struck} - ready)

    def _is_ready(self, name: str) -> bool:
        return (self._job.folder / ENDPOINTS / name).exists()

    def _wait(self, seconds: float, until: float, stop: Stop) -> bool:
        """Whether there is still time after that long."""
        then = time.monotonic() + seconds
        while time.monotonic() < min(then, until) and not stop.requested:
            self.watch()
        return then < until and not stop.requested

    def _record(self, struck: Struck) -> None:
        self.struck.append(struck)
        with (self._job.folder / RECORD).open("ab") as file:
            file.write(msgspec.json.encode(struck) + b"\n")
        self._tell(f"{struck.kind} {struck.process} ({struck.pid})")


def targets_of(job: ChaosJob) -> list[Target]:
    """The kinds of process that the run has."""
    missing = {SERVER} if not job.serves else set()
    missing |= {NURSERY} if nursery_in(job.folder, {}) is None else set()
    return [target for target in WEIGHTS if target not in missing]


# ── commands ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def launch(job: ChaosJob, command: str, *arguments: str) -> "subprocess.Popen[bytes]":
    """Starts a command with the settings of the run, in a separate session."""
    argv = [*COMMAND, command, *arguments, *job.settings]
    env = {**os.environ, FAULT: job.faults, ALLOWED: "1"} if job.faults else None
    with (job.folder / OUTPUT).open("ab") as output:
        return subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )


Clients = dict[Kind, "subprocess.Popen[bytes]"]


@contextmanager
def asking(job: ChaosJob) -> Iterator[Clients]:
    """Clients of the run, once its API is ready; each ends with this process."""
    await_api(job)
    settings = read_stored(job.folder)
    clients = Clients()
    database = database_url(settings.api.database, settings.api.runs or job.folder)
    token = asyncio.run(make_token(database, TOKEN_NAME, SCOPES))
    env = {**os.environ, TOKEN: token, SUPERVISED: str(os.getpid())}
    try:
        for kind in KINDS:
            with (job.folder / OUTPUT).open("ab") as output:
                argv = [sys.executable, "-m", module("infra.chaos.clients"), client_argument(job, kind, settings.run)]
                clients[kind] = subprocess.Popen(
                    argv, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
                )
        yield clients
    finally:
        for process in clients.values():
            process.kill()
            process.wait()


def client_argument(job: ChaosJob, kind: Kind, run: str) -> str:
    client = ClientJob(
        kind=kind,
        folder=str(job.folder),
        run=run,
        seed=job.seed,
        rate=job.rate,
        server=SERVER if kind == "reader" else API,
        name=kind,
    )
    return msgspec.json.encode(client).decode()


def await_api(job: ChaosJob) -> None:
    until = time.monotonic() + job.patience_seconds
    while not (job.folder / ENDPOINTS / API).exists():
        if time.monotonic() > until:
            raise ProcessFailed(
                f"the API of the run was not ready within {job.patience_seconds:g} s; expected it to be; see "
                f"{job.folder / OUTPUT}"
            )
        time.sleep(TICK_SECONDS)


def _launch_run(job: ChaosJob) -> "subprocess.Popen[bytes]":
    return launch(job, "up", "--serve" if job.serves else "--no-serve", "--run", as_path(job.folder))


@contextmanager
def producing_events(job: ChaosJob) -> Iterator["subprocess.Popen[bytes]"]:
    rate = str(job.rate)
    seed = str(job.seed)
    process = launch(job, "produce", "--rate", rate, "--seed", seed, "--poison", POISON_SHARE)
    try:
        yield process
    finally:
        end(process, job.patience_seconds)


@contextmanager
def running(job: ChaosJob) -> Iterator[SupervisedRun]:
    run = SupervisedRun(job, _launch_run(job))
    try:
        yield run
    finally:
        end(run.process, job.patience_seconds)


def end(process: "subprocess.Popen[bytes]", patience_seconds: float) -> int:
    """Asks a command to stop, and kills it if it does not in time; returns its exit code."""
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.terminate()
    try:
        return process.wait(patience_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def verified(folder: Path) -> list[Finding]:
    """The findings of the checker, run in a separate process."""
    with TemporaryDirectory(prefix="freshet-chaos-") as place:
        found = Path(place) / "findings.json"
        argv = [*COMMAND, "verify", "--run", as_path(folder), "--json", str(found)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=VERIFY_SECONDS)
        if not found.exists():
            return [Finding("verify", False, done.stderr.strip() or f"ended with status {done.returncode}")]
        return msgspec.json.decode(found.read_bytes(), type=list[Finding])
