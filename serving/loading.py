"""Loads a checkpoint from its files into a copy of the model.

All shards are read, however many there are; rows are found by key, and keep their numbers in the run.

1. plan     which files are needed: all, or those written after the checkpoint that the copy holds
2. verify   names, sizes, headers, row numbers, and the checksum of every byte; nothing has been allocated until here
3. apply    rows and dense weights; optimizer state is skipped
4. check    that every row number has been read, and no key has two

Within a timeline, a copy that holds a checkpoint needs only the files of later checkpoints: the name of a file begins
with the number of the checkpoint that it was written for, and it holds the state as of that checkpoint. Merged files
also hold older rows, which are skipped by their last steps; if chunks of rows can be pruned, none is, since pruning
changes rows and not their last steps. Anything wrong raises CheckpointDamaged. Until 3 the copy
is unchanged; a failure after that leaves it without a snapshot, and the next load reads a whole checkpoint.

Legend: K rows of a block, L floats of the dense vector.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from infra.base.errors import StorageError
from infra.base.storage import Storage
from ps.checkpoints.files import RowFile, verify
from ps.checkpoints.manifest import CheckpointManifest, ShardPart, kept_columns, manifest_name, read_manifest
from ps.checkpoints.restore import deal_dense, dealt
from ps.columns import KeptColumns
from ps.errors import CheckpointDamaged
from ps.packed import PACKED, Packing
from ps.protocol import FilePart
from ps.utilities import count_live
from serving.copies import ModelCopy, ModelSpec
from serving.snapshot_id import SnapshotId, snapshot_id_of

NAME = re.compile(r"(\d{8,})/(?:shard|base|merged)-\d+-[0-9a-f]{32}\.safetensors")
BLOCK_ROWS = 1 << 16
LONGEST_MANIFEST = 16 << 20
"""Largest size of a manifest, in bytes."""


class Plan(NamedTuple):
    """The files of a checkpoint that have to be read."""

    manifest: CheckpointManifest
    files: tuple[tuple[ShardPart, FilePart], ...]
    since: SnapshotId | None
    """The snapshot that the copy holds; None: the whole checkpoint is loaded."""
    kept: KeptColumns
    """The embedding columns that its rows have kept; empty: all."""


def read_served_manifest(storage: Storage, number: int) -> CheckpointManifest:
    """Reads a manifest, which must be a plain file of reasonable size; raises CheckpointDamaged."""
    with damaged(f"checkpoint {number}"):
        storage.check_plain(manifest_name(number))
        size = storage.size(manifest_name(number))
        if size > LONGEST_MANIFEST:
            raise CheckpointDamaged(
                f"its manifest has {size} bytes; expected {LONGEST_MANIFEST} at most; go to another checkpoint"
            )
        return read_manifest(storage, number)


def load(storage: Storage, manifest: CheckpointManifest, copy: ModelCopy) -> Plan:
    """Brings a copy to a checkpoint, whatever it holds; returns what was read."""
    check_manifest(manifest, copy.spec)
    planned = plan(manifest, copy)
    packing = Packing(copy.spec.rows, planned.kept)
    live = {file.name: check_file(storage, shard, file, copy.spec, packing) for shard, file in planned.files}
    flat_L = read_dense(storage, manifest, copy)
    with copy.changing(), damaged(f"checkpoint {manifest.number}"):
        held = 0 if planned.since is None or copy.manifest is None else copy.manifest.rows
        copy.manifest = None
        if planned.since is None:
            copy.table = copy.spec.empty_table(planned.kept)
        chunks = sum(live.get(shard.files[0].name, 0) for shard in manifest.shards)  # later files change few of them
        copy.table.reserve(manifest.rows, chunks)
        copy.table.are_new_keys_bare = manifest.are_new_keys_bare is True
        is_read = np.zeros(manifest.rows, np.bool_)
        is_read[:held] = True
        for shard, file in planned.files:
            for numbers_K in _apply(storage, shard, file, copy, planned, packing):
                is_read[numbers_K] = True
        copy.put_dense(flat_L)
        repeated = copy.table.enter()
        if repeated or not is_read.all():
            raise CheckpointDamaged(
                f"its files lack {manifest.rows - int(is_read.sum())} of {manifest.rows} rows, and {repeated} have the "
                "key of another one; expected each row once, with its own key; go to another checkpoint"
            )
        copy.manifest = manifest
    return planned


# ── 1 plan ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def plan(manifest: CheckpointManifest, copy: ModelCopy) -> Plan:
    """The files that bring a copy to a checkpoint; all if its rows have other columns than the copy's."""
    kept = kept_columns(manifest, copy.spec.rows)
    held = copy.snapshot
    since = held if held is not None and _is_continued(manifest, held) and kept == copy.table.kept else None
    files = [(shard, file) for shard in manifest.shards for file in shard.files]
    needed = tuple((s, f) for s, f in files if since is None or checkpoint_of(f) > since.checkpoint)
    return Plan(manifest, needed, since, kept)


def _is_continued(manifest: CheckpointManifest, held: SnapshotId) -> bool:
    """Whether a checkpoint is a later one of the same timeline."""
    return held.timeline == manifest.timeline and held.checkpoint < manifest.number and held.step <= manifest.step


def checkpoint_of(file: FilePart) -> int:
    """The number of a file's checkpoint; raises CheckpointDamaged if the name is not one of a file of rows."""
    found = NAME.fullmatch(file.name)
    if found is None:
        raise CheckpointDamaged(
            f"{file.name[:200]!r} is no name of a file of rows; expected CHECKPOINT/KIND-SHARD-UNIQUE.safetensors; "
            "see who "
            "wrote it"
        )
    return int(found[1])


# ── 2 verify ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def check_manifest(manifest: CheckpointManifest, spec: ModelSpec) -> None:
    """Raises CheckpointDamaged unless the manifest is of this run, with valid shards, rows and names."""
    if manifest.run != spec.run:
        raise CheckpointDamaged(
            f"checkpoint {manifest.number} is of run {manifest.run!r}; expected {spec.run!r}; give each run a "
            "checkpoints.url"
        )
    count = len(manifest.shards)
    right = [(shard, dealt(manifest.rows, shard, count)) for shard in range(count)]
    for shard in manifest.shards:
        numbers = [checkpoint_of(file) for file in shard.files]
        has_all = sum(file.rows for file in shard.files) >= shard.rows and shard.files
        if not has_all or max(numbers) > manifest.number or any(file.rows > shard.rows for file in shard.files):
            raise CheckpointDamaged(
                f"shard {shard.shard} of checkpoint {manifest.number} has {shard.rows} rows in files of "
                f"{[file.rows for file in shard.files]}, written for checkpoints {numbers}; expected all rows, in "
                "files of "
                "this checkpoint and earlier ones; go to another checkpoint"
            )
    if not count or [(shard.shard, shard.rows) for shard in manifest.shards] != right:
        raise CheckpointDamaged(
            f"checkpoint {manifest.number} has {[shard.rows for shard in manifest.shards]} rows by shard; expected "
            f"{[rows for _, rows in right]}; go to another checkpoint"
        )


def check_file(storage: Storage, shard: ShardPart, file: FilePart, spec: ModelSpec, packing: Packing) -> int:
    """Raises CheckpointDamaged unless a file is unchanged, with rows of the right shape and numbers in range.

    Returns how many chunks of its rows are live.
    """
    with damaged(file.name):
        storage.check_plain(file.name)
        with RowFile(storage, file) as opened:
            _check_shape(opened, spec, packing)
            verify(storage, file)
            last = -1
            for first in range(0, file.rows, BLOCK_ROWS):
                numbers_K = opened.read("numbers", first, min(first + BLOCK_ROWS, file.rows))
                if numbers_K[0] <= last or (np.diff(numbers_K) <= 0).any() or numbers_K[-1] >= shard.rows:
                    raise CheckpointDamaged(
                        f"its row numbers {numbers_K[0]} to {numbers_K[-1]} follow {last}; expected rising ones below "
                        f"{shard.rows}; go to another checkpoint"
                    )
                last = int(numbers_K[-1])
            return count_live(opened.masks)


def _check_shape(opened: RowFile, spec: ModelSpec, packing: Packing) -> None:
    shape = spec.rows.shape()
    entries = opened.entries
    dtype = np.dtype(spec.rows.float_dtype)
    rows = opened.part.rows
    wanted = {
        "numbers": (np.dtype(np.int64), (rows,)),
        "keys": (np.dtype(np.uint64), (rows,)),
        "versions": (np.dtype(np.int64), (rows,)),  # the last steps of rows; the name in files is an earlier one
        "values": (dtype, (rows, shape.value)),
        "state": (dtype, (rows, shape.state)),
    }
    if opened.widths != packing.widths:
        raise CheckpointDamaged(
            f"its rows are packed as {opened.widths}; expected {packing.widths}; serve with the settings of the run"
        )
    if opened.widths is not None:  # how many floats these are depends on the masks
        wanted |= {name: (dtype, opened.entries[name].shape[:1]) for name in PACKED}
    for name, (kind, size) in wanted.items():
        if (entries[name].dtype, entries[name].shape) != (kind, size):
            raise CheckpointDamaged(
                f"its {name} are {entries[name].shape} of {entries[name].dtype}; expected {size} of {kind}; serve with "
                "the settings of the run"
            )
    if entries["dense"].dtype != dtype or len(entries["dense"].shape) != 1:
        raise CheckpointDamaged(
            f"its dense weights are {entries['dense'].shape} of {entries['dense'].dtype}; expected {dtype}"
        )


def read_dense(storage: Storage, manifest: CheckpointManifest, copy: ModelCopy) -> NDArray[Any] | None:
    """The flat dense vector of a checkpoint whose files have been verified; None if it has none yet."""
    ranges = []
    floats = 0
    most = 3 * copy.dense_weights + len(manifest.shards)
    for shard in manifest.shards:
        with damaged(shard.files[-1].name), RowFile(storage, shard.files[-1]) as opened:
            floats += (length := opened.entries["dense"].shape[0])
            if floats > most:
                raise CheckpointDamaged(
                    f"it has {length} dense weights and state; expected {most} at most in all shards"
                )
            ranges.append(opened.read("dense", 0, length))
    with damaged(f"checkpoint {manifest.number}"):
        whole = deal_dense(ranges, 0, 1, copy.spec.dense_rule)
        if whole is None:
            return None
        flat_L = whole if copy.spec.dense_rule.optimizer == "sgd" else whole[: whole.size // 3]
        if flat_L.size != copy.dense_weights or not np.isfinite(flat_L).all():
            raise CheckpointDamaged(
                f"it has {flat_L.size} dense weights; expected {copy.dense_weights}, all finite; serve with the "
                "settings of the run, or another checkpoint"
            )
        return flat_L


# ── 3 apply ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def _apply(
    storage: Storage, shard: ShardPart, file: FilePart, copy: ModelCopy, planned: Plan, packing: Packing
) -> Iterator[NDArray[np.int64]]:
    """Puts the rows of a file into the table, without those that the copy already has; yields their numbers."""
    shards = len(planned.manifest.shards)
    with RowFile(storage, file) as opened:
        opened.keep()
        for first in range(0, file.rows, BLOCK_ROWS):
            end = min(first + BLOCK_ROWS, file.rows)
            numbers_K = opened.read("numbers", first, end) * shards + shard.shard
            keys_K = opened.read("keys", first, end)
            masks_K = opened.masks[first:end]
            values_KW = packing.unpack(opened.read("values", first, end), masks_K, with_state=False)
            if planned.since is not None and opened.widths is None:
                last_steps_K = opened.read("versions", first, end)
                # below 0: the row has its start value
                is_new_K = (last_steps_K > planned.since.step) | (last_steps_K < 0)
                numbers_K, keys_K, values_KW = numbers_K[is_new_K], keys_K[is_new_K], values_KW[is_new_K]
            copy.table.put(numbers_K, keys_K, values_KW, masks_K)
            yield numbers_K


@contextmanager
def damaged(what: str) -> Iterator[None]:
    """Translates storage errors, and a lack of memory, into CheckpointDamaged, which names the file.

    If memory runs out, torch raises RuntimeError.
    """
    try:
        yield
    except (StorageError, MemoryError, RuntimeError, CheckpointDamaged) as error:
        raise CheckpointDamaged(f"{what} cannot be served: {error}") from error


def is_at(copy: ModelCopy, manifest: CheckpointManifest) -> bool:
    """Whether a copy holds this checkpoint."""
    return copy.snapshot == snapshot_id_of(manifest)
