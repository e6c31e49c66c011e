import errno
import os
import subprocess
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from dispatch.journal.log import JournalWriter, read_records
from dispatch.journal.records import StepDone
from infra.base.errors import FileUnusable
from infra.base.files import describe_room, naming, refusal, try_lock
from infra.base.process import write_whole
from ingest.errors import LogError
from ingest.letters.embedded import DeadLetterLog, read_dead_letters
from ingest.letters.letter import DeadLetter
from tests.disks import fill, small_disk


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "make room there"),
        (errno.EDQUOT, "within the disk quota; make room there"),
        (errno.EROFS, "mount it for writing"),
        (errno.EACCES, "change its owner or mode"),
        (errno.ENOTDIR, "correct it"),
    ],
)
def test_a_refusal_names_the_path_and_what_to_do(number: int, advice: str) -> None:
    with (
        pytest.raises(FileUnusable, match=f"cannot use /the/path: {os.strerror(number)}; expected .*{advice}"),
        naming(Path("/the/path")),
    ):
        raise OSError(number, os.strerror(number))


def test_a_path_that_the_system_names_is_the_one_in_the_message(tmp_path: Path) -> None:
    with pytest.raises(FileUnusable, match=f"cannot use {tmp_path}/missing/file: No such file"), naming(tmp_path):
        (tmp_path / "missing" / "file").read_text()


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    first = try_lock(tmp_path / "lock")
    assert first is not None
    assert try_lock(tmp_path / "lock") is None
    os.close(first)
    again = try_lock(tmp_path / "lock", os.O_RDONLY)
    assert again is not None
    os.close(again)


def appended(append: Callable[[int], object], disk: Path) -> int:
    """Appends until the disk is full; returns how often it went well."""
    fill(disk)
    done = count(1)
    reason = f"cannot use {disk}.*: No space left on device; expected room on its disk; make room there"
    with pytest.raises(LogError, match=reason):
        any(append(number) is ... for number in done)
    return next(done) - 2


def test_a_journal_on_a_full_disk_stays_whole(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 256) as disk:
        journal = JournalWriter(disk / "journal")
        steps = appended(lambda step: journal.append(StepDone(step, 7)), disk)
        assert len(list(read_records(journal.folder))) == steps > 10
        (disk / "filling").unlink()
        journal.append(StepDone(steps + 1, 7))
        journal.close()
        assert [record.step for record in read_records(journal.folder)] == list(range(1, steps + 2))  # type: ignore[union-attr]


def test_dead_letters_on_a_full_disk_stay_whole(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 256) as disk:
        letters = DeadLetterLog(disk)
        written = appended(lambda at: letters.append([DeadLetter(0, at, 0, "bad", b"x" * 100)]), disk)
        letters.close()
        (disk / "filling").unlink()
        DeadLetterLog(disk).close()
        assert [letter.offset for letter in read_dead_letters(disk)] == list(range(1, written + 1))


def test_a_disk_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 256) as disk:
        assert describe_room(disk) == ""
        filling = fill(disk)
        assert f"the disk of {disk} is full" in describe_room(disk)
        filling.unlink()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert f"the disk of {disk} is read-only" in describe_room(disk)
        with pytest.raises(LogError, match="Read-only file system; expected a disk that can be written"):
            JournalWriter(disk / "journal")
        with pytest.raises(FileUnusable, match=f"cannot use {disk}/.*Read-only file system"):
            write_whole(disk / "settings.json", "{}")


def test_an_error_without_a_path_still_says_what_to_do() -> None:
    assert refusal(OSError(errno.ENOSPC, "No space left on device")).startswith("cannot use: No space left on device;")
