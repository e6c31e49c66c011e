"""A power cut at every moment of a writer's life, and files that went missing."""

import os
from itertools import product
from pathlib import Path

import pytest

from ingest.errors import LogCorrupt
from ingest.log.embedded import LogReader, LogWriter
from ingest.log.partition_reader import PartitionReader
from ingest.log.partition_writer import PartitionWriter
from ingest.log.segments import segment_firsts, segment_path

RECORDS = [bytes([65 + number]) * 900 for number in range(12)]


class Disk:
    """What of a folder would survive a power cut: contents and names that were synced, and maybe any later ones."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.worlds: list[tuple[int, dict[str, bytes]]] = []
        """(records acknowledged by then, files): every world that a power cut at some moment could leave"""
        self.acknowledged = 0
        self._synced: dict[str, bytes] = {}
        self._names: set[str] = set()
        self._seen: dict[str, bytes] = {}
        sync, write, unlink = os.fsync, os.pwrite, Path.unlink

        def synced(file: int) -> None:
            self._keep()
            path = Path(f"/proc/self/fd/{file}").readlink()
            if path == folder:
                self._names = set(self._now())
            elif path.parent == folder:
                self._synced[path.name] = path.read_bytes()
            sync(file)

        def written(file: int, content: bytes, at: int) -> int:
            done = write(file, content, at)
            self._keep()
            return done

        def unlinked(path: Path, missing_ok: bool = False) -> None:
            unlink(path, missing_ok)
            self._keep()

        patch.setattr(os, "fsync", synced)
        patch.setattr(os, "fdatasync", synced)
        patch.setattr(os, "pwrite", written)
        patch.setattr(Path, "unlink", unlinked)

    def _now(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.folder.iterdir()} if self.folder.exists() else {}

    def _keep(self) -> None:
        now = self._now()
        self._seen |= now
        for names, mark, segments in product((self._names, set(now)), *((self._synced, self._seen),) * 2):
            world = {name: (mark if name == "mark" else segments).get(name, b"") for name in names}
            if (self.acknowledged, world) not in self.worlds[-16:]:
                self.worlds.append((self.acknowledged, world))


@pytest.mark.parametrize(("segment_bytes", "retention_bytes"), [(2000, 1000), (2000, 5000), (2000, None), (1, 1)])
def test_a_power_cut_at_any_moment_leaves_a_log_that_opens_with_all_that_was_acknowledged(
    tmp_path: Path, segment_bytes: int, retention_bytes: int | None
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(tmp_path / "a", patch)
        for reopened in range(2):
            writer = PartitionWriter(tmp_path / "a", segment_bytes, retention_bytes)
            for number in range(reopened * 6, reopened * 6 + 6):
                writer.append([(None, RECORDS[number])])
                disk.acknowledged = number + 1
            writer.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        firsts = {_open(tmp_path / f"{number}", *world) for number, world in enumerate(disk.worlds)}
    assert len(disk.worlds) > 60
    assert (len(firsts) > 1) == (retention_bytes is not None)


def _open(folder: Path, acknowledged: int, files: dict[str, bytes]) -> int:
    """Opens what a power cut has left; returns the first retained offset."""
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    writer = PartitionWriter(folder)
    writer.append([(None, b"next")])
    writer.close()
    reader = PartitionReader(folder)
    first, end, *_ = reader.mark()
    found = [record.payload for offset in range(first, end) for record in reader.read(offset, 1)[:1]]
    reader.close()
    assert acknowledged < end
    assert found == [*RECORDS[first : end - 1], b"next"]
    return first


def appended(folder: Path, retention_bytes: int | None = None) -> list[Path]:
    """A topic of one partition with several segments; returns their paths."""
    writer = LogWriter(folder, "t", 1, 2000, retention_bytes)
    for payload in RECORDS:
        writer.append(0, [(None, payload)])
    writer.close()
    partition = folder / "t" / "00000"
    return [segment_path(partition, first) for first in segment_firsts(partition)]


def reader_of(folder: Path) -> LogReader:
    reader = LogReader(folder, "t")
    assert reader.partitions() == [0]
    return reader


def read_all(folder: Path) -> int:
    reader = reader_of(folder)
    try:
        offset, end = reader.span(0)
        while offset < end:
            offset += len(reader.read(0, offset, 1000))
        return end
    finally:
        reader.close()


@pytest.mark.parametrize("place", [0, 1, -1])
@pytest.mark.parametrize("retention_bytes", [None, 6000])
def test_a_segment_that_was_deleted_or_emptied_is_named(
    tmp_path: Path, place: int, retention_bytes: int | None
) -> None:
    path = appended(tmp_path, retention_bytes)[place]
    os.truncate(path, 0)
    expect_damage(tmp_path, path.name)
    path.unlink()
    expect_damage(tmp_path, path.name)


def expect_damage(folder: Path, name: str) -> None:
    with pytest.raises(LogCorrupt, match=name):
        read_all(folder)
    with pytest.raises(LogCorrupt, match=name):
        LogWriter(folder, "t", 1)


def test_a_first_segment_is_missed_even_if_the_mark_is_gone_too(tmp_path: Path) -> None:
    first, *_ = appended(tmp_path, retention_bytes=6000)
    assert first.stem != "0" * 20
    first.unlink()
    (first.parent / "mark").unlink()
    with pytest.raises(LogCorrupt, match=first.name):
        LogWriter(tmp_path, "t", 1)


@pytest.mark.parametrize("content", [None, b"", b"\0" * 40])
def test_a_lost_mark_stops_readers_until_a_writer_has_rebuilt_it(tmp_path: Path, content: bytes | None) -> None:
    mark = appended(tmp_path, retention_bytes=6000)[0].parent / "mark"
    before = mark.read_bytes()
    mark.unlink() if content is None else mark.write_bytes(content)
    with pytest.raises(LogCorrupt, match=r"00000/mark is missing or empty"):
        reader_of(tmp_path).span(0)
    LogWriter(tmp_path, "t", 1).close()
    assert mark.read_bytes() == before
    assert read_all(tmp_path) == len(RECORDS)


def test_a_segment_that_a_crash_left_without_a_header_is_made_again(tmp_path: Path) -> None:
    folder = appended(tmp_path)[0].parent
    segment_path(folder, len(RECORDS)).touch()
    LogWriter(tmp_path, "t", 1).close()
    assert not segment_path(folder, len(RECORDS)).exists()
    assert read_all(tmp_path) == len(RECORDS)


@pytest.mark.parametrize("content", [b"x" * 40, b"FLG1" + b"\1" * 36, b"F"])
def test_a_damaged_mark_or_one_of_another_version_names_its_file(tmp_path: Path, content: bytes) -> None:
    mark = appended(tmp_path)[0].parent / "mark"
    mark.write_bytes(content)
    expect_damage(tmp_path, "00000/mark is damaged at byte 0, or another version")


def test_records_written_behind_the_end_of_a_closed_segment_are_not_read(tmp_path: Path) -> None:
    path = appended(tmp_path)[0]
    path.write_bytes(path.read_bytes() + path.read_bytes()[36:])
    with pytest.raises(LogCorrupt, match=f"{path.name} holds more records"):
        reader_of(tmp_path).read(0, 0)
