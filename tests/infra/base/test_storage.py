"""Files of checkpoints in a folder and in a bucket: whole and durable, or not there."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from infra.base import storage as storage_module
from infra.base.errors import ConfigError, NotStored, StorageError
from infra.base.storage import PART, Storage
from infra.kafka.jars import MAVEN_SECONDS
from tests.disks import fill, small_disk

KINDS = ("folder", "file_url", pytest.param("bucket", marks=pytest.mark.timeout(MAVEN_SECONDS)))


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "bucket":
        return Storage.at(request.getfixturevalue("bucket").replace("bucket?", f"bucket/{uuid4().hex}?"))
    return Storage.at(tmp_path / "checkpoints" if request.param == "folder" else f"file://{tmp_path}/checkpoints")


def test_what_was_written_is_read_whole_and_in_ranges(storage: Storage) -> None:
    assert storage.write("7/a", [b"head", np.arange(3, dtype=np.int64), b""]) == 28
    assert bytes(storage.read("7/a")) == b"head" + np.arange(3).tobytes()
    assert storage.size("7/a") == 28
    file = storage.open("7/a")
    assert file.nbytes == 28
    assert bytes(file.read_at(12, 8)) == (1).to_bytes(8, "little")
    assert bytes(file.read_at(26, 8)) == bytes(2), "the file ends"
    file.close()


def test_large_file_that_goes_in_parts_is_read_back(storage: Storage) -> None:
    content = np.arange(3 << 20, dtype=np.int64)
    storage.write("large", np.array_split(content, 5))
    assert np.array_equal(np.frombuffer(storage.read("large"), np.int64), content)


def test_names_are_found_by_their_beginning_and_sorted(storage: Storage) -> None:
    assert storage.names() == []
    for name in ("8/b", "7/b", "7/a", "7.json"):
        storage.write(name, [name.encode()])
    assert storage.names() == ["7.json", "7/a", "7/b", "8/b"]
    assert storage.names("7/") == ["7/a", "7/b"]
    assert storage.names("7") == ["7.json", "7/a", "7/b"]


def test_file_that_is_written_again_is_replaced(storage: Storage) -> None:
    for content in (b"old and long", b"new"):
        storage.write("7.json", [content])
    assert bytes(storage.read("7.json")) == b"new"


def test_deleted_file_is_gone_and_may_be_deleted_again(storage: Storage) -> None:
    storage.write("7/a", [b"x"])
    for _ in range(2):
        storage.delete("7/a")
    assert storage.names() == []


@pytest.mark.parametrize("ask", [Storage.read, Storage.open, Storage.size])
def test_missing_file_is_named(storage: Storage, ask: Any) -> None:
    with pytest.raises(NotStored, match="7/nothing does not exist"):
        ask(storage, "7/nothing")


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../a", "7/../../a", "7//a", "./a", "7\\a"])
def test_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    for use in (Storage.read, Storage.delete, lambda storage, name: storage.write(name, [b"x"])):
        with pytest.raises(StorageError, match="no name of a stored file"):
            use(Storage.at(tmp_path / "checkpoints"), name)


def test_writing_that_breaks_off_leaves_no_file(storage: Storage) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise StorageError("the source is damaged")

    with pytest.raises(StorageError, match="the source is damaged"):
        storage.write("7/a", chunks())
    assert storage.names() == []


@pytest.mark.parametrize("url", ["s3://", "ftp://host/folder", "s3://bucket?wrong=1"])
def test_url_that_cannot_be_used_is_a_clear_error(url: str) -> None:
    with pytest.raises(ConfigError, match=r"correct checkpoints\.url"):
        Storage.at(url)


def test_bucket_that_does_not_exist_is_named(bucket: str) -> None:
    with pytest.raises(StorageError, match=r"nowhere/7\.json"):
        Storage.at(bucket.replace("//bucket", "//nowhere")).write("7.json", [b"x"])


def test_full_disk_is_named_and_what_was_there_stays(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 256) as disk:
        storage = Storage.at(disk / "checkpoints")
        storage.write("7/a", [b"kept"])
        filling = fill(disk)
        with pytest.raises(StorageError, match=r"7/b: No space left .*make room"):
            storage.write("7/b", [bytes(100_000)])
        assert storage.names() == ["7/a"]
        filling.unlink()
        storage.write("7/b", [bytes(100_000)])
        assert bytes(storage.read("7/a")) == b"kept"


# ── a folder, at every moment ─────────────────────────────────────────────────────────────────────────────────────────
class Killed(BaseException):
    """The process ends here: nothing that follows is done."""


OPERATIONS = ((os, "fsync"), (os, "replace"), (os, "open"), (Path, "mkdir"), (Path, "open"), (Path, "unlink"))


def breaking_off(patch: pytest.MonkeyPatch, at: int) -> list[str]:
    """Ends the process at one file operation, before it happens; returns those that were begun."""
    begun: list[str] = []

    def broken(name: str, real: Any) -> Any:
        def operation(*given: Any, **named: Any) -> Any:
            begun.append(name)
            if len(begun) > at:
                raise Killed
            return real(*given, **named)

        return operation

    for owner, name in OPERATIONS:
        patch.setattr(owner, name, broken(name, getattr(owner, name)))
    return begun


def test_process_killed_at_any_file_operation_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    found = set()
    for at in range(100):
        storage = Storage.at(tmp_path / str(at))
        storage.write("7.json", [b"old"])
        with pytest.MonkeyPatch.context() as patch:
            begun = breaking_off(patch, at)
            try:
                storage.write("7.json", [b"n", b"ew"])
                is_over = True
            except Killed:
                is_over = False
        content = bytes(storage.read("7.json"))
        found.add(content)
        assert content in (b"old", b"new")
        assert all(name == "7.json" or name.endswith(PART) for name in storage.names())
        if is_over:
            break
    assert found == {b"old", b"new"}, "was broken off before and after"
    assert begun == ["open", "fsync", "replace", "open", "fsync"], "file, content, name, folder"
    assert content == b"new"


def test_new_folder_is_synced_into_the_one_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    real = storage_module._sync_folder

    def sync(folder: Path) -> None:
        synced.append(folder)
        real(folder)

    monkeypatch.setattr(storage_module, "_sync_folder", sync)
    Storage.at(tmp_path / "checkpoints").write("7/a", [b"x"])
    assert synced == [tmp_path, tmp_path / "checkpoints", tmp_path / "checkpoints" / "7"]
