"""The status of a run during the run, and its summary at the end. Written by the dispatcher, shown by others.

Values that do not exist yet (no step done, no known best AUC) are None: JSON has no NaN.
"""

from typing import Literal

import msgspec

from dispatch.placement.traffic import WorkerTraffic
from dispatch.progress.quality import DriftStatus, Quality, QualityOverTime
from dispatch.tally import NO_SECONDS, PhaseSeconds

RunState = Literal["waiting", "replaying", "training", "paused", "draining", "done"]

AlphaMode = Literal["fixed", "manual", "auto"]
"""fixed: as the policy says; manual: a person's value; auto: the dispatcher adjusts it to contention."""


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's share of the run."""

    name: str
    link_gbit: float | None = None
    """Shaped or configured link speed; None: not limited."""
    measured_gbit: float | None = None
    """Speed of what it received in its latest transfers; None: not known yet."""
    uplink_gbit: float | None = None
    """Shaped or configured uplink speed; None: as fast as the link."""
    measured_uplink_gbit: float | None = None
    """Speed of what it sent in its latest transfers; None: not known yet."""
    least_share: float | None = None
    """Fewest samples that it gets under an elastic policy, in equal shares of the batch; None: shares are equal."""
    largest_share: float | None = None
    is_parked: bool = False
    """Whether it gets no samples, because the others are faster without it."""
    has_left: bool = False
    """Whether it is not a member of the generation: it was drained, removed or lost."""
    traffic: WorkerTraffic = WorkerTraffic()
    """Traffic since the start of the run."""
    seconds: PhaseSeconds = NO_SECONDS
    """Mean seconds of the latest steps in which it had samples."""


class SinceMark(msgspec.Struct, frozen=True, kw_only=True):
    """What came after the mark, without the start and the first steps."""

    quality: Quality
    steps: int
    samples: int
    seconds: float
    decide_ms_p50: float
    decide_ms_p99: float
    deadline_misses: int
    workers: tuple[WorkerStatus, ...]
    """Traffic since the mark; seconds are means over all steps since."""


class EventCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Events of the stream that were not trained."""

    lag: int = 0
    """Events in the log that are not handed out yet."""
    dead_letters: int = 0
    skipped: int = 0
    """Events skipped by the lag policy, or removed by retention."""
    omitted: int = 0
    """Events without a click that down-sampling has left out."""


class FreshnessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How fresh the served model is."""

    p50_seconds: float | None = None
    """Time from the arrival of an event in the log to the first answer of a model that has learnt from it; over the
    events that became part of a served model in the latest half to whole minute.
    """
    p99_seconds: float | None = None
    age_seconds: float | None = None
    """Time since the event time of the newest event in the served model, without those dated in the future."""
    events: int = 0
    """Events measured so far."""
    forgotten: int = 0
    """Events that waited too long to be measured: no snapshot with them was served."""
    ahead: int = 0
    """Events dated more than 10 s after the dispatcher read them, because clocks of devices are wrong."""
    clock: str | None = None
    """Whose arrival times are used: append (of the log), CreateTime or LogAppendTime (as Kafka's topic is configured);
    None: not known yet.
    """


class ServedStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Which snapshot of the model is served, and which is the newest."""

    servers: int = 0
    """Servers that have reported what they serve in the latest seconds."""
    checkpoint: int | None = None
    """Checkpoint served by the server that was heard last; None: none yet."""
    timeline: int | None = None
    step: int | None = None
    newest_checkpoint: int | None = None
    """Newest checkpoint that has been announced; None: none yet."""
    held: tuple[str, ...] = ()
    """Why the newest snapshot is held back; none: it is good."""
    freshness: FreshnessStatus = FreshnessStatus()


class KeyCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many keys have rows."""

    known: int = 0
    free: int = 0
    """Row numbers of forgotten keys that no other key has got yet."""
    forgotten: int = 0
    """Keys forgotten so far because no sample had them for long."""
    rare: int = 0
    """Samples' keys so far that had no row, and used the one that rare keys of their field share."""
    shard_bytes: int = 0
    """Bytes of the rows on all shards, by the formula of docs/memory.md."""


class ChunkCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many chunks of rows are live, if rows can be pruned."""

    per_row: int = 0
    """Chunks of a row; 0: rows are whole."""
    live: int = 0
    budget: int = 0
    """Most live chunks; 0: no limit."""
    bytes: int = 0
    """Bytes of a live chunk on its shard."""
    columns: int = 0
    """Embedding columns that rows have kept."""
    dim: int = 0
    """Embedding columns that they began with."""
    pruned: int = 0
    """Chunks pruned so far."""
    brought_back: int = 0
    """Pruned chunks that came back so far."""


class FieldsStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Which of the schema's fields the events have."""

    present: dict[str, float] = {}
    """Share of the samples with a value, by field."""
    absent: tuple[str, ...] = ()
    """Fields that none of the latest many samples has: perhaps a wrong name or schema."""
    unknown: tuple[str, ...] = ()
    """Unknown fields that these events have, with examples; collected only if fields are absent."""


NO_FIELDS = FieldsStatus()


class DecisionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How long decisions take."""

    mean_ms: float = 0.0
    """Mean over the latest steps."""
    deadline_misses: int = 0
    """Decisions that took longer than the workers were busy."""
    cut_short: int = 0
    """Decisions shortened to meet the deadline."""


class ChoiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Why the workers that are not parked take part."""

    reason: str = ""
    """Empty: all of them do, because nothing was chosen."""
    expected_ms: float | None = None
    """Time of a step that was expected; null: not known in seconds."""
    before_ms: float | None = None
    """Time of a step with the workers that took part before."""


class QualityHistory(msgspec.Struct, frozen=True, kw_only=True):
    """Quality of the latest samples at regular times, oldest first."""

    auc: tuple[float, ...] = ()
    logloss: tuple[float, ...] = ()


class InForce(msgspec.Struct, frozen=True, kw_only=True):
    """What people, or the dispatcher by itself, have set."""

    alpha: float | None = None
    """Share of exact solving in force."""
    alpha_mode: AlphaMode = "fixed"
    opt_backend: str | None = None
    """Where exact assignment runs; None: not known yet."""
    alpha_readings: dict[str, float] = {}
    """How contended the machine is, if alpha depends on that."""
    alpha_reason: str = ""
    """Reason of the newest change of alpha."""
    alpha_changed_at: float | None = None
    """When that was, in seconds since 1970; None: never."""
    cursor: int = 0
    """End of the journal: the number of its frames."""
    version: int = 0
    """Deprecated: the same as the cursor, for one more release."""
    is_paused: bool = False
    """Whether a pause is wanted; the state shows whether it has begun."""


class Condition(InForce, frozen=True, kw_only=True):
    """Whether a run can continue."""

    state: RunState = "waiting"
    troubles: tuple[str, ...] = ()
    """What keeps the run from continuing, or makes a crash expensive, in words; none: all is well."""


class LabelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Quality for one of several labels, over the samples that have it."""

    quality: Quality
    recent_quality: Quality


class Status(Condition, frozen=True, kw_only=True):
    """A run at one moment."""

    run: str
    policy: str = ""
    generation: int = 0
    step: int = 0
    """Number of the newest step; steps with only dead letters are numbered, too."""
    steps: int = 0
    """Steps trained so far."""
    samples: int = 0
    """Samples trained so far."""
    seconds: float = 0.0
    """Time since the first step began."""
    samples_per_second: float = 0.0
    """Rate over the latest seconds, not the whole run."""
    idle_seconds: float = 0.0
    """Time since the last step ended; 0 while one is under way, and before the first."""
    step_ms: float = 0.0
    """Median time between the ends of two steps, over the latest steps."""
    quality: Quality = Quality()
    """Quality over the whole run."""
    recent_quality: Quality = Quality()
    """Quality over the latest samples only."""
    labels: dict[str, LabelStatus] = {}
    """The same for the labels after the main one, if there are several."""
    best_auc: float | None = None
    """The highest AUC that is possible on this stream, if its click probability is known."""
    history: QualityHistory = QualityHistory()
    over_time: QualityOverTime = QualityOverTime()
    """Quality in windows, by slice, and the calibration curve."""
    drift: DriftStatus = DriftStatus()
    """Changes of the click rate and of fields."""
    since_mark: SinceMark | None = None
    """Figures since the mark, if one was requested and reached."""
    events: EventCounts = EventCounts()
    fields: FieldsStatus = NO_FIELDS
    keys: KeyCounts = KeyCounts()
    chunks: ChunkCounts = ChunkCounts()
    decisions: DecisionStatus = DecisionStatus()
    workers: tuple[WorkerStatus, ...] = ()
    choice: ChoiceStatus = ChoiceStatus()
    served: ServedStatus = ServedStatus()


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of a run; ``freshet demo --json`` writes it."""

    exit_reason: str
    """'finished', 'stopped' by a command, or the name of the signal."""
    samples_per_second: float
    """Rate over the whole run."""
    status: Status
    """The last status."""
    restarts: dict[str, int] = {}
    """How often each process was restarted, for those that were."""
    killed: tuple[str, ...] = ()
    """Processes that did not stop in time."""
    dense_weights: int = 0
    """Number of weights of the model's dense part."""
    dense_bytes: int = 0


def summarize(
    status: Status, exit_reason: str, restarts: dict[str, int] | None = None, killed: tuple[str, ...] = ()
) -> Summary:
    """The summary of a run whose last status this is."""
    rate = status.samples / status.seconds if status.seconds > 0 else 0.0
    return Summary(
        exit_reason=exit_reason, samples_per_second=rate, status=status, restarts=restarts or {}, killed=killed
    )
