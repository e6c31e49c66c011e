"""Checkpoints of a synthetic model of any size, written as a shard writes them, a block of rows at a time."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from infra.base.storage import Storage
from ps.checkpoints.files import header_of, new_name, write_chunks
from ps.checkpoints.manifest import CheckpointManifest, ShardPart, write_manifest
from ps.protocol import FilePart
from serving.copies import ModelCopy, ModelSpec

BLOCK_ROWS = 1 << 18
SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""An odd factor, so that different numbers have different keys."""


def keys_of(numbers_K: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The key of each row."""
    return numbers_K.astype(np.uint64) * SPREAD


class MadeCheckpoints:
    """A run that has one shard and trains nothing: each checkpoint changes some rows."""

    def __init__(self, storage: Storage, spec: ModelSpec, rows: int) -> None:
        self._storage = storage
        self._spec = spec
        self._rows = rows
        self._random = np.random.default_rng(1)
        self._weights = ModelCopy(spec).flat_weights()
        self.newest: CheckpointManifest | None = None

    def take(self, changed: int) -> CheckpointManifest:
        """A checkpoint in which that many rows have changed; the first has all of them."""
        before = self.newest
        number, step = (1, 1) if before is None else (before.number + 1, before.step + 1)
        count = self._rows if before is None else changed
        numbers = np.arange(count) if before is None else np.sort(self._random.choice(self._rows, count, False))
        part = self._write(number, step, numbers)
        chain = (part,) if before is None else (*before.shards[0].files[-400:], part)
        self.newest = CheckpointManifest(
            run=self._spec.run,
            number=number,
            step=step,
            generation=1,
            at_seconds=time.time(),
            shards=(ShardPart(0, self._rows, chain),),
            dispatcher=FilePart(f"{number:08d}/dispatcher", 0, ""),
        )
        write_manifest(self._storage, self.newest)
        return self.newest

    def values(self, numbers_K: NDArray[np.int64], step: int) -> NDArray[Any]:
        """Values of rows after a step."""
        width = self._spec.rows.shape().value
        values_KW: NDArray[np.float32] = np.sin((numbers_K[:, None] * 7 + np.arange(width) + step) * 0.01, dtype="f4")
        return values_KW

    def _write(self, number: int, step: int, numbers: NDArray[np.int64]) -> FilePart:
        shape = self._spec.rows.shape()
        count = len(numbers)
        floats = np.dtype(np.float32)
        index = xxhash.xxh3_128(numbers.data)
        for block in _blocks(numbers):
            index.update(keys_of(block).data)
        dense = np.concatenate([self._weights, 0 * self._weights, 0 * self._weights, [step]]).astype(np.float32)
        arrays: list[tuple[np.dtype[Any], tuple[int, ...]]] = [
            (np.dtype(np.int64), (count,)),
            (np.dtype(np.uint64), (count,)),
            (np.dtype(np.int64), (count,)),
            (floats, (count, shape.value)),
            (floats, (count, shape.state)),
            (floats, dense.shape),
        ]

        def chunks() -> Iterator[Any]:
            yield header_of(arrays, index.hexdigest())
            yield numbers
            yield from (keys_of(block) for block in _blocks(numbers))
            yield np.full(count, step)
            yield from (self.values(block, step) for block in _blocks(numbers))
            yield from (np.ones((len(block), shape.state), np.float32) for block in _blocks(numbers))
            yield dense

        return write_chunks(self._storage, new_name(number, "shard", 0), chunks(), count)


def _blocks(numbers: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    return (numbers[at : at + BLOCK_ROWS] for at in range(0, len(numbers), BLOCK_ROWS))
