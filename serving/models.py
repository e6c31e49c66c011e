"""Schemas of answers about predictions and snapshots."""

from typing import Any

from pydantic import Field

from infra.web.answers import Answer, Body, Reason

EARLIER_VERSION: Any = Field(
    description="Deprecated: the id of the snapshot under its earlier name, for one more release.",
    json_schema_extra={"deprecated": True},
)


class SnapshotIdReading(Answer):
    """The id of a snapshot."""

    timeline: int
    """Number of times that steps had been discarded and decided again."""
    step: int
    checkpoint: int


class Predictions(Answer):
    """Click probabilities, in the order of the samples, all from one snapshot."""

    probabilities: list[float]
    """Those of the main label, if there are several."""
    labels: dict[str, list[float]] | None = None
    """Probabilities by label; only if the schema has several."""
    snapshot: SnapshotIdReading
    age_seconds: float
    """Time since the checkpoint of this snapshot was taken."""
    version: SnapshotIdReading = EARLIER_VERSION
    ids: list[str] | None = None
    """Ids of the predictions, to be sent with their labels later; only if predictions are logged."""
    unknown_fields: list[str] | None = None
    """Up to 20 names of fields that the schema does not know and that had no effect; only if there are any."""


class SnapshotReading(Answer):
    """A snapshot that could be served."""

    id: SnapshotIdReading
    at_seconds: float
    """When its checkpoint was taken, in seconds since 1970."""
    age_seconds: float
    rows: int
    reasons: list[str]
    """Reasons to hold it back; none: it is good."""
    is_released: bool
    """Whether a person has released it although it is held back."""
    is_pinned: bool
    is_served: bool
    """Whether the answering process serves it."""
    version: SnapshotIdReading = EARLIER_VERSION


class CurrentSnapshot(Answer):
    """What the answering process serves, and what is requested."""

    snapshot: SnapshotReading
    previous: SnapshotIdReading | None
    """The snapshot that a rollback would go back to."""
    failure: str
    """The reason, if a newer or the pinned snapshot is not served; otherwise empty."""
    bytes: int
    """Bytes of both copies of the model."""


class ServingReadiness(Answer):
    """Whether predictions are available."""

    is_serving: bool
    database: bool
    failure: str


class PinRequest(Body):
    """Which snapshot to serve."""

    checkpoint: int = Field(ge=1, lt=1 << 53)
    reason: Reason


class ReasonRequest(Body):
    """The reason, for the record."""

    reason: Reason
