"""A journal with a copy: what was acknowledged is in both, whatever crashes between the two."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from random import Random
from shutil import copytree

import pytest

from dispatch.errors import JournalTaken, JournalUnwritable
from dispatch.journal.history import JOURNAL
from dispatch.journal.log import JournalWriter, identity_of, read_records
from dispatch.journal.records import AnyRecord, Begun, CheckpointBegun, Faulted, GenerationStarted, StepDecided
from dispatch.journal.restoring import frames_in, make_equal, open_copy, restore
from ingest.batches.manifest import Manifest
from ingest.errors import LogBusy, LogCorrupt, OwnerReplaced, SinkUnavailable
from ingest.log.frame_copy import CopiedFrames

BEGUN = Begun("r", "log/clicks", {}, {}, "", ())
GENERATION = GenerationStarted(1, ("a",), True, 0, 0, "start")


class Killed(BaseException):
    """The process ends here."""


class Memory:
    """A copy that can fail: before it has kept a frame, or after."""

    name = "memory"

    def __init__(self) -> None:
        self.frames: dict[int, bytes] = {}
        self.owner = ""
        self.journal = ""
        self.failure: tuple[BaseException, bool] | None = None
        """What the next append raises, and whether the frame is kept nevertheless."""
        self.before_failure: Callable[[], object] = lambda: None

    def take(self, owner: str, after: str, journal: str) -> CopiedFrames:
        if self.owner not in ("", owner, after):
            raise OwnerReplaced(f"it belongs to {self.owner}")
        found = self.read()
        self.owner, self.journal = owner, journal
        return found

    def read(self) -> CopiedFrames:
        first = min(self.frames, default=0)
        assert list(self.frames) == list(range(first, first + len(self.frames)))
        return CopiedFrames(self.journal, self.owner, b"", first, list(self.frames.values()))

    def append(self, number: int, body: bytes) -> None:
        failure, self.failure = self.failure, None
        if failure is None or failure[1]:
            self.frames = {kept: content for kept, content in self.frames.items() if kept < number} | {number: body}
        if failure is not None:
            self.before_failure()
            raise failure[0]

    def drop_before(self, number: int) -> None:
        self.frames = {kept: content for kept, content in self.frames.items() if kept >= number}

    def close(self) -> None:
        pass


def note(number: int) -> Faulted:
    return Faulted(step=number, generation=0, kind="Note", text=f"note {number}", at_seconds=0.0)


def opened(folder: Path, copy: Memory) -> JournalWriter:
    open_copy(folder, copy)
    return JournalWriter(folder, copy=copy)


def steps_of(folder: Path) -> list[int]:
    return [record.step for record in read_records(folder) if isinstance(record, Faulted)]


def bodies_in(folder: Path) -> list[bytes]:
    return [body for _, body in frames_in(folder)]


def checkpoint(number: int, step: int) -> CheckpointBegun:
    return CheckpointBegun(
        number=number, step=step, positions={}, samples=0, begun=BEGUN, generation=GENERATION, timeline=0
    )


def step(number: int) -> StepDecided:
    return StepDecided(Manifest("r", 1, number, (), 1, 0), b"", 1.0, 0)


def train_to(writer: JournalWriter, *records: AnyRecord) -> None:
    for record in records:
        if isinstance(record, CheckpointBegun):
            writer.begin_checkpoint(record)
        else:
            writer.append(record)


def test_whatever_crashes_what_was_acknowledged_is_in_folder_and_copy(tmp_path: Path, fuzz_seed: int) -> None:
    for seed in range(fuzz_seed, fuzz_seed + 40):
        random = Random(seed)
        folder, copy, acknowledged, number = tmp_path / f"{seed}" / JOURNAL, Memory(), list[int](), 0
        for life in range(random.randint(1, 5)):
            left = folder.with_name(f"left by {life}")
            copy.before_failure = partial(copytree, folder, left, dirs_exist_ok=True)
            with closing(opened(folder, copy)) as writer:
                found = steps_of(folder)
                assert acknowledged == [each for each in found if each in acknowledged], seed
                assert len(found) - len(acknowledged) <= 1, seed
                assert [body for _, body in sorted(copy.frames.items())] == bodies_in(folder), seed
                acknowledged = found
                for _ in range(random.randint(0, 8)):
                    number += 1
                    kind = random.choice(["works", "works", "away", "late", "killed"])
                    kept = random.random() < 0.5
                    if kind in ("away", "late"):
                        copy.failure = SinkUnavailable("away"), kind == "late"
                        with pytest.raises(JournalUnwritable, match="away"):
                            writer.append(note(number))
                        assert steps_of(folder) == acknowledged, "readers see what was not acknowledged"
                        number += 1
                    elif kind == "killed":
                        copy.failure = Killed(), kept
                        with pytest.raises(Killed):
                            writer.append(note(number))
                        folder = left
                        break
                    writer.append(note(number))
                    acknowledged.append(number)


def test_a_folder_that_is_restored_goes_on_and_the_old_one_does_not(tmp_path: Path) -> None:
    copy, old, new = Memory(), tmp_path / "old", tmp_path / "new"
    with closing(opened(old, copy)) as before:
        before.append(note(1))
        restore(new, copy.read())
        before.append(note(2))  # it still is the owner
        with closing(opened(new, copy)) as after:
            assert steps_of(new) == [1, 2], "what the owner wrote after the folder was made is missing"
            after.append(note(3))
        copy.failure = OwnerReplaced("somebody else"), False  # as the broker says to who was replaced
        with pytest.raises(JournalTaken, match=r"goes on elsewhere.*leave it, or restore"):
            before.append(note(4))
    with pytest.raises(JournalTaken):
        opened(old, copy)
    assert identity_of(new) == identity_of(old)
    restore(old, copy.read())
    with closing(opened(old, copy)) as again:
        again.append(note(5))
    assert steps_of(old) == [1, 2, 3, 5]


def test_a_copy_that_is_named_later_gets_everything(tmp_path: Path) -> None:
    with closing(JournalWriter(tmp_path)) as alone:
        alone.append(note(1))
        alone.append(note(2))
    copy = Memory()
    opened(tmp_path, copy).close()
    assert list(copy.frames.values()) == bodies_in(tmp_path)


def test_a_copy_begins_where_the_folder_does_and_a_new_folder_begins_there_too(tmp_path: Path) -> None:
    copy, folder = Memory(), tmp_path / "old"
    with closing(opened(folder, copy)) as writer:
        train_to(writer, BEGUN, GENERATION, step(1), checkpoint(1, 1), step(2), checkpoint(2, 2), step(3))
        writer.drop_before(2)
        kept = writer.cursor
    assert min(copy.frames) == 5, "dropped segments are still in the copy"
    restore(tmp_path / "new", copy.read())
    with closing(opened(tmp_path / "new", copy)) as after:
        assert after.cursor == kept
        after.begin_checkpoint(checkpoint(3, 3))
    restored = list(read_records(tmp_path / "new"))
    assert restored == [checkpoint(2, 2), step(3), checkpoint(3, 3)]
    assert sorted(path.stem.lstrip("0") for path in (tmp_path / "new").glob("*.log")) == ["5", "7"]


def test_segments_of_a_restored_folder_begin_with_checkpoints_as_before(tmp_path: Path) -> None:
    copy = Memory()
    with closing(opened(tmp_path / "old", copy)) as writer:
        train_to(writer, BEGUN, GENERATION, checkpoint(1, 0), step(1), checkpoint(2, 1), step(2))
    restore(tmp_path / "new", copy.read())
    names = [sorted(path.name for path in (tmp_path / name).glob("*.log")) for name in ("old", "new")]
    assert names[0] == names[1]
    assert [path.read_bytes() for path in sorted((tmp_path / "new").glob("*.log"))] == [
        path.read_bytes() for path in sorted((tmp_path / "old").glob("*.log"))
    ]


def test_a_folder_and_a_copy_that_differ_by_more_than_one_frame_are_left_to_a_person(tmp_path: Path) -> None:
    with closing(JournalWriter(tmp_path)) as writer:
        for number in range(4):
            writer.append(note(number))
    bodies = bodies_in(tmp_path)
    with pytest.raises(LogCorrupt, match=r"frames 0 to 3 .* differ from frame 2 on"):
        make_equal(tmp_path, CopiedFrames("j", "o", b"", 0, bodies[:2]))
    with pytest.raises(LogCorrupt, match="frames 0 to 3"):
        make_equal(tmp_path, CopiedFrames("j", "o", b"", 9, bodies[:2]))
    assert bodies_in(tmp_path) == bodies
    make_equal(tmp_path, CopiedFrames("j", "o", b"", 0, bodies[:3]))
    assert bodies_in(tmp_path) == bodies[:3]


def test_a_journal_that_is_written_or_is_another_one_is_not_restored(tmp_path: Path) -> None:
    copy = Memory()
    with closing(opened(tmp_path / "mine", copy)) as writer:
        writer.append(note(1))
        with pytest.raises(LogBusy):
            restore(tmp_path / "mine", copy.read())
    JournalWriter(tmp_path / "other").close()
    with pytest.raises(LogCorrupt, match="another run's journal"):
        restore(tmp_path / "other", copy.read())
