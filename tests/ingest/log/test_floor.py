"""What a run may have to read again is not removed by retention, up to a cap."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from ingest.log.embedded import LogReader, LogWriter
from ingest.log.floor import lowest_needed, remove_floor, write_floor
from ingest.streams.position import Position

RECORD = [(None, b"x" * 900)]


def first_left(folder: Path, records: int = 60, cap: int | None = None) -> int:
    """The first record that is left after so many were appended, where about 5 are kept."""
    writer = LogWriter(folder, "clicks", 1, segment_bytes=2000, retention_bytes=5000, retention_cap_bytes=cap)
    for _ in range(records):
        writer.append(0, RECORD)
    writer.close()
    reader = LogReader(folder, "clicks")
    first, _ = reader.span(0)
    reader.close()
    return first


def test_without_a_run_retention_alone_decides(tmp_path: Path) -> None:
    assert first_left(tmp_path) > 50
    assert lowest_needed(tmp_path / "clicks", 0) is None


@pytest.mark.parametrize("needed", [0, 1, 44, 45])
def test_what_a_run_needs_stays(tmp_path: Path, needed: int) -> None:
    (tmp_path / "clicks").mkdir()
    write_floor(tmp_path, "clicks", "a", {0: Position(needed, 3)})
    write_floor(tmp_path, "clicks", "b", {0: Position(50)})
    first = first_left(tmp_path, cap=1 << 20)
    assert first <= needed
    assert first + 3 > needed  # a segment holds three
    write_floor(tmp_path, "clicks", "a", {0: Position(60)})
    assert needed < first_left(tmp_path, records=4, cap=1 << 20) <= 50


@pytest.mark.parametrize(("cap", "most"), [(None, 20_000), (9000, 9000)])
def test_beyond_the_cap_it_is_removed_with_a_warning(tmp_path: Path, cap: int | None, most: int) -> None:
    (tmp_path / "clicks").mkdir()
    write_floor(tmp_path, "clicks", "a", {0: Position(10)})
    with capture_logs() as logs:
        first = first_left(tmp_path, cap=cap)
    kept = sum(path.stat().st_size for path in (tmp_path / "clicks" / "00000").glob("*.log"))
    assert 5000 < kept <= most + 3000
    assert first > 10
    assert logs[0]["event"].startswith("records are removed that a run may have to read again")
    assert (logs[0]["needed_from"], logs[0]["log_level"]) == (10, "warning")


def test_partitions_that_a_run_does_not_name_are_kept_from_the_beginning(tmp_path: Path) -> None:
    (tmp_path / "clicks").mkdir()
    write_floor(tmp_path, "clicks", "a", {1: Position(10)})
    assert first_left(tmp_path, cap=1 << 20) == 0


def test_a_run_that_is_over_needs_nothing(tmp_path: Path) -> None:
    (tmp_path / "clicks").mkdir()
    write_floor(tmp_path, "clicks", "a", {0: Position(10)})
    remove_floor(tmp_path, "clicks", "a")
    remove_floor(tmp_path, "clicks", "a")
    assert first_left(tmp_path) > 50


def test_a_floor_that_cannot_be_read_needs_everything(tmp_path: Path) -> None:
    (tmp_path / "clicks").mkdir()
    (tmp_path / "clicks" / "floor-a.json").write_bytes(b"{")
    with capture_logs() as logs:
        assert first_left(tmp_path, records=12, cap=1 << 20) == 0
    assert logs[0]["event"].startswith("a floor cannot be read")
