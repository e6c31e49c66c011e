"""Counts what the chunks of all rows are worth, and prunes those that are worth least.

``count_chunks`` and ``prune`` go by the bins of utilities (ps/utilities.py) alone, so what they do to a row does not
depend on the other rows of the shard. Numbers whose key was forgotten are left out.

Legend: N rows of the shard, K chunks of a row, B bins.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from infra.base.kernels import kernel
from ps.bins import BINS
from ps.errors import OutOfOrder
from ps.keys import FREE
from ps.packed import Masks
from ps.pruned_store import NOWHERE, PrunedStore, head_at, places_at, stored_at
from ps.utilities import LOWEST_EXPONENT, bin_of, bins_reference, count_live

LOWEST = 2.0**LOWEST_EXPONENT
BROUGHT_ROWS = 4096
"""Rows of which chunks are brought back at a time: few enough that copies of them stay in the processor's cache."""


class Pruning(NamedTuple):
    """What a ``prune`` has changed."""

    numbers: NDArray[np.int64]
    """Rows of which a chunk was pruned or came back, ascending."""
    masks: Masks
    """Their masks now."""
    pruned: int
    """Chunks pruned."""
    brought_back: int


@kernel
def _count(tables: Any, keys_N: Any, counts_2KB: Any) -> None:
    """Counts chunks by whether they are live, chunk number and bin."""
    chunks = counts_2KB.shape[1]
    for number in range(keys_N.shape[0]):
        if keys_N[number] == FREE:
            continue
        utilities = head_at(tables, number)[tables.head - chunks :]
        places = places_at(tables, chunks, number)
        for chunk in range(chunks):
            is_live = 1 if places[chunk] != NOWHERE else 0
            counts_2KB[is_live, chunk, bin_of(utilities[chunk])] += 1


def count_reference(utilities_NK: NDArray[Any], masks_N: Masks) -> NDArray[np.int64]:
    """The counts of rows with these utilities and masks, in plain numpy."""
    chunks = utilities_NK.shape[1]
    counts_2KB = np.zeros((2, chunks, BINS), np.int64)
    for chunk in range(chunks):
        bins_N = bins_reference(utilities_NK[:, chunk])
        for is_live in (0, 1):
            counts_2KB[is_live, chunk] = np.bincount(bins_N[masks_N >> chunk & 1 == is_live], minlength=BINS)
    return counts_2KB


@kernel
def _halve(tables: Any, chunks: int, rows: int, halvings: int) -> None:
    """Halves every utility that often, which is exact; those that become too small become 0."""
    for number in range(rows):
        head = head_at(tables, number)
        for c in range(tables.head - chunks, tables.head):
            halved = math.ldexp(float(head[c]), -halvings)
            head[c] = 0.0 if halved < LOWEST else halved


def halve_reference(utilities: NDArray[Any], halvings: int) -> NDArray[Any]:
    """The utilities after they were halved that often."""
    if not halvings:
        return utilities
    halved = np.ldexp(utilities.astype(np.float64), -halvings)
    return np.where(halved < LOWEST, 0, halved).astype(utilities.dtype)


@kernel
def _decide(tables: Any, keys_N: Any, evict_below_K: Any, bring_from_K: Any, evicted_N: Any, brought_N: Any) -> None:
    """Notes, as masks, the live chunks in low bins, and the pruned ones in high bins."""
    chunks = evict_below_K.shape[0]
    for number in range(keys_N.shape[0]):
        if keys_N[number] == FREE:
            continue
        utilities = head_at(tables, number)[tables.head - chunks :]
        places = places_at(tables, chunks, number)
        for chunk in range(chunks):
            worth = bin_of(utilities[chunk])
            if places[chunk] != NOWHERE:
                evicted_N[number] |= (worth < evict_below_K[chunk]) << chunk
            else:
                brought_N[number] |= (worth >= bring_from_K[chunk]) << chunk


def decide_reference(
    utilities_NK: NDArray[Any], masks_N: Masks, evict_below: Sequence[int], bring_from: Sequence[int]
) -> tuple[Masks, Masks]:
    """The chunks that are pruned and brought back of rows with these utilities and masks, in plain numpy."""
    bits_K = 1 << np.arange(utilities_NK.shape[1])
    bins_NK = bins_reference(utilities_NK)
    is_live_NK = masks_N[:, None] & bits_K != 0
    evicted_N = (bits_K * (is_live_NK & (bins_NK < np.array(evict_below)))).sum(axis=1)
    brought_N = (bits_K * (~is_live_NK & (bins_NK >= np.array(bring_from)))).sum(axis=1)
    return evicted_N.astype(np.uint8), brought_N.astype(np.uint8)


def count_chunks(store: PrunedStore) -> NDArray[np.int64]:
    """Chunks by whether they are live, chunk number and bin of the utility."""
    counts_2KB = np.zeros((2, store.shape.chunks, BINS), np.int64)
    _count(store.tables, store.keys(np.arange(len(store))), counts_2KB)
    return counts_2KB


def weigh_columns(store: PrunedStore) -> NDArray[np.float64]:
    """Squared gradients that the embedding columns of all rows have had in all, as their accumulators tell.

    Only columns of one chunk can be compared, since chunks are live in different rows.
    """
    weights_D = np.zeros(store.shape.dim, np.float64)
    _weigh(store.tables, store.layout, len(store), weights_D)
    return weights_D


def check_thresholds(chunks: int, evict_below: Sequence[int], bring_from: Sequence[int]) -> None:
    """Raises OutOfOrder unless there is one threshold for each chunk number."""
    if len(evict_below) != chunks or len(bring_from) != chunks:
        raise OutOfOrder(
            f"{len(evict_below)} and {len(bring_from)} thresholds came for rows of {chunks} chunks; expected one for "
            "each chunk number; give dispatcher and shard the same rows.chunks"
        )


@kernel
def _weigh(tables: Any, layout: Any, rows: int, weights_D: Any) -> None:
    """Sums the accumulators of each column."""
    for number in range(rows):
        places = places_at(tables, layout.chunks, number)
        for chunk in range(layout.chunks):
            if places[chunk] == NOWHERE:
                continue
            stored_X = stored_at(tables, places[chunk])
            for c in range(layout.kept):
                weights_D[layout.columns[chunk * layout.kept + c]] += stored_X[layout.kept + c]


def prune(store: PrunedStore, evict_below: Sequence[int], bring_from: Sequence[int], halvings: int) -> Pruning:
    """Prunes live chunks in bins below theirs, brings pruned ones back, frees memory, and halves utilities.

    Thresholds are by chunk number; a chunk that is pruned here does not come back here.
    """
    chunks = store.shape.chunks
    check_thresholds(chunks, evict_below, bring_from)
    evicted_N = np.zeros(len(store), np.uint8)
    brought_N = np.zeros(len(store), np.uint8)
    keys_N = store.keys(np.arange(len(store)))
    _decide(store.tables, keys_N, np.array(evict_below), np.array(bring_from), evicted_N, brought_N)
    losing = np.flatnonzero(evicted_N)
    store.set_masks(losing, store.masks(losing) & ~evicted_N[losing])
    gaining = np.flatnonzero(brought_N)
    for first in range(0, len(gaining), BROUGHT_ROWS):
        numbers = gaining[first : first + BROUGHT_ROWS]
        store.bring_back(numbers, brought_N[numbers])
    store.compact()
    if halvings:
        _halve(store.tables, chunks, len(store), halvings)
    changed = np.flatnonzero(evicted_N | brought_N)
    return Pruning(changed, store.masks(changed), count_live(evicted_N), count_live(brought_N))
