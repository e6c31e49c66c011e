"""The rows of a checkpoint, copied a slice at a time while rounds continue to change them.

Which rows belong to a checkpoint, and the key and the last step of each, is determined at once when its round has been
applied: they are 8 bytes each, and chunks without a later step are skipped. The rows themselves are copied in slices;
``keep`` copies those that are about to change. The copy therefore holds the state after that one round, whatever
happens meanwhile.

Legend: K rows of the checkpoint, W columns of a value, S of state, C chunks of the store.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from infra.base.kernels import kernel
from ps.checkpoints.files import Columns
from ps.chunks import chunk_at
from ps.store import Store

IS_COPIED = 0
"""Column of the marks of a checkpoint's rows: whether a row has been copied."""
NON_FINITE = 1
"""Column of the same marks: how many values of the row are not finite."""
SLICE_BYTES = 4 << 20
"""Bytes copied between two messages, which takes 2 to 4 ms."""


@kernel
def _changed(steps: Any, chunk_rows: Any, newest_C: Any, since: int, known: int, end: int, numbers: Any) -> Any:
    """Collects the rows below end that changed after a step, or are not among the known ones; returns how many."""
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
    """The same, computed from the last steps of all rows."""
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
    rows: Any, chunk_rows: int, numbers_K: Any, places: Any, marks_K2: Any, values_KW: Any, state_KS: Any
) -> None:
    """Copies the rows in a range of places that have not been copied yet."""
    for k in range(places[0], places[1]):
        if not marks_K2[k, IS_COPIED]:
            marks_K2[k, NON_FINITE] = _copy_row(rows, chunk_rows, numbers_K[k], k, values_KW, state_KS)
            marks_K2[k, IS_COPIED] = 1


@kernel
def _keep(
    rows: Any, chunk_rows: int, numbers_K: Any, changing: Any, marks_K2: Any, values_KW: Any, state_KS: Any
) -> None:
    """Copies the rows that are about to change, if they belong to the checkpoint and have not been copied yet."""
    for number in changing:
        k = np.searchsorted(numbers_K, number)
        if k < numbers_K.size and numbers_K[k] == number and not marks_K2[k, IS_COPIED]:
            marks_K2[k, NON_FINITE] = _copy_row(rows, chunk_rows, number, k, values_KW, state_KS)
            marks_K2[k, IS_COPIED] = 1


class NonFinite(NamedTuple):
    """The rows of a model that have NaN or infinite values."""

    numbers: NDArray[np.int64]
    counts: NDArray[np.int32]
    """Number of such values in each row."""

    @property
    def values(self) -> int:
        return int(self.counts.sum())


ALL_FINITE = NonFinite(np.empty(0, np.int64), np.empty(0, np.int32))


def non_finite_of(store: Store) -> NonFinite:
    """The non-finite values of all rows."""
    counts = [
        np.count_nonzero(~np.isfinite(store.rows.chunk(chunk)[:, : store.shape.value]), axis=1)
        for chunk in range(len(store.rows.addresses))
    ]
    counts_R = np.concatenate(counts)[: len(store)] if counts else np.empty(0, np.int64)
    (numbers,) = np.nonzero(counts_R)
    return NonFinite(numbers, counts_R[numbers].astype(np.int32))


class RowCopy:
    """The rows of one checkpoint, and how far they have been copied."""

    def __init__(self, store: Store, since: int, known: int, end: int) -> None:
        """Selects the rows below end that changed after step since, or are not among the known ones."""
        numbers = np.empty(end, np.int64)
        steps = store.last_steps
        count = _changed(steps.addresses, steps.chunk_rows, store.newest_C, since, known, end, numbers)
        self._store = store
        self._numbers_K = numbers[:count].copy()
        self._last_steps_K = store.steps(self._numbers_K)
        self._keys_K = store.keys(self._numbers_K)
        self._values_KW = np.empty((count, store.shape.value), store.rows.dtype)
        self._state_KS = np.empty((count, store.shape.state), store.rows.dtype)
        self._marks_K2 = np.zeros((count, 2), np.int32)
        self._next = 0
        self._slice_rows = max(1, SLICE_BYTES // (store.shape.total * store.rows.dtype.itemsize))

    @property
    def is_complete(self) -> bool:
        return self._next == len(self._numbers_K)

    def keep(self, changing: NDArray[np.int64]) -> None:
        """Must be called before rows change."""
        if not self.is_complete:
            _keep(*self._table, self._numbers_K, changing, self._marks_K2, self._values_KW, self._state_KS)

    def go_on(self) -> None:
        """Copies the next slice."""
        end = min(self._next + self._slice_rows, len(self._numbers_K))
        places = np.array([self._next, end])
        _copy_slice(*self._table, self._numbers_K, places, self._marks_K2, self._values_KW, self._state_KS)
        self._next = end

    def columns(self, dense_L: NDArray[Any]) -> Columns:
        """The columns of the checkpoint's file; call it once the copy is complete."""
        assert self.is_complete, "rows of a checkpoint are still to be copied"
        return Columns(
            numbers_K=self._numbers_K,
            keys_K=self._keys_K,
            last_steps_K=self._last_steps_K,
            values_KW=self._values_KW,
            state_KS=self._state_KS,
            dense_L=dense_L,
        )

    def non_finite(self, before: NonFinite) -> NonFinite:
        """All rows with such values; before: those of the checkpoint that this one builds on. Call it once complete."""
        assert self.is_complete, "rows of a checkpoint are still to be copied"
        is_left = ~np.isin(before.numbers, self._numbers_K, assume_unique=True)
        (found,) = np.nonzero(self._marks_K2[:, NON_FINITE])
        return NonFinite(
            np.concatenate([before.numbers[is_left], self._numbers_K[found]]),
            np.concatenate([before.counts[is_left], self._marks_K2[found, NON_FINITE]]),
        )

    @property
    def _table(self) -> tuple[NDArray[np.int64], int]:
        return self._store.rows.addresses, self._store.rows.chunk_rows
