"""Lines: what the directory's kernels record for one round, before it is grouped by worker and by shard."""

from typing import NamedTuple

import numpy as np

from dispatch.placement.arrays import I64, U64
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
PULL_KINDS = 2

MOVE_WORKER = 0
"""Columns of a move."""
MOVE_ROW = 1
MOVE_SLOT = 2
MOVE_KIND = 3

SETTLED_ROW = 0
"""columns of a settled row"""
SETTLED_MAKES_ROOM = 1

PUSHES_COUNT = 0
"""places in ``RoundMoves.counts``"""
PULLS_COUNT = 1
SETTLED_COUNT = 2


class RoundMoves(NamedTuple):
    """Plain arrays with room for the worst case. A move is (worker, row, slot, kind)."""

    pushes_4: I64
    pulls_4: I64
    settled_2: I64
    """Split rows of which all parts have been pushed, and whether that was to make room."""
    counts: I64
    """How many pushes, pulls and settled rows have been written."""


def empty_moves(holders_UQ: U64, uses: int, behind: int = 0) -> RoundMoves:
    """Room for the worst case: every holder of these rows pushes, and every use evicts something.

    behind: most rows that are written behind.
    """
    held = int(np.bitwise_count(holders_UQ).sum())
    return RoundMoves(
        pushes_4=np.empty((held + uses + behind, 4), np.int64),
        pulls_4=np.empty((uses, 4), np.int64),
        settled_2=np.empty((len(holders_UQ) + uses, 2), np.int64),
        counts=np.zeros(3, np.int64),
    )


def add_pushes(moves: RoundMoves, pushes_4: I64) -> None:
    first = moves.counts[PUSHES_COUNT]
    moves.pushes_4[first : first + len(pushes_4)] = pushes_4
    moves.counts[PUSHES_COUNT] += len(pushes_4)


def add_pulls(moves: RoundMoves, pulls_4: I64) -> None:
    first = moves.counts[PULLS_COUNT]
    moves.pulls_4[first : first + len(pulls_4)] = pulls_4
    moves.counts[PULLS_COUNT] += len(pulls_4)


@kernel
def push(moves: RoundMoves, worker: int, row: int, slot: int, kind: int) -> None:
    at = moves.counts[PUSHES_COUNT]
    moves.pushes_4[at, MOVE_WORKER] = worker
    moves.pushes_4[at, MOVE_ROW] = row
    moves.pushes_4[at, MOVE_SLOT] = slot
    moves.pushes_4[at, MOVE_KIND] = kind
    moves.counts[PUSHES_COUNT] = at + 1


@kernel
def pull(moves: RoundMoves, worker: int, row: int, slot: int, kind: int) -> None:
    at = moves.counts[PULLS_COUNT]
    moves.pulls_4[at, MOVE_WORKER] = worker
    moves.pulls_4[at, MOVE_ROW] = row
    moves.pulls_4[at, MOVE_SLOT] = slot
    moves.pulls_4[at, MOVE_KIND] = kind
    moves.counts[PULLS_COUNT] = at + 1


@kernel
def add_settled(moves: RoundMoves, row: int, makes_room: bool = False) -> None:
    at = moves.counts[SETTLED_COUNT]
    moves.settled_2[at, SETTLED_ROW] = row
    moves.settled_2[at, SETTLED_MAKES_ROOM] = makes_room
    moves.counts[SETTLED_COUNT] = at + 1


@kernel
def can_wait(kind: int) -> bool:
    """Whether nobody waits for a push in its step: an eviction, or a row written behind."""
    return kind in (OWNED_EVICT, PART_EVICT, OWNED_BEHIND)
