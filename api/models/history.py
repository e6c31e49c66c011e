"""The history of a run, the audit trail, and events sent over REST."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, computed_field

from api.models.fields import EARLIER_CURSOR
from infra.web.answers import Answer
from infra.web.events import RejectedEvent


class StepsPoint(Answer):
    """Some consecutive steps."""

    first_step: int
    last_step: int
    steps: int
    samples: int
    clicks: int
    loss: float | None
    """Mean logloss per sample; null if a prediction was not finite."""
    seconds: float
    decide_seconds: float
    moved_bytes: int
    alpha: float | None
    first_at: float | None
    last_at: float | None


class JournalReading(Answer):
    """Something that the journal of a run records."""

    cursor: int
    """Cursor of the record in the journal."""

    @computed_field(**EARLIER_CURSOR)
    def version(self) -> int:
        return self.cursor


class GenerationReading(JournalReading):
    """A period with fixed members."""

    number: int
    members: list[str]
    uses_hub: bool
    base: int | None
    reason: str
    at: float | None


class CheckpointReading(JournalReading):
    """The model after one step, on disk."""

    number: int
    step: int
    samples: int
    positions: dict[str, Any]
    """Positions in the stream, by partition."""
    state: Literal["begun", "taken", "void"]
    at: float | None


class FaultReading(JournalReading):
    """Something failed, and the run went back to a checkpoint."""

    step: int
    generation: int
    kind: str
    text: str
    at: float | None


class JournalRecordReading(Answer):
    """A record of the journal that is not about a step."""

    cursor: int
    place: int
    """Place among the records of its frame; with the cursor it identifies the record, as in the ids of events."""
    kind: str
    """command, alpha, set (who takes part), generation, checkpoint, fault, begun, stopped, ended and others."""
    at: float | None
    body: dict[str, Any]
    """Its fields, without those that repeat other records."""


class ReadingsAnswer(Answer):
    """Readings of a run."""

    now: float
    """The time by the clock of the API, in seconds since 1970."""
    items: list[dict[str, Any]]
    """Rates, quality, lag, freshness, traffic by worker and memory by process, each at one moment."""


class DeadLetterReading(Answer):
    """A rejected event."""

    partition: int
    offset: int
    index: int
    """Its place in its record."""
    reason: str
    at: float | None
    """When it was kept, in seconds since 1970."""
    payload: str
    """The beginning of the event; bytes that are no text are written as \\xNN."""
    bytes: int
    """Length of the whole event."""


class ProcessReading(Answer):
    """One process, as its supervisor knows it."""

    name: str
    state: str
    restarts: int
    seconds: float
    """Time since it was started or, if it does not run, since it ended."""
    bytes: int | None
    """Resident memory; null if it does not run."""


class AuditReading(Answer):
    """A request that changed something, or was denied."""

    id: int
    at: float
    actor: str
    token: Annotated[str | None, BeforeValidator(lambda token: token or None)]
    """Id of the token; null: a command on the run's own socket, or a request without a token."""
    action: str
    run: str | None
    status: int
    detail: dict[str, Any]


class WrittenEvents(Answer):
    """The result for the events of a request; accepted events are durable."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"accepted": 99, "rejected": [{"index": 7, "reason": "label: 2"}]}]}
    )

    accepted: int
    rejected: list[RejectedEvent]


class Readiness(Answer):
    """Whether the API is fully functional."""

    database: bool
    runs: int
    """Number of runs that are followed."""


class MetricsTarget(Answer):
    """Where Prometheus finds the metrics of a process (HTTP service discovery)."""

    targets: list[str]
    labels: dict[str, str]
