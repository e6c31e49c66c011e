"""What a run tells about itself while it goes on, and at its end. Written by the dispatcher, shown by others.

Values that do not exist yet (no step done, no known best AUC) are None: JSON has no NaN.
"""

from typing import Literal

import msgspec

State = Literal["waiting", "training", "draining", "done"]


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's share of the run, counted from its start; counts are rows unless named otherwise."""

    name: str
    link_gbit: float | None = None
    """shaped or configured link speed; None: not limited"""
    measured_gbit: float | None = None
    """what its transfers have come to lately, delays included; None: not known yet"""
    samples: int = 0
    lookups: int = 0
    """distinct rows its micro-batches used, summed over steps"""
    hits: int = 0
    """lookups whose row was in the cache and up to date"""
    miss_pulls: int = 0
    update_pushes: int = 0
    evict_pushes: int = 0
    flush_pushes: int = 0
    """at the end of a generation, not part of any step"""
    all_reduces: int = 0
    """gradients of replicated rows that crossed its link: in a ring of n, 2(n-1)/n of those summed"""
    pulled_bytes: int = 0
    pushed_bytes: int = 0
    reduced_bytes: int = 0
    seconds: dict[str, float] = {}
    """mean seconds of the latest steps, by phase: push, pull, forward, backward, reduce, rows"""

    @property
    def hit_ratio(self) -> float | None:
        return self.hits / self.lookups if self.lookups else None

    @property
    def step_seconds(self) -> float:
        return sum(self.seconds.values())


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """Test-then-train quality over some samples."""

    samples: int
    logloss: float | None
    auc: float | None
    normalized_entropy: float | None
    calibration: float | None


class EventCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Events of the stream that were not trained."""

    lag: int = 0
    """in the log, not handed out yet"""
    dead_letters: int = 0
    skipped: int = 0
    """left out by the lag policy, or gone by retention"""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What the steps after the mark came to: start and first steps left out."""

    steps: int
    samples: int
    seconds: float
    decide_ms_p50: float
    decide_ms_p99: float
    deadline_misses: int
    workers: tuple[WorkerStatus, ...]
    """counted from the mark; ``seconds`` are means over all steps since"""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one moment."""

    run: str
    state: State = "waiting"
    generation: int = 0
    step: int = 0
    """number of the newest step; steps that held dead letters alone are numbered too"""
    steps: int = 0
    """trained so far"""
    samples: int = 0
    """trained so far"""
    seconds: float = 0.0
    """since the first step began"""
    samples_per_second: float = 0.0
    """over the latest seconds, not the whole run"""
    logloss: float | None = None
    """this and the next four: test-then-train, over the whole run"""
    auc: float | None = None
    calibration: float | None = None
    """predicted clicks over observed clicks"""
    normalized_entropy: float | None = None
    recent_auc: float | None = None
    """of the latest samples only"""
    best_auc: float | None = None
    """the highest AUC anyone can reach on this stream, where its click probability is known"""
    since_mark: Quality | None = None
    """over the samples after the mark, where one was asked for and reached"""
    measured: Measured | None = None
    """rates and traffic after that mark"""
    not_finite: int = 0
    """predictions that were NaN or infinite; above 0 the model has run away"""
    lag: int = 0
    """events in the log that have not been handed out yet"""
    dead_letters: int = 0
    skipped: int = 0
    """events left out: by the lag policy, or gone by retention"""
    policy: str = ""
    decide_ms: float = 0.0
    """mean time of a decision over the latest steps"""
    deadline_misses: int = 0
    """decisions that took longer than the workers were busy"""
    decisions_cut: int = 0
    """decisions that did less than their policy is set to, so as not to"""
    step_ms: float = 0.0
    """median time from the end of one step to the end of the next, over the latest steps"""
    auc_history: tuple[float, ...] = ()
    """recent AUC at even distances, oldest first"""
    logloss_history: tuple[float, ...] = ()
    """recent logloss at the same moments"""
    workers: tuple[WorkerStatus, ...] = ()


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a run comes to; ``freshet demo --json`` writes it."""

    run: str
    exit_reason: str
    """'finished', or the name of the signal"""
    policy: str
    decide_ms: float
    deadline_misses: int
    decisions_cut: int
    step_ms: float
    generations: int
    steps: int
    samples: int
    seconds: float
    samples_per_second: float
    """over the whole run"""
    logloss: float | None
    auc: float | None
    recent_auc: float | None
    best_auc: float | None
    calibration: float | None
    normalized_entropy: float | None
    since_mark: Quality | None
    measured: Measured | None
    not_finite: int
    dead_letters: int
    lag: int
    workers: tuple[WorkerStatus, ...]
    skipped: int = 0
    restarts: dict[str, int] = {}
    killed: tuple[str, ...] = ()


def summarize(
    status: Status, exit_reason: str, restarts: dict[str, int] | None = None, killed: tuple[str, ...] = ()
) -> Summary:
    """The summary of a run whose last status this is."""
    return Summary(
        run=status.run,
        exit_reason=exit_reason,
        policy=status.policy,
        decide_ms=status.decide_ms,
        deadline_misses=status.deadline_misses,
        decisions_cut=status.decisions_cut,
        step_ms=status.step_ms,
        generations=status.generation,
        steps=status.steps,
        samples=status.samples,
        seconds=status.seconds,
        samples_per_second=status.samples / status.seconds if status.seconds > 0 else 0.0,
        logloss=status.logloss,
        auc=status.auc,
        recent_auc=status.recent_auc,
        best_auc=status.best_auc,
        calibration=status.calibration,
        normalized_entropy=status.normalized_entropy,
        since_mark=status.since_mark,
        measured=status.measured,
        not_finite=status.not_finite,
        dead_letters=status.dead_letters,
        lag=status.lag,
        workers=status.workers,
        skipped=status.skipped,
        restarts=restarts or {},
        killed=killed,
    )
