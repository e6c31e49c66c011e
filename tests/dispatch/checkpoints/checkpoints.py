"""Parts of checkpoints for tests."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatch.checkpoints.state import Decided, DispatcherState, Trained, write_state
from dispatch.progress.accounts import Accounts
from infra.base.storage import Storage
from ingest.streams.position import Position
from ps.checkpoints.files import Columns, new_name, write_columns
from ps.checkpoints.manifest import CheckpointManifest, ShardPart, write_manifest
from ps.protocol import FilePart


def decided(step: int = 5, **values: Any) -> Decided:
    fixed: dict[str, Any] = {"generation": 1, "positions": {0: Position(step)}, "samples": 2 * step, "rows": 0}
    return Decided(step=step, **(fixed | values))


def trained(accounts: Accounts | None = None) -> Trained:
    return Trained(accounts=(accounts or Accounts("r", "esd")).save(), links={})


def take_checkpoint(
    storage: Storage, number: int, chain: tuple[FilePart, ...], rows: int, step: int = 5
) -> CheckpointManifest:
    """A whole checkpoint of one shard, with these files, durable."""
    state = DispatcherState(number, decided(step, rows=rows), trained())
    manifest = manifest_of(number, write_state(storage, state), step, (ShardPart(0, rows, chain),), 1e9 + number)
    write_manifest(storage, manifest)
    return manifest


def rows_file(
    storage: Storage,
    numbers: Sequence[int],
    keys: NDArray[np.uint64],
    checkpoint: int = 1,
    shard: int = 0,
    shards: int = 1,
) -> FilePart:
    """A file of rows, of which only numbers and keys matter."""
    numbers_K = np.array(numbers, np.int64)
    none = np.zeros((len(numbers), 1), np.float32)
    columns = Columns(numbers_K, keys[numbers_K * shards + shard], numbers_K, none, none, np.zeros(0, np.float32))
    return write_columns(storage, new_name(checkpoint, "shard", shard), columns)


def manifest_of(
    number: int, dispatcher: FilePart, step: int = 5, shards: tuple[ShardPart, ...] = (), at_seconds: float = 0.0
) -> CheckpointManifest:
    known: dict[str, Any] = {"run": "r", "generation": 1, "at_seconds": at_seconds}
    return CheckpointManifest(number=number, step=step, shards=shards, dispatcher=dispatcher, **known)
