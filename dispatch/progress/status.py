"""What a run tells about itself while it goes on, and at its end. Written by the dispatcher, shown by others.

Values that do not exist yet (no step done, no known best AUC) are None: JSON has no NaN.
"""

from typing import Literal

import msgspec

from dispatch.placement.traffic import WorkerTraffic
from dispatch.progress.prequential import Quality
from dispatch.tally import NO_SECONDS, PhaseSeconds

RunState = Literal["waiting", "replaying", "training", "paused", "draining", "done"]

AlphaMode = Literal["fixed", "manual", "auto"]
"""fixed: as the policy says; manual: a person's value; auto: the dispatcher follows contention"""


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's share of the run."""

    name: str
    link_gbit: float | None = None
    """shaped or configured link speed; None: not limited"""
    measured_gbit: float | None = None
    """what its latest transfers have come to, delays included; None: not known yet"""
    least_share: float | None = None
    """fewest samples it gets under an elastic policy, in equal shares of the batch; None: shares are equal"""
    largest_share: float | None = None
    is_parked: bool = False
    """whether it gets no samples, because the others are faster without it"""
    has_left: bool = False
    """whether it is no member of the generation: it was drained, removed or lost"""
    traffic: WorkerTraffic = WorkerTraffic()
    """since the start of the run"""
    seconds: PhaseSeconds = NO_SECONDS
    """means of the latest steps in which it had samples"""


class SinceMark(msgspec.Struct, frozen=True, kw_only=True):
    """What came after the mark, the start and first steps left out."""

    quality: Quality
    steps: int
    samples: int
    seconds: float
    decide_ms_p50: float
    decide_ms_p99: float
    deadline_misses: int
    workers: tuple[WorkerStatus, ...]
    """traffic since the mark; seconds are means over all steps since"""


class EventCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Events of the stream that were not trained."""

    lag: int = 0
    """in the log, not handed out yet"""
    dead_letters: int = 0
    skipped: int = 0
    """left out by the lag policy, or gone by retention"""


class FreshnessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How fresh the served model is."""

    p50_seconds: float | None = None
    """from the arrival of an event in the log to the first answer of a model that has learnt from it; of the events
    that became part of a served model in the latest half to whole minute"""
    p99_seconds: float | None = None
    age_seconds: float | None = None
    """since the event time of the newest event that the served model has learnt from, those dated ahead left out"""
    events: int = 0
    """measured so far"""
    forgotten: int = 0
    """events that waited too long to be measured: no version with them was served"""
    ahead: int = 0
    """events dated more than 10 s after the dispatcher read them: clocks of devices that are wrong"""
    clock: str | None = None
    """whose arrival times are taken: append (of the log), CreateTime or LogAppendTime (as Kafka's topic is set to);
    None: not known yet"""


class ServedStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Which version of the model is served, and which is the newest."""

    servers: int = 0
    """that have said what they serve in the latest seconds"""
    checkpoint: int | None = None
    """that the server heard last serves; None: none yet"""
    timeline: int | None = None
    step: int | None = None
    newest_checkpoint: int | None = None
    """that has been announced; None: none yet"""
    held: tuple[str, ...] = ()
    """why the newest version is held back; none: it is good"""
    freshness: FreshnessStatus = FreshnessStatus()


class FieldsStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the schema's fields the events have."""

    present: dict[str, float] = {}
    """share of the samples with a value, by field"""
    absent: tuple[str, ...] = ()
    """fields that none of the latest many samples has: perhaps a wrong name or schema"""
    unknown: tuple[str, ...] = ()
    """what these events have instead, with examples; looked for only where fields are absent"""


NO_FIELDS = FieldsStatus()


class DecisionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How long decisions take."""

    mean_ms: float = 0.0
    """over the latest steps"""
    deadline_misses: int = 0
    """decisions that took longer than the workers were busy"""
    cut_short: int = 0
    """decisions shortened to meet the deadline"""


class QualityHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Quality of the then latest samples, at even distances, oldest first."""

    auc: tuple[float, ...] = ()
    logloss: tuple[float, ...] = ()


class InForce(msgspec.Struct, frozen=True, kw_only=True):
    """What people, or the dispatcher by itself, have set."""

    alpha: float | None = None
    """share of exact solving in force"""
    alpha_mode: AlphaMode = "fixed"
    opt_backend: str | None = None
    """where exact assignment runs; None: not known yet"""
    alpha_readings: dict[str, float] = {}
    """how contended the machine is, where alpha follows that"""
    alpha_reason: str = ""
    """of the newest change of alpha"""
    alpha_changed_at: float | None = None
    """when that was, since 1970; None: never"""
    version: int = 0
    """of the journal"""
    is_paused: bool = False
    """whether a pause is wanted; the state tells whether it has begun"""


class Condition(InForce, frozen=True, kw_only=True):
    """Whether a run goes on."""

    state: RunState = "waiting"
    troubles: tuple[str, ...] = ()
    """what keeps the run from going on, or a crash from being cheap, in words; none: all is well"""


class Status(Condition, frozen=True, kw_only=True):
    """A run at one moment."""

    run: str
    policy: str = ""
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
    idle_seconds: float = 0.0
    """since the last step ended; 0 while one is under way, and before the first"""
    step_ms: float = 0.0
    """median time from the end of one step to the end of the next, over the latest steps"""
    quality: Quality = Quality()
    """over the whole run"""
    recent_quality: Quality = Quality()
    """over the latest samples only"""
    best_auc: float | None = None
    """the highest AUC anyone can reach on this stream, where its click probability is known"""
    history: QualityHistory = QualityHistory()
    since_mark: SinceMark | None = None
    """where a mark was asked for and reached"""
    events: EventCounts = EventCounts()
    fields: FieldsStatus = NO_FIELDS
    decisions: DecisionStatus = DecisionStatus()
    workers: tuple[WorkerStatus, ...] = ()
    served: ServedStatus = ServedStatus()


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """What a run comes to; ``freshet demo --json`` writes it."""

    exit_reason: str
    """'finished', 'stopped' by a command, or the name of the signal"""
    samples_per_second: float
    """over the whole run"""
    status: Status
    """the last one"""
    restarts: dict[str, int] = {}
    """times each process was restarted, those that were"""
    killed: tuple[str, ...] = ()
    """processes that did not stop in time"""
    dense_weights: int = 0
    """of the model's dense part"""
    dense_bytes: int = 0


def summarize(
    status: Status, exit_reason: str, restarts: dict[str, int] | None = None, killed: tuple[str, ...] = ()
) -> Summary:
    """The summary of a run whose last status this is."""
    rate = status.samples / status.seconds if status.seconds > 0 else 0.0
    return Summary(
        exit_reason=exit_reason, samples_per_second=rate, status=status, restarts=restarts or {}, killed=killed
    )
