"""Files of rows: what was written is read, and every damage is found and named."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from infra.base.storage import Storage
from ps.checkpoints.files import (
    Columns,
    RowFile,
    new_name,
    read_columns,
    read_index,
    verify,
    write_columns,
)
from ps.checkpoints.merge import first_to_merge, merge
from ps.errors import CheckpointDamaged
from ps.protocol import FilePart
from tests.disks import cut_off_each_byte, flip_each_bit


def columns(*numbers: int, last_step: int = 1, dense: int = 2, state: int = 1, dtype: str = "f4") -> Columns:
    count = len(numbers)
    return Columns(
        np.array(numbers, np.int64),
        np.array(numbers, np.uint64) + np.uint64(1 << 63),
        np.full(count, last_step),
        np.full((count, 3), last_step, dtype) + np.array(numbers, dtype).reshape(-1, 1),
        np.full((count, state), -last_step, dtype),
        np.arange(dense).astype(dtype),
    )


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.at(tmp_path)


def saved(storage: Storage, *numbers: int, **options: Any) -> FilePart:
    return write_columns(storage, new_name(7, "shard", 2), columns(*numbers, **options))


@pytest.mark.parametrize("options", [{}, {"state": 0}, {"dense": 0}, {"dtype": "f8"}])
@pytest.mark.parametrize("numbers", [(), (3,), (0, 1, 5, 9)])
def test_what_was_written_is_read_whole_and_by_safetensors(
    storage: Storage, numbers: tuple[int, ...], options: dict[str, Any]
) -> None:
    part = saved(storage, *numbers, **options)
    expected = columns(*numbers, **options)
    verify(storage, part)
    for found in (read_columns(storage, part).arrays, load(bytes(storage.read(part.name)))):
        assert found.keys() == expected.arrays.keys()
        for name, array in expected.arrays.items():
            assert found[name].dtype == array.dtype
            assert np.array_equal(found[name], array)


def test_index_is_read_without_the_rest(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    part = write_columns(storage, "7/a", columns(*range(5000), dense=100_000))
    read: list[int] = []
    real = RowFile._read

    def counted(self: RowFile, start: int, nbytes: int) -> memoryview:
        read.append(nbytes)
        return real(self, start, nbytes)

    monkeypatch.setattr(RowFile, "_read", counted)
    numbers, keys, _ = read_index(storage, part)
    assert np.array_equal(numbers, np.arange(5000))
    assert np.array_equal(keys, np.arange(5000, dtype=np.uint64) + np.uint64(1 << 63))
    assert sum(read) < part.nbytes / 3


def test_every_flipped_bit_is_found_and_the_file_is_named(storage: Storage, tmp_path: Path) -> None:
    part = saved(storage, 1, 4)
    for _ in flip_each_bit(tmp_path / part.name):
        for read in (read_columns, verify):
            with pytest.raises(CheckpointDamaged, match=part.name):
                read(storage, part)


def test_every_flipped_bit_of_an_index_is_found(storage: Storage, tmp_path: Path) -> None:
    part = saved(storage, 1, 4)
    found = 0
    for _ in flip_each_bit(tmp_path / part.name):
        try:
            numbers, keys, _ = read_index(storage, part)
        except CheckpointDamaged:
            found += 1
            continue
        assert numbers.tolist() == [1, 4]
        assert keys.tolist() == [(1 << 63) + 1, (1 << 63) + 4]
    assert found > 8 * 32, "at least the bits of numbers and keys"


def test_file_of_another_length_or_missing_is_named(storage: Storage, tmp_path: Path) -> None:
    part = saved(storage, 1, 4)
    file = tmp_path / part.name

    def expect_damaged(message: str) -> None:
        for read in (read_columns, read_index, verify):
            with pytest.raises(CheckpointDamaged, match=message):
                read(storage, part)

    os.truncate(file, part.nbytes + 1)
    expect_damaged(part.name)
    os.truncate(file, part.nbytes)
    for _ in cut_off_each_byte(file):
        expect_damaged(part.name)
    file.unlink()
    expect_damaged(f"missing.*{part.name}")


def test_merged_file_has_the_last_of_every_row(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ps.checkpoints.merge.BLOCK_BYTES", 120)
    random = np.random.default_rng(5)
    expected: dict[int, int] = {}
    parts = []
    for last_step in range(4):
        numbers = sorted(random.choice(60, 20, replace=False).tolist())
        parts.append(saved(storage, *numbers, last_step=last_step))
        expected |= dict.fromkeys(numbers, last_step)
    merged = merge(storage, parts, 7, 2, True)
    assert merged.name.startswith("00000007/base-2-")
    found = read_columns(storage, merged)
    last_steps = dict(zip(found.numbers_K.tolist(), found.last_steps_K.tolist(), strict=True))
    assert last_steps == dict(sorted(expected.items()))
    assert found.numbers_K.tolist() == sorted(expected)
    assert np.array_equal(found.keys_K, found.numbers_K.astype(np.uint64) + np.uint64(1 << 63))
    assert np.array_equal(found.values_KW[:, 1], (found.numbers_K + found.last_steps_K).astype("f4"))
    assert np.array_equal(found.state_KS[:, 0], -found.last_steps_K.astype("f4"))
    assert found.dense_L.size == 0
    assert np.array_equal(read_index(storage, merged)[0], found.numbers_K)


@pytest.mark.parametrize("memory_bytes", [0, 1 << 20])
def test_merging_empty_files_gives_an_empty_one(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, memory_bytes: int
) -> None:
    monkeypatch.setattr("ps.checkpoints.files.MEMORY_BYTES", memory_bytes)
    merged = merge(storage, [saved(storage), saved(storage)], 7, 2, False)
    assert read_columns(storage, merged).numbers_K.size == 0


def test_files_of_different_rows_are_not_merged(storage: Storage) -> None:
    with pytest.raises(CheckpointDamaged, match="different shapes"):
        merge(storage, [saved(storage, 1), saved(storage, 1, state=2)], 7, 2, True)


@pytest.mark.parametrize(
    ("sizes", "first"),
    [([9, 1, 1], None), ([9, 1, 1, 1], 0), ([50, 1, 1, 1], 1), ([900, 100, 10, 1], None), ([9], None)],
)
def test_only_files_with_a_good_share_of_new_rows_behind_them_are_merged(sizes: list[int], first: int | None) -> None:
    chain = [FilePart(f"7/{number}", size, "") for number, size in enumerate(sizes)]
    assert first_to_merge(chain, 2) == first


def test_files_of_whole_rows_are_those_of_earlier_releases(storage: Storage) -> None:
    part = write_columns(storage, "7/a", columns(1, 4))
    assert (part.nbytes, part.checksum) == (584, "3f4023b0277fcb3d8a92416eae24ed37")
