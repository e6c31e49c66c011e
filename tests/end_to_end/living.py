"""One run in real processes, started three times in its folder, to which everything happens that it must survive.

1. Somebody starts further processes of names that are taken; then processes are killed, ended and stopped one after the
   other; then the run is stopped.
2. Processes fail at named seams; then the supervisor is killed, and with it all of the run.
3. With another shard and a terminal that nobody reads, workers come and go on command; then the run is stopped.

What came of it is checked and trained again from the journal, once. Tests look at the facts noted here.
"""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from dispatch.commands.client import ask_members
from dispatch.journal.history import History, read_history
from infra.base.faults import ALLOWED, FAULT, read_fired
from infra.base.process import Stop
from infra.base.run_folder import DISPATCHER, FEED_WORD, read_endpoint
from ingest.config import StreamConfig
from ingest.main import ProducerJob, run_producer
from tests.end_to_end.listening import Heard, StandIn
from tests.end_to_end.processes import ROOT, children_of, environment, freshet, named, run, start, wait_until

BATCH, RATE, POISON = 128, 400.0, 0.02
RUN = "life"
SILENCE_SECONDS = 30
"""longer than a process that runs is silent, however busy the machine; one that was stopped is killed before that"""
SETTINGS = (
    *(f"run={RUN}", f"stream.batch={BATCH}", "stream.linger_seconds=0.1", "rows.dim=4", "api.port=0"),
    *("dispatch.workers=2", f"dispatch.silence_seconds={SILENCE_SECONDS}", "ps.shards=2"),
    *("checkpoints.seconds=1", "checkpoints.kept=100000"),
)
KILLED = ("dispatcher", "worker-1", "ps-0")
LOADER = "loader"
"""killed, too; its dispatcher ends with it"""
ENDED = "ps-1"
HUNG = ("worker-0", "api")
FURTHER = 4
"""steps between two faults: more than may have been on their way"""


def given(*settings: str) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def faults_after(step: int) -> tuple[str, ...]:
    """Faults of every kind of process, in the steps after that one."""
    return (
        f"worker-1:after_pull:step={step + 4}:kill",
        f"worker-0:dense_push_half_sent:step={step + 6}:kill",
        f"ps-0:push_half_applied:step={step + 10}:kill",
        "ps-1:gathering:count=1:exit=3",
        f"dispatcher:journalled:step={step + 14}:kill",
        "dispatcher:before_manifest:count=2:raise",
    )


@dataclass
class Facts:
    """What was seen, in the order in which it happened."""

    first_output: str = ""
    first_summary: dict[str, Any] = field(default_factory=dict)
    first_history: History | None = None
    """after the first stop"""
    strays: dict[str, tuple[int, str]] = field(default_factory=dict)
    """status and output of processes that were started by hand under names that were taken"""
    written: tuple[dict[str, bytes | None], dict[str, bytes | None]] = field(default_factory=lambda: ({}, {}))
    """the run's folder before these processes, and after them"""
    lost: str = ""
    """what the dispatcher logged while a worker was stopped"""
    faults: tuple[str, ...] = ()
    killed_history: History | None = None
    """when the supervisor had been killed"""
    orphans: tuple[int, int] = (0, 0)
    """processes that there were when the supervisor was killed, and how many of them stayed"""
    said: dict[str, str] = field(default_factory=dict)
    """what each command of an operator printed"""
    paused_at: int = 0
    members: list[list[str]] = field(default_factory=list)
    """that trained after each change"""
    last_errors: bytes = b""
    last_status: int | None = None
    last_summary: dict[str, Any] = field(default_factory=dict)
    heard: tuple[Heard, ...] = ()
    """all snapshots that somebody who serves the model was told of"""
    unreadable: tuple[int, ...] = ()
    """checkpoints among them that could not be read"""
    left: list[str] = field(default_factory=list)
    """processes that were there after an orderly end"""


class Life:
    """The run, whichever of its starts it is in."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.facts = folder / "run", Facts()
        self.stream = StreamConfig(folder=folder / "log", partitions=2)
        self.summary = folder / "summary.json"
        self.process: subprocess.Popen[Any] | None = None
        self.server = StandIn(RUN, self.feed, self.folder / "checkpoints")
        self._seen = (0, 0)
        """bytes of the journal when it was last read, and the last step in it"""

    def feed(self) -> str | None:
        """Where the dispatcher hears of servers; None while it is away."""
        words = (read_endpoint(self.folder, DISPATCHER) or "").split()
        return words[FEED_WORD] if len(words) > FEED_WORD else None

    # ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def history(self) -> History:
        return read_history(self.folder / "journal")

    def step(self) -> int:
        """The last step on record; reads the journal only if it has changed."""
        size = sum(file.stat().st_size for file in (self.folder / "journal").glob("*.log"))
        if size != self._seen[0]:
            self._seen = size, self.history().step
        return self._seen[1]

    def wait(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, self.process)

    def wait_for_steps(self, more: int) -> None:
        until = self.step() + more
        self.wait(lambda: self.step() >= until)

    def wait_for_a_snapshot(self) -> None:
        """One that is newer than the newest step now."""
        step = self.step()
        self.wait(lambda: self.server.heard[-1:] > [Heard(0, step, 0)])

    def children(self, *names: str) -> list[psutil.Process]:
        """Processes of those names; all by default."""
        assert self.process is not None
        found = named(self.folder, names) if names else children_of(self.folder)
        return [each for each in found if each.pid != self.process.pid]

    def training(self) -> list[str]:
        """Asked without a process of its own."""
        control = (self.folder / "endpoints" / "dispatcher").read_text().split()[2]
        return sorted(member.name for member in ask_members(control, RUN).members if member.state == "training")

    # ── the first start ───────────────────────────────────────────────────────────────────────────────────────────────
    def strike_one_after_another(self) -> None:
        facts, settings = self.facts, given(*SETTINGS, f"stream.folder={self.stream.folder}")
        self.process = start("up", "--run", self.folder, "--json", self.summary, *settings)
        self.wait(lambda: self.step() > FURTHER)
        self.start_strays()
        for name in (*KILLED, LOADER, ENDED):
            (victim,) = self.children(name)
            victim.send_signal(signal.SIGTERM if name == ENDED else signal.SIGKILL)
            self.wait(lambda victim=victim: not victim.is_running())  # type: ignore[misc]
            self.wait_for_steps(FURTHER)
            self.wait_for_a_snapshot()
        self.stop_processes()
        facts.first_output = " ".join(self.stop().split())
        facts.first_summary, facts.first_history = json.loads(self.summary.read_text()), self.history()

    def start_strays(self) -> None:
        """By hand, as somebody does who is mistaken in the name."""
        dispatcher = (self.folder / "endpoints" / "dispatcher").read_text().split()[0]
        at = "--dispatcher", dispatcher, "--run", self.folder
        before = self.written()
        shard = start("ps", "--shard", "0", "--name", "ps-0", "--endpoint", "tcp://127.0.0.1:*", *at)
        strays = {"ps-0": shard, "worker-1": start("worker", "--name", "worker-1", *at)}
        for name, process in strays.items():
            output, _ = process.communicate(timeout=300)
            self.facts.strays[name] = process.returncode, output
        self.facts.written = before, self.written()
        self.wait_for_steps(FURTHER)

    def written(self) -> dict[str, bytes | None]:
        """Every file of the run's folder with its content; without that where the run itself adds to it.

        Checkpoints, the journal and what is served come and go.
        """
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        named = {path.relative_to(self.folder): path for path in files}
        return {
            str(name): path.read_bytes() if name.parts[0] == "endpoints" else None
            for name, path in named.items()
            if name.parts[0] not in ("checkpoints", "journal")
        }

    def stop_processes(self) -> None:
        """A worker and a process that the run could do without, until both are replaced."""
        log = self.folder / "logs" / "dispatcher.log"
        before, stopped = len(log.read_text()), self.children(*HUNG)
        assert len(stopped) == len(HUNG)
        for process in stopped:
            process.suspend()
        self.wait(lambda: all(process.status() == psutil.STATUS_STOPPED for process in stopped))
        self.wait(lambda: not any(process.is_running() for process in stopped))
        self.wait(lambda: (self.folder / "endpoints" / "api").exists())
        self.wait_for_steps(2 * FURTHER)
        self.facts.lost = log.read_text()[before:]

    def stop(self) -> str:
        """Asks the run to stop; returns what it printed."""
        assert self.process is not None
        self.process.terminate()
        output, _ = self.process.communicate(timeout=300)
        self.facts.left += [" ".join(process.cmdline()) for process in children_of(self.folder)]
        assert self.process.returncode == 0, output
        return str(output)

    # ── the second ────────────────────────────────────────────────────────────────────────────────────────────────────
    def fail_at_seams(self) -> None:
        facts = self.facts
        facts.faults = faults_after(self.step())
        self.process = start("up", "--run", self.folder, **{FAULT: ",".join(facts.faults), ALLOWED: "1"})
        self.wait(lambda: len(read_fired(self.folder)) == len(facts.faults))
        self.wait_for_steps(FURTHER)
        there = self.children()
        self.process.kill()
        self.process.communicate()
        _, stayed = psutil.wait_procs(there, timeout=30)
        facts.orphans, facts.killed_history = (len(there), len(stayed)), self.history()

    # ── the third ─────────────────────────────────────────────────────────────────────────────────────────────────────
    def operate(self) -> None:
        facts, settings = self.facts, given("ps.shards=3")
        reader, writer = os.pipe()
        os.close(reader)
        self.process = subprocess.Popen(
            freshet("up", "--run", self.folder, "--json", self.summary, *settings),
            cwd=ROOT,
            env=environment(),
            stdout=writer,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        os.close(writer)
        self.wait_for_steps(FURTHER)
        self.tell("pause")
        facts.paused_at = self.step()
        self.change_members()
        self.tell("resume")
        self.wait_for_steps(FURTHER)
        self.process.terminate()
        _, facts.last_errors = self.process.communicate(timeout=300)
        facts.last_status, facts.last_summary = self.process.returncode, json.loads(self.summary.read_text())
        facts.left += [" ".join(process.cmdline()) for process in children_of(self.folder)]

    def change_members(self) -> None:
        """2 → 3 → 2 → 1 workers, of a run that is paused."""
        self.tell("workers", "add")
        self.await_members("worker-0", "worker-1", "worker-2")
        self.tell("workers", "list")
        self.tell("workers", "drain", "worker-0")
        self.await_members("worker-1", "worker-2")
        self.tell("workers", "drain", "worker-7", status=1)
        self.tell("workers", "remove", "worker-1")
        self.await_members("worker-2")
        self.tell("workers", "remove", "worker-2", status=1)
        self.wait(lambda: self.children("worker-0", "worker-1") == [])

    def tell(self, *arguments: str, status: int = 0) -> None:
        """Has a command of an operator carried out."""
        done = run(*arguments, "--run", self.folder)
        assert done.returncode == status, done.stdout + done.stderr
        self.facts.said[" ".join(arguments).replace("--name ", "")] = " ".join((done.stdout + done.stderr).split())

    def await_members(self, *names: str) -> None:
        self.wait(lambda: self.training() == list(names))
        self.facts.members.append([*names, str(self.step())])


@contextmanager
def producing(stream: StreamConfig, rate: float = RATE) -> Iterator[None]:
    """Events keep coming meanwhile, so many a second, some of them bad."""
    stop = Stop()
    job = ProducerJob(stream, rate=rate, poison_share=POISON, seed=3)
    thread = threading.Thread(target=run_producer, args=(job, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.request("all has happened")
        thread.join()


def live(folder: Path) -> Life:
    """Lives the whole life."""
    life = Life(folder)
    try:
        life.server.start()
        with producing(life.stream), closing(life.server):
            life.strike_one_after_another()
            life.fail_at_seams()
            life.operate()
        life.facts.heard, life.facts.unreadable = tuple(life.server.heard), tuple(life.server.unreadable)
    finally:
        if life.process is not None:
            life.process.kill()
            life.process.communicate()
    return life
