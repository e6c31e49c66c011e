"""What a run has done so far: samples, traffic by worker and kind, timings. Builds the status that others show."""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dispatch.placement.traffic import WorkerTraffic
from dispatch.progress.prequential import Prequential, PrequentialState, ScoreSums
from dispatch.progress.quality import Quality
from dispatch.progress.status import (
    NO_FIELDS,
    ChoiceStatus,
    EventCounts,
    FieldsStatus,
    LabelStatus,
    QualityHistory,
    RunState,
    SinceMark,
    Status,
    WorkerStatus,
)
from dispatch.progress.times import RECENT_STEPS, DecisionTimes, StepTimes, StepTimesState
from dispatch.tally import NO_SECONDS, PhaseSeconds

HISTORY = 60
"""Points of the drawn history."""
HISTORY_SECONDS = 1.0
"""Time between two of them."""


class WorkerTotals(NamedTuple):
    """What a worker has done up to one moment."""

    traffic: WorkerTraffic = WorkerTraffic()
    seconds: PhaseSeconds = NO_SECONDS
    """Seconds of all rounds, with samples or without."""


NOTHING = WorkerTotals()


class WorkerState(msgspec.Struct, frozen=True):
    """One worker's account at one moment."""

    totals: WorkerTotals
    link_gbit: float
    measured_gbit: float
    recent_seconds: tuple[PhaseSeconds, ...]
    uplink_gbit: float = 0.0
    measured_uplink_gbit: float = 0.0


@dataclass
class WorkerAccount:
    """One worker's totals, which are kept across generations."""

    totals: WorkerTotals = NOTHING
    link_gbit: float = 0.0
    measured_gbit: float = 0.0
    uplink_gbit: float = 0.0
    """0: as fast as the link."""
    measured_uplink_gbit: float = 0.0
    recent_seconds: deque[PhaseSeconds] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    """Seconds of steps in which it had samples."""

    def add(self, traffic: WorkerTraffic, seconds: PhaseSeconds) -> None:
        self.totals = WorkerTotals(self.totals.traffic + traffic, self.totals.seconds + seconds)
        if traffic.samples:
            self.recent_seconds.append(seconds)

    def status(self, name: str, is_parked: bool, has_left: bool) -> WorkerStatus:
        """The status since the start of the run."""
        mean = sum(self.recent_seconds, start=NO_SECONDS) / max(1, len(self.recent_seconds))
        return WorkerStatus(
            name=name,
            link_gbit=self.link_gbit or None,
            measured_gbit=self.measured_gbit or None,
            uplink_gbit=self.uplink_gbit or None,
            measured_uplink_gbit=self.measured_uplink_gbit or None,
            is_parked=is_parked,
            has_left=has_left,
            traffic=self.totals.traffic,
            seconds=mean,
        )

    def since(self, mark: WorkerTotals, status: WorkerStatus, steps: int) -> WorkerStatus:
        """The same with what was added after the mark, and the mean seconds of that many steps."""
        seconds = (self.totals.seconds - mark.seconds) / max(1, steps)
        return msgspec.structs.replace(status, traffic=self.totals.traffic - mark.traffic, seconds=seconds)

    def save(self) -> WorkerState:
        return WorkerState(
            totals=self.totals,
            link_gbit=self.link_gbit,
            measured_gbit=self.measured_gbit,
            recent_seconds=tuple(self.recent_seconds),
            uplink_gbit=self.uplink_gbit,
            measured_uplink_gbit=self.measured_uplink_gbit,
        )

    @classmethod
    def load(cls, state: WorkerState) -> "WorkerAccount":
        recent = deque(state.recent_seconds, maxlen=RECENT_STEPS)
        return cls(
            totals=state.totals,
            link_gbit=state.link_gbit,
            measured_gbit=state.measured_gbit,
            uplink_gbit=state.uplink_gbit,
            measured_uplink_gbit=state.measured_uplink_gbit,
            recent_seconds=recent,
        )


@dataclass(frozen=True)
class Baseline:
    """All totals at the mark; later totals are compared with them."""

    at_seconds: float
    steps: int
    samples: int
    deadline_misses: int
    quality: ScoreSums
    workers: dict[str, WorkerTotals]


class AccountsState(msgspec.Struct, frozen=True):
    """All totals at one moment, without decisions."""

    quality: PrequentialState
    times: StepTimesState
    workers: dict[str, WorkerState]
    history: tuple[Quality, ...]
    baseline: Baseline | None
    """The totals at the mark; its time is in seconds since the first step began."""
    labels: dict[str, PrequentialState] = {}
    """Quality by label, of those after the main one."""


class Accounts:
    """Accumulates what the steps report."""

    def __init__(self, run: str, policy: str, mark_at: int | None = None, labels: Sequence[str] = ()) -> None:
        """mark_at: number of samples after which totals are also measured separately. labels: all but the main one."""
        self._run = run
        self._policy = policy
        self._mark_at = mark_at
        self.quality = Prequential()
        self.labels = {name: Prequential() for name in labels}
        """Quality by label, of those after the main one."""
        self.times = StepTimes()
        self.decisions = DecisionTimes()
        self._workers: dict[str, WorkerAccount] = {}
        self._parked: frozenset[str] = frozenset()
        self.choice = ChoiceStatus()
        """Why the workers that are not parked take part."""
        self._members: frozenset[str] | None = None
        """Names of the generation's members; None: none has started."""
        self._baseline: Baseline | None = None
        self._history: deque[Quality] = deque(maxlen=HISTORY)
        self._remembered = 0.0

    def add_round(self, worker: str, traffic: WorkerTraffic, seconds: PhaseSeconds) -> None:
        """Adds what a worker did in one round."""
        self._workers.setdefault(worker, WorkerAccount()).add(traffic, seconds)

    def add_labels(
        self,
        logits_BL: NDArray[np.float32],
        labels_BL: NDArray[np.float32],
        weights_B: NDArray[np.float32] | None,
    ) -> None:
        """Adds the predictions of a step for labels after the main one, where samples have them."""
        for place, quality in enumerate(self.labels.values()):
            known_B = ~np.isnan(labels_BL[:, place])
            weights = None if weights_B is None else weights_B[known_B]
            quality.add(logits_BL[known_B, place], labels_BL[known_B, place], weights)

    def set_speeds(
        self,
        worker: str,
        link_gbit: float,
        measured_gbit: float,
        uplink_gbit: float = 0.0,
        measured_uplink_gbit: float = 0.0,
    ) -> None:
        """Sets how fast a worker's link is, as configured and as measured; 0: not known. uplink_gbit: 0: as fast as the
        link.
        """
        account = self._workers.setdefault(worker, WorkerAccount())
        account.link_gbit = link_gbit
        account.measured_gbit = measured_gbit
        account.uplink_gbit = uplink_gbit
        account.measured_uplink_gbit = measured_uplink_gbit

    def set_members(self, workers: Collection[str]) -> None:
        """Sets the members of the generation; all other workers have left."""
        self._members = frozenset(workers)

    @property
    def parked(self) -> frozenset[str]:
        """Names of the parked workers."""
        return self._parked

    def set_parked(self, workers: Collection[str]) -> None:
        """Sets which workers are parked."""
        self._parked = frozenset(workers)

    def end_step(self, samples: int) -> float:
        """Ends a step; its scores have been added to the quality. Returns the seconds it took."""
        seconds = self.times.end(samples)
        if self._baseline is None and self._mark_at is not None and self.times.samples >= self._mark_at:
            self.decisions.mark()
            self._baseline = Baseline(
                at_seconds=self.times.ended,
                steps=self.times.steps,
                samples=self.times.samples,
                deadline_misses=self.decisions.deadline_misses,
                quality=self.quality.mark(),
                workers={name: account.totals for name, account in self._workers.items()},
            )
        return seconds

    def status(
        self, state: RunState, generation: int, step: int, events: EventCounts, fields: FieldsStatus = NO_FIELDS
    ) -> Status:
        recent = self.quality.recent()
        self._remember(recent)
        return Status(
            run=self._run,
            policy=self._policy,
            state=state,
            generation=generation,
            step=step,
            steps=self.times.steps,
            samples=self.times.samples,
            seconds=self.times.seconds,
            samples_per_second=0.0 if state == "paused" else self.times.samples_per_second,
            idle_seconds=self.times.idle_seconds,
            step_ms=self.times.step_ms,
            quality=self.quality.overall(),
            recent_quality=recent,
            labels={
                name: LabelStatus(quality=quality.overall(), recent_quality=quality.recent())
                for name, quality in self.labels.items()
            },
            history=QualityHistory(
                auc=tuple(point.auc for point in self._history if point.auc is not None),
                logloss=tuple(point.logloss for point in self._history if point.logloss is not None),
            ),
            since_mark=self._since(self._baseline) if self._baseline is not None else None,
            events=events,
            fields=fields,
            decisions=self.decisions.status(),
            workers=tuple(self._worker(name) for name in self._workers),
            choice=self.choice,
        )

    def save(self) -> AccountsState:
        """The counterpart of ``load``. Decisions are ahead of training and saved separately."""
        mark = self._baseline
        began = self.times.ended - self.times.seconds
        workers = {name: account.save() for name, account in self._workers.items()}
        baseline = None if mark is None else replace(mark, at_seconds=mark.at_seconds - began)
        labels = {name: quality.save() for name, quality in self.labels.items()}
        return AccountsState(self.quality.save(), self.times.save(), workers, tuple(self._history), baseline, labels)

    def load(self, state: AccountsState) -> None:
        """Continues from a saved state."""
        self.quality.load(state.quality)
        for name, quality in state.labels.items():
            self.labels[name].load(quality)
        self.times.load(state.times)
        self._workers = {name: WorkerAccount.load(account) for name, account in state.workers.items()}
        self._history = deque(state.history, maxlen=HISTORY)
        mark = state.baseline
        began = self.times.ended - self.times.seconds
        self._baseline = None if mark is None else replace(mark, at_seconds=mark.at_seconds + began)

    def _since(self, mark: Baseline) -> SinceMark:
        p50, p99 = self.decisions.percentiles_ms()
        steps = self.times.steps - mark.steps
        return SinceMark(
            quality=self.quality.since(mark.quality),
            steps=steps,
            samples=self.times.samples - mark.samples,
            seconds=self.times.ended - mark.at_seconds,
            decide_ms_p50=p50,
            decide_ms_p99=p99,
            deadline_misses=self.decisions.deadline_misses - mark.deadline_misses,
            workers=tuple(
                account.since(mark.workers.get(name, NOTHING), self._worker(name), steps)
                for name, account in self._workers.items()
            ),
        )

    def _worker(self, name: str) -> WorkerStatus:
        has_left = self._members is not None and name not in self._members
        return self._workers[name].status(name, name in self._parked, has_left)

    def _remember(self, recent: Quality) -> None:
        """Adds a point to the drawn history, once a second."""
        if recent.samples and monotonic() - self._remembered >= HISTORY_SECONDS:
            self._remembered = monotonic()
            self._history.append(recent)
