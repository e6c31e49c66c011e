"""What a journal says about a run so far: everything that a replay and a resume need.

Reading is strict: a journal whose steps do not follow each other, or whose ranges leave out or repeat an event, is
damaged.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dispatch.errors import RunEnded, SettingsChanged
from dispatch.journal.log import read_records
from dispatch.journal.records import AnyRecord, Begun, Ended, GenerationStarted, StepDecided, StepDone
from ingest.batches.manifest import Manifest
from ingest.errors import LogCorrupt
from ingest.streams.position import Position

JOURNAL = "journal"
"""in the run's folder"""


@dataclass(frozen=True)
class PastGeneration:
    """A generation that has trained, and its steps."""

    record: GenerationStarted
    steps: tuple[StepDecided, ...]

    @property
    def most_samples(self) -> int:
        """Of one worker in one step."""
        counts = (max(map(step.assignment.count, set(step.assignment)), default=0) for step in self.steps)
        return max(counts, default=0)


@dataclass(frozen=True)
class History:
    """A run so far."""

    begun: Begun | None = None
    generations: tuple[PastGeneration, ...] = ()
    digests: Mapping[int, int] = field(default_factory=dict)
    """of the logits of each step that was completed"""
    positions: Mapping[int, Position] = field(default_factory=dict)
    """after the last step, of every partition that is known"""
    last_generation: int = 0
    members: tuple[str, ...] = ()
    to_redecide: tuple[Manifest, ...] = ()
    ended: Ended | None = None

    @property
    def steps(self) -> tuple[StepDecided, ...]:
        return tuple(step for generation in self.generations for step in generation.steps)

    @property
    def step(self) -> int:
        """The newest."""
        return self.generations[-1].steps[-1].step if self.generations else 0

    @property
    def samples(self) -> int:
        return sum(step.manifest.samples for step in self.steps)

    @property
    def workers(self) -> int:
        """As many as a replay needs."""
        return max((len(generation.record.members) for generation in self.generations), default=0)

    def up_to(self, last: int) -> "History":
        """The same without what came after a step."""
        cut = [
            replace(generation, steps=tuple(step for step in generation.steps if step.step <= last))
            for generation in self.generations
        ]
        return replace(self, generations=tuple(generation for generation in cut if generation.steps))


def read_history(folder: Path) -> History:
    """Reads and checks the journal in a folder; an empty one if there is none."""
    return history_of(read_records(folder), folder)


def read_manifests(folder: Path) -> list[Manifest]:
    """The manifest of every step."""
    return [record.manifest for record in read_records(folder) if isinstance(record, StepDecided)]


def history_of(records: Iterable[AnyRecord], folder: Path) -> History:
    """folder: named in errors."""
    begun, ended, digests = None, None, dict[int, int]()
    started, steps = dict[int, GenerationStarted](), dict[int, list[StepDecided]]()
    positions, last = dict[int, Position](), 0
    for record in records:
        if ended is not None or (begun is None) is not isinstance(record, Begun):
            raise _damaged(folder, f"a record {type(record).__name__} is out of place")
        match record:
            case Begun():
                begun, positions = record, dict(record.start)
            case GenerationStarted():
                started[record.number] = record
            case StepDecided():
                if record.step != last + 1 or record.manifest.generation not in started:
                    raise _damaged(folder, f"step {record.step} follows step {last}")
                _advance(positions, record.manifest, folder)
                last = record.step
                steps.setdefault(record.manifest.generation, []).append(record)
            case StepDone():
                digests[record.step] = record.logits
            case Ended():
                ended = record
    generations = tuple(PastGeneration(started[number], tuple(some)) for number, some in steps.items())
    members = started[max(started)].members if started else ()
    return History(begun, generations, digests, positions, max(started, default=0), members, (), ended)


def check_unfinished(history: History, folder: Path) -> None:
    """Raises RunEnded if the run is over."""
    if history.ended is not None:
        raise RunEnded(
            f"the run in {folder} is over: it ended after step {history.ended.step} ({history.ended.reason}); expected "
            "a new folder, or one of a run that was interrupted; give another with --folder or FRESHET_FOLDER"
        )


def check_settings(history: History, run: str, folder: Path, now: Mapping[str, str]) -> None:
    """Raises SettingsChanged if a run would go on with settings that must stay as they are."""
    if history.begun is None:
        return
    was, is_now = {"run": history.begun.run, **history.begun.settings}, {"run": run, **now}
    changed = [name for name in sorted({*was, *is_now}) if was.get(name) != is_now.get(name)]
    if changed:
        told = ", ".join(
            f"{name} was {was.get(name, 'not set')} and is {is_now.get(name, 'not set')}" for name in changed
        )
        raise SettingsChanged(
            f"the run in {folder} cannot go on with other settings: {told}; expected those it began with; set them "
            "back ('freshet up --folder' takes the run's own where none are given), or give another folder"
        )


def check_workers(history: History, workers: int, folder: Path) -> None:
    """Raises SettingsChanged if there are fewer workers than the steps of the journal need."""
    if workers < history.workers:
        raise SettingsChanged(
            f"the run in {folder} cannot be replayed with {workers} workers: its steps were trained by up to "
            f"{history.workers}; expected as many; set dispatch.workers to {history.workers}"
        )


def _advance(positions: dict[int, Position], manifest: Manifest, folder: Path) -> None:
    """Follows the ranges of a step; every event lies in exactly one."""
    for taken in (*manifest.skipped, *manifest.ranges):
        at = positions.get(taken.partition, Position(0))
        if taken.start != at or taken.end < taken.start:
            raise _damaged(
                folder,
                f"step {manifest.step} takes partition {taken.partition} from {taken.start.offset}:{taken.start.index} "
                f"on, and the one before ended at {at.offset}:{at.index}",
            )
        positions[taken.partition] = taken.end


def _damaged(folder: Path, problem: str) -> LogCorrupt:
    return LogCorrupt(
        f"the journal in {folder} is damaged: {problem}; expected steps that follow each other and ranges that leave "
        "no event out; restore it from a copy"
    )
