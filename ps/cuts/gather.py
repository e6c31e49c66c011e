"""The rows of a cut, copied a slice at a time while rounds go on changing them.

Which rows belong to a cut, and their versions, is settled at once, when its round has been applied: a version is 8
bytes, and chunks without a later one are not looked at. Rows themselves follow in slices; ``keep`` copies those that
are about to change. So the copy holds the state after that one round, whatever happens meanwhile.

Legend: K rows of the cut, W columns of a value, S of state, C chunks of the store.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from infra.kernels import kernel
from ps.chunks import chunk_at
from ps.cuts.files import Columns
from ps.store import Store

SLICE_BYTES = 4 << 20
"""copied between two messages: 2 to 4 ms"""


@kernel
def _changed(steps: Any, chunk_rows: Any, newest_C: Any, since: int, known: int, end: int, numbers: Any) -> Any:
    """Fills in the rows below end that changed after a step, or are not among those known; returns how many."""
    count = 0
    for chunk in range((end + chunk_rows - 1) // chunk_rows):
        first = chunk * chunk_rows
        last = min(first + chunk_rows, end)
        if newest_C[chunk] <= since and last <= known:
            continue
        step = chunk_at(steps, chunk, chunk_rows, 1, np.int64)
        for number in range(first, last):
            if number >= known or step[number - first, 0] > since:
                numbers[count] = number
                count += 1
    return count


def changed_reference(steps: list[int], since: int, known: int, end: int) -> list[int]:
    """The same, by versions of all rows."""
    return [number for number in range(end) if number >= known or steps[number] > since]


@kernel
def _copy_row(rows: Any, chunk_rows: int, number: int, k: int, values_KW: Any, state_KS: Any) -> int:
    """Copies one row; returns how many of its values are NaN or infinite."""
    columns = values_KW.shape[1] + state_KS.shape[1]
    row = chunk_at(rows, number // chunk_rows, chunk_rows, columns, values_KW.dtype)[number % chunk_rows]
    non_finite = 0
    for c in range(values_KW.shape[1]):
        values_KW[k, c] = row[c]
        non_finite += not np.isfinite(row[c])
    for c in range(state_KS.shape[1]):
        state_KS[k, c] = row[values_KW.shape[1] + c]
    return non_finite


@kernel
def _copy_slice(
    rows: Any, chunk_rows: int, numbers_K: Any, places: Any, is_copied_K: Any, values_KW: Any, state_KS: Any
) -> int:
    """Copies the rows at some places that have not been copied; returns how many values are not finite."""
    non_finite = 0
    for k in range(places[0], places[1]):
        if not is_copied_K[k]:
            non_finite += _copy_row(rows, chunk_rows, numbers_K[k], k, values_KW, state_KS)
            is_copied_K[k] = True
    return non_finite


@kernel
def _keep(
    rows: Any, chunk_rows: int, numbers_K: Any, changing: Any, is_copied_K: Any, values_KW: Any, state_KS: Any
) -> int:
    """Copies those of the rows about to change that belong to the cut and have not been copied.

    Returns how many values are not finite.
    """
    non_finite = 0
    for number in changing:
        k = np.searchsorted(numbers_K, number)
        if k < numbers_K.size and numbers_K[k] == number and not is_copied_K[k]:
            non_finite += _copy_row(rows, chunk_rows, number, k, values_KW, state_KS)
            is_copied_K[k] = True
    return non_finite


def non_finite_reference(values_KW: NDArray[Any]) -> int:
    """Values of all rows that are NaN or infinite."""
    return int(np.count_nonzero(~np.isfinite(values_KW)))


class RowCopy:
    """The rows of one cut, as far as they have been copied."""

    def __init__(self, store: Store, since: int, known: int, end: int) -> None:
        """Of the rows below end: those that changed after step since, and those that are not among the known ones."""
        numbers, steps = np.empty(end, np.int64), store.versions
        count = _changed(steps.addresses, steps.chunk_rows, store.newest_C, since, known, end, numbers)
        self._store = store
        self._numbers_K = numbers[:count].copy()
        self._versions_K = store.steps(self._numbers_K)
        self._keys_K = np.empty(count, np.uint64)
        self._values_KW = np.empty((count, store.shape.value), store.rows.dtype)
        self._state_KS = np.empty((count, store.shape.state), store.rows.dtype)
        self._is_copied_K = np.zeros(count, np.bool_)
        self.non_finite = 0
        """values copied so far that are NaN or infinite"""
        self._next = 0
        self._slice_rows = max(1, SLICE_BYTES // (store.shape.total * store.rows.dtype.itemsize))

    @property
    def is_complete(self) -> bool:
        return self._next == len(self._numbers_K)

    def keep(self, changing: NDArray[np.int64]) -> None:
        """To be called before rows change."""
        if not self.is_complete:
            copied = self._is_copied_K, self._values_KW, self._state_KS
            self.non_finite += _keep(*self._table, self._numbers_K, changing, *copied)

    def go_on(self) -> None:
        """Copies the next slice."""
        end = min(self._next + self._slice_rows, len(self._numbers_K))
        places = np.array([self._next, end])
        copied = self._is_copied_K, self._values_KW, self._state_KS
        self.non_finite += _copy_slice(*self._table, self._numbers_K, places, *copied)
        self._keys_K[self._next : end] = self._store.keys(self._numbers_K[self._next : end])
        self._next = end

    def columns(self, dense_L: NDArray[Any]) -> Columns:
        """What the cut's file holds; once complete."""
        assert self.is_complete, "rows of a cut are still to be copied"
        rows = self._numbers_K, self._keys_K, self._versions_K, self._values_KW, self._state_KS
        return Columns(*rows, dense_L)

    @property
    def _table(self) -> tuple[NDArray[np.int64], int]:
        return self._store.rows.addresses, self._store.rows.chunk_rows
