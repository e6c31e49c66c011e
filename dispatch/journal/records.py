"""The records of a journal: decisions, and not what led to them.

What a run computes follows from its batches, the assignment of their samples to workers, the number of workers, the way
dense gradients are summed, the replicated rows and the arithmetic of the machines. Slots, evictions, flushes and shards
change what moves over which link and no bit of the model, so nothing of them is recorded.

Legend: B samples.
"""

import msgspec
import numpy as np

from dispatch.placement.arrays import I32, I64
from dispatch.placement.rows.pruning import PruneRound
from ingest.batches.manifest import Manifest
from ingest.streams.position import Position

PRESENT_NAMES = {"cut": "checkpoint", "cut begun": "checkpoint begun", "line": "timeline"}
"""Tags and fields that the journal has by their names in earlier releases, so that it stays readable."""


REPLAY = "replay of generation"
"""How the reason of a generation begins that trains the steps of an earlier one again."""


class JournalRecord(msgspec.Struct, frozen=True, tag_field="is", forbid_unknown_fields=True):
    """Base of all records."""


class Begun(JournalRecord, frozen=True, tag="begun"):
    """How the run began. The first record."""

    run: str
    topic: str
    """Source and name of the topic."""
    start: dict[int, Position]
    """Where each partition begins; those that are created later begin at 0."""
    settings: dict[str, str]
    """The settings that must not change, as text by name."""
    digest: str
    """Digest of these settings."""
    arithmetic: tuple[str, ...]
    """What the first workers reported: torch, device, threads, instructions; each once, in the order of workers."""
    samples: int | None = None
    """Samples after which the run ends."""
    at_seconds: float = 0.0
    """When, in seconds since 1970; 0: not recorded."""
    code: str = ""
    """Version of Freshet."""


class GenerationStarted(JournalRecord, frozen=True, tag="generation"):
    """A period with fixed members; recorded before any other process learns of it."""

    number: int
    members: tuple[str, ...]
    """Members by rank."""
    uses_hub: bool
    """Whether shards sum dense gradients; otherwise workers do, in a ring."""
    replicas: int
    """Most rows of a hot set."""
    base: int | None
    """The checkpoint that the model goes back to before its first step; 0: the empty model; None: the model continues
    unchanged.
    """
    reason: str
    at_seconds: float = 0.0

    @property
    def is_replay(self) -> bool:
        """Whether it trains the steps of an earlier generation again."""
        return self.reason.startswith(REPLAY)


class StepDecided(JournalRecord, frozen=True, tag="step"):
    """One step; recorded before any other process learns of it."""

    manifest: Manifest
    assignment: bytes
    """The worker of each sample."""
    alpha: float
    """Share of exact solving in force."""
    rows: int
    """Rows assigned so far, including those of this step."""
    sole: int | None = None
    """The worker that takes part alone by decision, and so owns the dense weights."""
    hot: bytes | None = None
    """Row numbers (int64) that are replicated from this step on; None: as before."""
    forget_before: int = 0
    """Keys that were last used before this step were forgotten first; 0: none were."""
    admitted: bytes | None = None
    """Which of its unknown keys got rows, in order, a bit each; the others were rare. None: all got one."""
    chunked: int | None = None
    """How many of its new rows got chunks, the first ones; None: all."""
    pruned: PruneRound | None = None
    """How chunks were pruned just before it; None: they were not."""
    worker_bytes: int = 1
    """Bytes of each number in the assignment: 1, or 2 if a number is above 255."""

    @property
    def step(self) -> int:
        return self.manifest.step

    def assignment_B(self) -> I32:  # noqa: N802 (shape letters)
        return np.frombuffer(self.assignment, f"<u{self.worker_bytes}").astype(np.int32)

    def hot_rows(self) -> I64 | None:
        return None if self.hot is None else np.frombuffer(self.hot, np.int64)


def pack_assignment(assignment_B: I32) -> tuple[bytes, int]:
    """The counterpart of ``StepDecided.assignment_B``: the numbers, and how many bytes each has."""
    worker_bytes = 1 if assignment_B.max(initial=0) <= np.iinfo(np.uint8).max else 2
    return assignment_B.astype(f"<u{worker_bytes}").tobytes(), worker_bytes


class StepFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Figures of a step, for the history; nothing is computed from them."""

    at_seconds: float
    """When it was completed, in seconds since 1970."""
    seconds: float
    """Time from the end of the step before to its own."""
    decide_seconds: float
    samples: int
    clicks: int
    loss: float
    """Sum of the logloss of its samples; NaN if a prediction was not finite."""
    moved_bytes: int
    """Bytes moved over all links, including orders and reports."""


class StepDone(JournalRecord, frozen=True, tag="done"):
    """A step has been trained; written together with the next record."""

    step: int
    logits: int
    """Digest of the logits of the batch."""
    figures: StepFigures | None = None


class CheckpointBegun(JournalRecord, frozen=True, tag="cut begun"):
    """A checkpoint is being taken; it may fail. One that opens a segment has all that a reader needs to begin there."""

    number: int
    step: int
    positions: dict[int, Position]
    """Positions after that step, of every known partition."""
    samples: int
    """Samples trained up to that step."""
    begun: Begun
    generation: GenerationStarted
    """The newest generation."""
    opens: bool = True
    """Whether all steps after it, including void ones to be decided again, follow this record."""
    timeline: int = msgspec.field(name="line", default=0)
    """Number of times that steps had been discarded and decided again."""
    at_seconds: float = 0.0


class CheckpointTaken(JournalRecord, frozen=True, tag="cut"):
    """A checkpoint exists: the model after a step, whole and durable."""

    number: int
    step: int
    positions: dict[int, Position]
    """Positions after that step, of every known partition."""
    samples: int
    """Samples trained up to that step."""
    at_seconds: float = 0.0


class Commanded(JournalRecord, frozen=True, tag="command"):
    """An operator's command was carried out."""

    id: str
    verb: str
    worker: str
    """The worker that it concerns, if any."""
    step: int
    """The newest step at that time."""
    text: str
    """The answer."""
    value: str = ""
    """The value, for a command that sets something."""
    actor: str = ""
    """Who gave it."""
    reason: str = ""
    """The reason, in the words of who gave it."""
    at_seconds: float = 0.0


class AlphaChanged(JournalRecord, frozen=True, tag="alpha"):
    """The dispatcher itself changed how much is solved exactly, or where."""

    step: int
    """The newest step at that time; the change applies from the next one."""
    alpha: float
    backend: str
    """Where exact assignment runs from now on: cpu or cuda."""
    reason: str
    readings: dict[str, float]
    """The readings that it was based on."""
    at_seconds: float = 0.0


class SetChosen(JournalRecord, frozen=True, tag="set"):
    """The dispatcher chose other workers to take part; in one frame with the first step that they train."""

    step: int
    """That step."""
    members: tuple[str, ...]
    """The workers that take part; the other members of the generation are parked."""
    reason: str
    expected_seconds: float | None
    """Expected time of a step; None: no times were known."""
    before_seconds: float | None
    """Time of a step of the set before, as measured or modelled; None: not known."""
    at_seconds: float = 0.0


class Faulted(JournalRecord, frozen=True, tag="fault"):
    """A process was lost, or something failed, and the run went back to its last checkpoint."""

    step: int
    """The newest step at that time."""
    generation: int
    kind: str
    """Class of the error."""
    text: str
    at_seconds: float = 0.0


class Redecided(JournalRecord, frozen=True, tag="redecided"):
    """The steps after a checkpoint are void: their batches are decided again, for fewer workers."""

    base: int
    """Number of the checkpoint; 0: the empty model."""
    step: int
    """Step after which the checkpoint was taken."""
    at_seconds: float = 0.0


class Stopped(JournalRecord, frozen=True, tag="stopped"):
    """The run was stopped cleanly, its weights are saved, and it may be resumed."""

    reason: str
    step: int
    rows: int
    rows_digest: str
    """Digest of the key, value, state and version of every row."""
    at_seconds: float = 0.0


class Ended(JournalRecord, frozen=True, tag="ended"):
    """The run has ended, its weights are saved. The last record."""

    reason: str
    step: int
    rows: int
    rows_digest: str
    """Digest of the key, value, state and version of every row."""
    differs_at: int | None = None
    """First step whose logits differed from those in the journal when it was trained again."""
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
