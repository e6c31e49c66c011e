"""What the store answers with about runs and commands. Times are seconds since 1970; None where nobody told them."""

from dataclasses import dataclass
from typing import Any, Literal

from dispatch.commands.protocol import Outcome

RunState = Literal["seen", "running", "stopped", "ended"]
"""seen: nothing of its journal has been read yet; stopped: in order, it may go on"""
CheckpointStanding = Literal["begun", "taken", "void"]
"""begun: not complete yet, or it failed; void: of steps that were decided anew afterwards"""
AlphaMode = Literal["manual", "auto"]
CommandState = Literal["pending", "done", "refused"]


@dataclass(frozen=True)
class StoredRun:
    """A run, as far as its journal has been read."""

    name: str
    folder: str
    topic: str
    settings: dict[str, Any]
    """the effective ones"""
    code: str
    """version of Freshet that began it"""
    state: RunState
    begun_at: float | None
    ended_at: float | None
    """when it was stopped or ended; None while it runs"""
    cursor: int
    """up to which its journal has been read: the ETag"""


@dataclass(frozen=True)
class ProjectedJournal:
    """How far SQL has the journal of a run."""

    identity: str
    """of the journal; empty: not known"""
    cursor: int
    """up to which it has been read"""


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


@dataclass(frozen=True)
class StepPoint:
    """One or more steps that follow each other, and have been trained."""

    first_step: int
    last_step: int
    steps: int
    """how many; fewer than between the two where the journal was trimmed before it was read"""
    samples: int
    clicks: int
    loss: float | None
    """sum of the logloss of all samples; None if a prediction was not finite"""
    seconds: float
    decide_seconds: float
    moved_bytes: int
    alpha: float | None
    """mean over the steps"""
    first_at: float | None
    last_at: float | None


@dataclass(frozen=True)
class StoredAlphaChange:
    """A change of α: by a person, or by the dispatcher itself."""

    run: str
    cursor: int
    place: int
    step: int
    alpha: float | None
    """None: as it was, and from now on the dispatcher decides"""
    mode: AlphaMode
    backend: str
    reason: str
    readings: dict[str, float | None]
    """what it was decided by; None: not finite"""
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
    """by partition: offset and index"""
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


@dataclass(frozen=True)
class StoredEvent:
    """A record of the journal that is not about a step; or a gap: records that were trimmed before they were read."""

    run: str
    cursor: int
    place: int
    """among the records of its frame"""
    kind: str
    """the record's tag; or gap: body has the first and the last cursor that are missing"""
    body: dict[str, Any]
    at: float


@dataclass(frozen=True)
class StoredCommand:
    """A command on its way to the journal, or there, or refused."""

    id: str
    run: str
    key: str
    """the client's idempotency key"""
    verb: str
    worker: str
    value: str
    expected: int
    """cursor that it was given at; -1: any"""
    actor: str
    reason: str
    state: CommandState
    outcome: Outcome | None
    """None: it has not been answered"""
    text: str
    """the answer, for people"""
    cursor: int | None
    """of the command in the journal"""
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
