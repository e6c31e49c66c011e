"""What a run has done so far: samples, traffic by worker and kind, timings. Makes the status that others show."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from time import monotonic

import numpy as np

from dispatch.crew import Member
from dispatch.progress.prequential import Mark, Metrics, Prequential
from dispatch.progress.status import EventCounts, Measured, Quality, State, Status, WorkerStatus
from dispatch.protocol import Report
from dispatch.rows.plan import Traffic

RECENT_STEPS = 50
"""steps over which timings are averaged"""
RECENT_SECONDS = 5.0
"""seconds over which the rate of samples is taken"""
MEASURED_STEPS = 10_000
"""steps after the mark whose decisions' times are kept"""
HISTORY = 60
"""points of the history that is drawn"""
HISTORY_SECONDS = 1.0
"""time between two of them"""


COUNTS = (
    *("samples", "lookups", "hits", "miss_pulls", "update_pushes", "evict_pushes", "flush_pushes"),
    *("all_reduces", "pulled_bytes", "pushed_bytes", "reduced_bytes"),
)


@dataclass
class WorkerAccount:
    """One worker's totals; it keeps them over generations."""

    link_gbit: float = 0.0
    measured_gbit: float = 0.0
    samples: int = 0
    lookups: int = 0
    hits: int = 0
    miss_pulls: int = 0
    update_pushes: int = 0
    evict_pushes: int = 0
    flush_pushes: int = 0
    all_reduces: int = 0
    pulled_bytes: int = 0
    pushed_bytes: int = 0
    reduced_bytes: int = 0
    seconds: deque[dict[str, float]] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    phase_seconds: dict[str, float] = field(default_factory=dict)
    """over all steps, with samples or without"""

    def copy(self) -> "WorkerAccount":
        return replace(self, seconds=deque(), phase_seconds=dict(self.phase_seconds))

    def since(self, mark: "WorkerAccount", name: str, steps: int) -> WorkerStatus:
        """What was added after the mark, and the mean seconds of so many steps."""
        counts = {count: getattr(self, count) - getattr(mark, count) for count in COUNTS}
        phases = {
            phase: (seconds - mark.phase_seconds.get(phase, 0.0)) / max(1, steps)
            for phase, seconds in self.phase_seconds.items()
        }
        return self._status(name, counts, phases)

    def status(self, name: str) -> WorkerStatus:
        phases = self.seconds[-1] if self.seconds else {}
        means = {phase: sum(step[phase] for step in self.seconds) / len(self.seconds) for phase in phases}
        counts = {count: getattr(self, count) for count in COUNTS}
        return self._status(name, counts, means)

    def _status(self, name: str, counts: dict[str, int], seconds: dict[str, float]) -> WorkerStatus:
        told, measured = self.link_gbit or None, self.measured_gbit or None
        return WorkerStatus(name=name, link_gbit=told, measured_gbit=measured, **counts, seconds=seconds)


@dataclass(frozen=True)
class Marked:
    """Where everything stood when so many samples had been trained."""

    at_seconds: float
    steps: int
    samples: int
    deadline_misses: int
    quality: Mark
    workers: dict[str, WorkerAccount]


class Accounts:
    """Adds up what the steps report."""

    def __init__(self, run: str, policy: str, mark_at: int | None = None) -> None:
        self._run, self._policy = run, policy
        self.quality = Prequential()
        self.steps = 0
        self.samples = 0
        self.deadline_misses = 0
        self.decisions_cut = 0
        self._workers: dict[str, WorkerAccount] = {}
        self._decide_seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        self._step_seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        self._began: float | None = None
        self._ended = 0.0
        self._marks: deque[tuple[float, int]] = deque()
        self._remembered = 0.0
        self._mark_at = mark_at
        self._mark: Marked | None = None
        self._measured_decisions: deque[float] = deque(maxlen=MEASURED_STEPS)
        self._history: deque[Metrics] = deque(maxlen=HISTORY)

    def begin(self, idle: bool = True) -> None:
        """A step begins now; if no other was under way, its time counts from here and not from the last one's end."""
        self._began = self._began or monotonic()
        if idle:
            self._ended = monotonic()

    def add_decision(self, seconds: float, is_late: bool = False, is_cut: bool = False) -> None:
        """How long one decision took, whether that was too long, and whether it was cut short for that."""
        self._decide_seconds.append(seconds)
        self.deadline_misses += is_late
        self.decisions_cut += is_cut
        if self._mark is not None:
            self._measured_decisions.append(seconds)

    def add_traffic(self, members: Sequence[Member], traffic: Traffic) -> None:
        """What one round moved."""
        for number, member in enumerate(members):
            account = self._workers.setdefault(member.name, WorkerAccount())
            account.link_gbit = member.link_gbit
            account.lookups += int(traffic.lookups[number])
            account.hits += int(traffic.hits[number])
            account.miss_pulls += int(traffic.miss_pull[number])
            account.update_pushes += int(traffic.update_push[number])
            account.evict_pushes += int(traffic.evict_push[number])
            account.flush_pushes += int(traffic.flush_push[number])
            account.all_reduces += int(traffic.all_reduce[number])

    def add_report(self, member: Member, report: Report, samples: int) -> None:
        account = self._workers[member.name]
        account.samples += samples
        account.pulled_bytes += report.pulled_bytes
        account.pushed_bytes += report.pushed_bytes
        account.reduced_bytes += report.reduced_bytes
        if samples:
            account.seconds.append(report.seconds)
        for phase, seconds in report.seconds.items():
            account.phase_seconds[phase] = account.phase_seconds.get(phase, 0.0) + seconds

    def add_speed(self, member: Member, gbit: float) -> None:
        """How fast a worker's link was found to be; 0: not known yet."""
        self._workers[member.name].measured_gbit = gbit

    def end_step(self, samples: int) -> None:
        now = monotonic()
        self.steps += 1
        self.samples += samples
        self._step_seconds.append(now - self._ended)
        self._ended = now
        if self._mark is None and self._mark_at is not None and self.samples >= self._mark_at:
            self._mark = self._marked(now)
        self._marks.append((now, self.samples))
        while len(self._marks) > 2 and now - self._marks[0][0] > RECENT_SECONDS:
            self._marks.popleft()

    def status(self, state: State, generation: int, step: int, events: EventCounts) -> Status:
        overall = self.quality.overall()
        recent = self.quality.recent()
        self._remember(recent)
        decided = self._decide_seconds
        return Status(
            run=self._run,
            state=state,
            generation=generation,
            step=step,
            steps=self.steps,
            samples=self.samples,
            seconds=self._ended - self._began if self._began is not None else 0.0,
            samples_per_second=self._rate(),
            logloss=overall.logloss,
            auc=overall.auc,
            calibration=overall.calibration,
            normalized_entropy=overall.normalized_entropy,
            recent_auc=recent.auc,
            not_finite=overall.not_finite,
            since_mark=_quality(self.quality.since(self._mark.quality)) if self._mark is not None else None,
            measured=self._measured(self._mark) if self._mark is not None else None,
            lag=events.lag,
            dead_letters=events.dead_letters,
            skipped=events.skipped,
            deadline_misses=self.deadline_misses,
            decisions_cut=self.decisions_cut,
            policy=self._policy,
            decide_ms=1000 * sum(decided) / len(decided) if decided else 0.0,
            step_ms=1000 * median(self._step_seconds) if self._step_seconds else 0.0,
            auc_history=tuple(m.auc for m in self._history if m.auc is not None),
            logloss_history=tuple(m.logloss for m in self._history if m.logloss is not None),
            workers=tuple(account.status(name) for name, account in self._workers.items()),
        )

    def _marked(self, now: float) -> Marked:
        workers = {name: account.copy() for name, account in self._workers.items()}
        return Marked(now, self.steps, self.samples, self.deadline_misses, self.quality.mark(), workers)

    def _measured(self, mark: Marked) -> Measured:
        decisions_ms = [1000 * seconds for seconds in self._measured_decisions] or [0.0]
        p50, p99 = np.percentile(decisions_ms, [50, 99]).tolist()
        steps, new = self.steps - mark.steps, WorkerAccount()
        return Measured(
            steps=steps,
            samples=self.samples - mark.samples,
            seconds=self._ended - mark.at_seconds,
            decide_ms_p50=p50,
            decide_ms_p99=p99,
            deadline_misses=self.deadline_misses - mark.deadline_misses,
            workers=tuple(
                account.since(mark.workers.get(name, new), name, steps) for name, account in self._workers.items()
            ),
        )

    def _remember(self, recent: Metrics) -> None:
        """A point of the drawn history, once a second."""
        if recent.samples and monotonic() - self._remembered >= HISTORY_SECONDS:
            self._remembered = monotonic()
            self._history.append(recent)

    def _rate(self) -> float:
        if len(self._marks) < 2:
            return 0.0
        (first_time, first_samples), (last_time, last_samples) = self._marks[0], self._marks[-1]
        return (last_samples - first_samples) / max(last_time - first_time, 1e-9)


def _quality(metrics: Metrics) -> Quality:
    return Quality(
        samples=metrics.samples,
        logloss=metrics.logloss,
        auc=metrics.auc,
        normalized_entropy=metrics.normalized_entropy,
        calibration=metrics.calibration,
    )
