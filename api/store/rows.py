"""Rows of runs and commands, as the store returns them. Times are seconds since 1970; None if not known."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from dispatch.commands.protocol import Outcome

RunState = Literal["seen", "running", "stopped", "ended"]
"""seen: nothing of its journal has been read yet; stopped: in order, so that it may be resumed."""
CheckpointStanding = Literal["begun", "taken", "void"]
"""begun: not complete yet, or failed; void: its steps were decided again afterwards."""
AlphaMode = Literal["manual", "auto"]
CommandState = Literal["pending", "done", "refused"]


@dataclass(frozen=True)
class StoredRun:
    """A run, as far as its journal has been projected."""

    name: str
    folder: str
    topic: str
    settings: dict[str, Any]
    """The effective settings."""
    code: str
    """Version of Freshet that started the run."""
    state: RunState
    begun_at: float | None
    ended_at: float | None
    """Time at which it was stopped or ended; None while it runs."""
    cursor: int
    """Cursor up to which its journal has been projected; it is the ETag."""


@dataclass(frozen=True)
class ProjectedJournal:
    """How far the journal of a run has been projected."""

    identity: str
    """Identity of the journal; empty: not known."""
    cursor: int
    """Cursor up to which it has been projected."""


@dataclass(frozen=True)
class StoredGeneration:
    """A period with fixed members."""

    run: str
    number: int
    members: tuple[str, ...]
    uses_hub: bool
    base: int | None
    reason: str
    at: float | None
    cursor: int


class StepPoint(NamedTuple):
    """One or more consecutive steps that have been trained. A tuple, because an answer has hundreds of them."""

    first_step: int
    last_step: int
    steps: int
    """Number of steps; fewer than the range covers if the journal was trimmed before it was read."""
    samples: int
    clicks: int
    loss: float | None
    """Sum of the logloss of all samples; None if a prediction was not finite."""
    seconds: float
    decide_seconds: float
    moved_bytes: int
    alpha: float | None
    """Mean over the steps."""
    first_at: float | None
    last_at: float | None


@dataclass(frozen=True)
class StoredAlphaChange:
    """A change of α, by a person or by the dispatcher."""

    run: str
    cursor: int
    place: int
    step: int
    alpha: float | None
    """New value; None: unchanged, and the dispatcher decides from now on."""
    mode: AlphaMode
    backend: str
    reason: str
    readings: dict[str, float | None]
    """Readings that the change was based on; None: not finite."""
    actor: str
    at: float | None


@dataclass(frozen=True)
class StoredCheckpoint:
    """The model after one step, on disk."""

    run: str
    number: int
    step: int
    samples: int
    positions: dict[str, Any]
    """Offset and index, by partition."""
    state: CheckpointStanding
    at: float | None
    cursor: int


@dataclass(frozen=True)
class StoredFault:
    """Something failed, and the run went back to a checkpoint."""

    run: str
    cursor: int
    place: int
    step: int
    generation: int
    kind: str
    text: str
    at: float | None


class StoredReading(NamedTuple):
    """What a run's status showed at one moment. A tuple, because an answer has hundreds of them."""

    level: int
    at: float
    body: str
    """The reading as JSON."""


@dataclass(frozen=True)
class StoredEvent:
    """A record of the journal that is not about a step; or a gap, if records were trimmed before they were read."""

    run: str
    cursor: int
    place: int
    """Place among the records of its frame."""
    kind: str
    """Tag of the record; gap: body has the first and the last cursor that are missing."""
    body: dict[str, Any]
    at: float


@dataclass(frozen=True)
class StoredCommand:
    """A command that is waiting, carried out or refused."""

    id: str
    run: str
    key: str
    """The client's idempotency key."""
    verb: str
    worker: str
    value: str
    expected: int
    """Cursor that the command was given at; -1: any."""
    actor: str
    reason: str
    state: CommandState
    outcome: Outcome | None
    """None: it has not been answered yet."""
    text: str
    """The answer, for people."""
    cursor: int | None
    """Cursor of the command in the journal."""
    created_at: float
    done_at: float | None


@dataclass(frozen=True)
class NewCommand:
    """A command as a client gives it."""

    run: str
    verb: str
    key: str
    actor: str
    worker: str = ""
    value: str = ""
    expected: int = -1
    reason: str = ""
