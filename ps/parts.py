"""Partial gradients of split rows, kept until the last part of a row has arrived.

A worker may push its part many steps before the others (an eviction). ``apply_sums`` adds a row's parts in worker
order, starting from the first, and applies the optimizer once: the result does not depend on the order of arrival, to
the bit.

Parts are stored in a pool; those of one row are linked, lowest worker first, from a table of first parts by row number.

Legend: K rows, P places in the pool, W columns of a value.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from infra.base.kernels import kernel
from ps.chunks import Chunks, chunk_at
from ps.errors import OutOfOrder
from ps.optimizers import Rule, update_row
from ps.store import Store

NONE = -1
FIRST_PART = 0
"""the one column of the table of first parts"""
_FIRST_PLACES = 1024


class Pool(NamedTuple):
    """Places for parts, as kernels take them."""

    gradient_PW: NDArray[Any]
    worker_P: NDArray[np.int64]
    next_P: NDArray[np.int64]
    """The next part of the same row, by ascending worker; for a free place, the next free one."""


@kernel
def _add(heads: Any, chunk_rows: Any, numbers_K: Any, gradients_KW: Any, worker: int, pool: Any, free: int) -> Any:
    """Links the parts in. Returns the first free place left and how many were added: all, or up to
    the first duplicate.
    """
    for k in range(numbers_K.shape[0]):
        head = chunk_at(heads, numbers_K[k] // chunk_rows, chunk_rows, 1, np.int64)
        row = numbers_K[k] % chunk_rows
        before = NONE
        after = head[row, FIRST_PART]
        while after != NONE and pool.worker_P[after] < worker:
            before = after
            after = pool.next_P[after]
        if after != NONE and pool.worker_P[after] == worker:
            return free, k
        place = free
        free = pool.next_P[place]
        pool.worker_P[place] = worker
        pool.next_P[place] = after
        for c in range(gradients_KW.shape[1]):
            pool.gradient_PW[place, c] = gradients_KW[k, c]
        if before == NONE:
            head[row, FIRST_PART] = place
        else:
            pool.next_P[before] = place
    return free, numbers_K.shape[0]


@kernel
def _apply_parts(
    heads: Any, chunk_rows: Any, numbers_K: Any, pool: Any, free: int, rows: Any, columns: int, rule: Any
) -> Any:
    """Sums and applies parts. Returns the first free place and how many parts were used."""
    used = 0
    for k in range(numbers_K.shape[0]):
        chunk = numbers_K[k] // chunk_rows
        row = numbers_K[k] % chunk_rows
        head = chunk_at(heads, chunk, chunk_rows, 1, np.int64)
        first = head[row, FIRST_PART]
        head[row, FIRST_PART] = NONE
        total_W = pool.gradient_PW[first]
        last = first
        used += 1
        while pool.next_P[last] != NONE:
            last = pool.next_P[last]
            used += 1
            for c in range(total_W.shape[0]):
                total_W[c] += pool.gradient_PW[last, c]
        pool.next_P[last] = free
        free = first
        update_row(rule, chunk_at(rows, chunk, chunk_rows, columns, total_W.dtype)[row], total_W)
    return free, used


@kernel
def _drop_parts(heads: Any, chunk_rows: Any, numbers_K: Any, next_P: Any, free: int) -> Any:
    """Frees the places of the parts of these rows. Returns the first free place and how many parts there were."""
    dropped = 0
    for k in range(numbers_K.shape[0]):
        head = chunk_at(heads, numbers_K[k] // chunk_rows, chunk_rows, 1, np.int64)
        row = numbers_K[k] % chunk_rows
        place = head[row, FIRST_PART]
        head[row, FIRST_PART] = NONE
        while place != NONE:
            after = next_P[place]
            next_P[place] = free
            free = place
            place = after
            dropped += 1
    return free, dropped


class Parts:
    """Pending parts of one shard's rows."""

    def __init__(self, store: Store, rule: Rule) -> None:
        self._store = store
        self._rule = rule
        self._heads = Chunks(store.rows.chunk_rows, 1, np.int64, fill=NONE)
        self._pending = 0
        self._free = 0
        self._pool = _new_pool(0, _FIRST_PLACES, store)

    def __len__(self) -> int:
        return self._pending

    def add(self, worker: int, numbers_K: NDArray[np.int64], gradients_KW: NDArray[Any]) -> None:
        """Keeps one worker's part of each row. Raises OutOfOrder if a part of this worker is pending already."""
        self._store.check(numbers_K)
        self._heads.grow(len(self._store))
        self._reserve(len(numbers_K))
        heads = self._heads.addresses
        chunk_rows = self._heads.chunk_rows
        self._free, added = _add(heads, chunk_rows, numbers_K, gradients_KW, worker, self._pool, self._free)
        self._pending += added
        if added < len(numbers_K):
            raise OutOfOrder(
                f"worker {worker} pushed a second part of row number {numbers_K[added]} before the first was settled; "
                "expected one part for each step that split the row; the run must go back to a checkpoint"
            )

    def apply_sums(self, numbers_K: NDArray[np.int64]) -> None:
        """Applies the summed parts of each row once. Raises OutOfOrder, and applies none, if a row has no part."""
        self._check_pending(numbers_K)
        rows = self._store.rows
        heads = self._heads.addresses
        chunk_rows = self._heads.chunk_rows
        self._free, used = _apply_parts(
            heads, chunk_rows, numbers_K, self._pool, self._free, rows.addresses, rows.columns, self._rule
        )
        self._pending -= used

    def discard(self, numbers_K: NDArray[np.int64]) -> None:
        """Drops the pending parts of these rows, if there are any: their keys are forgotten."""
        self._store.check(numbers_K)
        self._heads.grow(len(self._store))
        heads = self._heads.addresses
        self._free, dropped = _drop_parts(heads, self._heads.chunk_rows, numbers_K, self._pool.next_P, self._free)
        self._pending -= dropped

    def drop(self) -> int:
        """Forgets every pending part; returns how many there were."""
        dropped, self._pending, self._free = self._pending, 0, 0
        self._heads = Chunks(self._heads.chunk_rows, 1, np.int64, fill=NONE)
        self._pool = _new_pool(0, _FIRST_PLACES, self._store)
        return dropped

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
        """Doubles the pool until that many more parts fit."""
        places = len(self._pool.next_P)
        while len(self._pool.next_P) < self._pending + parts:
            # The chain of free places ends at the old length, which becomes the first of the new places.
            more = _new_pool(places, 2 * places, self._store)
            self._pool = Pool(*(np.concatenate(pair) for pair in zip(self._pool, more, strict=True)))
            places *= 2


def _new_pool(first: int, end: int, store: Store) -> Pool:
    """Free places from first to end, each linked to the one after it."""
    gradient_PW = np.empty((end - first, store.shape.value), store.rows.dtype)
    return Pool(gradient_PW, np.zeros(end - first, np.int64), np.arange(first + 1, end + 1))


def settle_reference(parts: dict[int, NDArray[Any]]) -> NDArray[Any]:
    """The gradient that ``Parts.apply_sums`` applies to a row with these parts by worker."""
    first, *others = (parts[worker] for worker in sorted(parts))
    total = first.copy()
    for part in others:
        total += part
    return total
