"""What is answered about predictions and versions."""

from pydantic import Field

from infra.web.answers import Answer, Body, Reason


class VersionReading(Answer):
    """A version of the model."""

    timeline: int
    """how often steps had been decided anew before"""
    step: int
    checkpoint: int


class Predictions(Answer):
    """Click probabilities, in the order of the samples, all of one version."""

    probabilities: list[float]
    version: VersionReading
    age_seconds: float
    """since the checkpoint of this version was taken"""
    ids: list[str] | None = None
    """of the predictions, to go with their labels later; only where predictions are logged"""
    unknown_fields: list[str] | None = None
    """names of fields that the schema does not know, 20 at most, which had no effect; only where there are any"""


class SnapshotReading(Answer):
    """A version that could be served."""

    version: VersionReading
    at_seconds: float
    """when its checkpoint was taken, since 1970"""
    age_seconds: float
    rows: int
    reasons: list[str]
    """to hold it back; none: it is good"""
    is_released: bool
    """whether a person has released it although it is held back"""
    is_pinned: bool
    is_served: bool
    """by the process that answers"""


class CurrentSnapshot(Answer):
    """What the process that answers serves, and what is wanted."""

    snapshot: SnapshotReading
    previous: VersionReading | None
    """what rollback goes back to"""
    failure: str
    """why something newer, or what is pinned, is not served; empty: it is"""
    bytes: int
    """of both copies of the model"""


class ServingReadiness(Answer):
    """Whether predictions are answered."""

    is_serving: bool
    database: bool
    failure: str


class PinRequest(Body):
    """Which version is to be served."""

    checkpoint: int = Field(ge=1, lt=1 << 53)
    reason: Reason


class ReasonRequest(Body):
    """Why, for the record."""

    reason: Reason
