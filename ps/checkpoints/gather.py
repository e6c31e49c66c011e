"""The rows of a checkpoint, copied a slice at a time while rounds continue to change them.

Which rows belong to a checkpoint, and the key and the last step of each, is determined at once when its round has been
applied: they are 8 bytes each, and chunks without a later step are skipped. The rows themselves are copied in slices;
``keep`` copies those that are about to change. The copy therefore holds the state after that one round, whatever
happens meanwhile. Rows of which chunks can be pruned are copied as files have them, packed: a copy takes the memory of
their live chunks.

Legend: K rows of the checkpoint, W columns of a value, S of state, T of both, C chunks of the store, L packed floats.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from infra.base.kernels import kernel
from infra.base.wire import NO_I64
from ps.checkpoints.files import Columns
from ps.chunks import chunk_at
from ps.packed import PackedWidths
from ps.store import RowStore, Store

IS_COPIED = 0
"""Column of the marks of a checkpoint's rows: whether a row has been copied."""
NON_FINITE = 1
"""Column of the same marks: how many values of the row are not finite."""
READ_ROWS = 4096
"""Rows looked through at a time: few enough that copies of them stay in the processor's cache."""
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


def non_finite_of(store: RowStore) -> NonFinite:
    """The non-finite values of all rows."""
    counts_R = np.empty(len(store), np.int64)
    for first in range(0, len(store), READ_ROWS):
        numbers = np.arange(first, min(first + READ_ROWS, len(store)))
        values_KW = np.empty((len(numbers), store.shape.value), store.dtype)
        store.gather(numbers, values_KW)
        counts_R[numbers] = np.count_nonzero(~np.isfinite(values_KW), axis=1)
    (numbers,) = np.nonzero(counts_R)
    return NonFinite(numbers, counts_R[numbers].astype(np.int32))


class RowCopy:
    """The rows of one checkpoint, and how far they have been copied."""

    def __init__(self, store: RowStore, since: int, known: int, end: int, also: NDArray[np.int64] = NO_I64) -> None:
        """Selects the rows below end that changed after step since, are not among the known ones, or are in also."""
        numbers = np.empty(end, np.int64)
        steps = store.last_steps
        count = _changed(steps.addresses, steps.chunk_rows, store.newest_C, since, known, end, numbers)
        self._store = store
        self._numbers_K = np.union1d(numbers[:count], also) if len(also) else numbers[:count].copy()
        count = len(self._numbers_K)
        self._last_steps_K = store.steps(self._numbers_K)
        self._keys_K = store.keys(self._numbers_K)
        self._packed = _PackedCopy(store, self._numbers_K) if store.shape.chunks else None
        whole = 0 if self._packed else count
        self._values_KW = np.empty((whole, store.shape.value), store.dtype)
        self._state_KS = np.empty((whole, store.shape.state), store.dtype)
        self._marks_K2 = np.zeros((count, 2), np.int32)
        self._next = 0
        self._slice_rows = max(1, SLICE_BYTES // (store.shape.total * store.dtype.itemsize))

    @property
    def is_complete(self) -> bool:
        return self._next == len(self._numbers_K)

    def keep(self, changing: NDArray[np.int64]) -> None:
        """Must be called before rows change."""
        if self.is_complete:
            return
        if self._packed is None:
            _keep(*_table(self._store), self._numbers_K, changing, self._marks_K2, self._values_KW, self._state_KS)
        else:
            places = np.searchsorted(self._numbers_K, changing)
            places = places[places < len(self._numbers_K)]
            self._pack(self._packed, np.unique(places[np.isin(self._numbers_K[places], changing)]))

    def go_on(self) -> None:
        """Copies the next slice."""
        end = min(self._next + self._slice_rows, len(self._numbers_K))
        if self._packed is None:
            places = np.array([self._next, end])
            _copy_slice(*_table(self._store), self._numbers_K, places, self._marks_K2, self._values_KW, self._state_KS)
        else:
            self._pack(self._packed, np.arange(self._next, end))
        self._next = end

    def columns(self, dense_L: NDArray[Any]) -> Columns:
        """The columns of the checkpoint's file; call it once the copy is complete."""
        assert self.is_complete, "rows of a checkpoint are still to be copied"
        whole = Columns(
            numbers_K=self._numbers_K,
            keys_K=self._keys_K,
            last_steps_K=self._last_steps_K,
            values_KW=self._values_KW,
            state_KS=self._state_KS,
            dense_L=dense_L,
        )
        return whole if self._packed is None else self._packed.replace_in(whole)

    def non_finite(self, before: NonFinite) -> NonFinite:
        """All rows with such values; before: those of the checkpoint that this one builds on. Call it once complete."""
        assert self.is_complete, "rows of a checkpoint are still to be copied"
        is_left = ~np.isin(before.numbers, self._numbers_K, assume_unique=True)
        (found,) = np.nonzero(self._marks_K2[:, NON_FINITE])
        return NonFinite(
            np.concatenate([before.numbers[is_left], self._numbers_K[found]]),
            np.concatenate([before.counts[is_left], self._marks_K2[found, NON_FINITE]]),
        )

    def _pack(self, packed: "_PackedCopy", places: NDArray[np.int64]) -> None:
        """Copies the rows in these places that have not been copied yet."""
        places = places[self._marks_K2[places, IS_COPIED] == 0]
        rows_KT = np.empty((len(places), self._store.shape.total), self._store.dtype)
        self._store.gather(self._numbers_K[places], rows_KT)
        packed.put(places, rows_KT)
        values_KW = rows_KT[:, : self._store.shape.value]
        self._marks_K2[places, NON_FINITE] = np.count_nonzero(~np.isfinite(values_KW), axis=1)
        self._marks_K2[places, IS_COPIED] = 1


class _PackedCopy:
    """Values and state of rows with chunks: each row has a place of its own, since masks are known beforehand."""

    def __init__(self, store: RowStore, numbers_K: NDArray[np.int64]) -> None:
        self._packing = store.packing
        self._masks_K = store.masks(numbers_K)
        live_K = np.bitwise_count(self._masks_K).astype(np.int64)
        self._live_before_K = np.cumsum(live_K) - live_K
        self._values_L = np.empty(self._widths.floats("values", self._masks_K), store.dtype)
        self._state_L = np.empty(self._widths.floats("state", self._masks_K), store.dtype)

    def put(self, places: NDArray[np.int64], rows_KT: NDArray[Any]) -> None:
        masks_K = self._masks_K[places]
        assert np.array_equal(rows_KT[:, -1], masks_K), "chunks were pruned while a checkpoint was being taken"
        live_K = self._live_before_K[places]
        starts = (self._widths.starts("values", places, live_K), self._widths.starts("state", places, live_K))
        self._packing.pack_at(rows_KT, masks_K, starts, (self._values_L, self._state_L))

    def replace_in(self, columns: Columns) -> Columns:
        """The columns of a file, with packed rows."""
        return columns._replace(
            values_KW=self._values_L, state_KS=self._state_L, masks_K=self._masks_K, widths=self._widths
        )

    @property
    def _widths(self) -> PackedWidths:
        assert self._packing.widths is not None, "only rows with chunks are packed"
        return self._packing.widths


def _table(store: RowStore) -> tuple[NDArray[np.int64], int]:
    assert isinstance(store, Store), "rows without chunks are kept whole"
    return store.rows.addresses, store.rows.chunk_rows
