"""Partial gradients of split rows, kept until the last part of a row has arrived.

A worker may push its part many steps before the others (an eviction). ``apply_sums`` adds a row's parts in worker
order, starting from the first, and applies the optimizer once: the result does not depend on the order of arrival, to
the bit.

Parts are stored in places; those of one row are linked, lowest worker first, from a table of first parts by row number.

If rows are in chunks, a part also has the uses of its row and their weight: uses are summed like gradients, the
weight is that of the first part, and ps/settling.py applies the sum.

Legend: K rows, N places for parts, P columns of a part (those of a value if rows are whole), T of value and state.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from infra.base.kernels import kernel
from ps.chunks import Chunks, chunk_at
from ps.errors import OutOfOrder
from ps.optimizers import Rule, update_row
from ps.pruned_store import PrunedStore
from ps.settling import settle_rows
from ps.store import RowStore, Store

NONE = -1
FIRST_PART = 0
"""the one column of the table of first parts"""
SETTLED_ROWS = 4096
"""Rows of chunks settled at a time: few enough that copies of them stay in the processor's cache."""
_FIRST_PLACES = 1024


class Places(NamedTuple):
    """Places for parts, as kernels take them."""

    part_NP: NDArray[Any]
    worker_N: NDArray[np.int64]
    next_N: NDArray[np.int64]
    """The next part of the same row, by ascending worker; for a free place, the next free one."""


@kernel
def _add(heads: Any, chunk_rows: Any, numbers_K: Any, parts_KP: Any, worker: int, places: Any, free: int) -> Any:
    """Links the parts in. Returns the first free place left and how many were added: all, or up to
    the first duplicate.
    """
    for k in range(numbers_K.shape[0]):
        head = chunk_at(heads, numbers_K[k] // chunk_rows, chunk_rows, 1, np.int64)
        row = numbers_K[k] % chunk_rows
        before = NONE
        after = head[row, FIRST_PART]
        while after != NONE and places.worker_N[after] < worker:
            before = after
            after = places.next_N[after]
        if after != NONE and places.worker_N[after] == worker:
            return free, k
        place = free
        free = places.next_N[place]
        places.worker_N[place] = worker
        places.next_N[place] = after
        for c in range(parts_KP.shape[1]):
            places.part_NP[place, c] = parts_KP[k, c]
        if before == NONE:
            head[row, FIRST_PART] = place
        else:
            places.next_N[before] = place
    return free, numbers_K.shape[0]


@kernel
def _apply_parts(
    heads: Any, chunk_rows: Any, numbers_K: Any, places: Any, free: int, rows: Any, columns: int, rule: Any
) -> Any:
    """Sums and applies parts. Returns the first free place and how many parts were used."""
    used = 0
    for k in range(numbers_K.shape[0]):
        chunk = numbers_K[k] // chunk_rows
        row = numbers_K[k] % chunk_rows
        head = chunk_at(heads, chunk, chunk_rows, 1, np.int64)
        first = head[row, FIRST_PART]
        head[row, FIRST_PART] = NONE
        total_P = places.part_NP[first]
        last = first
        used += 1
        while places.next_N[last] != NONE:
            last = places.next_N[last]
            used += 1
            for c in range(total_P.shape[0]):
                total_P[c] += places.part_NP[last, c]
        places.next_N[last] = free
        free = first
        update_row(rule, chunk_at(rows, chunk, chunk_rows, columns, total_P.dtype)[row], total_P)
    return free, used


@kernel
def _sum_parts(heads: Any, chunk_rows: Any, numbers_K: Any, places: Any, free: int, sums_KP: Any) -> Any:
    """Sums parts, all columns but the last. Returns the first free place and how many parts were used."""
    used = 0
    for k in range(numbers_K.shape[0]):
        head = chunk_at(heads, numbers_K[k] // chunk_rows, chunk_rows, 1, np.int64)
        row = numbers_K[k] % chunk_rows
        first = head[row, FIRST_PART]
        head[row, FIRST_PART] = NONE
        sums_KP[k] = places.part_NP[first]
        last = first
        used += 1
        while places.next_N[last] != NONE:
            last = places.next_N[last]
            used += 1
            for c in range(sums_KP.shape[1] - 1):
                sums_KP[k, c] += places.part_NP[last, c]
        places.next_N[last] = free
        free = first
    return free, used


@kernel
def _drop_parts(heads: Any, chunk_rows: Any, numbers_K: Any, next_N: Any, free: int) -> Any:
    """Frees the places of the parts of these rows. Returns the first free place and how many parts there were."""
    dropped = 0
    for k in range(numbers_K.shape[0]):
        head = chunk_at(heads, numbers_K[k] // chunk_rows, chunk_rows, 1, np.int64)
        row = numbers_K[k] % chunk_rows
        place = head[row, FIRST_PART]
        head[row, FIRST_PART] = NONE
        while place != NONE:
            after = next_N[place]
            next_N[place] = free
            free = place
            place = after
            dropped += 1
    return free, dropped


class Parts:
    """Pending parts of one shard's rows."""

    def __init__(self, store: RowStore, rule: Rule) -> None:
        self._store = store
        self._rule = rule
        self._heads = Chunks(store.chunk_rows, 1, np.int64, fill=NONE)
        self._pending = 0
        self._free = 0
        self._places = _new_places(0, _FIRST_PLACES, store)

    def __len__(self) -> int:
        return self._pending

    def add(self, worker: int, numbers_K: NDArray[np.int64], parts_KP: NDArray[Any]) -> None:
        """Keeps one worker's part of each row. Raises OutOfOrder if a part of this worker is pending already."""
        self._store.check(numbers_K)
        self._heads.grow(len(self._store))
        self._reserve(len(numbers_K))
        heads = self._heads.addresses
        chunk_rows = self._heads.chunk_rows
        self._free, added = _add(heads, chunk_rows, numbers_K, parts_KP, worker, self._places, self._free)
        self._pending += added
        if added < len(numbers_K):
            raise OutOfOrder(
                f"worker {worker} pushed a second part of row number {numbers_K[added]} before the first was settled; "
                "expected one part for each step that split the row; the run must go back to a checkpoint"
            )

    def apply_sums(self, numbers_K: NDArray[np.int64]) -> None:
        """Applies the summed parts of each row once. Raises OutOfOrder, and applies none, if a row has no part."""
        self._check_pending(numbers_K)
        if isinstance(self._store, PrunedStore):
            for first in range(0, len(numbers_K), SETTLED_ROWS):
                self._settle(self._store, numbers_K[first : first + SETTLED_ROWS])
        elif isinstance(self._store, Store):
            self._apply(self._store.rows, numbers_K)

    def discard(self, numbers_K: NDArray[np.int64]) -> None:
        """Drops the pending parts of these rows, if there are any: their keys are forgotten."""
        self._store.check(numbers_K)
        self._heads.grow(len(self._store))
        heads = self._heads.addresses
        self._free, dropped = _drop_parts(heads, self._heads.chunk_rows, numbers_K, self._places.next_N, self._free)
        self._pending -= dropped

    def drop(self) -> int:
        """Forgets every pending part; returns how many there were."""
        dropped, self._pending, self._free = self._pending, 0, 0
        self._heads = Chunks(self._heads.chunk_rows, 1, np.int64, fill=NONE)
        self._places = _new_places(0, _FIRST_PLACES, self._store)
        return dropped

    def _apply(self, rows: Chunks, numbers_K: NDArray[np.int64]) -> None:
        """Applies the sums to whole rows, where they are."""
        heads = self._heads.addresses
        chunk_rows = self._heads.chunk_rows
        self._free, used = _apply_parts(
            heads, chunk_rows, numbers_K, self._places, self._free, rows.addresses, rows.columns, self._rule
        )
        self._pending -= used

    def _settle(self, store: PrunedStore, numbers_K: NDArray[np.int64]) -> None:
        """Applies the sums to copies of rows, and writes those back."""
        sums_KP = np.empty((len(numbers_K), store.shape.part), store.dtype)
        heads = self._heads.addresses
        self._free, used = _sum_parts(heads, store.chunk_rows, numbers_K, self._places, self._free, sums_KP)
        self._pending -= used
        rows_KT = np.empty((len(numbers_K), store.shape.total), store.dtype)
        store.gather(numbers_K, rows_KT)
        settle_rows(self._rule, store.chunking, rows_KT, sums_KP)
        store.write(numbers_K, rows_KT)

    def _check_pending(self, numbers_K: NDArray[np.int64]) -> None:
        self._store.check(numbers_K)
        self._heads.grow(len(self._store))
        first_K1 = np.empty((len(numbers_K), 1), np.int64)
        self._heads.gather(numbers_K, first_K1)
        repeated = len(np.unique(numbers_K)) < len(numbers_K)
        if repeated or (first_K1 == NONE).any():
            bare = numbers_K[first_K1[:, FIRST_PART] == NONE][:5].tolist()
            raise OutOfOrder(
                f"row numbers {bare} of {len(numbers_K)} to settle have no part, repeated: {repeated}; expected "
                "each split row once, after its parts; the run must go back to a checkpoint"
            )

    def _reserve(self, parts: int) -> None:
        """Doubles the places until that many more parts fit."""
        places = len(self._places.next_N)
        while len(self._places.next_N) < self._pending + parts:
            # The chain of free places ends at the old length, which becomes the first of the new places.
            more = _new_places(places, 2 * places, self._store)
            self._places = Places(*(np.concatenate(pair) for pair in zip(self._places, more, strict=True)))
            places *= 2


def _new_places(first: int, end: int, store: RowStore) -> Places:
    """Free places from first to end, each linked to the one after it."""
    part_NP = np.empty((end - first, store.shape.part), store.dtype)
    return Places(part_NP, np.zeros(end - first, np.int64), np.arange(first + 1, end + 1))


def settle_reference(parts: dict[int, NDArray[Any]]) -> NDArray[Any]:
    """What ``Parts.apply_sums`` applies to a row with these parts by worker; of rows in chunks, all but the weight."""
    first, *others = (parts[worker] for worker in sorted(parts))
    total = first.copy()
    for part in others:
        total += part
    return total
