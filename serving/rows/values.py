"""Values of rows by number, on the CPU or a GPU: whole, or without the chunks that training has pruned.

Whole values are one table. Values of rows of which chunks can be pruned are, for each row and chunk, the place of the
chunk in a table of live chunks. Place 0 is that of all pruned chunks and holds zeros, so reading needs no masks. Places
of chunks that are pruned later are given to others; if many are free, the table is made smaller. Columns that all rows
have dropped are not in it.

Legend: K rows, W columns of a value, D of an embedding, C chunks of a row, X kept columns of a chunk, N places.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infra.base.kernels import kernel
from ps.chunks import copy_bytes
from ps.columns import KeptColumns
from ps.config import RowConfig

GROWTH = 1.125
"""Factor by which the table of live chunks grows: little memory is idle, and each chunk is copied only a few times."""
MOST_IDLE = 1.5
"""Places for each live chunk above which the table is made smaller."""
PRUNED = 0
"""The place of pruned chunks."""


@kernel
def _select(
    numbers_K: Any, places_KC: Any, chunks: int, chunk_bytes: int, wide_K: Any, found_KW: Any, out: int
) -> None:
    """Copies the chunks of rows, which lie at an address, to the address ``out`` of ``found_KW``, and wide weights.

    Memory accesses are slow but independent of each other, so all places are read before any chunk.
    """
    at_KC = np.empty((numbers_K.size, places_KC.shape[1]), np.int64)
    for k in range(numbers_K.size):
        for c in range(places_KC.shape[1]):
            at_KC[k, c] = places_KC[numbers_K[k], c]
    row_bytes = found_KW.shape[1] * found_KW.itemsize
    for k in range(numbers_K.size):
        for c in range(places_KC.shape[1]):
            target = out + k * row_bytes + c * chunk_bytes
            copy_bytes(target, chunks + at_KC[k, c] * chunk_bytes, chunk_bytes)  # type: ignore[call-arg]
        if wide_K.size:
            found_KW[k, found_KW.shape[1] - 1] = wide_K[numbers_K[k]]


def select_reference(
    numbers_K: NDArray[np.int32], places_KC: NDArray[np.int32], chunks_NX: NDArray[Any], wide_K: NDArray[Any]
) -> NDArray[Any]:
    """What ``_select`` finds, in plain numpy."""
    found_KD = chunks_NX[places_KC[numbers_K]].reshape(len(numbers_K), -1)
    return np.concatenate([found_KD, wide_K[numbers_K][:, None]], axis=1) if len(wide_K) else found_KD


class WholeValues:
    """One table."""

    def __init__(self, config: RowConfig, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        self._values_KW = torch.empty((capacity, config.shape().value), dtype=dtype, device=device)

    @property
    def nbytes(self) -> int:
        return self._values_KW.nbytes

    def reserve(self, capacity: int, chunks: int) -> None:
        """Makes room for that many row numbers; chunks do not matter here."""
        self._values_KW = _grown(self._values_KW, capacity)

    def put(self, numbers_K: NDArray[np.int64], values_KW: NDArray[Any], masks_K: NDArray[np.uint8]) -> None:
        """Sets the values of row numbers, each of which may occur once; there are no masks."""
        table_KW = self._values_KW
        values = torch.from_numpy(np.require(values_KW, requirements="W")).to(table_KW.device, table_KW.dtype)
        table_KW.index_copy_(0, torch.from_numpy(numbers_K).to(table_KW.device), values)

    def select(self, numbers_K: NDArray[np.int32]) -> Tensor:
        """Values of row numbers in float32, K × W."""
        at_K = torch.from_numpy(numbers_K).to(self._values_KW.device)
        return self._values_KW.index_select(0, at_K).to(torch.float32)

    def compact(self) -> None:
        """Nothing is ever idle."""


class PrunedValues:
    """Places of chunks, and a table of those that are live."""

    def __init__(
        self,
        config: RowConfig,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
        kept: KeptColumns = (),
    ) -> None:
        """kept: the embedding columns that rows have kept; empty: all."""
        self._kept_X = torch.tensor(kept, dtype=torch.int64, device=device) if kept else None
        self._dim = config.dim
        self._width = config.shape().value
        self._places_KC = torch.zeros((capacity, config.chunks), dtype=torch.int32, device=device)
        self._wide_K = torch.empty(capacity if config.wide else 0, dtype=dtype, device=device)
        self._chunks_NX = torch.zeros((1, (len(kept) or config.dim) // config.chunks), dtype=dtype, device=device)
        self._end = 1
        """Places from here on have never been used."""
        self._free: list[NDArray[np.int32]] = []
        """Places below that are free."""

    @property
    def live(self) -> int:
        """Live chunks."""
        return self._end - 1 - sum(map(len, self._free))

    @property
    def nbytes(self) -> int:
        return self._places_KC.nbytes + self._wide_K.nbytes + self._chunks_NX.nbytes

    def reserve(self, capacity: int, chunks: int) -> None:
        """Makes room for that many row numbers, and for that many live chunks."""
        new = capacity - len(self._places_KC)
        if new > 0:
            self._places_KC = torch.cat([self._places_KC, self._places_KC.new_zeros((new, self._places_KC.shape[1]))])
        if len(self._wide_K):
            self._wide_K = _grown(self._wide_K, capacity)
        self._chunks_NX = _grown(self._chunks_NX, 1 + chunks)

    def put(self, numbers_K: NDArray[np.int64], values_KW: NDArray[Any], masks_K: NDArray[np.uint8]) -> None:
        """Sets the values of row numbers, each of which may occur once, and which of their chunks are live."""
        device = self._chunks_NX.device
        at_K = torch.from_numpy(numbers_K).to(device)
        places_KC = self._places_KC[at_K].cpu().numpy()
        is_live_KC = (masks_K[:, None] >> np.arange(places_KC.shape[1]) & 1).astype(np.bool_)
        is_placed_KC = places_KC != PRUNED
        self._free.append(places_KC[is_placed_KC & ~is_live_KC])
        places_KC[~is_live_KC] = PRUNED
        is_new_KC = is_live_KC & ~is_placed_KC
        places_KC[is_new_KC] = self._take(int(is_new_KC.sum()))
        self._places_KC.index_copy_(0, at_K, torch.from_numpy(places_KC).to(device))
        values_KX = values_KW[:, : self._dim] if self._kept_X is None else values_KW[:, self._kept_X.cpu().numpy()]
        chunks_NX = values_KX.reshape(*places_KC.shape, self._chunks_NX.shape[1])[is_live_KC]
        at_N = torch.from_numpy(places_KC[is_live_KC].astype(np.int64)).to(device)
        self._chunks_NX.index_copy_(0, at_N, torch.from_numpy(chunks_NX).to(device, self._chunks_NX.dtype))
        if len(self._wide_K):
            wide_K = torch.from_numpy(values_KW[:, self._dim].copy()).to(device, self._wide_K.dtype)
            self._wide_K.index_copy_(0, at_K, wide_K)

    def select(self, numbers_K: NDArray[np.int32]) -> Tensor:
        """Values of row numbers in float32, K × W; on the CPU a kernel is twice as fast as torch."""
        found = self._select_kept(numbers_K)
        if self._kept_X is None:
            return found
        found_KW = found.new_zeros((len(numbers_K), self._width))
        found_KW[:, self._kept_X] = found[:, : len(self._kept_X)]
        found_KW[:, self._dim :] = found[:, len(self._kept_X) :]
        return found_KW

    def _select_kept(self, numbers_K: NDArray[np.int32]) -> Tensor:
        """The same without the columns that rows have dropped."""
        width = self._chunks_NX.shape[1] * self._places_KC.shape[1]
        if self._chunks_NX.device.type == "cpu" and self._chunks_NX.dtype == torch.float32:
            found = np.empty((len(numbers_K), width + (len(self._wide_K) > 0)), np.float32)
            self._copy_kept(numbers_K, found)
            return torch.from_numpy(found)
        at_K = torch.from_numpy(numbers_K).to(self._chunks_NX.device)
        at_N = self._places_KC.index_select(0, at_K).view(-1)
        chunks_KX = self._chunks_NX.index_select(0, at_N).view(len(at_K), width)
        if not len(self._wide_K):
            return chunks_KX.to(torch.float32)
        wide_K1 = self._wide_K.index_select(0, at_K)[:, None]
        return torch.cat([chunks_KX, wide_K1], dim=1).to(torch.float32)

    def compact(self) -> None:
        """Gives the memory of free places back, if many are free."""
        if len(self._chunks_NX) <= MOST_IDLE * (1 + self.live):
            return
        is_used_N = np.ones(self._end, np.bool_)
        is_used_N[np.concatenate([np.empty(0, np.int32), *self._free])] = False
        moved_N = torch.from_numpy(np.cumsum(is_used_N, dtype=np.int32) - np.int32(1)).to(self._places_KC.device)
        used = torch.from_numpy(np.flatnonzero(is_used_N)).to(self._chunks_NX.device)
        self._chunks_NX = self._chunks_NX.index_select(0, used)
        self._places_KC = moved_N.index_select(0, self._places_KC.view(-1)).view(self._places_KC.shape)
        self._end = len(used)
        self._free = []

    def _copy_kept(self, numbers_K: NDArray[np.int32], found_KW: NDArray[np.float32]) -> None:
        chunk_bytes = self._chunks_NX.shape[1] * self._chunks_NX.itemsize
        address = self._chunks_NX.data_ptr()
        places_KC = self._places_KC.numpy()
        _select(numbers_K, places_KC, address, chunk_bytes, self._wide_K.numpy(), found_KW, found_KW.ctypes.data)

    def _take(self, count: int) -> NDArray[np.int32]:
        """Places for so many chunks: free ones, then new ones."""
        taken = [np.empty(0, np.int32)]
        while count and self._free:
            free = self._free.pop()
            if len(free) > count:
                self._free.append(free[count:])
                free = free[:count]
            taken.append(free)
            count -= len(free)
        if count:
            end = self._end + count
            if end > len(self._chunks_NX):
                self._chunks_NX = _grown(self._chunks_NX, max(end, int(len(self._chunks_NX) * GROWTH)))
            taken.append(np.arange(self._end, end, dtype=np.int32))
            self._end = end
        return np.concatenate(taken)


def _grown(table: Tensor, length: int) -> Tensor:
    """A table of that length at least, which begins like this one."""
    if length <= len(table):
        return table
    grown = table.new_empty((length, *table.shape[1:]))
    grown[: len(table)] = table
    return grown
