"""Lines: what the directory's kernels record for one round, before it is grouped by worker and by shard.

Every worker has lists of its own, so that threads can fill them at the same time.

Legend: n workers, P lines, S settled rows, K counts.
"""

from typing import NamedTuple

import numpy as np

from dispatch.placement.arrays import I64
from infra.base.kernels import kernel

OWNED_UPDATE = 0
"""Kinds of push; the last bit distinguishes the part of a split row from an owned row."""
PART_UPDATE = 1
OWNED_EVICT = 2
PART_EVICT = 3
OWNED_FLUSH = 4
PART_FLUSH = 5
OWNED_BEHIND = 6
KINDS = 7

WITH_STATE = 0
"""Kinds of pull."""
VALUE_ONLY = 1

MOVE_ROW = 0
"""Columns of a move."""
MOVE_SLOT = 1
MOVE_KIND = 2

SETTLED_ROW = 0
"""columns of a settled row"""
SETTLED_MAKES_ROOM = 1

PUSHES_COUNT = 0
"""columns of ``RoundMoves.counts_nK``"""
PULLS_COUNT = 1
CLEAN_COUNT = 2
PARTS_COUNT = 3
COUNTS = 16
"""Twice a cache line, so that no two threads write to the same one."""


class RoundMoves(NamedTuple):
    """Plain arrays with room for the worst case. A move is (row, slot, kind)."""

    pushes_nP3: I64
    pulls_nP3: I64
    clean_nP: I64
    """Clean rows whose copies were evicted."""
    parts_nP: I64
    """Split rows of which parts were evicted."""
    settled_S2: I64
    """Split rows of which all parts have been pushed, and whether that was to make room."""
    counts_nK: I64
    """How much of each worker's lists has been written."""
    settled_count: I64
    """How many settled rows have been written, [1]."""


def empty_moves(workers: int, pushes: int, pulls: int, settled: int) -> RoundMoves:
    """Room for so many pushes and pulls of each worker, and for so many settled rows; a pull evicts at most one row."""
    return RoundMoves(
        pushes_nP3=np.empty((workers, pushes, 3), np.int64),
        pulls_nP3=np.empty((workers, pulls, 3), np.int64),
        clean_nP=np.empty((workers, pulls), np.int64),
        parts_nP=np.empty((workers, pulls), np.int64),
        settled_S2=np.empty((settled, 2), np.int64),
        counts_nK=np.zeros((workers, COUNTS), np.int64),
        settled_count=np.zeros(1, np.int64),
    )


def emptied(moves: RoundMoves, pushes: int, pulls: int, settled: int) -> RoundMoves:
    """The same without its lines, or a larger one if it has less room: fresh memory takes longer than most kernels."""
    workers, most_pushes, _ = moves.pushes_nP3.shape
    most_pulls = moves.pulls_nP3.shape[1]
    most_settled = len(moves.settled_S2)
    if pushes > most_pushes or pulls > most_pulls or settled > most_settled:
        return empty_moves(workers, *(2 * wanted for wanted in (pushes, pulls, settled)))
    moves.counts_nK[:] = 0
    moves.settled_count[:] = 0
    return moves


@kernel
def add_pushes(moves: RoundMoves, worker_P: I64, lines_P3: I64) -> None:
    for i in range(worker_P.size):
        push(moves, worker_P[i], lines_P3[i, MOVE_ROW], lines_P3[i, MOVE_SLOT], lines_P3[i, MOVE_KIND])


@kernel
def add_pulls(moves: RoundMoves, worker_P: I64, lines_P3: I64) -> None:
    for i in range(worker_P.size):
        pull(moves, worker_P[i], lines_P3[i, MOVE_ROW], lines_P3[i, MOVE_SLOT], lines_P3[i, MOVE_KIND])


@kernel
def push(moves: RoundMoves, worker: int, row: int, slot: int, kind: int) -> None:
    at = moves.counts_nK[worker, PUSHES_COUNT]
    moves.pushes_nP3[worker, at, MOVE_ROW] = row
    moves.pushes_nP3[worker, at, MOVE_SLOT] = slot
    moves.pushes_nP3[worker, at, MOVE_KIND] = kind
    moves.counts_nK[worker, PUSHES_COUNT] = at + 1


@kernel
def pull(moves: RoundMoves, worker: int, row: int, slot: int, kind: int) -> None:
    at = moves.counts_nK[worker, PULLS_COUNT]
    moves.pulls_nP3[worker, at, MOVE_ROW] = row
    moves.pulls_nP3[worker, at, MOVE_SLOT] = slot
    moves.pulls_nP3[worker, at, MOVE_KIND] = kind
    moves.counts_nK[worker, PULLS_COUNT] = at + 1


@kernel
def lose_clean(moves: RoundMoves, worker: int, row: int) -> None:
    """Notes that the worker evicted a clean copy."""
    at = moves.counts_nK[worker, CLEAN_COUNT]
    moves.clean_nP[worker, at] = row
    moves.counts_nK[worker, CLEAN_COUNT] = at + 1


@kernel
def lose_part(moves: RoundMoves, worker: int, row: int) -> None:
    """Notes that the worker evicted its part of a split row."""
    at = moves.counts_nK[worker, PARTS_COUNT]
    moves.parts_nP[worker, at] = row
    moves.counts_nK[worker, PARTS_COUNT] = at + 1


@kernel
def add_settled(moves: RoundMoves, row: int, makes_room: bool = False) -> None:
    at = moves.settled_count[0]
    moves.settled_S2[at, SETTLED_ROW] = row
    moves.settled_S2[at, SETTLED_MAKES_ROOM] = makes_room
    moves.settled_count[0] = at + 1


@kernel
def can_wait(kind: int) -> bool:
    """Whether nobody waits for a push in its step: an eviction, or a row written behind."""
    return kind in (OWNED_EVICT, PART_EVICT, OWNED_BEHIND)
