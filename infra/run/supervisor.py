"""Runs a set of processes: starts each when what it needs is ready, watches, restarts, and stops them in order.

One pass (``Supervisor.poll``) checks every child once and never waits, so a request to stop is noticed within a pass,
even during the start. No child is left behind: leaving the ``with`` block stops them all, and if the supervisor is
killed, the kernel kills its children (``infra.process.end_with_parent``).

    waiting ──► starting ──► ready ──► finished     exited with 0 by itself, which only some processes may, or was asked
                   │  ▲        │                    to end for good, which it may be in any state
                   ▼  │        ▼
                 pausing ◄──────────► failed        after its last restart, or it may not be restarted

A process that fails is restarted at once, as soon as what it needs is ready: the first time, and whenever the run has
made progress since its last failure. Without progress pauses grow, and after ``max_restarts`` of them it has failed for
good. A process that no longer touches its alive file was stopped or hangs; it is killed, and then it has failed like
any other. While the run drains, what it needs for that is still restarted; once it is over nothing is, and nothing
that fails matters.

Each child has a session of its own: Ctrl-C in a terminal reaches only the supervisor, which then stops the children in
``stop_order``. The kernel ties a child to the *thread* that started it, so start and watch from one long-lived thread.
"""

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Literal

import structlog

from infra.errors import ConfigError, ProcessFailed
from infra.files import open_log
from infra.process import START_ANEW, SUPERVISED, WRONG_SETTING, SignsOfLife, Stop
from infra.run.figures import count

PASS_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 30.0
TAIL_LINES = 12
LINE_CHARACTERS = 1000
"""of a line of a log that an error message quotes"""
ALIVE_SECONDS = 5.0
"""how long a process may not touch its alive file"""
LATE_SECONDS = 2.0
"""a pass that begins so much later than it should: the supervisor itself was stopped, or the machine was too busy"""
FAILED_SECONDS = 3.0
"""how long a process may drain once another has failed: it may be waiting for that one"""

State = Literal["waiting", "starting", "ready", "pausing", "finished", "failed", "stopped"]
Argv = Sequence[str] | Callable[[Mapping[str, str]], Sequence[str]]


@dataclass(frozen=True)
class ProcessSpec:
    """One process to run, and what its exit means."""

    name: str
    argv: Argv
    """the command, or a function that makes it from the endpoints (process name → endpoint text) known so far"""
    env: Mapping[str, str] = field(default_factory=dict)
    """added to the supervisor's own environment"""
    needs: tuple[str, ...] = ()
    """processes that must be ready, or finished, before this one is started"""
    endpoint_file: Path | None = None
    """written whole by the child once it is ready, with its endpoint; None: ready as soon as it runs"""
    ready_seconds: float = 600.0
    """how long it may take until the endpoint file exists; the first start of a version compiles kernels"""
    alive_file: Path | None = None
    """touched by the child every second (``infra.process.show_life``); None: nobody watches whether it was stopped"""
    alive_seconds: float = ALIVE_SECONDS
    """how long it may not be touched, from the first touch on, before the process is killed"""
    restart: Literal["never", "on_failure"] = "never"
    max_restarts: int = 3
    """consecutive failures without progress that are followed by a restart; the next one is final"""
    backoff_seconds: float = 0.5
    """pause before the second restart without progress; doubles with each further one, up to half a minute"""
    healthy_seconds: float = 300.0
    """a child that ran this long starts counting its failures from 0 again"""
    essential: bool = True
    """whether its final failure stops everything"""
    ends_run: bool = False
    """whether the run is over when it exits with 0"""
    may_finish: bool = False
    """whether it may exit with 0 while the run goes on; any other process that does so has failed"""
    stop_order: int = 0
    """low numbers are stopped first; equal ones together"""
    stop_seconds: float = 20.0
    """how long it may drain after SIGTERM before it is killed"""


@dataclass(frozen=True)
class Outcome:
    """How a supervised run ended."""

    reason: str
    """name of the signal, or 'finished'"""
    restarts: dict[str, int]
    """times each process was restarted, those that were"""
    killed: tuple[str, ...]
    """processes that did not stop in time and were killed; none of them essential, or the run was over by then"""


class Child:
    """One process through its starts, exits and restarts. Only this class changes its state."""

    def __init__(self, spec: ProcessSpec, log: Path) -> None:
        self.spec = spec
        self.log = log
        self.state: State = "waiting"
        self.endpoint = ""
        """what it wrote last; kept while it is restarted, so that it can be given the same address again"""
        self.restarts = 0
        self.status: int | None = None
        self.failure = ""
        """how it ended when it last failed, in words"""
        self.is_ending = False
        """whether it was asked to end for good"""
        self._signs = SignsOfLife(spec.alive_file) if spec.alive_file is not None else None
        self._failures = 0
        """in a row, without progress of the run"""
        self._progress = 0
        """of the run at the last failure"""
        self._popen: subprocess.Popen[bytes] | None = None
        self._since = 0.0
        self._why = ""

    @property
    def running(self) -> bool:
        return self._popen is not None and self._popen.returncode is None

    @property
    def pid(self) -> int | None:
        return self._popen.pid if self._popen is not None else None

    @property
    def seconds(self) -> float:
        """Since it was started or, if it does not run, since it ended."""
        return time.monotonic() - self._since if self._popen is not None else 0.0

    def start(self, endpoints: Mapping[str, str]) -> None:
        spec = self.spec
        if spec.endpoint_file is not None:
            spec.endpoint_file.parent.mkdir(parents=True, exist_ok=True)
            spec.endpoint_file.unlink(missing_ok=True)
        if self._signs is not None:
            self._signs.forget()
        argv = spec.argv(endpoints) if callable(spec.argv) else spec.argv
        env = {**os.environ, **spec.env, SUPERVISED: str(os.getpid())}
        self.restarts += self._popen is not None
        try:
            with open_log(self.log) as log:
                self._popen = subprocess.Popen(
                    list(argv), env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            raise ProcessFailed(
                f"process {spec.name!r} cannot be started: {error}; its command is {list(argv)!r}; "
                "expected a program that exists and may be run; check the installation"
            ) from error
        self._since = time.monotonic()
        self._why = ""
        self.state = "ready" if spec.endpoint_file is None else "starting"

    def look(self, progress: int = 0) -> None:
        """Updates the state from what the process has done since the last call; progress: of the run so far."""
        if self.state not in ("starting", "ready"):
            return
        if self._ended() is None and (why := self._hung()):
            self._why = why
            self.kill()
        if self.status is not None:
            self._settle(progress)
        elif self.state == "starting" and _exists(self.spec.endpoint_file):
            assert self.spec.endpoint_file is not None
            self.endpoint = self.spec.endpoint_file.read_text().strip()
            self.state = "ready"

    def due(self) -> bool:
        """Whether the process may be started as soon as what it needs is ready."""
        if self.state != "pausing":
            return self.state == "waiting"
        at_once = self._failures <= 1 or self.status == START_ANEW
        pause = 0.0 if at_once else self.spec.backoff_seconds * 2.0 ** (self._failures - 2)
        return time.monotonic() - self._since >= min(pause, LONGEST_PAUSE_SECONDS)

    def excuse(self) -> None:
        """Does not count the silence so far: the supervisor was away itself."""
        if self._signs is not None:
            self._signs.excuse()

    def end(self) -> None:
        """Asks the process to end for good: whatever it exits with, it is then finished."""
        self.is_ending = True
        if self.running:
            self.terminate()
            self._since = time.monotonic()
        elif self.state != "failed":
            self.state = "finished"

    def terminate(self) -> None:
        if self.running and self._popen is not None:
            self._popen.terminate()

    def kill(self) -> None:
        """Kills the process and whatever it started in its group."""
        if self.running and self._popen is not None:
            self._kill_group()
            self.status = self._popen.wait()

    def stopped(self) -> bool:
        """After SIGTERM: whether the process has ended."""
        if self._popen is not None and self._ended() is None:
            return False
        if self.state not in ("finished", "failed"):
            self.state = "stopped"
        return True

    def kill_late(self, waited_seconds: float) -> None:
        """Kills a process that did not stop in time."""
        self._why = f"did not stop within {waited_seconds:g} seconds and was killed"
        self.kill()

    def give_up(self, why: str) -> None:
        self._why = why
        self.state = "failed"

    def _kill_group(self) -> None:
        """What a process started and left behind would be in the way of the next one."""
        if self._popen is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)

    def _ended(self) -> int | None:
        assert self._popen is not None
        self.status = self._popen.poll()
        return self.status

    def _hung(self) -> str:
        """Why the process must be killed; empty if it need not be."""
        spec, waited = self.spec, time.monotonic() - self._since
        if self.is_ending and waited > spec.stop_seconds:
            return f"did not stop within {spec.stop_seconds:g} seconds and was killed"
        if self.state == "starting" and waited > spec.ready_seconds and not _exists(spec.endpoint_file):
            return f"was not ready within {spec.ready_seconds:g} seconds"
        if self._signs is not None and self._signs.silent_seconds() > spec.alive_seconds:
            return f"gave no sign of life for {spec.alive_seconds:g} seconds and was killed"
        return ""

    def _settle(self, progress: int) -> None:
        """Chooses finished, restart or failed after an exit."""
        if progress > self._progress or time.monotonic() - self._since >= self.spec.healthy_seconds:
            self._failures = 0
        self._since, self._progress = time.monotonic(), progress
        if self.is_ending or (self.status == 0 and (self.spec.may_finish or self.spec.ends_run)):
            self.state = "finished"
            return
        self._kill_group()
        self._failures += 1
        self.failure = self._why or describe_status(self.status)
        may_restart = self.spec.restart == "on_failure" and self.status != WRONG_SETTING
        self.state = "pausing" if may_restart and self._failures <= self.spec.max_restarts else "failed"

    def last_words(self) -> str:
        """The last line of its log, which for a process that failed is the reason."""
        return next(iter(last_lines(self.log, 1)), "").removeprefix("freshet: ")

    def explain(self) -> str:
        """The error message: what failed, how, what was expected, and the end of its log."""
        how = self._why or describe_status(self.status)
        again = f", restarted {count(self.restarts, 'time')}" if self.restarts else ""
        tail = "\n".join(f"  | {line}" for line in last_lines(self.log, TAIL_LINES))
        return (
            f"process {self.spec.name!r} {how}{again}; expected it to run until the run is over; see the end of its "
            f"log {self.log}:\n{tail or '  | (empty)'}"
        )


class Supervisor:
    """The children of one run. Use as a context manager: leaving it stops them all."""

    def __init__(self, specs: Sequence[ProcessSpec], folder: Path, progress: Callable[[], int] = lambda: 0) -> None:
        """progress: a number that grows with what the run has achieved, its newest step for example."""
        check_specs(specs)
        self._logs = folder / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self.children = {spec.name: self._child(spec) for spec in specs}
        self._progress = progress
        self._passed = math.inf
        """when the last pass ended"""
        self._is_stopping = False
        self._killed: list[str] = []
        self._log = structlog.get_logger("supervisor")

    def __enter__(self) -> "Supervisor":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.stop_all(longest_seconds=math.inf if error is None else FAILED_SECONDS)
        except ProcessFailed as later:
            if error is None:
                raise
            self._log.error("failed while stopping", error=str(later))  # the first error is the one raised

    def run(self, stop: Stop, each_pass: Callable[[], None] | None = None) -> Outcome:
        """Starts all processes, watches until the run is over or a stop is requested, and stops them in order.

        ``each_pass`` is called after every pass, also while processes drain: the place to refresh a display.
        """
        with self:
            while not stop.requested and self.poll():
                if each_pass is not None:
                    each_pass()
                stop.wait(PASS_SECONDS)
            reason = stop.reason or "finished"
            self._log.info("stopping", reason=reason)
            self.stop_all(each_pass)
        return self.outcome(reason)

    def poll(self) -> bool:
        """Checks every child once and starts those that may start; returns whether the run goes on.

        Raises ProcessFailed if an essential process has finally failed.
        """
        self._excuse_if_late()
        self._look_at(self.children.values())
        if self.is_over:
            return False
        self._start_due(self.children.values())
        return any(child.state not in ("finished", "failed") for child in self.children.values())

    @property
    def is_over(self) -> bool:
        """Whether a process whose end is the run's has ended with 0."""
        return any(
            child.spec.ends_run and child.state in ("finished", "stopped") and child.status == 0
            for child in self.children.values()
        )

    def add(self, spec: ProcessSpec) -> None:
        """Takes in a further process, which the next pass starts; raises ConfigError if it cannot be."""
        if self._is_stopping:
            raise ConfigError(f"process {spec.name!r} cannot be added: the run is stopping; expected one that goes on")
        known = self.children.get(spec.name)
        if known is not None and (known.running or known.state not in ("finished", "failed")):
            raise ConfigError(f"process {spec.name!r} is there already; expected another name; choose one")
        others = [child.spec for name, child in self.children.items() if name != spec.name]
        check_specs([*others, spec])
        self.children[spec.name] = self._child(spec)

    def end(self, name: str) -> None:
        """Asks one process to end for good; raises ConfigError if there is none of that name."""
        if name not in self.children:
            raise ConfigError(f"no process {name!r}; expected one of {', '.join(self.children)}; correct the name")
        self._log.info("ending", name=name, pid=self.children[name].pid)
        self.children[name].end()

    def endpoints(self) -> dict[str, str]:
        """Endpoint text of every process that wrote one."""
        return {name: child.endpoint for name, child in self.children.items() if child.endpoint}

    def ready(self) -> bool:
        """Whether every process is ready or has finished its work."""
        return all(child.state in ("ready", "finished") for child in self.children.values())

    def awaited(self) -> list[str]:
        """Names of the processes that were started and are not ready yet."""
        return [name for name, child in self.children.items() if child.state in ("starting", "pausing")]

    def stop_all(self, each_pass: Callable[[], None] | None = None, longest_seconds: float = math.inf) -> None:
        """Sends SIGTERM in stop order, one group after the other, and SIGKILL to processes that do not exit in time.

        While the process drains whose end is the run's, those that come after it are kept alive: it needs them. If it
        waits for its restart, nothing can drain, and nobody waits for that. Raises ProcessFailed for an essential
        process that had to be killed or exited with an error while the run was not over.
        """
        self._is_stopping = True
        leaders = [child for child in self.children.values() if child.spec.ends_run]
        failed = [child.explain() for child in leaders if child.state == "pausing"]
        longest_seconds = min(longest_seconds, FAILED_SECONDS) if failed else longest_seconds
        ordered = sorted(self.children.values(), key=lambda child: child.spec.stop_order)
        for order, group in groupby(ordered, key=lambda child: child.spec.stop_order):
            stopping = list(group)
            drains = longest_seconds == math.inf and any(child in leaders for child in stopping)
            kept = [child for child in ordered if child.spec.stop_order > order] if drains else []
            failed += self._stop_group(stopping, each_pass, longest_seconds, kept)
        if failed and not self.is_over:
            raise ProcessFailed("\n".join(failed))
        for explained in failed:
            self._log.error("failed after the run was over", error=explained)

    def outcome(self, reason: str) -> Outcome:
        restarts = {name: child.restarts for name, child in self.children.items() if child.restarts}
        return Outcome(reason, restarts, tuple(self._killed))

    def _may_start(self, child: Child) -> bool:
        states = {name: self.children[name].state for name in child.spec.needs}
        for name, state in states.items():
            if state == "failed":
                child.give_up(f"could not be started, as it needs {name!r}, which failed")
        return all(state in ("ready", "finished") for state in states.values())

    def _child(self, spec: ProcessSpec) -> Child:
        return Child(spec, self._logs / f"{spec.name}.log")

    def _look_at(self, children: Iterable[Child]) -> None:
        """Last at those whose end is the run's: whoever fails because they ended is then seen to be late."""
        before, progress = [(child, child.state) for child in children], self._progress()
        for child, _ in sorted(before, key=lambda found: found[0].spec.ends_run):
            child.look(progress)
        for child, state in before:
            self._tell(child, state)

    def _start_due(self, children: Iterable[Child]) -> None:
        for child in children:
            state = child.state
            if child.due() and self._may_start(child):
                child.start(self.endpoints())
            self._tell(child, state)

    def _excuse_if_late(self) -> None:
        """Signs of life that were not looked for do not count as missing."""
        late = time.monotonic() - self._passed - PASS_SECONDS
        self._passed = time.monotonic()
        if late > LATE_SECONDS:
            self._log.warning("late; nobody's silence is counted", late_seconds=round(late, 1))
            for child in self.children.values():
                child.excuse()

    def _tell(self, child: Child, before: State) -> None:
        """Logs a change of state; raises ProcessFailed if it is the final failure of an essential process."""
        if child.state == before:
            return
        event = {"name": child.spec.name, "pid": child.pid, "before": before}
        if child.state in ("starting", "ready", "finished"):
            self._log.info(child.state, **event, endpoint=child.endpoint)
            return
        self._log.error(child.state, **event, status=child.status, why=child.failure, restarts=child.restarts)
        if child.state == "failed" and child.spec.essential and not self.is_over:
            raise ProcessFailed(child.explain())

    def _stop_group(
        self,
        group: Sequence[Child],
        each_pass: Callable[[], None] | None,
        longest_seconds: float,
        kept: Sequence[Child],
    ) -> list[str]:
        """Stops these together; returns an error message for each essential one that did not exit cleanly.

        kept: restarted meanwhile if they fail
        """
        asked = time.monotonic()
        ran = [child for child in group if child.running and child.spec.essential]
        for child in group:
            child.terminate()
        while left := [child for child in group if not child.stopped()]:
            for child in left:
                patience = min(child.spec.stop_seconds, longest_seconds)
                if time.monotonic() - asked > patience:
                    self._log.error("killed", name=child.spec.name, waited_seconds=patience)
                    self._killed.append(child.spec.name)
                    child.kill_late(patience)
            self._excuse_if_late()
            self._look_at(kept)
            self._start_due(kept)
            if each_pass is not None:
                each_pass()
            time.sleep(PASS_SECONDS / 5)
        clean = (0, -signal.SIGTERM)  # ended by the signal itself: the child had not installed its handler yet
        return [child.explain() for child in ran if child.status not in clean]


def check_specs(specs: Sequence[ProcessSpec]) -> None:
    """Raises ConfigError for a name used twice, an unknown need, or needs that form a cycle."""
    names = [spec.name for spec in specs]
    if len(set(names)) != len(names):
        raise ConfigError(f"processes {names} share a name; expected each once; rename one")
    settled: set[str] = set()
    left = {spec.name: set(spec.needs) for spec in specs}
    while left:
        free = {name for name, needs in left.items() if needs <= settled}
        if not free:
            raise ConfigError(
                f"processes {sorted(left)} can never start: they need {sorted(set().union(*left.values()) - settled)}; "
                "expected needs that name other processes and form no cycle; correct 'needs'"
            )
        settled |= free
        left = {name: needs for name, needs in left.items() if name not in free}


def _exists(file: Path | None) -> bool:
    return file is not None and file.exists()


def describe_status(status: int | None) -> str:
    """An exit status in words."""
    if status is None:
        return "did not run"
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


def last_lines(path: Path, lines: int) -> list[str]:
    """The last lines of a log, without reading all of it; of a long line its beginning."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - LINE_CHARACTERS * lines))
            found = log.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return []
    return [line if len(line) <= LINE_CHARACTERS else f"{line[:LINE_CHARACTERS]}…" for line in found]
