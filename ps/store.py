"""One shard's rows: value and state, key, and the step that last changed each row.

Guarantees: a number keeps its key until the key is forgotten, and only then gets another one; a number that was never
assigned raises UnknownRow before anything is read or written. The number of a forgotten key stays: its row is zeros,
and its key is FREE.

``RowStore`` is what all stores have in common, ``Store`` keeps whole rows, which never move in memory. A store of rows
of which chunks can be pruned is in ps/pruned_store.py.

Legend: K requested rows, T columns of value and state, C chunks of the tables.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infra.base.kernels import kernel
from infra.base.wire import NO_I64, NO_U8
from ps.chunks import Chunks
from ps.config import RowConfig
from ps.errors import OutOfOrder, UnknownRow
from ps.keys import FREE
from ps.packed import Packing
from ps.start import start_rows

NEVER = -1
"""The step of a row that still has its start value."""


@kernel
def _raise_newest(newest_C: Any, chunk_rows: Any, numbers_K: Any, steps_K: Any) -> None:
    """Notes the newest step of each chunk."""
    for k in range(numbers_K.shape[0]):
        chunk = numbers_K[k] // chunk_rows
        newest_C[chunk] = max(newest_C[chunk], steps_K[k])


class RowStore(ABC):
    """Rows by number, however they are kept."""

    def __init__(self, config: RowConfig, seed: int, chunk_rows: int) -> None:
        self.shape = config.shape()
        self.dtype = np.dtype(config.float_dtype)
        self.packing = Packing(config)
        """How rows are written into files."""
        self.chunk_rows = chunk_rows
        self._config = config
        self._seed = seed
        self.last_steps = Chunks(chunk_rows, 1, np.int64, fill=NEVER)
        """The step that last changed each row."""
        self.newest_C = np.empty(0, np.int64)
        """The newest last step of each chunk, or a newer step."""
        self._keys = Chunks(chunk_rows, 1, np.uint64)

    def __len__(self) -> int:
        return self._keys.rows

    def create(
        self, numbers_K: NDArray[np.int64], keys_K: NDArray[np.uint64], bare: NDArray[np.int64] = NO_I64
    ) -> None:
        """Assigns the next numbers to new keys; those that are also in ``bare`` begin with all chunks pruned.

        Raises OutOfOrder for a number that exists: its row is trained.
        """
        expected = np.arange(len(self), len(self) + len(numbers_K))
        if not np.array_equal(numbers_K, expected):
            raise OutOfOrder(
                f"new row numbers {_some(numbers_K)} do not follow the {len(self)} rows known; expected "
                f"{_some(expected)}; the dispatcher must open a generation with the checkpoint that its index "
                "belongs to"
            )
        if len(expected):
            rows_KT = self._start_rows(expected, keys_K, bare)
            self.reserve(len(self) + len(expected))
            self._assign(expected, keys_K, rows_KT)

    def forget(self, numbers_K: NDArray[np.int64], step: int) -> None:
        """Frees the numbers of keys that are forgotten at a step. Raises OutOfOrder for one that is free already."""
        self._check_free(numbers_K, is_free=False)
        self._keys.scatter(numbers_K, np.full((len(numbers_K), 1), FREE))
        self._put(numbers_K, np.zeros((len(numbers_K), self.shape.total), self.dtype))
        self.stamp(numbers_K, np.full(len(numbers_K), step))

    def reuse(self, numbers_K: NDArray[np.int64], keys_K: NDArray[np.uint64], bare: NDArray[np.int64] = NO_I64) -> None:
        """Assigns free numbers to new keys, as ``create`` does. Raises OutOfOrder for a number that has a key."""
        self._check_free(numbers_K, is_free=True)
        self._assign(numbers_K, keys_K, self._start_rows(numbers_K, keys_K, bare))

    def load(
        self,
        numbers_K: NDArray[np.int64],
        keys_K: NDArray[np.uint64],
        last_steps_K: NDArray[np.int64],
        rows_KT: NDArray[Any],
    ) -> None:
        """Loads rows of a checkpoint into the places that ``reserve`` made."""
        self.check(numbers_K)
        self._assign(numbers_K, keys_K, rows_KT)
        self.stamp(numbers_K, last_steps_K)

    def reserve(self, length: int) -> None:
        """Makes room for that many rows; the contents of new ones are undefined."""
        for table in (self.last_steps, self._keys):
            table.grow(length)
        self._grow(length)
        chunks = len(self._keys.addresses)
        self.newest_C = np.concatenate([self.newest_C, np.full(chunks - len(self.newest_C), NEVER)])

    def check(self, numbers_K: NDArray[np.int64], new: int = 0) -> None:
        """Raises UnknownRow unless every number has been assigned, or is one of the ``new`` numbers that come next."""
        known = len(self) + new
        if len(numbers_K) and (numbers_K.min() < 0 or numbers_K.max() >= known):
            unknown = numbers_K[(numbers_K < 0) | (numbers_K >= known)]
            raise UnknownRow(
                f"row numbers {_some(unknown)} were never announced; expected 0 to {known - 1}; "
                "the dispatcher must announce a row before a worker uses it"
            )

    @abstractmethod
    def gather(self, numbers_K: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copies rows: value and state if ``out`` is that wide, only the value if it is narrower."""

    @abstractmethod
    def write(self, numbers_K: NDArray[np.int64], rows_KT: NDArray[Any]) -> None:
        """Replaces value and state."""

    def stamp(self, numbers_K: NDArray[np.int64], steps_K: NDArray[np.int64]) -> None:
        """Notes the step that last changed each row."""
        self.check(numbers_K)
        self.last_steps.scatter(numbers_K, steps_K.reshape(-1, 1))
        _raise_newest(self.newest_C, self.last_steps.chunk_rows, numbers_K, steps_K)

    def steps(self, numbers_K: NDArray[np.int64]) -> NDArray[np.int64]:
        """The step that last changed each row, NEVER for a start value."""
        self.check(numbers_K)
        steps = np.empty((len(numbers_K), 1), np.int64)
        self.last_steps.gather(numbers_K, steps)
        return steps.reshape(-1)

    def keys(self, numbers_K: NDArray[np.int64]) -> NDArray[np.uint64]:
        self.check(numbers_K)
        keys = np.empty((len(numbers_K), 1), np.uint64)
        self._keys.gather(numbers_K, keys)
        return keys.reshape(-1)

    def masks(self, numbers_K: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The live chunks of each row, as bits; none if rows have no chunks."""
        self.check(numbers_K)
        return NO_U8

    def _check_free(self, numbers_K: NDArray[np.int64], is_free: bool) -> None:
        is_wrong_K = (self.keys(numbers_K) == FREE) != is_free
        if is_wrong_K.any() or len(np.unique(numbers_K)) < len(numbers_K):
            expected, found = ("free", "in use") if is_free else ("in use", "free")
            raise OutOfOrder(
                f"row numbers {_some(numbers_K[is_wrong_K])} of {len(numbers_K)} are {found}, or some occur twice; "
                f"expected numbers that are {expected}, each once; the run must go back to a checkpoint"
            )

    def _start_rows(
        self, numbers_K: NDArray[np.int64], keys_K: NDArray[np.uint64], bare: NDArray[np.int64]
    ) -> NDArray[Any]:
        """Value and state of keys that begin."""
        rows_KT = start_rows(self._config, self._seed, keys_K)
        if len(bare):
            self._strip(rows_KT, np.isin(numbers_K, bare))
        return rows_KT

    def _assign(self, numbers_K: NDArray[np.int64], keys_K: NDArray[np.uint64], rows_KT: NDArray[Any]) -> None:
        """Gives numbers to keys, with their rows."""
        self._keys.scatter(numbers_K, keys_K.reshape(-1, 1))
        self._put(numbers_K, rows_KT)

    def _strip(self, rows_KT: NDArray[Any], is_bare_K: NDArray[np.bool_]) -> None:
        """Prunes all chunks of some rows."""
        rows_KT[is_bare_K, : self.shape.dim] = 0
        rows_KT[is_bare_K, -1] = 0

    @abstractmethod
    def _grow(self, length: int) -> None:
        """Makes room for the value and state of that many rows."""

    @abstractmethod
    def _put(self, numbers_K: NDArray[np.int64], rows_KT: NDArray[Any]) -> None:
        """Replaces value and state, whatever the rows were before."""


class Store(RowStore):
    """Whole rows by number."""

    def __init__(self, config: RowConfig, seed: int, chunk_rows: int) -> None:
        super().__init__(config, seed, chunk_rows)
        self.rows = Chunks(chunk_rows, self.shape.total, self.dtype)

    def gather(self, numbers_K: NDArray[np.int64], out: NDArray[Any]) -> None:
        self.check(numbers_K)
        self.rows.gather(numbers_K, out)

    def write(self, numbers_K: NDArray[np.int64], rows_KT: NDArray[Any]) -> None:
        self.check(numbers_K)
        self.rows.scatter(numbers_K, rows_KT)

    def _strip(self, rows_KT: NDArray[Any], is_bare_K: NDArray[np.bool_]) -> None:
        raise OutOfOrder(
            f"{np.count_nonzero(is_bare_K)} of {len(rows_KT)} new rows are to begin with all chunks pruned, and rows "
            "are whole; expected none; give dispatcher and shard the same rows.chunks"
        )

    def _grow(self, length: int) -> None:
        self.rows.grow(length)

    def _put(self, numbers_K: NDArray[np.int64], rows_KT: NDArray[Any]) -> None:
        self.rows.scatter(numbers_K, rows_KT)


def _some(numbers: NDArray[np.int64]) -> str:
    return ", ".join(map(str, numbers[:5])) + (f" … ({len(numbers)} in all)" if len(numbers) > 5 else "")
