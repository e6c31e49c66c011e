"""One shard's rows: value and optimizer state, key, and the step that last changed each row.

Guarantees: a number keeps its key until the key is forgotten, and only then gets another one; rows never move in
memory; a number that was never assigned raises UnknownRow before anything is read or written. The number of a forgotten
key stays: its row is zeros, and its key is FREE.

Legend: K requested rows, T columns of value and state, C chunks.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from infra.base.kernels import kernel
from ps.chunks import Chunks
from ps.config import RowConfig
from ps.errors import OutOfOrder, UnknownRow
from ps.keys import FREE
from ps.start import start_rows

NEVER = -1
"""The step of a row that still has its start value."""


@kernel
def _raise_newest(newest_C: Any, chunk_rows: Any, numbers_K: Any, steps_K: Any) -> None:
    """Notes the newest step of each chunk."""
    for k in range(numbers_K.shape[0]):
        chunk = numbers_K[k] // chunk_rows
        newest_C[chunk] = max(newest_C[chunk], steps_K[k])


class Store:
    """Rows by number."""

    def __init__(self, config: RowConfig, seed: int, chunk_rows: int) -> None:
        self.shape = config.shape()
        self.rows = Chunks(chunk_rows, self.shape.total, config.float_dtype)
        self._config = config
        self._seed = seed
        self.last_steps = Chunks(chunk_rows, 1, np.int64, fill=NEVER)
        """The step that last changed each row."""
        self.newest_C = np.empty(0, np.int64)
        """The newest last step of each chunk, or a newer step."""
        self._keys = Chunks(chunk_rows, 1, np.uint64)

    def __len__(self) -> int:
        return self.rows.rows

    def create(self, numbers_K: NDArray[np.int64], keys_K: NDArray[np.uint64]) -> None:
        """Assigns the next numbers to new keys. Raises OutOfOrder for a number that exists: its row is trained."""
        expected = np.arange(len(self), len(self) + len(numbers_K))
        if not np.array_equal(numbers_K, expected):
            raise OutOfOrder(
                f"new row numbers {_some(numbers_K)} do not follow the {len(self)} rows known; expected "
                f"{_some(expected)}; the dispatcher must open a generation with the checkpoint that its index "
                "belongs to"
            )
        if len(expected):
            self._append(expected, keys_K)

    def forget(self, numbers_K: NDArray[np.int64], step: int) -> None:
        """Frees the numbers of keys that are forgotten at a step. Raises OutOfOrder for one that is free already."""
        self._check_free(numbers_K, is_free=False)
        self._keys.scatter(numbers_K, np.full((len(numbers_K), 1), FREE))
        self.rows.scatter(numbers_K, np.zeros((len(numbers_K), self.shape.total), self.rows.dtype))
        self.stamp(numbers_K, np.full(len(numbers_K), step))

    def reuse(self, numbers_K: NDArray[np.int64], keys_K: NDArray[np.uint64]) -> None:
        """Assigns free numbers to new keys. Raises OutOfOrder for a number that has a key."""
        self._check_free(numbers_K, is_free=True)
        self._keys.scatter(numbers_K, keys_K.reshape(-1, 1))
        self.rows.scatter(numbers_K, start_rows(self._config, self._seed, keys_K))

    def load(
        self,
        numbers_K: NDArray[np.int64],
        keys_K: NDArray[np.uint64],
        last_steps_K: NDArray[np.int64],
        rows_KT: NDArray[Any],
    ) -> None:
        """Loads rows of a checkpoint into the places that ``reserve`` made."""
        self.check(numbers_K)
        self._keys.scatter(numbers_K, keys_K.reshape(-1, 1))
        self.rows.scatter(numbers_K, rows_KT)
        self.stamp(numbers_K, last_steps_K)

    def reserve(self, length: int) -> None:
        """Makes room for that many rows; the contents of new ones are undefined."""
        for table in (self.last_steps, self._keys, self.rows):
            table.grow(length)
        chunks = len(self.rows.addresses)
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

    def gather(self, numbers_K: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Copies rows: value and state if ``out`` is that wide, only the value if it is narrower."""
        self.check(numbers_K)
        self.rows.gather(numbers_K, out)

    def write(self, numbers_K: NDArray[np.int64], rows_KT: NDArray[Any]) -> None:
        """Replaces value and state."""
        self.check(numbers_K)
        self.rows.scatter(numbers_K, rows_KT)

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

    def _check_free(self, numbers_K: NDArray[np.int64], is_free: bool) -> None:
        is_wrong_K = (self.keys(numbers_K) == FREE) != is_free
        if is_wrong_K.any() or len(np.unique(numbers_K)) < len(numbers_K):
            expected, found = ("free", "in use") if is_free else ("in use", "free")
            raise OutOfOrder(
                f"row numbers {_some(numbers_K[is_wrong_K])} of {len(numbers_K)} are {found}, or some occur twice; "
                f"expected numbers that are {expected}, each once; the run must go back to a checkpoint"
            )

    def _append(self, numbers_K: NDArray[np.int64], keys_K: NDArray[np.uint64]) -> None:
        self.reserve(len(self) + len(numbers_K))
        self._keys.scatter(numbers_K, keys_K.reshape(-1, 1))
        self.rows.scatter(numbers_K, start_rows(self._config, self._seed, keys_K))


def _some(numbers: NDArray[np.int64]) -> str:
    return ", ".join(map(str, numbers[:5])) + (f" … ({len(numbers)} in all)" if len(numbers) > 5 else "")
