"""Places for chunks of rows, in blocks of memory that the system gets back as soon as a block is empty.

Each block is mapped memory of its own: a heap would keep what is freed between two blocks in use. Only pages that were
written take memory.

Legend: N places, T columns of a place.
"""

import mmap
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from infra.base.kernels import kernel
from ps.chunks import chunk_at
from ps.errors import OutOfOrder

MOST_PLACES = 2**31 - 1
"""Places are numbered by int32."""


@kernel
def _move(addresses: Any, block_places: int, columns: int, dtype: Any, from_N: Any, to_N: Any) -> None:
    """Copies what is in some places to others."""
    for n in range(from_N.shape[0]):
        source = chunk_at(addresses, from_N[n] // block_places, block_places, columns, dtype)
        target = chunk_at(addresses, to_N[n] // block_places, block_places, columns, dtype)
        target[to_N[n] % block_places] = source[from_N[n] % block_places]


def move_reference(table: NDArray[Any], from_N: NDArray[np.int64], to_N: NDArray[np.int64]) -> NDArray[Any]:
    """The table of all places after ``_move``."""
    moved = table.copy()
    moved[to_N] = table[from_N]
    return moved


class Pool:
    """A table of places, some of which are free."""

    def __init__(self, block_places: int, columns: int, dtype: DTypeLike) -> None:
        self.block_places = block_places
        self.columns = columns
        self.dtype = np.dtype(dtype)
        self.addresses = np.empty(0, np.int64)
        self._blocks: list[NDArray[Any]] = []
        self._free = np.empty(0, np.int32)
        """A stack of free places; those after ``_free_count`` mean nothing."""
        self._free_count = 0

    @property
    def places(self) -> int:
        return len(self._blocks) * self.block_places

    @property
    def live(self) -> int:
        """Places that are in use."""
        return self.places - self._free_count

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks."""
        return self.places * self.columns * self.dtype.itemsize

    def take(self, count: int) -> NDArray[np.int32]:
        """Places that are in use from now on, the lowest of new ones first; what they hold is undefined."""
        if self._free_count < count:
            self._grow(count - self._free_count)
        self._free_count -= count
        return self._free[self._free_count : self._free_count + count][::-1].copy()

    def give(self, places_N: NDArray[np.int32]) -> None:
        """Frees places; each must be in use, and is named once."""
        end = self._free_count + len(places_N)
        assert end <= self.places, f"{end} of {self.places} places would be free"
        self._free[self._free_count : end] = places_N
        self._free_count = end

    def compact(self) -> NDArray[np.int32]:
        """Moves what is live into the lowest places and drops the blocks that are empty then.

        Returns, for each place from ``live`` on, where its content is now; −1 for those that were free.
        """
        live = self.live
        is_free_N = np.zeros(self.places, np.bool_)
        is_free_N[self._free[: self._free_count]] = True
        from_N = live + np.flatnonzero(~is_free_N[live:])
        to_N = np.flatnonzero(is_free_N[:live])
        _move(self.addresses, self.block_places, self.columns, self.dtype, from_N, to_N)
        moved_N = np.full(self.places - live, -1, np.int32)
        moved_N[from_N - live] = to_N
        del self._blocks[-(-live // self.block_places) :]
        self._note_addresses()
        self._free = np.empty(self.places, np.int32)
        self._free_count = self.places - live
        self._free[: self._free_count] = np.arange(self.places - 1, live - 1, -1)
        return moved_N

    def narrow(self, columns: int) -> None:
        """Keeps that many columns of every place, the first ones; the old blocks are given back one by one."""
        for number in range(len(self._blocks)):
            narrow = _map_block(self.block_places, columns, self.dtype)
            narrow[:] = self._blocks[number][:, :columns]
            self._blocks[number] = narrow
        self.columns = columns
        self._note_addresses()

    def block(self, number: int) -> NDArray[Any]:
        """One block as it is in memory."""
        return self._blocks[number]

    def _grow(self, missing: int) -> None:
        """Adds blocks until that many more places are free."""
        first = self.places
        blocks = -(-missing // self.block_places)
        if first + blocks * self.block_places > MOST_PLACES:
            raise OutOfOrder(
                f"{first + missing} chunks of rows are to be live on one shard; expected {MOST_PLACES} at most; give "
                "the run more shards"
            )
        for _ in range(blocks):
            self._blocks.append(_map_block(self.block_places, self.columns, self.dtype))
        self._note_addresses()
        grown = np.empty(self.places, np.int32)
        new = self.places - first
        grown[:new] = np.arange(self.places - 1, first - 1, -1)
        grown[new : new + self._free_count] = self._free[: self._free_count]  # those of old blocks are taken first
        self._free = grown
        self._free_count += new

    def _note_addresses(self) -> None:
        self.addresses = np.array([block.ctypes.data for block in self._blocks], np.int64)


def _map_block(places: int, columns: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    nbytes = places * columns * dtype.itemsize
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, dtype).reshape(places, columns)
