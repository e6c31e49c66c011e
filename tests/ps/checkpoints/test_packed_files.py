"""Files of rows of which chunks are pruned: every row is found as it was, whatever its mask, and damage is named."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load

from infra.base.storage import Storage
from ps.checkpoints import restore as restoring
from ps.checkpoints.files import Columns, RowFile, new_name, read_columns, read_index, write_columns
from ps.checkpoints.gather import RowCopy
from ps.checkpoints.manifest import CheckpointManifest, ShardPart, write_manifest
from ps.checkpoints.merge import merge
from ps.checkpoints.restore import ModelSettings, restore
from ps.config import RowConfig
from ps.errors import CheckpointDamaged, Disagreement
from ps.packed import Packing, pack_reference
from ps.protocol import FilePart
from ps.pruned_store import PrunedStore, stored_reference

CASES = list(product([1, 2, 8], ["sgd", "adagrad", "rowwise_adagrad"], [True, False], ["float32", "float64"]))
ROWS = RowConfig(dim=8, chunks=2)
COUNT = 50


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage.at(tmp_path)


def drawn(config: RowConfig, count: int, seed: int) -> NDArray[Any]:
    """Rows as a store has them, with all kinds of masks."""
    random = np.random.default_rng(seed)
    rows_KT = random.normal(size=(count, config.shape().total)).astype(config.float_dtype)
    rows_KT[:, -1] = random.integers(0, 1 << config.chunks, count)
    return stored_reference(config, rows_KT)


def stored(config: RowConfig, rows_KT: NDArray[Any], step: int = 1) -> PrunedStore:
    store = PrunedStore(config, 7, 16)
    store.reserve(len(rows_KT))
    numbers = np.arange(len(rows_KT))
    store.load(numbers, numbers.astype(np.uint64), np.full(len(numbers), step), rows_KT)
    return store


def copied(store: PrunedStore, also: list[int] | None = None) -> Columns:
    """The columns of a checkpoint of some rows, or all."""
    known = 0 if also is None else len(store)
    copy = RowCopy(store, 99, known, len(store), np.array(also or [], np.int64))
    copy.keep(np.array([3, 1]))
    while not copy.is_complete:
        copy.go_on()
    return copy.columns(np.arange(4).astype(store.dtype))


def saved(storage: Storage, store: PrunedStore, also: list[int] | None = None) -> FilePart:
    return write_columns(storage, new_name(1, "shard", 0), copied(store, also))


def manifest_of(storage: Storage, *files: FilePart) -> None:
    part = ShardPart(0, COUNT, files)
    none = FilePart("00000001/dispatcher", 0, "")
    write_manifest(
        storage,
        CheckpointManifest(run="r", number=1, step=1, generation=1, at_seconds=0.0, shards=(part,), dispatcher=none),
    )


def restored(storage: Storage, config: RowConfig, shards: int = 1) -> NDArray[Any]:
    """All rows of checkpoint 1, in the order of the run, restored on so many shards."""
    rows_KT = np.empty((COUNT, config.shape().total), config.float_dtype)
    for shard in range(shards):
        store = restore(storage, 1, ModelSettings(config, 7, 16), "r", shard, shards).store
        mine_KT = np.empty((len(store), config.shape().total), config.float_dtype)
        store.gather(np.arange(len(store)), mine_KT)
        rows_KT[shard::shards] = mine_KT
    return rows_KT


@pytest.mark.parametrize("case", CASES)
def test_rows_of_any_kind_are_restored_as_they_were(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, case: tuple[int, str, bool, str]
) -> None:
    monkeypatch.setattr(restoring, "LOADED_ROWS", 7)
    monkeypatch.setattr("ps.checkpoints.merge.BLOCK_BYTES", 2000)
    chunks, optimizer, wide, float_dtype = case
    settings = {"dim": 8, "chunks": chunks, "optimizer": optimizer, "wide": wide, "float_dtype": float_dtype}
    config = RowConfig.model_validate(settings | {"initial_accumulator": 0.25})
    rows_KT, later_KT = drawn(config, COUNT, 1), drawn(config, COUNT, 2)
    changed = [0, 5, 6, 30, COUNT - 1]
    files = saved(storage, stored(config, rows_KT)), saved(storage, stored(config, later_KT), changed)
    rows_KT[changed] = later_KT[changed]
    for chain in (files, (merge(storage, files, 1, 0, True),)):
        manifest_of(storage, *chain)
        for shards in (1, 3):
            assert restored(storage, config, shards).tobytes() == rows_KT.tobytes()
    live = np.bitwise_count(rows_KT[:, -1].astype(np.uint8)).sum()
    state = 1 if optimizer != "adagrad" else 2
    merged = read_columns(storage, chain[0])
    floats = merged.values_KW.size + merged.state_KS.size
    whole = config.shape().total - 1 - 8 * state
    assert floats == COUNT * whole + live * (8 // chunks) * state


@pytest.mark.parametrize("counted", [1, 8, 4096])
def test_ranges_of_packed_rows_are_read_alone(storage: Storage, monkeypatch: pytest.MonkeyPatch, counted: int) -> None:
    monkeypatch.setattr("ps.checkpoints.files.COUNTED_ROWS", counted)
    rows_KT = drawn(ROWS, COUNT, 3)
    part, packing, shape = saved(storage, stored(ROWS, rows_KT)), Packing(ROWS), ROWS.shape()
    masks_K = packing.masks_of(rows_KT)
    with RowFile(storage, part) as file:
        for first, end in ((0, COUNT), (0, 0), (7, 8), (8, 17), (COUNT, COUNT)):
            mine_KT, masks = rows_KT[first:end], masks_K[first:end]
            values = file.read("values", first, end)
            assert np.array_equal(file.masks[first:end], masks)
            assert np.array_equal(packing.unpack(values, masks, with_state=False), mine_KT[:, : shape.value])
            travels_MS = packing._travels(with_state=True)[:, shape.value :]
            state = pack_reference(mine_KT[:, shape.value :], masks, travels_MS)
            assert np.array_equal(file.read("state", first, end), state)
            assert packing.unpack_parts(values, file.read("state", first, end), masks).tobytes() == mine_KT.tobytes()
    assert load(bytes(storage.read(part.name))).keys() == read_columns(storage, part).arrays.keys()
    assert read_index(storage, part).numbers_K.tolist() == list(range(COUNT))


def test_a_file_is_as_small_as_its_live_chunks(storage: Storage) -> None:
    config = RowConfig(dim=64, chunks=8)
    rows_KT = drawn(config, 2000, 4)
    whole = saved(storage, stored(config, rows_KT)).nbytes
    rows_KT[:, -1] = np.where(np.arange(2000) % 10, 0, 255)
    assert saved(storage, stored(config, stored_reference(config, rows_KT))).nbytes < 0.4 * whole


def damaged(**changes: Any) -> Any:
    return lambda columns: columns._replace(
        **{name: change(getattr(columns, name)) for name, change in changes.items()}
    )


def with_mask(masks_K: NDArray[np.uint8], mask: int) -> NDArray[np.uint8]:
    changed_K = masks_K.copy()
    changed_K[4] = mask
    return changed_K


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damaged(masks_K=lambda masks_K: with_mask(masks_K, 4)), "the mask 4; expected 3 at most"),
        (damaged(masks_K=lambda masks_K: with_mask(masks_K, 3)), "by the masks"),
        (damaged(masks_K=lambda masks_K: masks_K[1:]), "rows by column"),
        (damaged(masks_K=lambda masks_K: masks_K.astype(np.int64)), "its masks are"),
        (damaged(values_KW=lambda values_L: values_L[1:]), "its values are"),
        (damaged(state_KS=lambda state_L: state_L.reshape(-1, 1)), "its state are"),
    ],
)
def test_damaged_masks_and_lengths_are_found_and_the_file_is_named(storage: Storage, damage: Any, message: str) -> None:
    rows_KT = drawn(ROWS, COUNT, 5)
    rows_KT[4, -1] = 1
    part = write_columns(storage, "1/a", damage(copied(stored(ROWS, stored_reference(ROWS, rows_KT)))))
    with pytest.raises(CheckpointDamaged, match=f"1/a is damaged: .*{message}"):
        read_columns(storage, part)
    with pytest.raises(CheckpointDamaged, match="1/a is damaged"), RowFile(storage, part) as file:
        file.read("values", 0, COUNT)


def test_rows_packed_in_another_way_are_refused(storage: Storage) -> None:
    part = saved(storage, stored(ROWS, drawn(ROWS, COUNT, 6)))
    manifest_of(storage, part)
    for other in (RowConfig(dim=8, chunks=4), RowConfig(dim=8), RowConfig(dim=8, chunks=2, optimizer="sgd")):
        with pytest.raises(Disagreement, match="use the settings that the checkpoint was taken with"):
            restored(storage, other)
    other = RowConfig(dim=8, chunks=4)
    with pytest.raises(CheckpointDamaged, match="different shapes"):
        merge(storage, [part, saved(storage, stored(other, drawn(other, COUNT, 6)))], 1, 0, True)
