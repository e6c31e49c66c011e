"""The values that requests return."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SnapshotName:
    """Which snapshot answered."""

    timeline: int
    step: int
    checkpoint: int


@dataclass(frozen=True)
class Prediction:
    """Click probabilities, in the order of the rows."""

    probabilities: list[float]
    snapshots: tuple[SnapshotName, ...]
    """The snapshots that answered: one, unless the rows were sent in several requests and it changed between them."""
    ids: list[str]
    """Ids to be sent with the labels later; empty unless the server logs predictions."""
    unknown_fields: tuple[str, ...]
    """Fields that the schema does not know; they had no effect."""


@dataclass(frozen=True)
class RejectedRow:
    """An event that does not fit the schema; it was not written."""

    index: int
    """Its place among the rows that were given."""
    reason: str


@dataclass(frozen=True)
class Sent:
    """What became of events: those that were accepted are durable, and written once."""

    accepted: int
    rejected: tuple[RejectedRow, ...]


@dataclass(frozen=True)
class Event:
    """Something that happened in a run."""

    kind: str
    """``status``, or the kind of a record: ``checkpoint``, ``generation``, ``command``, …"""
    id: str
    """Give it as ``after`` to go on behind this event; empty for a status."""
    content: dict[str, Any]
