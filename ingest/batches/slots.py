"""Batches in memory that two processes share, so that their arrays reach the other one without a copy.

The memory consists of slots, each for one batch: its arrays first, and then everything else about it. A slot is
occupied until the reader has dropped the last array of the batch. A batch that is larger than a slot, or for which none
is free, is written to other memory in the same way.
"""

import mmap
from collections import deque
from math import prod
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from infra.base.distinct import BatchKeys
from infra.base.growing import NO_RESERVE
from ingest.batches.batch import Batch
from ingest.letters.letter import DeadLetter
from ingest.samples import Samples
from ingest.schema import Schema
from ingest.streams.position import Range

Bytes = NDArray[np.uint8]
ALIGNED = 64
SPARE_BYTES = 64 << 10
"""of a slot, for what is not in arrays."""


class StoredArray(msgspec.Struct, frozen=True, array_like=True):
    """An array, and where it begins."""

    kind: str
    """Its dtype."""
    shape: tuple[int, ...]
    at: int


class RestOfBatch(msgspec.Struct, frozen=True):
    """What a batch has besides the contents of its arrays."""

    columns: tuple[StoredArray | None, ...]
    ranges: tuple[Range, ...]
    dead_letters: tuple[DeadLetter, ...]
    examples: tuple[bytes, ...]
    skipped: tuple[Range, ...]
    skipped_events: int
    omitted: int


class Extent(msgspec.Struct, frozen=True):
    """Where a written batch ends."""

    arrays: int
    """Bytes up to the end of its arrays."""
    all: int


class _Layout(NamedTuple):
    arrays: tuple[NDArray[Any] | None, ...]
    columns: tuple[StoredArray | None, ...]
    rest: bytes
    extent: Extent


class WrittenBatch:
    """A batch with places for all of it; it refers to the arrays until it is written."""

    def __init__(self, batch: Batch) -> None:
        self._layout = _layout_of(batch)

    @property
    def extent(self) -> Extent:
        return self._layout.extent

    def write(self, memory: Bytes) -> None:
        arrays, columns, rest, extent = self._layout
        for array, column in zip(arrays, columns, strict=True):
            if array is not None and column is not None:
                _view(memory, column)[...] = array
        memory[extent.arrays : extent.all] = np.frombuffer(rest, np.uint8)


def read_batch(memory: Bytes, extent: Extent) -> Batch:
    """The batch that was written there; its arrays are parts of the memory."""
    rest = _decoder.decode(memory[extent.arrays : extent.all].data)
    arrays: list[Any] = [None if column is None else _view(memory, column) for column in rest.columns]
    *columns, local_BF, keys_U, present_S, arrived_B = arrays
    return Batch(
        ranges=rest.ranges,
        samples=Samples(*columns),
        keys=BatchKeys(local_BF, keys_U),
        dead_letters=rest.dead_letters,
        present_S=present_S,
        arrived_B=arrived_B,
        examples=rest.examples,
        skipped=rest.skipped,
        skipped_events=rest.skipped_events,
        omitted=rest.omitted,
    )


class Slots:
    """The shared memory, which is made before the process forks, and provided when it is used."""

    def __init__(self, count: int, nbytes: int) -> None:
        """nbytes: of one slot."""
        self.count = count
        self.nbytes = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | NO_RESERVE
        self._memory = np.frombuffer(mmap.mmap(-1, count * self.nbytes, flags=flags), np.uint8)

    def slot(self, number: int) -> Bytes:
        return self._memory[number * self.nbytes : (number + 1) * self.nbytes]

    def lend(self, number: int, returned: deque[int]) -> Bytes:
        """The memory of a slot, whose number is in ``returned`` once nobody has a part of it any more."""
        return np.asarray(_Loan(self.slot(number), number, returned))


class _Loan:
    """What arrays of a slot refer to for as long as they exist."""

    def __init__(self, memory: Bytes, number: int, returned: deque[int]) -> None:
        self.__array_interface__ = memory.__array_interface__
        self._memory = memory
        self._number = number
        self._returned = returned

    def __del__(self) -> None:
        self._returned.append(self._number)


def slot_bytes(schema: Schema, samples: int) -> int:
    """Bytes of a batch of so many samples, even if all of its keys differ."""
    labels = max(1, len(schema.labels))
    keys = 20 * schema.fields  # as the samples have them, their numbers, and each distinct one
    others = 4 * (schema.dense + labels + schema.shares + 1) + 16
    return samples * (keys + others) + SPARE_BYTES


def _layout_of(batch: Batch) -> _Layout:
    arrays = (*batch.samples.columns, batch.keys.local_BF, batch.keys.keys_U, batch.present_S, batch.arrived_B)
    columns: list[StoredArray | None] = []
    end = 0
    for array in arrays:
        columns.append(None if array is None else StoredArray(array.dtype.str, array.shape, end))
        end = -(-(end + (0 if array is None else array.nbytes)) // ALIGNED) * ALIGNED
    rest = msgspec.msgpack.encode(
        RestOfBatch(
            columns=tuple(columns),
            ranges=batch.ranges,
            dead_letters=batch.dead_letters,
            examples=batch.examples,
            skipped=batch.skipped,
            skipped_events=batch.skipped_events,
            omitted=batch.omitted,
        )
    )
    return _Layout(arrays, tuple(columns), rest, Extent(end, end + len(rest)))


def _view(memory: Bytes, column: StoredArray) -> NDArray[Any]:
    kind = np.dtype(column.kind)
    return memory[column.at : column.at + kind.itemsize * prod(column.shape)].view(kind).reshape(column.shape)


_decoder = msgspec.msgpack.Decoder(RestOfBatch)
