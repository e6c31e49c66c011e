"""Manifests: a checkpoint exists once its manifest does, and any change to that is found."""

from itertools import chain
from pathlib import Path

import pytest

from infra.base.storage import Storage
from ps.checkpoints.manifest import CheckpointManifest, ShardPart, manifest_numbers, read_manifest, write_manifest
from ps.errors import CheckpointDamaged
from ps.protocol import FilePart
from tests.disks import cut_off_each_byte, flip_each_bit

PART = FilePart("00000007/shard-0-x.safetensors", 10, "0" * 32, 3)
MANIFEST = CheckpointManifest(
    run="r",
    number=7,
    step=12,
    generation=2,
    at_seconds=1.5,
    shards=(ShardPart(0, 3, (PART,)), ShardPart(1, 2, (PART, PART))),
    dispatcher=PART,
)


def test_manifest_that_was_written_is_read(tmp_path: Path) -> None:
    storage = Storage.at(tmp_path)
    write_manifest(storage, MANIFEST)
    assert read_manifest(storage, 7) == MANIFEST
    assert MANIFEST.rows == 5


def test_numbers_are_those_of_manifests_alone(tmp_path: Path) -> None:
    storage = Storage.at(tmp_path)
    assert manifest_numbers(storage) == []
    for name in ("00000010.json", "00000007.json", "00000008.json.x.part", "00000009/a.json", "pinned.json"):
        storage.write(name, [b"x"])
    assert manifest_numbers(storage) == [7, 10]


def test_every_flipped_bit_and_every_shorter_file_is_found_and_named(tmp_path: Path) -> None:
    storage = Storage.at(tmp_path)
    write_manifest(storage, MANIFEST)
    file = tmp_path / "00000007.json"
    for _ in chain(flip_each_bit(file), cut_off_each_byte(file)):
        with pytest.raises(CheckpointDamaged, match=r"00000007\.json"):
            read_manifest(storage, 7)


def test_missing_manifest_and_one_under_another_number_are_named(tmp_path: Path) -> None:
    storage = Storage.at(tmp_path)
    with pytest.raises(CheckpointDamaged, match=r"checkpoint 7 does not exist.*00000007\.json"):
        read_manifest(storage, 7)
    write_manifest(storage, MANIFEST)
    (tmp_path / "00000007.json").rename(tmp_path / "00000008.json")
    with pytest.raises(CheckpointDamaged, match="manifest of checkpoint 7"):
        read_manifest(storage, 8)
