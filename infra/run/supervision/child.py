"""One process of a run: how it is started, what its exit means, and how it comes back.

    waiting ──► starting ──► ready ──► finished     exited with 0 by itself, which only some processes may, or was asked
                   │  ▲        │                    to end for good, which it may be in any state
                   ▼  │        ▼
                 pausing ◄──────────► failed        after its last restart, or it may not be restarted

A process that fails is restarted at once, as soon as what it needs is ready: the first time, and whenever the run has
made progress since its last failure. Without progress pauses grow, and after ``max_restarts`` of them, if there is such
a number, it has failed for good. A process that no longer touches its alive file was stopped or hangs; it is killed,
and then it has failed like any other.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, Protocol

from dispatch.commands.supervision import ProcessState
from infra.base.errors import ProcessFailed
from infra.base.files import open_log
from infra.base.process import START_ANEW, SUPERVISED, WRONG_SETTING, SignsOfLife
from infra.run.figures import count
from infra.run.supervision.compiling import compiling_file
from infra.run.supervision.nursery import kill_group

LONGEST_PAUSE_SECONDS = 30.0
MOST_DOUBLINGS = 16
"""Most doublings of a pause that are computed; the pause is at its longest before that."""
TAIL_LINES = 12
LINE_CHARACTERS = 1000
"""Most characters of a log line that an error message quotes."""
ALIVE_SECONDS = 5.0
"""How long a process may not touch its alive file."""

Argv = Sequence[str] | Callable[[Mapping[str, str]], Sequence[str]]


@dataclass(frozen=True)
class ProcessSpec:
    """One process to run, and what its exit means."""

    name: str
    argv: Argv
    """The command, or a function that builds it from the endpoints (process name → endpoint text) known so far."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables added to the supervisor's own environment."""
    needs: tuple[str, ...] = ()
    """Processes that must be ready, or finished, before this one is started."""
    endpoint_file: Path | None = None
    """Written whole by the child once it is ready, with its endpoint; None: ready as soon as it runs."""
    ready_seconds: float = 600.0
    """How long it may take until the endpoint file exists; the first start of a version compiles kernels."""
    alive_file: Path | None = None
    """Touched by the child every second (``infra.base.process.show_life``); None: nobody watches for stops."""
    alive_seconds: float = ALIVE_SECONDS
    """How long it may not be touched, after the first touch, before the process is killed."""
    restart: Literal["never", "on_failure"] = "never"
    max_restarts: int | None = 3
    """Consecutive failures without progress that are followed by a restart; the next one is final. None: all are."""
    backoff_seconds: float = 0.5
    """Pause before the second restart without progress; doubles with each further one, up to half a minute."""
    healthy_seconds: float = 300.0
    """A child that ran this long counts its failures from 0 again."""
    essential: bool = True
    """Whether its final failure stops everything."""
    ends_run: bool = False
    """Whether the run has ended when it exits with 0."""
    may_finish: bool = False
    """Whether it may exit with 0 during the run; any other process that does so has failed."""
    stop_order: int = 0
    """Low numbers are stopped first; equal ones together."""
    stop_seconds: float = 20.0
    """How long it may drain after SIGTERM before it is killed."""


class StartedProcess(Protocol):
    """A process that a starter has started, with what a supervisor needs of ``subprocess.Popen``."""

    pid: int
    """Process id; 0: not known yet."""
    returncode: int | None

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...

    def terminate(self) -> None: ...

    def kill_group(self) -> None:
        """Kills it and whatever it started in its group."""


class Starter(Protocol):
    """Starts commands in another way than by executing them: a nursery, or the nodes of a cluster."""

    def can_start(self, argv: Sequence[str]) -> bool: ...

    def start(self, argv: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> StartedProcess: ...

    def close(self) -> None:
        """Ends everything that it started."""


class Child:
    """One process through its starts, exits and restarts. Only this class changes its state."""

    def __init__(self, spec: ProcessSpec, log: Path, starter: Starter | None = None) -> None:
        self.spec = spec
        self.log = log
        self._starter = starter
        self.state: ProcessState = "waiting"
        self.endpoint = ""
        """The endpoint that it wrote last; kept during a restart, so that it can get the same address again."""
        self.restarts = 0
        self.status: int | None = None
        self.failure = ""
        """How it ended when it last failed, in words."""
        self.is_ending = False
        """Whether it was asked to end permanently."""
        self._signs = SignsOfLife(spec.alive_file) if spec.alive_file is not None else None
        self._failures = 0
        """Failures in a row, without progress of the run."""
        self._progress = 0
        """Progress of the run at the last failure."""
        self._process: subprocess.Popen[bytes] | StartedProcess | None = None
        self._since = 0.0
        self._why = ""
        self._said_before = 0
        """Bytes of its log that processes before it have written."""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        return (self._process.pid or None) if self._process is not None else None

    @property
    def seconds(self) -> float:
        """Time since it was started or, if it does not run, since it ended."""
        return time.monotonic() - self._since if self._process is not None else 0.0

    def start(self, endpoints: Mapping[str, str]) -> None:
        spec = self.spec
        if spec.endpoint_file is not None:
            spec.endpoint_file.parent.mkdir(parents=True, exist_ok=True)
            spec.endpoint_file.unlink(missing_ok=True)
            compiling_file(spec.endpoint_file).unlink(missing_ok=True)
        if self._signs is not None:
            self._signs.forget()
        argv = spec.argv(endpoints) if callable(spec.argv) else spec.argv
        self.restarts += self._process is not None
        try:
            with open_log(self.log) as log:
                self._said_before = log.seek(0, os.SEEK_END)
                self._process = run_process(list(argv), spec.env, log, self._starter)
        except OSError as error:
            raise ProcessFailed(
                f"process {spec.name!r} cannot be started: {error}; its command is {list(argv)!r}; "
                "expected a program that exists and may be run; check the installation"
            ) from error
        self._since = time.monotonic()
        self._why = ""
        self.state = "ready" if spec.endpoint_file is None else "starting"

    def update_state(self, progress: int = 0) -> None:
        """Updates the state from what the process has done since the last call; progress: of the run so far."""
        if self.state not in ("starting", "ready"):
            return
        if self._ended() is None and (why := self._hung()):
            self._why = why
            self.kill()
        if self.status is not None:
            self._decide_after_exit(progress)
        elif self.state == "starting" and _exists(self.spec.endpoint_file):
            assert self.spec.endpoint_file is not None
            self.endpoint = self.spec.endpoint_file.read_text().strip()
            self.state = "ready"

    def due(self) -> bool:
        """Whether the process may be started as soon as what it needs is ready."""
        if self.state != "pausing":
            return self.state == "waiting"
        at_once = self._failures <= 1 or self.status == START_ANEW
        doublings = min(self._failures - 2, MOST_DOUBLINGS)
        pause = 0.0 if at_once else self.spec.backoff_seconds * 2.0**doublings
        return time.monotonic() - self._since >= min(pause, LONGEST_PAUSE_SECONDS)

    def excuse(self) -> None:
        """Ignores the silence so far, because the supervisor itself was suspended."""
        if self._signs is not None:
            self._signs.excuse()

    def end(self) -> None:
        """Asks the process to end permanently: whatever it exits with, it is then finished."""
        self.is_ending = True
        if self.running:
            self.terminate()
            self._since = time.monotonic()
        elif self.state != "failed":
            self.state = "finished"

    def terminate(self) -> None:
        if self.running and self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """Kills the process and whatever it started in its group."""
        if self.running and self._process is not None:
            self._kill_group()
            self.status = self._process.wait()

    def stopped(self) -> bool:
        """After SIGTERM: whether the process has ended."""
        if self._process is not None and self._ended() is None:
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
        """Kills what a process started and left behind, which would be in the way of the next one."""
        if isinstance(self._process, subprocess.Popen):
            kill_group(self._process.pid)
        elif self._process is not None:
            self._process.kill_group()

    def _ended(self) -> int | None:
        assert self._process is not None
        self.status = self._process.poll()
        return self.status

    def _hung(self) -> str:
        """Why the process must be killed; empty if it need not be."""
        spec = self.spec
        waited = time.monotonic() - self._since
        if self.is_ending and waited > spec.stop_seconds:
            return f"did not stop within {spec.stop_seconds:g} seconds and was killed"
        if self.state == "starting" and waited > spec.ready_seconds and not _exists(spec.endpoint_file):
            return f"was not ready within {spec.ready_seconds:g} seconds"
        if self._signs is not None and self._signs.silent_seconds() > spec.alive_seconds:
            return f"gave no sign of life for {spec.alive_seconds:g} seconds and was killed"
        return ""

    def _decide_after_exit(self, progress: int) -> None:
        """Decides on finished, restart or failed after an exit."""
        if progress > self._progress or time.monotonic() - self._since >= self.spec.healthy_seconds:
            self._failures = 0
        self._since = time.monotonic()
        self._progress = progress
        if self.is_ending or (self.status == 0 and (self.spec.may_finish or self.spec.ends_run)):
            self.state = "finished"
            return
        self._kill_group()
        self._failures += 1
        self.failure = self._why or self._last_status()
        may_restart = self.spec.restart == "on_failure" and self.status != WRONG_SETTING
        has_restarts = self.spec.max_restarts is None or self._failures <= self.spec.max_restarts
        self.state = "pausing" if may_restart and has_restarts else "failed"

    def _last_status(self) -> str:
        """How it ended; if it gave up, with what it said last."""
        has_spoken = self.log.exists() and self.log.stat().st_size > self._said_before
        words = self.last_words() if self.status is not None and self.status > 0 and has_spoken else ""
        return f"{describe_status(self.status)}: {words}" if words else describe_status(self.status)

    def last_words(self) -> str:
        """The last line of its log, which is the reason if it failed."""
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


def run_process(
    argv: list[str], env: Mapping[str, str], log: IO[bytes], starter: Starter | None
) -> "subprocess.Popen[bytes] | StartedProcess":
    """Starts a command with more environment than this process has; the starter does it if it can."""
    if starter is not None and starter.can_start(argv):
        return starter.start(argv, env, log)
    env = {**os.environ, **env, SUPERVISED: str(os.getpid())}
    return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def _exists(file: Path | None) -> bool:
    return file is not None and file.exists()


def describe_status(status: int | None) -> str:
    """An exit code in words."""
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
