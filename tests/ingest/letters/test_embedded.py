from pathlib import Path

import msgspec
import pytest

from ingest.errors import LogError
from ingest.letters.embedded import DeadLetterLog, read_dead_letters
from ingest.letters.letter import DeadLetter
from ingest.log.embedded import LogWriter


def letter(partition: int, offset: int, index: int = 0) -> DeadLetter:
    return DeadLetter(partition, offset, index, "label: 2, expected 0 or 1", b"\xff\x00")


def kept(folder: Path) -> list[DeadLetter]:
    """Without the time, which no test knows."""
    return [msgspec.structs.replace(found, time_ms=0) for found in read_dead_letters(folder)]


def test_letters_come_back_as_written(tmp_path: Path) -> None:
    log = DeadLetterLog(tmp_path)
    assert log.append([letter(0, 5), letter(1, 2, 7)]) == 2
    log.close()
    assert kept(tmp_path) == [letter(0, 5), letter(1, 2, 7)]
    assert all(found.time_ms for found in read_dead_letters(tmp_path))


def test_letter_is_written_once_across_a_restart(tmp_path: Path) -> None:
    log = DeadLetterLog(tmp_path)
    log.append([letter(0, 5), letter(1, 2, 1)])
    log.close()
    again = DeadLetterLog(tmp_path)
    assert again.append([letter(0, 5), letter(0, 6), letter(1, 2, 1), letter(1, 2, 2)]) == 2
    again.close()
    assert kept(tmp_path) == [letter(0, 5), letter(1, 2, 1), letter(0, 6), letter(1, 2, 2)]


def test_same_letter_twice_in_one_call_is_written_once(tmp_path: Path) -> None:
    log = DeadLetterLog(tmp_path)
    assert log.append([letter(0, 5), letter(0, 5)]) == 1
    log.close()


def test_no_letters_write_nothing(tmp_path: Path) -> None:
    log = DeadLetterLog(tmp_path)
    assert log.append([]) == 0
    log.close()
    assert list(read_dead_letters(tmp_path)) == []


def test_letters_of_another_run_or_topic_hide_none(tmp_path: Path) -> None:
    for origin in ("monday/clicks", "monday/views", "tuesday/clicks"):
        log = DeadLetterLog(tmp_path, origin=origin)
        assert log.append([letter(0, 5)]) == 1
        log.close()
    assert [found.origin for found in read_dead_letters(tmp_path)] == [
        "monday/clicks",
        "monday/views",
        "tuesday/clicks",
    ]


def test_letter_whose_append_failed_is_written_when_it_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise LogError("the disk is full")

    log = DeadLetterLog(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(LogWriter, "append", fail)
        with pytest.raises(LogError, match="the disk is full"):
            log.append([letter(0, 5)])
    assert log.append([letter(0, 5)]) == 1
    log.close()
