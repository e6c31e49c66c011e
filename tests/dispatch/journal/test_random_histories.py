"""Any run with checkpoints, void steps, restarts and dropped segments, against a plain model of it."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.journal.history import History, read_checkpoints, read_history
from dispatch.journal.log import JournalWriter
from dispatch.journal.records import (
    Begun,
    CheckpointBegun,
    CheckpointTaken,
    GenerationStarted,
    Redecided,
    StepDecided,
    StepDone,
)
from ingest.batches.manifest import Manifest
from ingest.streams.position import Position, Range

BEGUN = Begun("r", "log:clicks", {0: Position(4)}, {}, "d", ("torch",))
FIRST = GenerationStarted(1, ("w",), True, 0, 0, "start")
Action = tuple[str, int]
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["step"] * 6 + ["generation", "begin", "take", "redecide", "drop", "reopen"]), st.integers(0, 9)
    ),
    min_size=20,
    max_size=60,
)


@dataclass
class Model:
    """A run as it should read."""

    timeline: list[StepDecided] = field(default_factory=list)
    void: dict[int, Manifest] = field(default_factory=dict)
    digests: dict[int, int] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)
    """step of each checkpoint by number"""
    taken: set[int] = field(default_factory=set)
    generation: GenerationStarted = FIRST
    numbers: int = 0
    oldest: int = 0
    """the checkpoint from which on nothing was dropped"""

    def place(self, step: int) -> Position:
        return self.timeline[step - 1].manifest.ranges[0].end if step else Position(4)

    def samples(self, step: int) -> int:
        return sum(some.manifest.samples for some in self.timeline[:step])

    def next_step(self, size: int) -> StepDecided:
        number = len(self.timeline) + 1
        before = self.void.get(number)
        start = self.place(number - 1)
        taken = (Range(0, start, Position(start.offset + size)),) if before is None else before.ranges
        return StepDecided(Manifest("r", self.generation.number, number, taken, size, 0), b"\0", 1.0, 9)


class Run:
    """The model and the journal that must agree with it."""

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        self.folder, self.segment_bytes, self.model = folder, segment_bytes, Model()
        self.journal = JournalWriter(folder, segment_bytes)
        self.journal.append(BEGUN, self.model.generation)

    def act(self, action: str, choice: int) -> None:
        getattr(self, action)(self.model, choice)

    def step(self, model: Model, choice: int) -> None:
        decided = model.next_step(choice)
        model.timeline.append(decided)
        model.void.pop(decided.step, None)
        self.journal.append(decided)
        if choice % 2:
            model.digests[decided.step] = choice
            self.journal.append(StepDone(decided.step, choice))

    def generation(self, model: Model, choice: int) -> None:
        members = tuple(f"w-{n}" for n in range(choice + 1))
        model.generation = GenerationStarted(model.generation.number + 1, members, True, 0, None, "")
        self.journal.append(model.generation)

    def begin(self, model: Model, choice: int) -> None:
        step = max(len(model.timeline) - choice // 5, *model.begun.values(), 0)  # never before an earlier checkpoint
        model.numbers += 1
        model.begun[model.numbers] = step
        positions = {0: model.place(step)}
        checkpoint = CheckpointBegun(model.numbers, step, positions, model.samples(step), BEGUN, model.generation)
        self.journal.begin_checkpoint(checkpoint)

    def take(self, model: Model, choice: int) -> None:
        if model.numbers in model.begun.keys() - model.taken:
            step = model.begun[model.numbers]
            model.taken.add(model.numbers)
            self.journal.append(CheckpointTaken(model.numbers, step, {0: model.place(step)}, model.samples(step)))

    def redecide(self, model: Model, choice: int) -> None:
        bases = sorted(number for number in {0, *model.taken} if number >= model.oldest)
        if not bases:
            return
        base = bases[choice % len(bases)]
        step = model.begun.get(base, 0)
        model.void |= {some.step: some.manifest for some in model.timeline[step:]}
        del model.timeline[step:]
        model.digests = {at: digest for at, digest in model.digests.items() if at <= step}
        model.begun = {number: at for number, at in model.begun.items() if at <= step}
        model.taken &= model.begun.keys()
        self.journal.append(Redecided(base, step))

    def drop(self, model: Model, choice: int) -> None:
        kept = sorted(model.taken)[-1 - choice % 3 :]
        if kept:
            model.oldest = max(model.oldest, kept[0])
            self.journal.drop_before(kept[0])

    def reopen(self, model: Model, choice: int) -> None:
        self.journal.close()
        self.journal = JournalWriter(self.folder, self.segment_bytes)

    def check(self) -> None:
        model = self.model
        for number in [number for number in {0, *model.begun} if number >= model.oldest]:
            self.check_one(read_history(self.folder, number), model.begun.get(number, 0))
        checkpoints = read_checkpoints(self.folder)
        assert {checkpoint.number for checkpoint in checkpoints.checkpoints} >= {
            n for n in model.taken if n >= model.oldest
        }
        assert {checkpoint.number for checkpoint in checkpoints.begun_checkpoints} <= model.begun.keys()

    def check_one(self, history: History, base: int) -> None:
        model = self.model
        assert list(history.steps) == model.timeline[base:]
        assert (history.step, history.samples) == (len(model.timeline), model.samples(len(model.timeline)))
        assert history.positions[0] == model.place(len(model.timeline))
        assert history.digests == {step: digest for step, digest in model.digests.items() if step > base}
        assert list(history.to_redecide) == [model.void[step] for step in sorted(model.void)]
        assert (history.newest, history.begun) == (model.generation, BEGUN)
        assert history.last_checkpoint == model.numbers


@settings(max_examples=80, deadline=None)
@given(ACTIONS, st.sampled_from([1 << 20, 500]))
def test_any_run_reads_as_it_was_written(actions: list[Action], segment_bytes: int) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        for name in ("fsync", "fdatasync"):  # nobody pulls the plug here, and disks are slow
            patched.setattr(os, name, lambda _: None)
        run = Run(Path(folder), segment_bytes)
        try:
            for action, choice in actions:
                run.act(action, choice)
            run.check()
        finally:
            run.journal.close()
