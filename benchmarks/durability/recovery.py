"""How long a run goes without training after one of its processes was killed or stopped, observed from outside.

Every case is a separate run, with real processes on a stream that keeps coming: one fault, then the seconds until new
steps are completed, beyond those completed before it and those that may have been under way, according to the run's
journal; steps that are trained again in between do not count. A seam is a place in the code at which a process kills
itself (``infra.base.faults``); a stopped process (SIGSTOP) is continued after a while, when another has long taken its
place; the supervisor is killed and started again at once. In the end the run is stopped cleanly, and ``freshet verify``
checks it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from infra.base.errors import ConfigError, FreshetError
from infra.base.faults import DISPATCHER, SEAMS, SHARD, WORKER, read_fired
from infra.chaos.main import SUPERVISOR, ChaosJob, SupervisedRun, end, producing_events, running, verified
from infra.chaos.progress import Progress

EXAMPLES = {WORKER: "worker-1", SHARD: "ps-1", DISPATCHER: "dispatcher", SUPERVISOR: SUPERVISOR}
"""The process of each kind that is struck."""
AT_STEP = "step=30"
ONCE_IN_A_WHILE = {
    "start": "count=1",
    "push_half_sent": "count=10",
    "idle": "count=50",
    **dict.fromkeys(("checkpoint_flush", "gathering", "before_file", "after_file"), "count=2"),
    **dict.fromkeys(("checkpoint_half_done", "before_manifest", "after_manifest"), "count=2"),
}
"""Conditions of seams that are not reached in every step; the others fire at a step."""
SETTLED_STEPS = 30
"""Steps before a process is struck from outside."""
UNDER_WAY = 2
"""Steps that may still be completed when a process is gone."""
SETTINGS = (
    *("dispatch.workers=2", "ps.shards=2", "stream.batch=128", "stream.first_batch=0", "rows.dim=8", "api.port=0"),
    *("checkpoints.seconds=1", "checkpoints.kept=100000"),  # all, so that the journal stays for the checker
    "memory.expire_steps=50",  # soon, so that its fault point is reached
)
"""Settings of every run, before those that are given."""
TICK_SECONDS = 0.05
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class RecoveryResult:
    """One fault, and how the run recovered."""

    name: str
    process: str
    seconds: float
    """Time until a new step was completed."""
    steps: int
    """Steps completed in the end."""
    is_replaced: bool
    """Whether another process has its name now."""
    violations: str
    """Violations found by ``freshet verify``; empty: none."""


@dataclass(frozen=True)
class Case:
    """One fault: at a seam, or from outside."""

    name: str
    process: str
    fault: str = ""
    """The fault at a seam."""
    stopped_seconds: float = 0.0
    """How long a process is stopped, instead of being killed."""


def cases(kinds: Sequence[str], stopped_seconds: float) -> Iterator[Case]:
    """All cases of these kinds of process; raises ConfigError for a kind that is not known."""
    for kind in kinds:
        if kind not in EXAMPLES:
            raise ConfigError(f"no kind of process {kind!r}; expected {', '.join(EXAMPLES)}; check --processes")
        process = EXAMPLES[kind]
        for seam in (name for name, seam in SEAMS.items() if seam.process == kind):
            yield Case(seam, process, f"{process}:{seam}:{ONCE_IN_A_WHILE.get(seam, AT_STEP)}:kill")
        if kind == SUPERVISOR:
            yield Case("killed", process)
        yield Case(f"stopped {stopped_seconds:g} s", process, stopped_seconds=stopped_seconds)


def run_recovery(
    folder: Path, chosen: Sequence[Case], rate: float, settings: Sequence[str], tell: Callable[[str], None]
) -> list[RecoveryResult]:
    """Runs one case after the other."""
    results = []
    for number, case in enumerate(chosen):
        place = folder / f"{number}-{case.process}"
        place.mkdir(parents=True)
        overrides = f"stream.folder={place / 'log'}", *SETTINGS, *settings
        options = tuple(part for override in overrides for part in ("--set", override))
        job = ChaosJob(place, number, 0.0, 0.0, rate, options, PATIENCE_SECONDS, case.fault)
        results.append(_measure(job, case))
        tell(f"{case.process} {case.name}: {results[-1].seconds:.1f} s")
    return results


def _measure(job: ChaosJob, case: Case) -> RecoveryResult:
    with ExitStack() as resources:
        producing = resources.enter_context(producing_events(replace(job, faults="")))
        run = resources.enter_context(running(job))
        watch = _Watch(run, Progress(job.folder))
        pid, at = watch.await_seam() if case.fault else watch.strike(case)
        before = watch.steps()
        watch.until(lambda: watch.steps() > before + UNDER_WAY, f"steps after {case.process} {case.name}")
        seconds = time.time() - at
        if case.stopped_seconds:
            watch.until(lambda: time.time() > at + case.stopped_seconds, "the end of the stop")
            watch.let_go_on()
        watch.until(lambda: case.process in run.processes(), f"a process {case.process}")
        is_replaced = run.processes()[case.process].pid != pid
        end(producing, PATIENCE_SECONDS)
        if status := end(run.process, PATIENCE_SECONDS):
            raise FreshetError(f"freshet up ended with status {status}; expected 0; see {job.folder}")
    violations = "; ".join(f"{each.name}: {each.found}" for each in verified(job.folder) if each.ok is False)
    return RecoveryResult(case.name, case.process, seconds, watch.steps(), is_replaced, violations)


@dataclass
class _Watch:
    """Observes a run from outside, and strikes it."""

    run: SupervisedRun
    progress: Progress
    struck: psutil.Process | None = None

    def await_seam(self) -> tuple[int, float]:
        """Process id and time of the fault at a seam."""
        folder = self.run.job.folder
        self.until(lambda: bool(read_fired(folder)), f"fault {self.run.job.faults}")
        fired = read_fired(folder)[0]
        return fired.pid, fired.at_seconds

    def strike(self, case: Case) -> tuple[int, float]:
        """Kills or stops a process of a run that trains; returns its id, and when."""
        self.until(lambda: self.steps() > SETTLED_STEPS, f"{SETTLED_STEPS} steps")
        self.struck = self.run.processes()[case.process]
        if case.stopped_seconds:
            self.struck.suspend()
        else:
            self.run.was_killed = case.process == SUPERVISOR
            self.struck.kill()
        return self.struck.pid, time.time()

    def let_go_on(self) -> None:
        """Continues the stopped process, if it still exists."""
        if self.struck is not None:
            with suppress(psutil.NoSuchProcess):
                self.struck.resume()

    def steps(self) -> int:
        """Number of steps completed so far."""
        return (self.progress.read_newest() or (0, 0))[1]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Polls, and starts the supervisor again if it is gone; raises FreshetError if it takes too long."""
        limit = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            if time.monotonic() > limit:
                raise FreshetError(f"waited {PATIENCE_SECONDS:g} s for {what}; expected it; see {self.run.job.folder}")
            self.run.revive()
            time.sleep(TICK_SECONDS)
