"""What a journal holds: decisions, and not what led to them.

What a run computes follows from its batches, the assignment of their samples to workers, the number of workers, the
way dense gradients are summed, the replicated rows and the arithmetic of the machines. Slots, evictions, flushes and
shards change what moves over which link and no bit of the model, so nothing of them is here.

Legend: B samples.
"""

import msgspec
import numpy as np

from dispatch.placement.arrays import I32, I64
from ingest.batches.manifest import Manifest
from ingest.streams.position import Position

PRESENT_NAMES = {"cut": "checkpoint", "cut begun": "checkpoint begun", "line": "timeline"}
"""tags and fields that the journal has by their names in earlier releases, so that it can be read on"""


class JournalRecord(msgspec.Struct, frozen=True, tag_field="is", forbid_unknown_fields=True):
    """Base of all records."""


class Begun(JournalRecord, frozen=True, tag="begun"):
    """How the run began. The first record."""

    run: str
    topic: str
    """its source and name"""
    start: dict[int, Position]
    """where each partition begins; those that are created later begin at 0"""
    settings: dict[str, str]
    """those that must stay as they are, as text by name"""
    digest: str
    """of these settings"""
    arithmetic: tuple[str, ...]
    """what the first workers reported: torch, device, threads, instructions; each once, in the order of workers"""
    samples: int | None = None
    """after which the run is over"""
    at_seconds: float = 0.0
    """when, since 1970; 0: not told"""
    code: str = ""
    """version of Freshet"""


class GenerationStarted(JournalRecord, frozen=True, tag="generation"):
    """A period with fixed members; written before anyone hears of it."""

    number: int
    members: tuple[str, ...]
    """by rank"""
    uses_hub: bool
    """whether shards sum dense gradients; else workers do, in a ring"""
    replicas: int
    """most rows of a hot set"""
    base: int | None
    """the checkpoint that the model goes back to before its first step; 0: the empty model; None: it goes on as it
    is"""
    reason: str
    at_seconds: float = 0.0


class StepDecided(JournalRecord, frozen=True, tag="step"):
    """One step; written before anyone hears of it."""

    manifest: Manifest
    assignment: bytes
    """the worker of each sample, a byte each"""
    alpha: float
    """share of exact solving in force"""
    rows: int
    """given out so far, those of this step included"""
    sole: int | None = None
    """who takes part alone by decision, and so owns the dense weights"""
    hot: bytes | None = None
    """row numbers (int64) that are replicated from this step on; None: as before"""

    @property
    def step(self) -> int:
        return self.manifest.step

    def assignment_B(self) -> I32:  # noqa: N802 (shape letters)
        return np.frombuffer(self.assignment, np.uint8).astype(np.int32)

    def hot_rows(self) -> I64 | None:
        return None if self.hot is None else np.frombuffer(self.hot, np.int64)


class StepFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a step came to, for those who look back on it; nothing is computed from it."""

    at_seconds: float
    """when it was completed, since 1970"""
    seconds: float
    """from the end of the step before to its own"""
    decide_seconds: float
    samples: int
    clicks: int
    loss: float
    """sum of the logloss of its samples; NaN if a prediction was not finite"""
    moved_bytes: int
    """over all links, orders and reports included"""


class StepDone(JournalRecord, frozen=True, tag="done"):
    """A step has been trained; written with the next record that is."""

    step: int
    logits: int
    """digest of the logits of the batch"""
    figures: StepFigures | None = None


class CheckpointBegun(JournalRecord, frozen=True, tag="cut begun"):
    """A checkpoint is being taken; it may fail. One that opens a segment holds all a reader needs to begin there."""

    number: int
    step: int
    positions: dict[int, Position]
    """after that step, of every partition that is known"""
    samples: int
    """trained up to that step"""
    begun: Begun
    generation: GenerationStarted
    """the newest"""
    opens: bool = True
    """whether all steps after it, void ones to be decided anew included, follow this record"""
    timeline: int = msgspec.field(name="line", default=0)
    """how often steps had been decided anew before"""
    at_seconds: float = 0.0


class CheckpointTaken(JournalRecord, frozen=True, tag="cut"):
    """A checkpoint exists: the model after a step, whole and durable."""

    number: int
    step: int
    positions: dict[int, Position]
    """after that step, of every partition that is known"""
    samples: int
    """trained up to that step"""
    at_seconds: float = 0.0


class Commanded(JournalRecord, frozen=True, tag="command"):
    """An operator's command was carried out."""

    id: str
    verb: str
    worker: str
    """that it is about, if it is about one"""
    step: int
    """the newest one then"""
    text: str
    """what was answered"""
    value: str = ""
    """what is set, of a command that sets something"""
    actor: str = ""
    """who gave it"""
    reason: str = ""
    """why, in the words of who gave it"""
    at_seconds: float = 0.0


class AlphaChanged(JournalRecord, frozen=True, tag="alpha"):
    """The dispatcher itself changed how much is solved exactly, or where."""

    step: int
    """the newest one then; the change is in force from the next on"""
    alpha: float
    backend: str
    """where exact assignment runs from now on: cpu or cuda"""
    reason: str
    readings: dict[str, float]
    """what it was decided by"""
    at_seconds: float = 0.0


class SetChosen(JournalRecord, frozen=True, tag="set"):
    """The dispatcher chose other workers to take part; in one piece with the first step that they train."""

    step: int
    """that step"""
    members: tuple[str, ...]
    """who takes part; the other members of the generation are parked"""
    reason: str
    expected_seconds: float | None
    """of a step; None: no times were known"""
    before_seconds: float | None
    """of a step of those before, as measured or modelled; None: not known"""
    at_seconds: float = 0.0


class Faulted(JournalRecord, frozen=True, tag="fault"):
    """Someone was lost, or something failed, and the run went back to its last checkpoint."""

    step: int
    """the newest one then"""
    generation: int
    kind: str
    """the error's class"""
    text: str
    at_seconds: float = 0.0


class Redecided(JournalRecord, frozen=True, tag="redecided"):
    """The steps after a checkpoint are void: their batches are decided anew, for fewer workers."""

    base: int
    """number of the checkpoint; 0: the empty model"""
    step: int
    """that the checkpoint was taken after"""
    at_seconds: float = 0.0


class Stopped(JournalRecord, frozen=True, tag="stopped"):
    """The run was stopped in order, its weights are saved, and it may go on."""

    reason: str
    step: int
    rows: int
    rows_digest: str
    """of key, value, state and version of every row"""
    at_seconds: float = 0.0


class Ended(JournalRecord, frozen=True, tag="ended"):
    """The run is over, its weights are saved. The last record."""

    reason: str
    step: int
    rows: int
    rows_digest: str
    """of key, value, state and version of every row"""
    differs_at: int | None = None
    """first step whose logits were not those of the journal when it was trained again"""
    at_seconds: float = 0.0


AnyRecord = (
    Begun
    | GenerationStarted
    | StepDecided
    | StepDone
    | CheckpointBegun
    | CheckpointTaken
    | Commanded
    | AlphaChanged
    | SetChosen
    | Faulted
    | Redecided
    | Stopped
    | Ended
)
