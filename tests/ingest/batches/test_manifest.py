import os
import struct
from pathlib import Path

import msgspec
import pytest
from crc32c import crc32c

from ingest.batches.manifest import Manifest, ManifestLog, read_manifests
from ingest.errors import LogBusy, LogCorrupt, LogError
from ingest.streams.position import Position, Range


def manifest(step: int, run: str = "r") -> Manifest:
    return Manifest(run, 1, step, (Range(0, Position(step), Position(step + 1, 2)),), 7, 1)


def write(path: Path, *steps: int) -> None:
    log = ManifestLog(path)
    for step in steps:
        log.append(manifest(step))
    log.close()


def test_manifests_come_back_in_order(tmp_path: Path) -> None:
    write(tmp_path / "m", 1, 2)
    write(tmp_path / "m", 3)
    log = ManifestLog(tmp_path / "m")
    assert list(log) == [manifest(1), manifest(2), manifest(3)]
    assert log.last == manifest(3)
    log.close()


def test_file_torn_at_any_byte_keeps_every_whole_manifest(tmp_path: Path) -> None:
    path = tmp_path / "m"
    write(path, 1)
    one = len(path.read_bytes())
    write(path, 2)
    content = path.read_bytes()
    for cut in range(len(content)):
        path.write_bytes(content[:cut])
        expected = [manifest(1)] if cut >= one else []
        assert read_manifests(path) == expected
        write(path, 9)
        assert read_manifests(path) == [*expected, manifest(9)]


def test_damage_before_the_last_manifest_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "m", 1, 2, 3)
    content = bytearray((tmp_path / "m").read_bytes())
    content[20] ^= 1
    (tmp_path / "m").write_bytes(content)
    for _ in range(2):  # the lock is given back each time
        with pytest.raises(LogCorrupt, match="m is damaged at byte 8"):
            ManifestLog(tmp_path / "m")


def test_no_flip_of_a_bit_reads_as_other_or_fewer_manifests(tmp_path: Path) -> None:
    write(tmp_path / "m", *range(1, 6))
    whole = (tmp_path / "m").read_bytes()
    for bit in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        (tmp_path / "m").write_bytes(flipped)
        with pytest.raises(LogCorrupt, match=str(tmp_path / "m")):
            read_manifests(tmp_path / "m")


def test_a_file_of_the_format_before_is_refused(tmp_path: Path) -> None:
    body = msgspec.msgpack.encode(manifest(1))
    (tmp_path / "m").write_bytes(struct.pack("<II", len(body), crc32c(body)) + body)
    with pytest.raises(LogCorrupt, match="another version of Freshet wrote it: it begins with"):
        ManifestLog(tmp_path / "m")


def test_second_writer_is_refused(tmp_path: Path) -> None:
    log = ManifestLog(tmp_path / "m")
    with pytest.raises(LogBusy):
        ManifestLog(tmp_path / "m")
    log.close()


def test_step_that_is_already_recorded_is_refused(tmp_path: Path) -> None:
    log = ManifestLog(tmp_path / "m")
    log.append(manifest(2))
    with pytest.raises(LogError, match="manifest of step 2 refused"):
        log.append(manifest(2))
    log.append(manifest(1, run="another"))
    log.close()


def test_positions_compare_by_offset_then_index() -> None:
    assert Position(1, 9) < Position(2) < Position(2, 1)


def test_manifests_are_durable_where_there_is_no_fdatasync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.delattr(os, "fdatasync")
    monkeypatch.setattr(os, "fsync", synced.append)
    log = ManifestLog(tmp_path / "manifests.log")
    before = len(synced)
    log.append(manifest(1))
    log.close()
    assert len(synced) == before + 1
