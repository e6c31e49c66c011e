"""Segments that begin with a checkpoint, and what is left once those before them are dropped."""

import os
from pathlib import Path
from random import Random

import pytest
from msgspec import structs

from dispatch.errors import CheckpointUnusable, JournalUnwritable
from dispatch.journal.history import History, read_checkpoints, read_history
from dispatch.journal.log import JournalWriter, SegmentGone, read_records
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
from ingest.errors import LogCorrupt, LogError
from ingest.streams.position import Position, Range
from tests.dispatch.journal.crashes import Crash, CrashAfter, contents, put_back

BEGUN = Begun("r", "log:clicks", {0: Position(0)}, {"rows.dim": "8"}, "d", ("torch",), samples=100)
GENERATION = GenerationStarted(1, ("a", "b"), True, 0, 0, "start")


def step(number: int, generation: int = 1) -> StepDecided:
    manifest = Manifest("r", generation, number, (Range(0, Position(number - 1), Position(number)),), 2, 0)
    return StepDecided(manifest, b"\0\1", 1.0, 9)


def begin(number: int, after: int, generation: GenerationStarted = GENERATION) -> CheckpointBegun:
    return CheckpointBegun(number, after, {0: Position(after)}, 2 * after, BEGUN, generation)


def taken(number: int, after: int) -> CheckpointTaken:
    return CheckpointTaken(number, after, {0: Position(after)}, 2 * after)


def write_run(folder: Path, steps: int = 12, every: int = 3, segment_bytes: int = 1 << 20) -> None:
    """A run with a checkpoint after every few steps, each on record as taken one step later."""
    journal = JournalWriter(folder, segment_bytes)
    journal.append(BEGUN, GENERATION)
    for number in range(1, steps + 1):
        journal.append(step(number))
        journal.note(StepDone(number, number))
        if number % every == 0:
            journal.begin_checkpoint(begin(number // every, number))
        if number % every == 1 and number > 1:
            journal.append(taken(number // every, number - 1))
    journal.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.log"))


def drop_before(folder: Path, number: int) -> None:
    journal = JournalWriter(folder)
    journal.drop_before(number)
    journal.close()


def test_a_history_begins_with_any_checkpoint_that_is_on_record(tmp_path: Path) -> None:
    write_run(tmp_path)
    whole = read_history(tmp_path)
    assert [checkpoint.number for checkpoint in whole.checkpoints] == [1, 2, 3]
    assert [checkpoint.number for checkpoint in whole.begun_checkpoints] == [1, 2, 3, 4]
    assert (whole.step, whole.samples, whole.last_checkpoint, whole.members) == (12, 24, 4, ("a", "b"))
    for checkpoint in whole.begun_checkpoints:
        history = read_history(tmp_path, checkpoint.number)
        assert history.steps == whole.steps[checkpoint.step :]
        assert (history.step, history.samples, history.positions) == (12, 24, whole.positions)
        assert (history.base.step, history.begun) == (checkpoint.step, BEGUN)
        assert history.digests == {n: n for n in range(checkpoint.step + 1, 13)}
    assert read_history(tmp_path, 0) == whole
    assert read_checkpoints(tmp_path).checkpoints == whole.checkpoints
    with pytest.raises(CheckpointUnusable, match="from checkpoint 5 on: it is not on record"):
        read_history(tmp_path, 5)


@pytest.mark.parametrize("segment_bytes", [1 << 20, 300])
def test_segments_before_the_oldest_checkpoint_that_is_kept_are_dropped(tmp_path: Path, segment_bytes: int) -> None:
    write_run(tmp_path, segment_bytes=segment_bytes)
    kept = [read_history(tmp_path, number) for number in (2, 3, 4)]
    before = names(tmp_path)
    drop_before(tmp_path, 2)
    assert names(tmp_path) == before[-len(names(tmp_path)) :] != before
    again = [read_history(tmp_path, number) for number in (2, 3, 4)]
    assert [h.steps for h in again] == [h.steps for h in kept]
    assert read_history(tmp_path).steps == kept[0].steps
    assert (again[0].digests, again[0].samples, again[0].base) == (kept[0].digests, kept[0].samples, kept[0].base)
    with pytest.raises(CheckpointUnusable):
        read_history(tmp_path, 0)


def test_nothing_is_dropped_for_a_checkpoint_that_is_not_on_record(tmp_path: Path) -> None:
    write_run(tmp_path)
    before = contents(tmp_path)
    for number in (0, 9):
        drop_before(tmp_path, number)
    assert contents(tmp_path) == before


def test_a_journal_goes_on_where_it_was_trimmed(tmp_path: Path) -> None:
    write_run(tmp_path)
    drop_before(tmp_path, 4)
    journal = JournalWriter(tmp_path)
    journal.append(step(13), taken(4, 12))
    journal.begin_checkpoint(begin(5, 13))
    journal.drop_before(5)
    journal.append(step(14))
    journal.close()
    history = read_history(tmp_path)
    assert [s.step for s in history.steps] == [14]
    assert (history.base.number, history.samples) == (5, 28)
    assert len(names(tmp_path)) == 1


def test_a_checkpoint_taken_while_later_steps_are_trained_again_begins_no_segment(tmp_path: Path) -> None:
    write_run(tmp_path, steps=7)
    journal = JournalWriter(tmp_path)
    before = names(tmp_path)
    journal.begin_checkpoint(begin(3, 6))  # step 7 is on record already
    assert names(tmp_path) == before
    journal.drop_before(3)
    journal.close()
    assert [s.step for s in read_history(tmp_path, 3).steps] == [7]
    assert len(names(tmp_path)) == 1


def test_void_steps_that_wait_to_be_decided_anew_are_not_dropped(tmp_path: Path) -> None:
    write_run(tmp_path, steps=8)  # checkpoints 1 and 2 after steps 3 and 6
    again = GenerationStarted(2, ("a",), True, 0, 1, "a worker is gone")
    journal = JournalWriter(tmp_path)
    journal.append(Redecided(1, 3))
    journal.append(again)
    journal.append(step(4, 2))
    journal.begin_checkpoint(begin(3, 4, again))
    journal.drop_before(3)
    history = read_history(tmp_path, 3)
    assert [manifest.step for manifest in history.to_redecide] == [5, 6, 7, 8]
    for number in range(5, 9):
        journal.append(step(number, 2))
    journal.begin_checkpoint(begin(4, 8, again))
    journal.drop_before(4)
    journal.close()
    assert len(names(tmp_path)) == 1
    assert read_history(tmp_path).to_redecide == ()


# ── crashes ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def view(history: History) -> object:
    return history.steps, history.samples, history.positions, history.begun, history.newest


@pytest.mark.parametrize("halves", [False, True])
def test_a_crash_at_any_point_of_a_checkpoint_leaves_the_same_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, halves: bool
) -> None:
    write_run(tmp_path / "run")
    before, expected = contents(tmp_path / "run"), view(read_history(tmp_path / "run"))
    points = 0
    for operations in range(100):
        put_back(tmp_path / "run", before)
        journal = JournalWriter(tmp_path / "run")
        with monkeypatch.context() as patched:
            CrashAfter(operations, halves).installed(patched)
            try:
                journal.append(taken(4, 12))
                journal.begin_checkpoint(begin(5, 12))
                break
            except Crash:
                points += 1
        journal.close()
        assert view(read_history(tmp_path / "run")) == expected
        JournalWriter(tmp_path / "run").close()
        assert view(read_history(tmp_path / "run")) == expected
    assert points > 5
    journal.close()
    assert read_history(tmp_path / "run").last_checkpoint == 5


@pytest.mark.parametrize("segment_bytes", [1 << 20, 300])
def test_a_crash_at_any_point_of_dropping_leaves_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segment_bytes: int
) -> None:
    write_run(tmp_path / "run", segment_bytes=segment_bytes)
    before, expected = contents(tmp_path / "run"), view(read_history(tmp_path / "run", 3))
    points = 0
    for operations in range(100):
        put_back(tmp_path / "run", before)
        journal = JournalWriter(tmp_path / "run")
        with monkeypatch.context() as patched:
            CrashAfter(operations).installed(patched)
            try:
                journal.drop_before(3)
                break
            except Crash:
                points += 1
        journal.close()
        assert view(read_history(tmp_path / "run", 3)) == expected
        drop_before(tmp_path / "run", 3)
        assert view(read_history(tmp_path / "run")) == expected
    assert points > 3
    journal.close()


def full(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("operation", ["open", "pwrite", "fdatasync"])
def test_a_full_disk_loses_nothing_and_the_same_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    journal = JournalWriter(tmp_path)
    journal.append(BEGUN, GENERATION, step(1))
    journal.note(StepDone(1, 5))
    with monkeypatch.context() as patched:
        patched.setattr(os, operation, full)
        patched.setattr(os, "ftruncate", full)
        with pytest.raises(JournalUnwritable, match="No space left"):
            journal.begin_checkpoint(begin(1, 1))
    journal.append(step(2))  # of another size than what failed
    journal.close()
    history = read_history(tmp_path)
    assert ([s.step for s in history.steps], history.digests) == ([1, 2], {1: 5})


def test_what_a_failed_append_left_is_cut_off_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = JournalWriter(tmp_path)
    journal.append(BEGUN, GENERATION)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", full)
        patched.setattr("ingest.log.frames._cut_back", lambda *_: None)
        with pytest.raises(JournalUnwritable):
            journal.append(*map(step, range(1, 9)))
    journal.append(step(1))
    journal.close()
    assert [s.step for s in read_history(tmp_path).steps] == [1]


# ── damage ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_changed_bits_and_truncations_in_any_segment_are_named(
    tmp_path: Path, fuzz_rounds: int, fuzz_seed: int
) -> None:
    write_run(tmp_path, steps=20, segment_bytes=400)
    drop_before(tmp_path, 2)
    whole, random = contents(tmp_path), Random(fuzz_seed)
    segments = [name for name in sorted(whole) if name.endswith(".log")]
    for _ in range(200 * fuzz_rounds):
        name = random.choice(segments)
        flipped = bytearray(whole[name])
        flipped[random.randrange(len(flipped))] ^= 1 << random.randrange(8)
        put_back(tmp_path, {**whole, name: bytes(flipped)})
        with pytest.raises(LogCorrupt, match=name.removesuffix(".log")):
            read_history(tmp_path)
    expected = read_history_of(tmp_path, whole)
    for _ in range(50 * fuzz_rounds):
        name = random.choice(segments)
        put_back(tmp_path, {**whole, name: whole[name][: random.randrange(len(whole[name]))]})
        if name == segments[-1]:
            found = read_history(tmp_path)
            assert found.steps == expected.steps[: len(found.steps)]
            continue
        with pytest.raises(LogCorrupt, match=r"\d{20}\.log"):
            read_history(tmp_path)


def read_history_of(folder: Path, files: dict[str, bytes]) -> History:
    put_back(folder, files)
    return read_history(folder)


def test_a_missing_segment_is_named_unless_it_was_at_the_beginning(tmp_path: Path) -> None:
    write_run(tmp_path, steps=20, segment_bytes=400)
    drop_before(tmp_path, 2)
    whole = contents(tmp_path)
    segments = names(tmp_path)
    for missing in segments[1:-1]:
        put_back(tmp_path, {name: content for name, content in whole.items() if name != missing})
        with pytest.raises(LogCorrupt, match="begins with frame"):
            read_history(tmp_path)
    put_back(tmp_path, {name: whole[name] for name in segments[-1:]})
    with pytest.raises(LogCorrupt, match=f"{segments[-1]} begins with frame .* frame 0, or with a checkpoint"):
        read_history(tmp_path)


def test_a_reader_begins_again_when_segments_are_dropped_under_it(tmp_path: Path) -> None:
    write_run(tmp_path)
    records = read_records(tmp_path)
    next(records)
    drop_before(tmp_path, 3)
    with pytest.raises(SegmentGone):
        list(records)
    assert issubclass(SegmentGone, LogError)
    assert read_history(tmp_path).base.number == 3


def test_how_often_steps_were_decided_anew_is_known_after_their_records_are_dropped(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path)
    journal.append(BEGUN, GENERATION, step(1), step(2))
    journal.append(Redecided(0, 0), step(1), step(2))
    journal.begin_checkpoint(structs.replace(begin(1, 2), timeline=1))
    journal.append(step(3), Redecided(1, 2), step(3))
    journal.begin_checkpoint(structs.replace(begin(2, 3), timeline=2))
    journal.append(step(4))
    journal.close()
    for oldest in (1, 2):
        drop_before(tmp_path, oldest)
        assert read_history(tmp_path).base.number == oldest
        assert read_history(tmp_path).timeline == read_checkpoints(tmp_path).timeline == 2
