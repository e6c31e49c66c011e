"""Files that are not what was written, by accident or on purpose: refused before anything is allocated."""

import pickle
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import xxhash

from infra.base.storage import Storage
from ps.checkpoints.files import read_columns, write_columns
from ps.checkpoints.manifest import CheckpointManifest, read_manifest, write_manifest
from ps.errors import CheckpointDamaged
from ps.protocol import FilePart
from serving.copies import ModelCopy
from serving.loading import load, read_served_manifest
from tests.serving.trained import PROBE, Trained

Spoil = Callable[[Trained, CheckpointManifest], CheckpointManifest | None]
"""what is done to the newest checkpoint; returns another manifest for it, or None"""


def newest_file(trained: Trained, manifest: CheckpointManifest) -> Path:
    return trained.folder / manifest.shards[0].files[-1].name


def flip_a_bit(trained: Trained, manifest: CheckpointManifest) -> None:
    file = newest_file(trained, manifest)
    content = bytearray(file.read_bytes())
    content[-3] ^= 4
    file.write_bytes(content)


def cut_off(trained: Trained, manifest: CheckpointManifest) -> None:
    file = newest_file(trained, manifest)
    file.write_bytes(file.read_bytes()[:-8])


def empty(trained: Trained, manifest: CheckpointManifest) -> None:
    newest_file(trained, manifest).write_bytes(b"")


def remove(trained: Trained, manifest: CheckpointManifest) -> None:
    newest_file(trained, manifest).unlink()


def swap(trained: Trained, manifest: CheckpointManifest) -> None:
    first, second = (trained.folder / shard.files[-1].name for shard in manifest.shards)
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)


def link(trained: Trained, manifest: CheckpointManifest) -> None:
    file = newest_file(trained, manifest)
    file.rename(trained.folder / "elsewhere")
    file.symlink_to(trained.folder / "elsewhere")


def link_folder(trained: Trained, manifest: CheckpointManifest) -> None:
    folder = newest_file(trained, manifest).parent
    folder.rename(trained.folder / "elsewhere")
    folder.symlink_to(trained.folder / "elsewhere")


# ── a manifest that names and describes the file as it is, so that only what is in it can be found wrong ──────────────
def described(trained: Trained, manifest: CheckpointManifest, content: bytes, **changed: object) -> CheckpointManifest:
    """The manifest with true size and checksum of other content of the newest file."""
    newest_file(trained, manifest).write_bytes(content)
    told = {"nbytes": len(content), "checksum": xxhash.xxh3_128_hexdigest(content), **changed}
    return with_file(manifest, msgspec.structs.replace(manifest.shards[0].files[-1], **told))


def with_file(manifest: CheckpointManifest, file: FilePart) -> CheckpointManifest:
    first = msgspec.structs.replace(manifest.shards[0], files=(*manifest.shards[0].files[:-1], file))
    return msgspec.structs.replace(manifest, shards=(first, *manifest.shards[1:]))


def pickled(trained: Trained, manifest: CheckpointManifest) -> CheckpointManifest:
    return described(trained, manifest, pickle.dumps(b"os.system" * 1000))


def long_header(trained: Trained, manifest: CheckpointManifest) -> CheckpointManifest:
    return described(trained, manifest, (10 << 40).to_bytes(8, "little") + b"{}" * 500)


def huge_array(trained: Trained, manifest: CheckpointManifest) -> CheckpointManifest:
    header = newest_file(trained, manifest).read_bytes()
    rows = manifest.shards[0].files[-1].rows
    return described(
        trained, manifest, header.replace(f"[{rows}, 5]".encode(), b"[9999999999999, 5]", 1)[: len(header)]
    )


def huge_file(trained: Trained, manifest: CheckpointManifest) -> CheckpointManifest:
    return with_file(manifest, msgspec.structs.replace(manifest.shards[0].files[-1], nbytes=10 << 40))


def huge_rows(trained: Trained, manifest: CheckpointManifest) -> CheckpointManifest:
    shards = [msgspec.structs.replace(shard, rows=10 << 40) for shard in manifest.shards]
    return msgspec.structs.replace(manifest, shards=tuple(shards))


def numbers_out_of_range(trained: Trained, manifest: CheckpointManifest) -> CheckpointManifest:
    old = manifest.shards[0].files[-1]
    columns = read_columns(trained.storage, old)
    numbers = columns.numbers_K + 10**6
    return with_file(manifest, write_columns(trained.storage, old.name, columns._replace(numbers_K=numbers)))


def keys_twice(trained: Trained, manifest: CheckpointManifest) -> CheckpointManifest:
    old = manifest.shards[0].files[0]
    columns = read_columns(trained.storage, old)
    file = write_columns(trained.storage, old.name, columns._replace(keys_K=np.zeros_like(columns.keys_K)))
    first = msgspec.structs.replace(manifest.shards[0], files=(file, *manifest.shards[0].files[1:]))
    return msgspec.structs.replace(manifest, shards=(first, *manifest.shards[1:]), timeline=1)  # loaded as a whole


def other_width(trained: Trained, manifest: CheckpointManifest) -> CheckpointManifest:
    old = manifest.shards[0].files[-1]
    columns = read_columns(trained.storage, old)
    narrow = columns._replace(values_KW=np.ascontiguousarray(columns.values_KW[:, :2]))
    return with_file(manifest, write_columns(trained.storage, old.name, narrow))


def not_a_number(trained: Trained, manifest: CheckpointManifest) -> CheckpointManifest:
    old = manifest.shards[0].files[-1]
    columns = read_columns(trained.storage, old)
    return with_file(
        manifest,
        write_columns(trained.storage, old.name, columns._replace(dense_L=columns.dense_L * np.float32("nan"))),
    )


def without_parent(trained: Trained, manifest: CheckpointManifest) -> CheckpointManifest:
    shards = [msgspec.structs.replace(shard, files=shard.files[-1:]) for shard in manifest.shards]
    return msgspec.structs.replace(manifest, shards=tuple(shards))


def other_run(trained: Trained, manifest: CheckpointManifest) -> CheckpointManifest:
    return msgspec.structs.replace(manifest, run="other")


def name_outside(trained: Trained, manifest: CheckpointManifest) -> CheckpointManifest:
    return with_file(manifest, msgspec.structs.replace(manifest.shards[0].files[-1], name="../../etc/passwd"))


def absolute_name(trained: Trained, manifest: CheckpointManifest) -> CheckpointManifest:
    return with_file(manifest, msgspec.structs.replace(manifest.shards[0].files[-1], name="/etc/passwd"))


SPOILED: tuple[Spoil, ...] = (
    *(flip_a_bit, cut_off, empty, remove, swap, link, link_folder, pickled, long_header, huge_array, huge_file),
    *(huge_rows, numbers_out_of_range, other_width, not_a_number, without_parent, other_run, name_outside),
    absolute_name,
)


@pytest.mark.parametrize("spoil", SPOILED)
def test_it_is_refused_and_the_copy_stays_as_it_was(
    spoil: Spoil, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Trained(tmp_path)
    copy = ModelCopy(trained.spec)
    load(trained.storage, read_manifest(trained.storage, trained.train().take()), copy)
    manifest = read_manifest(trained.storage, trained.train(1).take())
    spoiled = spoil(trained, manifest) or manifest
    monkeypatch.setattr(copy.table, "put", lambda *_: pytest.fail("rows were put in"))
    monkeypatch.setattr(copy.table, "reserve", lambda *_: pytest.fail("memory was taken"))
    with pytest.raises(CheckpointDamaged):
        load(trained.storage, spoiled, copy)
    assert copy.snapshot == (0, 2, 1)
    assert np.abs(copy.predict(PROBE) - trained.expected[1]).max() < 1e-6


def test_two_rows_of_one_key_are_found_and_the_copy_holds_no_snapshot(tmp_path: Path) -> None:
    trained = Trained(tmp_path)
    copy = ModelCopy(trained.spec)
    manifest = keys_twice(trained, read_manifest(trained.storage, trained.train().take()))
    with pytest.raises(CheckpointDamaged, match=r"lack 0 of \d+ rows, and \d+ have the key of another one"):
        load(trained.storage, manifest, copy)
    assert copy.snapshot is None


@pytest.mark.parametrize("content", [b"", b"{}", b"\x80\x04N.", b"9" * 100])
def test_a_manifest_of_nonsense_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "00000001.json").write_bytes(content)
    with pytest.raises(CheckpointDamaged):
        read_served_manifest(Storage.at(tmp_path), 1)


def test_a_manifest_that_is_huge_or_a_link_is_refused(tmp_path: Path) -> None:
    trained = Trained(tmp_path / "checkpoints")
    trained.train().take()
    file = tmp_path / "checkpoints" / "00000001.json"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointDamaged, match="link"):
        read_served_manifest(trained.storage, 1)
    file.unlink()
    with file.open("wb") as opened:
        opened.truncate(10 << 40)  # sparse
    with pytest.raises(CheckpointDamaged, match="bytes"):
        read_served_manifest(trained.storage, 1)


def test_a_manifest_of_another_number_is_refused(tmp_path: Path) -> None:
    trained = Trained(tmp_path)
    trained.train().take()
    part = write_manifest(trained.storage, read_manifest(trained.storage, 1))
    (tmp_path / part.name).rename(tmp_path / "00000002.json")
    with pytest.raises(CheckpointDamaged, match="expected 2"):
        read_served_manifest(trained.storage, 2)
