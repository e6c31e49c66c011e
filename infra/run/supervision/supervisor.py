"""Runs a set of processes: starts each when what it needs is ready, watches, restarts, and stops them in order.

One pass (``Supervisor.poll``) checks every child (``Child``) once and never waits, so a request to stop is noticed
within a pass, even during the start. No child is left behind: leaving the ``with`` block stops them all, and if the
supervisor is killed, the kernel kills its children (``infra.base.process.end_with_parent``).

While the run drains, the processes that it needs for that are still restarted; once it has ended nothing is restarted,
and failures no longer matter. Each child has a separate session: Ctrl-C in a terminal reaches only the supervisor,
which then stops the children in ``stop_order``. The kernel ties a child to the *thread* that started it, so start and
watch from one long-lived thread.
"""

import math
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import TracebackType

import structlog

from dispatch.commands.supervision import ProcessState
from infra.base.errors import ConfigError, ProcessFailed
from infra.base.process import Stop
from infra.run.supervision.child import Child, ProcessSpec, Starter
from infra.run.supervision.compiling import compiled_so_far

PASS_SECONDS = 0.05
LATE_SECONDS = 2.0
"""A pass that begins this much too late means that the supervisor was stopped, or the machine was too busy."""
FAILED_SECONDS = 3.0
"""How long a process may drain once another has failed: it may be waiting for that one."""


@dataclass(frozen=True)
class Outcome:
    """How a supervised run ended."""

    reason: str
    """Name of the signal, or 'finished'."""
    restarts: dict[str, int]
    """How often each process was restarted, for those that were."""
    killed: tuple[str, ...]
    """Processes that did not stop in time and were killed; none of them essential, or the run had ended by then."""


class Supervisor:
    """The children of one run. Use as a context manager: leaving it stops them all."""

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        folder: Path,
        progress: Callable[[], int] = lambda: 0,
        starter: Starter | None = None,
    ) -> None:
        """progress: a number that grows with the achievements of the run, for example its newest step.

        starter: starts the processes that it can.
        """
        check_specs(specs)
        self._starter = starter
        self._logs = folder / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self.children = {spec.name: self._child(spec) for spec in specs}
        self._progress = progress
        self._passed = math.inf
        """When the last pass ended."""
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
        finally:
            if self._starter is not None:
                self._starter.close()

    def run(self, stop: Stop, each_pass: Callable[[], None] | None = None) -> Outcome:
        """Starts all processes, watches until the run ends or a stop is requested, and stops them in order.

        ``each_pass`` is called after every pass, even while processes drain: the place to refresh a display.
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
        """Checks every child once and starts those that may start; returns whether the run continues.

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
        """Whether a process whose end is the run's end has exited with 0."""
        return any(
            child.spec.ends_run and child.state in ("finished", "stopped") and child.status == 0
            for child in self.children.values()
        )

    def add(self, spec: ProcessSpec) -> None:
        """Adds a process, which the next pass starts; raises ConfigError if it cannot be added."""
        if self._is_stopping:
            raise ConfigError(f"process {spec.name!r} cannot be added: the run is stopping; expected one that is not")
        known = self.children.get(spec.name)
        if known is not None and (known.running or known.state not in ("finished", "failed")):
            raise ConfigError(f"process {spec.name!r} is there already; expected another name; choose one")
        others = [child.spec for name, child in self.children.items() if name != spec.name]
        check_specs([*others, spec])
        self.children[spec.name] = self._child(spec)

    def end(self, name: str) -> None:
        """Asks one process to end permanently; raises ConfigError if there is none of that name."""
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
        """The processes that were started and are not ready yet, by name and what they do."""
        return [awaited_as(child) for child in self.children.values() if child.state in ("starting", "pausing")]

    def stop_all(self, each_pass: Callable[[], None] | None = None, longest_seconds: float = math.inf) -> None:
        """Sends SIGTERM in stop order, one group after the other, and SIGKILL to processes that do not exit in time.

        While the process whose end is the run's end drains, those that come after it are kept alive, because it needs
        them. If it waits for its restart, nothing can drain, and nobody waits for that. Raises ProcessFailed for an
        essential process that had to be killed or exited with an error before the run had ended.
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
        return Child(spec, self._logs / f"{spec.name}.log", self._starter)

    def _look_at(self, children: Iterable[Child]) -> None:
        """Checks those whose end is the run's end last: whoever fails because they ended is then known to be late."""
        before = [(child, child.state) for child in children]
        progress = self._progress()
        for child, _ in sorted(before, key=lambda found: found[0].spec.ends_run):
            child.update_state(progress)
        for child, state in before:
            self._log_change(child, state)

    def _start_due(self, children: Iterable[Child]) -> None:
        for child in children:
            state = child.state
            if child.due() and self._may_start(child):
                child.start(self.endpoints())
            self._log_change(child, state)

    def _excuse_if_late(self) -> None:
        """Ignores missing signs of life while nobody was looking."""
        late = time.monotonic() - self._passed - PASS_SECONDS
        self._passed = time.monotonic()
        if late > LATE_SECONDS:
            self._log.warning("late; nobody's silence is counted", late_seconds=round(late, 1))
            for child in self.children.values():
                child.excuse()

    def _log_change(self, child: Child, before: ProcessState) -> None:
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

        kept: restarted meanwhile if they fail.
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


def awaited_as(child: Child) -> str:
    """Its name and, if known, what keeps it from being ready."""
    compiled = compiled_so_far(child.spec.endpoint_file) if child.state == "starting" else ""
    return f"{child.spec.name} (compiles kernels, {compiled} are there)" if compiled else child.spec.name


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
