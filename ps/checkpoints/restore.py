"""Goes back to a checkpoint: fills a new store and a new dense range from files, and checks them as a whole.

The checkpoint may have been taken with another number of shards: row r of the run is number r // n on shard r % n of n,
and the dense vector is split into n ranges of almost equal length, so both are redistributed. The shard's current model
is not touched; the caller swaps it.

Legend: K rows of a file, L floats of a dense range.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from infra.base.storage import Storage
from ps.checkpoints.files import Columns, read_columns
from ps.checkpoints.gather import ALL_FINITE, NonFinite, non_finite_of
from ps.checkpoints.manifest import CheckpointManifest, ShardPart, kept_columns, read_manifest
from ps.columns import KeptColumns
from ps.config import DenseRule, RowConfig
from ps.dense.range import DenseRange
from ps.errors import CheckpointDamaged, Disagreement
from ps.packed import Packing
from ps.protocol import EMPTY_MODEL, FilePart
from ps.pruned_store import PrunedStore
from ps.store import RowStore, Store

LOADED_ROWS = 4096
"""Rows loaded at a time: few enough that copies of them stay in the processor's cache."""


@dataclass(frozen=True)
class ModelSettings:
    """The settings that a shard needs to create an empty model."""

    rows: RowConfig
    seed: int
    chunk_rows: int
    dense: DenseRule = field(default_factory=DenseRule)

    def empty_store(self, kept: KeptColumns = ()) -> RowStore:
        """kept: the columns that rows have kept, if they have chunks and dropped some."""
        if self.rows.chunks:
            return PrunedStore(self.rows, self.seed, self.chunk_rows, kept)
        return Store(self.rows, self.seed, self.chunk_rows)

    def empty_dense(self) -> DenseRange:
        return DenseRange(self.dense, self.rows.float_dtype)


class SavedPart(NamedTuple):
    """A shard's part of a checkpoint, as files."""

    checkpoint: int
    step: int
    rows: int
    chain: tuple[FilePart, ...]
    non_finite: NonFinite = ALL_FINITE


class Restored(NamedTuple):
    """A shard's model as restored from a checkpoint."""

    store: RowStore
    dense: DenseRange
    saved: SavedPart | None
    """The part that is already in files, on which the next checkpoint can build."""


def restore(storage: Storage | None, number: int, model: ModelSettings, run: str, shard: int, shards: int) -> Restored:
    """Restores one shard's part; raises CheckpointDamaged, which names the file, if one has changed."""
    if number == EMPTY_MODEL:
        return Restored(model.empty_store(), model.empty_dense(), None)
    if storage is None:
        raise Disagreement(
            f"shard {shard} was told to go back to checkpoint {number} and keeps no checkpoints; expected a place "
            "for them; start it "
            "with checkpoints.url"
        )
    manifest = read_manifest(storage, number)
    _check_manifest(manifest, run)
    is_same = len(manifest.shards) == shards
    parts = (manifest.shards[shard],) if is_same else manifest.shards
    store = model.empty_store(kept_columns(manifest, model.rows))
    store.reserve(dealt(manifest.rows, shard, shards))
    found = np.zeros(len(store), np.bool_)
    dense = []
    for part in parts:
        for file in part.files:
            columns = read_columns(storage, file)
            _check_columns(columns, part, file, store)
            found[_load(columns, (part.shard, len(manifest.shards)), (shard, shards), store)] = True
        dense.append(columns.dense_L)
    if not found.all():
        raise CheckpointDamaged(
            f"checkpoint {number} has no values for row number {int(np.argmin(found))} of shard {shard} and "
            f"{(~found).sum()} "
            f"in all; expected all {len(store)}; go back to another checkpoint"
        )
    if is_same and not dense[0].size:  # empty, or never handed in: the other ranges tell which
        dense = [read_columns(storage, part.files[-1]).dense_L for part in manifest.shards]
        is_same = False
    whole = dense[0] if is_same else deal_dense(dense, shard, shards, model.dense)
    restored = model.empty_dense()
    if whole is not None:
        restored.put(whole)
    if len(manifest.shards) != shards:
        return Restored(store, restored, None)
    saved = SavedPart(number, manifest.step, len(store), parts[0].files, non_finite_of(store))
    return Restored(store, restored, saved)


def dealt(rows: int, shard: int, shards: int) -> int:
    """How many of a run's rows are on this shard."""
    return (rows - shard + shards - 1) // shards


def _check_manifest(manifest: CheckpointManifest, run: str) -> None:
    if manifest.run != run:
        raise Disagreement(
            f"checkpoint {manifest.number} is of run {manifest.run!r}; expected {run!r}; give each run a "
            "checkpoints.url of its own"
        )
    count = len(manifest.shards)
    right = [(shard, dealt(manifest.rows, shard, count)) for shard in range(count)]
    if [(part.shard, part.rows) for part in manifest.shards] != right or not all(p.files for p in manifest.shards):
        raise CheckpointDamaged(
            f"checkpoint {manifest.number} has {[part.rows for part in manifest.shards]} rows by shard; expected "
            f"{[rows for _, rows in right]} in files; go back to another checkpoint"
        )


def _check_columns(columns: Columns, part: ShardPart, file: FilePart, store: RowStore) -> None:
    packed = store.packing.widths
    width = packed or (store.shape.value, store.shape.state)
    dtype = columns.values_KW.dtype
    found = columns.widths or (columns.values_KW.shape[1], columns.state_KS.shape[1])
    if found != width or dtype != store.dtype or columns.dense_L.dtype != dtype:
        raise Disagreement(
            f"{file.name} has rows of {found} floats of {dtype}; expected {width} of {store.dtype}; use the "
            "settings that the checkpoint was taken with"
        )
    numbers = columns.numbers_K
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < part.rows:
        raise CheckpointDamaged(
            f"{file.name} has row numbers {numbers.min()} to {numbers.max()}; expected 0 to {part.rows - 1}; go "
            "back to another checkpoint"
        )


def _load(columns: Columns, old: tuple[int, int], new: tuple[int, int], store: RowStore) -> NDArray[np.int64]:
    """Loads the rows of a file that belong to the new shard into its store; returns their numbers there."""
    of_run_K = columns.numbers_K * old[1] + old[0]
    (mine,) = np.nonzero(of_run_K % new[1] == new[0])
    numbers: NDArray[np.int64] = of_run_K // new[1]
    blocks = _whole_rows(columns, mine) if columns.widths is None else _packed_rows(columns, mine, store.packing)
    for block, rows_KT in blocks:
        store.load(numbers[block], columns.keys_K[block], columns.last_steps_K[block], rows_KT)
    return numbers[mine]


def _whole_rows(columns: Columns, wanted: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
    """Rows in some places of a file, in blocks: their places and the rows."""
    for first in range(0, len(wanted), LOADED_ROWS):
        block = wanted[first : first + LOADED_ROWS]
        yield block, np.concatenate([columns.values_KW[block], columns.state_KS[block]], axis=1)


def _packed_rows(
    columns: Columns, wanted: NDArray[np.int64], packing: Packing
) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
    """The same of a file with packed rows."""
    widths = columns.widths
    assert widths is not None, "the rows of this file are whole"
    value = state = 0
    for first in range(0, len(columns.masks_K), LOADED_ROWS):
        masks_K = columns.masks_K[first : first + LOADED_ROWS]
        value_end = value + widths.floats("values", masks_K)
        state_end = state + widths.floats("state", masks_K)
        block = wanted[slice(*np.searchsorted(wanted, (first, first + LOADED_ROWS)))]
        if block.size:
            rows_KT = packing.unpack_parts(
                columns.values_KW[value:value_end], columns.state_KS[state:state_end], masks_K
            )
            yield block, rows_KT[block - first]
        value = value_end
        state = state_end


def deal_dense(ranges: Sequence[NDArray[Any]], shard: int, shards: int, rule: DenseRule) -> NDArray[Any] | None:
    """One shard's range, from all ranges of a checkpoint: weights, and Adam's two means and count of updates.

    None if no range was ever handed in.
    """
    if not any(whole_L.size for whole_L in ranges):
        return None
    if rule.optimizer == "sgd":
        return _deal([np.concatenate(ranges)], shard, shards)
    if any(whole_L.size % 3 != 1 for whole_L in ranges):
        raise CheckpointDamaged(
            f"a checkpoint has dense ranges of {[whole_L.size for whole_L in ranges]} floats; expected weights, two "
            "means and "
            "a count of updates in each; use the settings that the checkpoint was taken with"
        )
    thirds = [whole_L[:-1].reshape(3, -1) for whole_L in ranges]
    counts = {float(whole_L[-1]) for whole_L in ranges if whole_L.size > 1} or {0.0}
    if len(counts) > 1:
        raise CheckpointDamaged(
            f"the dense ranges of a checkpoint have seen {sorted(counts)} updates; expected as many of each; go back "
            "to "
            "another checkpoint"
        )
    flat = [np.concatenate([third[kind] for third in thirds]) for kind in range(3)]
    return np.append(_deal(flat, shard, shards), ranges[0].dtype.type(counts.pop()))


def _deal(flats: Sequence[NDArray[Any]], shard: int, shards: int) -> NDArray[Any]:
    length = flats[0].size
    place = slice(length * shard // shards, length * (shard + 1) // shards)
    return np.concatenate([flat[place] for flat in flats])
