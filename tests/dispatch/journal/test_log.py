import os
from pathlib import Path

import msgspec
import pytest

from dispatch.journal.log import IDENTITY, OPENING, JournalWriter, identity_of, read_records
from dispatch.journal.records import AnyRecord, GenerationStarted, StepDecided, StepDone
from ingest.batches.manifest import Manifest
from ingest.errors import LogBusy, LogCorrupt, LogError
from ingest.log.frames import frame
from ingest.streams.position import Position, Range
from tests.disks import flip_each_bit

FIRST = f"{0:020d}.log"


def step(number: int) -> StepDecided:
    manifest = Manifest("r", 1, number, (Range(0, Position(number - 1), Position(number)),), 2, 0)
    return StepDecided(manifest, b"\0\1", 1.0, 9)


def write(folder: Path, *records: AnyRecord, segment_bytes: int = 1 << 20) -> None:
    journal = JournalWriter(folder, segment_bytes)
    for record in records:
        journal.append(record)
    journal.close()


def test_records_come_back_in_order(tmp_path: Path) -> None:
    written: list[AnyRecord] = [
        GenerationStarted(1, ("a", "b"), True, 0, 0, "start"),
        step(1),
        StepDone(1, 2**64 - 1),
        step(2),
    ]
    write(tmp_path, *written[:2])
    write(tmp_path, *written[2:])
    assert list(read_records(tmp_path)) == written
    assert list(read_records(tmp_path / "nowhere")) == []


def test_what_is_noted_goes_with_the_next_append_in_one_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("ingest.log.frames.sync_content", synced.append)
    journal = JournalWriter(tmp_path)
    before = len(synced)
    journal.note(StepDone(1, 5))
    assert list(read_records(tmp_path)) == []
    journal.append(step(2))
    journal.close()
    assert len(synced) == before + 1
    assert list(read_records(tmp_path)) == [StepDone(1, 5), step(2)]


def test_a_journal_torn_at_any_byte_keeps_every_whole_append(tmp_path: Path) -> None:
    write(tmp_path, step(1))
    one = (tmp_path / FIRST).stat().st_size
    write(tmp_path, step(2))
    content = (tmp_path / FIRST).read_bytes()
    for length in range(len(content)):
        (tmp_path / FIRST).write_bytes(content[:length])
        expected = [step(1)] if length >= one else []
        assert list(read_records(tmp_path)) == expected
        write(tmp_path, step(9))
        assert list(read_records(tmp_path)) == [*expected, step(9)]


def test_no_flip_of_a_bit_reads_as_other_or_fewer_records(tmp_path: Path) -> None:
    write(tmp_path, *map(step, range(1, 5)))
    for _ in flip_each_bit(tmp_path / FIRST):
        with pytest.raises(LogCorrupt, match=str(tmp_path / FIRST)):
            list(read_records(tmp_path))
    (tmp_path / FIRST).write_bytes((tmp_path / FIRST).read_bytes()[:-1] + b"!")
    for _ in range(2):  # the lock is given back each time
        with pytest.raises(LogCorrupt):
            JournalWriter(tmp_path)


def test_segments_follow_each_other_and_a_missing_or_truncated_one_is_named(tmp_path: Path) -> None:
    write(tmp_path, *map(step, range(1, 10)), segment_bytes=200)
    write(tmp_path, *map(step, range(10, 20)), segment_bytes=200)
    assert list(read_records(tmp_path)) == list(map(step, range(1, 20)))
    first, second, *_, last = sorted(tmp_path.glob("*.log"))
    content = second.read_bytes()
    second.write_bytes(content[:-3])
    with pytest.raises(LogCorrupt, match=f"{second} was truncated at byte"):
        list(read_records(tmp_path))
    second.unlink()
    with pytest.raises(LogCorrupt, match="expected one that begins with frame"):
        JournalWriter(tmp_path)
    second.write_bytes(content)
    last.unlink()
    assert 9 < len(list(read_records(tmp_path))) < 19
    first.unlink()
    with pytest.raises(LogCorrupt, match="expected one that begins with frame 0"):
        list(read_records(tmp_path))


@pytest.mark.parametrize(
    "record", [{"is": "spell"}, {"is": "done", "step": 1, "logits": 2, "more": 3}, {"is": "done"}, 7]
)
def test_a_record_that_is_not_known_is_refused(tmp_path: Path, record: object) -> None:
    (tmp_path / FIRST).write_bytes(OPENING + frame(msgspec.msgpack.encode([record])))
    with pytest.raises(LogCorrupt, match="holds a record that cannot be decoded"):
        list(read_records(tmp_path))


def test_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / FIRST).write_bytes(b"FRESHMF2")
    with pytest.raises(LogCorrupt, match="another version of Freshet wrote it: it begins with"):
        JournalWriter(tmp_path)


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    journal = JournalWriter(tmp_path)
    with pytest.raises(LogBusy):
        JournalWriter(tmp_path)
    journal.close()
    write(tmp_path, step(1))


def test_appends_are_durable_where_there_is_no_fdatasync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(os, "fsync", synced.append)
    journal = JournalWriter(tmp_path)
    before = len(synced)
    journal.append(step(1))
    journal.close()
    assert len(synced) == before + 1


def test_an_append_that_fails_leaves_what_was_noted_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = JournalWriter(tmp_path)
    journal.note(StepDone(1, 5))
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(LogError, match="No space left"):
            journal.append(step(2))
    journal.append(step(2))
    journal.close()
    assert list(read_records(tmp_path)) == [StepDone(1, 5), step(2)]


def test_a_journal_keeps_its_identity_and_no_other_journal_has_it(tmp_path: Path) -> None:
    write(tmp_path / "one", step(1))
    write(tmp_path / "other", step(1))
    given = identity_of(tmp_path / "one")
    write(tmp_path / "one", step(2))
    assert identity_of(tmp_path / "one") == given != identity_of(tmp_path / "other")
    assert identity_of(tmp_path / "nowhere") == ""


def test_no_flip_of_a_bit_makes_another_identity(tmp_path: Path) -> None:
    write(tmp_path, step(1))
    for _ in flip_each_bit(tmp_path / IDENTITY):
        with pytest.raises(LogCorrupt, match="identity is damaged"):
            identity_of(tmp_path)
    (tmp_path / IDENTITY).write_bytes(b"")
    with pytest.raises(LogCorrupt, match="identity is damaged"):
        JournalWriter(tmp_path)
