"""A table that grows by whole chunks: rows never move, and growing never copies.

Kernels reach the chunks through an array of their addresses, because numba cannot take a growing list of arrays without
recompiling or boxing every element. For a negative or too large row number a kernel would access arbitrary memory, so
callers check first: every method of a store calls ``RowStore.check``, and so do ``Parts`` before each of its kernels
and ``Shard`` before it gathers a reply.

Legend: K requested numbers, T columns of the table.
"""

from typing import Any

import numpy as np
from numba import carray, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import DTypeLike, NDArray

from infra.base.kernels import kernel


@intrinsic
def _pointer(_typing: Any, address: Any) -> Any:
    """Turns an int64 address into a pointer inside a kernel."""

    def build(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), build


@kernel
def chunk_at(addresses: Any, chunk: Any, chunk_rows: Any, columns: Any, dtype: Any) -> Any:
    """Inside a kernel: the chunk as a [chunk_rows, columns] array."""
    return carray(_pointer(addresses[chunk]), (chunk_rows, columns), dtype)  # type: ignore[call-arg]


@intrinsic
def copy_bytes(_typing: Any, target: Any, source: Any, nbytes: Any) -> Any:
    """memcpy between addresses inside a kernel: faster than any loop over columns."""

    def build(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointers = [builder.inttoptr(address, cgutils.voidptr_t) for address in arguments[:2]]
        copy: Any = cgutils.raw_memcpy
        copy(builder, *pointers, arguments[2], 1)

    return types.void(target, source, nbytes), build


@kernel
def _gather(addresses: Any, chunk_rows: Any, row_bytes: Any, numbers_K: Any, out: Any, out_bytes: Any) -> None:
    """Copies the first out_bytes of each row to the address ``out``, one after the other."""
    for k in range(numbers_K.shape[0]):
        chunk = np.uint64(numbers_K[k]) // np.uint64(chunk_rows)
        place = numbers_K[k] - np.int64(chunk) * chunk_rows
        copy_bytes(out + k * out_bytes, addresses[chunk] + place * row_bytes, out_bytes)  # type: ignore[call-arg]


@kernel
def _scatter(addresses: Any, chunk_rows: Any, row_bytes: Any, numbers_K: Any, values: Any) -> None:
    """Copies whole rows from the address ``values``, one after the other, into the table."""
    for k in range(numbers_K.shape[0]):
        chunk = np.uint64(numbers_K[k]) // np.uint64(chunk_rows)
        place = numbers_K[k] - np.int64(chunk) * chunk_rows
        copy_bytes(addresses[chunk] + place * row_bytes, values + k * row_bytes, row_bytes)  # type: ignore[call-arg]


class Chunks:
    """A growing [rows, columns] table."""

    def __init__(self, chunk_rows: int, columns: int, dtype: DTypeLike, fill: int = 0) -> None:
        self.chunk_rows = chunk_rows
        self.columns = columns
        self.dtype = np.dtype(dtype)
        self.rows = 0
        self.addresses = np.empty(0, np.int64)
        self._row_bytes = columns * self.dtype.itemsize
        self._fill = fill
        self._chunks: list[NDArray[Any]] = []

    def grow(self, rows: int) -> None:
        """Makes the table at least that long; new rows hold the fill value."""
        self.rows = max(self.rows, rows)
        while len(self._chunks) * self.chunk_rows < self.rows:
            self._chunks.append(np.full((self.chunk_rows, self.columns), self._fill, self.dtype))
        if len(self._chunks) > len(self.addresses):
            self.addresses = np.array([chunk.ctypes.data for chunk in self._chunks], np.int64)

    def chunk(self, number: int) -> NDArray[Any]:
        """One chunk as it is in memory, including places beyond the last row."""
        return self._chunks[number]

    def gather(self, numbers_K: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copies the leading columns of these rows, as many as ``out`` has."""
        assert out.dtype == self.dtype, f"{out.dtype} asked of a table of {self.dtype}"
        assert out.flags.c_contiguous, "rows are copied one after the other"
        assert out.shape[0] == len(numbers_K), f"{out.shape} has no place for {len(numbers_K)} rows"
        assert out.shape[1] <= self.columns, f"{out.shape} is wider than {self.columns} columns"
        out_bytes = out.shape[1] * out.itemsize  # not strides[0], which is arbitrary if there is only one row
        _gather(self.addresses, self.chunk_rows, self._row_bytes, numbers_K, out.ctypes.data, out_bytes)

    def scatter(self, numbers_K: NDArray[np.int64], values_KT: NDArray[Any]) -> None:
        """Writes these rows; if a number occurs twice, the last values stay."""
        assert values_KT.dtype == self.dtype, f"{values_KT.dtype} given to a table of {self.dtype}"
        assert values_KT.shape == (len(numbers_K), self.columns), f"{values_KT.shape} for {len(numbers_K)} rows"
        rows = np.ascontiguousarray(values_KT)
        _scatter(self.addresses, self.chunk_rows, self._row_bytes, numbers_K, rows.ctypes.data)


def gather_reference(chunks: list[NDArray[Any]], numbers_K: NDArray[np.int64], width: int) -> NDArray[Any]:
    """What ``Chunks.gather`` copies, computed from the concatenated chunks."""
    return np.concatenate(chunks)[numbers_K, :width]


def scatter_reference(table: NDArray[Any], numbers_K: NDArray[np.int64], values_KT: NDArray[Any]) -> NDArray[Any]:
    """The table after ``Chunks.scatter``."""
    changed = table.copy()
    for number, values_T in zip(numbers_K, values_KT, strict=True):
        changed[number] = values_T
    return changed
