"""What a journal says about a run so far: everything that a replay and a resume need.

A history begins with a *base*: the empty model, or a checkpoint, and holds what came after it. Steps after a checkpoint
may have been declared void (``Redecided``): then they, their digests and their checkpoints are not part of the history,
and their batches wait in ``to_redecide`` until they have been decided again.

Reading is strict: a journal whose steps do not follow each other, or whose ranges omit or repeat an event, is damaged.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from dispatch.commands.desired import Desired
from dispatch.errors import CheckpointUnusable, RunEnded, SettingsChanged
from dispatch.journal.desired import SteeringRecord, desired_after_all
from dispatch.journal.log import read_whole
from dispatch.journal.records import (
    AlphaChanged,
    AnyRecord,
    Begun,
    CheckpointBegun,
    CheckpointTaken,
    Commanded,
    Ended,
    Faulted,
    GenerationStarted,
    Redecided,
    StepDecided,
    StepDone,
    Stopped,
)
from ingest.batches.manifest import Manifest
from ingest.errors import LogCorrupt
from ingest.streams.position import Position
from ps.protocol import EMPTY_MODEL

JOURNAL = "journal"
"""Name of the folder in the run's folder."""
AnyCheckpoint = CheckpointBegun | CheckpointTaken


@dataclass(frozen=True)
class PastGeneration:
    """A generation that has trained, and its steps."""

    record: GenerationStarted
    steps: tuple[StepDecided, ...]

    @property
    def most_samples(self) -> int:
        """Most samples of one worker in one step."""
        return max((int(np.bincount(step.assignment_B()).max(initial=0)) for step in self.steps), default=0)


@dataclass(frozen=True)
class Base:
    """What a history begins with: a checkpoint, or the empty model."""

    number: int = EMPTY_MODEL
    step: int = 0
    positions: Mapping[int, Position] = field(default_factory=dict)
    """Positions after that step."""
    samples: int = 0
    """Samples trained up to that step."""


@dataclass(frozen=True)
class History:
    """A run so far, from its base on."""

    begun: Begun | None = None
    generations: tuple[PastGeneration, ...] = ()
    digests: Mapping[int, int] = field(default_factory=dict)
    """Digests of the logits of each completed step."""
    positions: Mapping[int, Position] = field(default_factory=dict)
    """Positions after the last step, of every known partition."""
    newest: GenerationStarted | None = None
    stopped: Stopped | None = None
    """The last clean stop, unless its step is void."""
    ended: Ended | None = None
    base: Base = Base()
    checkpoints: tuple[CheckpointTaken, ...] = ()
    """All recorded checkpoints that can be used, whatever the base; newest last."""
    begun_checkpoints: tuple[CheckpointBegun, ...] = ()
    """The same including those that failed, or whose end was not recorded because of a crash."""
    last_checkpoint: int = 0
    """Highest number of a checkpoint, including void and failed ones."""
    steering: tuple[SteeringRecord, ...] = ()
    """All records of what people want of the run, whatever the base."""
    timeline: int = 0
    """How often steps have been declared void since the run began."""
    to_redecide: tuple[Manifest, ...] = ()
    """Batches of void steps, in order, that are to be decided again."""

    @property
    def commands(self) -> tuple[Commanded, ...]:
        """All recorded commands, whatever the base."""
        return tuple(record for record in self.steering if isinstance(record, Commanded))

    @property
    def draining(self) -> frozenset[str]:
        """Workers that are to leave, and are still in the newest generation, according to the records."""
        return frozenset(desired_after_all(Desired(), self.steering).draining)

    @property
    def steps(self) -> tuple[StepDecided, ...]:
        return tuple(step for generation in self.generations for step in generation.steps)

    @property
    def step(self) -> int:
        """The newest step."""
        return self.generations[-1].steps[-1].step if self.generations else self.base.step

    @property
    def samples(self) -> int:
        """Samples of all steps up to the newest, including those before the base."""
        return self.base.samples + sum(step.manifest.samples for step in self.steps)

    @property
    def workers(self) -> int:
        """Number of workers that a replay needs."""
        return max((len(generation.record.members) for generation in self.generations), default=0)

    @property
    def last_generation(self) -> int:
        return 0 if self.newest is None else self.newest.number

    @property
    def members(self) -> tuple[str, ...]:
        """Members of the newest generation, by rank."""
        return () if self.newest is None else self.newest.members

    def up_to(self, last: int) -> "History":
        """The same without what came after a step."""
        checkpoint = [
            replace(generation, steps=tuple(step for step in generation.steps if step.step <= last))
            for generation in self.generations
        ]
        return replace(self, generations=tuple(generation for generation in checkpoint if generation.steps))


def read_history(folder: Path, base: int | None = None) -> History:
    """Reads and checks the journal in a folder; an empty one if there is none.

    base: number of the checkpoint to begin with, 0: the empty model; None: the oldest one, which is the empty model
    unless segments were dropped. Raises CheckpointUnusable if it is not recorded. Only what came after it is kept in
    memory.
    """
    after = None if base is None else _find_base(read_checkpoints(folder), base, folder)
    return read_whole(folder, lambda records: history_of(records, folder, after))


def read_checkpoints(folder: Path) -> History:
    """The history without its steps: which checkpoints are recorded, and who the newest members are."""
    return read_whole(folder, lambda records: _Reading(folder, None, keeps_steps=False).read(records))


def read_manifests(folder: Path) -> list[Manifest]:
    """The manifest of every recorded step, including void ones."""
    return read_whole(folder, lambda records: [r.manifest for r in records if isinstance(r, StepDecided)])


def history_of(records: Iterable[AnyRecord], folder: Path, base: Base | None = None) -> History:
    """folder: named in errors; base: as found by an earlier reading, None: what the records begin with."""
    return _Reading(folder, base, keeps_steps=True).read(records)


def advance(positions: dict[int, Position], manifest: Manifest, folder: Path) -> None:
    """Advances positions by the ranges of a step; every event is in exactly one."""
    for taken in (*manifest.skipped, *manifest.ranges):
        at = positions.get(taken.partition, Position(0))
        if taken.start != at or taken.end < taken.start:
            raise _damaged(
                folder,
                f"step {manifest.step} takes partition {taken.partition} from {taken.start.offset}:{taken.start.index} "
                f"on, and the one before ended at {at.offset}:{at.index}",
            )
        positions[taken.partition] = taken.end


def check_unfinished(history: History, folder: Path) -> None:
    """Raises RunEnded if the run has ended."""
    if history.ended is not None:
        raise RunEnded(
            f"the run in {folder} is over: it ended after step {history.ended.step} ({history.ended.reason}); "
            "expected a new folder, or one of a run that was stopped or interrupted; give another with --run or "
            "FRESHET_FOLDER"
        )


def check_settings(
    history: History, run: str, folder: Path, now: Mapping[str, str], earlier: Mapping[str, str]
) -> None:
    """Raises SettingsChanged if a run would be resumed with other values of settings that must not change.

    earlier: the values of settings where they are missing, because a release did not have them.
    """
    if history.begun is None:
        return
    was = {**earlier, "run": history.begun.run, **history.begun.settings}
    is_now = {**earlier, "run": run, **now}
    changed = [name for name in sorted({*was, *is_now}) if was.get(name) != is_now.get(name)]
    if changed:
        changes = ", ".join(
            f"{name} was {was.get(name, 'not set')} and is {is_now.get(name, 'not set')}" for name in changed
        )
        raise SettingsChanged(
            f"the run in {folder} cannot be resumed with other settings: {changes}; expected those it began with; set "
            "them back ('freshet up --run' uses the run's own unless others are given), or give another folder"
        )


class _Reading:
    """Processes the records of a journal, one after the other."""

    def __init__(self, folder: Path, base: Base | None, keeps_steps: bool) -> None:
        self._folder = folder
        self._base = base
        self._keeps_steps = keeps_steps
        self._begun: Begun | None = None
        self._stopped: Stopped | None = None
        self._ended: Ended | None = None
        self._newest: GenerationStarted | None = None
        self._started: dict[int, GenerationStarted] = {}
        self._steps: list[StepDecided] = []
        """Steps that are kept."""
        self._digests: dict[int, int] = {}
        self._positions: dict[int, Position] = {}
        self._last = 0
        self._last_checkpoint = 0
        self._timeline = 0
        self._begun_checkpoints: dict[int, CheckpointBegun] = {}
        self._checkpoints: dict[int, CheckpointTaken] = {}
        self._void: dict[int, Manifest] = {}
        """Manifests to be decided again, by step."""
        self._is_from_start = False
        self._steering: list[SteeringRecord] = []

    def read(self, records: Iterable[AnyRecord]) -> History:
        for record in records:
            if self._ended is not None or not self._is_in_place(record):
                raise self._damaged(f"a record {type(record).__name__} is out of place")
            self._apply_record(record)
            if isinstance(record, SteeringRecord):
                self._steering.append(record)
        return self._history()

    def _is_in_place(self, record: AnyRecord) -> bool:
        """Whether the record may come here: the run has begun or begins with it; commands and
        faults may come before.
        """
        if self._begun is None:
            return isinstance(record, Begun | CheckpointBegun | Commanded | AlphaChanged | Faulted)
        return not isinstance(record, Begun)

    def _apply_record(self, record: AnyRecord) -> None:
        match record:
            case Begun():
                self._begin(record, Base(positions=record.start))
            case GenerationStarted():
                self._start(record)
            case StepDecided():
                self._decide(record)
            case StepDone():
                if self._is_kept(record.step):
                    self._digests[record.step] = record.logits
            case CheckpointBegun():
                self._begin_checkpoint(record)
            case CheckpointTaken():
                self._take_checkpoint(record)
            case Redecided():
                self._redecide(record)
            case Stopped():
                self._stopped = record
            case Ended():
                self._ended = record

    def _begin(self, begun: Begun, base: Base) -> None:
        self._begun = begun
        self._positions = dict(base.positions)
        self._last = base.step
        self._is_from_start = base.number == EMPTY_MODEL
        self._base = self._base or base

    def _start(self, record: GenerationStarted) -> None:
        self._started[record.number] = self._newest = record

    def _decide(self, record: StepDecided) -> None:
        manifest = record.manifest
        if record.step != self._last + 1 or manifest.generation not in self._started:
            raise self._damaged(f"step {record.step} follows step {self._last}")
        void = self._void.pop(record.step, manifest)
        if (manifest.skipped, manifest.ranges) != (void.skipped, void.ranges):
            raise self._damaged(f"step {record.step} was decided again with other ranges")
        advance(self._positions, manifest, self._folder)
        self._last = record.step
        if self._is_kept(record.step):
            self._steps.append(record)

    def _begin_checkpoint(self, checkpoint: CheckpointBegun) -> None:
        if self._begun is None:
            self._begin(
                checkpoint.begun, Base(checkpoint.number, checkpoint.step, checkpoint.positions, checkpoint.samples)
            )
            self._start(checkpoint.generation)
            self._timeline = checkpoint.timeline
        if checkpoint.begun != self._begun or checkpoint.generation != self._newest:
            raise self._damaged(f"checkpoint {checkpoint.number} is of another run or generation")
        self._check_checkpoint(checkpoint)
        self._begun_checkpoints[checkpoint.number] = checkpoint

    def _take_checkpoint(self, checkpoint: CheckpointTaken) -> None:
        begun = self._begun_checkpoints.get(checkpoint.number)
        if begun is None or _base_of(begun) != _base_of(checkpoint):
            raise self._damaged(f"checkpoint {checkpoint.number} was taken and had not begun, or otherwise")
        self._checkpoints[checkpoint.number] = checkpoint

    def _check_checkpoint(self, checkpoint: CheckpointBegun) -> None:
        """Raises LogCorrupt unless a checkpoint is newer than all before, and has the positions of its step."""
        if checkpoint.number <= self._last_checkpoint or checkpoint.step > self._last:
            raise self._damaged(
                f"checkpoint {checkpoint.number} after step {checkpoint.step} follows checkpoint "
                f"{self._last_checkpoint} and step {self._last}"
            )
        is_here = checkpoint.step == self._last
        if is_here and any(checkpoint.positions.get(partition) != at for partition, at in self._positions.items()):
            raise self._damaged(f"checkpoint {checkpoint.number} has other positions than its step {checkpoint.step}")
        self._last_checkpoint = checkpoint.number

    def _redecide(self, record: Redecided) -> None:
        """Processes a return to a checkpoint."""
        base = self._find_base(record)
        if base is None or record.step > self._last:
            raise self._damaged(
                f"steps after step {record.step} are void, and checkpoint {record.base} is not of that step"
            )
        self._void |= {step.step: step.manifest for step in self._steps if step.step > record.step}
        self._steps = [step for step in self._steps if step.step <= record.step]
        self._digests = {step: digest for step, digest in self._digests.items() if step <= record.step}
        self._drop_checkpoints(record.step)
        if self._stopped is not None and self._stopped.step > record.step:
            self._stopped = None
        self._positions = dict(base.positions)
        self._last = record.step
        self._timeline += 1

    def _find_base(self, record: Redecided) -> Base | None:
        """The checkpoint, or another one of the same step: its own record may have been dropped."""
        if record.base == EMPTY_MODEL == record.step and self._begun is not None and self._is_from_start:
            return Base(positions=self._begun.start)
        bases = (
            _base_of(checkpoint) for checkpoint in self._begun_checkpoints.values() if checkpoint.step == record.step
        )
        return next(bases, None)

    def _drop_checkpoints(self, last: int) -> None:
        """Forgets checkpoints of void steps; raises CheckpointUnusable if the base is one."""
        assert self._base is not None
        void = {number for number, checkpoint in self._begun_checkpoints.items() if checkpoint.step > last}
        if self._base.number in void:
            raise _unusable(self._base.number, self._folder, "its steps have been declared void")
        for number in void:
            del self._begun_checkpoints[number]
            self._checkpoints.pop(number, None)

    def _is_kept(self, step: int) -> bool:
        assert self._base is not None
        return self._keeps_steps and step > self._base.step

    def _history(self) -> History:
        steps: dict[int, list[StepDecided]] = {}
        for step in self._steps:
            steps.setdefault(step.manifest.generation, []).append(step)
        return History(
            self._begun,
            tuple(PastGeneration(self._started[number], tuple(some)) for number, some in steps.items()),
            self._digests,
            self._positions,
            self._newest,
            self._stopped,
            self._ended,
            self._base or Base(),
            tuple(self._checkpoints.values()),
            tuple(self._begun_checkpoints.values()),
            self._last_checkpoint,
            tuple(self._steering),
            self._timeline,
            tuple(self._void[step] for step in sorted(self._void)),
        )

    def _damaged(self, problem: str) -> LogCorrupt:
        return _damaged(self._folder, problem)


def _base_of(checkpoint: AnyCheckpoint) -> Base:
    return Base(checkpoint.number, checkpoint.step, checkpoint.positions, checkpoint.samples)


def _find_base(history: History, number: int, folder: Path) -> Base:
    """Raises CheckpointUnusable if the checkpoint is not on record."""
    if number == EMPTY_MODEL and history.base.number == EMPTY_MODEL:
        return history.base
    for checkpoint in history.begun_checkpoints:
        if checkpoint.number == number:
            return _base_of(checkpoint)
    raise _unusable(number, folder, "it is not on record, or its steps have been declared void")


def _unusable(number: int, folder: Path, why: str) -> CheckpointUnusable:
    return CheckpointUnusable(
        f"the journal in {folder} cannot be read from checkpoint {number} on: {why}; expected a checkpoint of this "
        "run; choose "
        "another ('freshet checkpoints list')"
    )


def _damaged(folder: Path, problem: str) -> LogCorrupt:
    return LogCorrupt(
        f"the journal in {folder} is damaged: {problem}; expected steps that follow each other and ranges that leave "
        "no event out; restore it from a copy"
    )
