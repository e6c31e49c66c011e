"""What is known of every row, stored together so that one fetch is enough.

A row is 1 + Q words of 64 bits: the step that last trained it and its state in the first, its holders in the others
(dispatch/placement/rows/holders.py).

Legend: R rows, U distinct rows of a batch, Q words of 64 workers each.
"""

import numpy as np

from dispatch.placement.arrays import I64, U8, U64
from dispatch.placement.rows.holders import bit_of, word_of
from infra.base.kernels import kernel

CLEAN = 0
"""The PS and every holder have the newest value."""
OWNED = 1
"""The one holder trained it alone and has the only newest value."""
SPLIT = 2
"""The holders trained it together; each has a partial gradient and nobody the newest value."""
REPLICATED = 3
"""Every worker has the newest value, in a separate slot, and changes it in step with the others. Only the directory
knows this state: policies see such a row as CLEAN and held by everybody.
"""

TRAINED = 0
"""the first word of a row: the step that last trained it, and its state"""
STATE_BITS = np.uint64(2)
STATE_MASK = np.uint64(3)

RowStates = U64
"""[R, 1 + Q]."""


def empty_states(rows: int, words: int) -> RowStates:
    """Rows that are clean and held by nobody."""
    states = np.zeros((rows, 1 + words), np.uint64)
    states[:, TRAINED] = CLEAN
    return states


def clean_states(rows: RowStates, words: int) -> RowStates:
    """The same rows with their last trained steps, clean and held by nobody."""
    states = empty_states(len(rows), words)
    states[:, TRAINED] |= rows[:, TRAINED] & ~STATE_MASK
    return states


def trained_states(last_steps_R: I64, words: int) -> RowStates:
    """Rows with these last trained steps, clean and held by nobody."""
    states = empty_states(last_steps_R.size, words)
    states[:, TRAINED] |= np.maximum(last_steps_R, 0).astype(np.uint64) << STATE_BITS
    return states


def is_any_unwritten(rows: RowStates) -> bool:
    """Whether the PS lacks the newest value of any row, except replicated ones."""
    return bool(np.isin(rows[:, TRAINED] & STATE_MASK, (OWNED, SPLIT)).any())


@kernel
def state_of(rows: RowStates, row: int) -> int:
    return int(rows[row, TRAINED] & STATE_MASK)


@kernel
def step_of(rows: RowStates, row: int) -> int:
    """The step that last trained the row."""
    return int(rows[row, TRAINED] >> STATE_BITS)


@kernel
def set_state(rows: RowStates, row: int, state: int) -> None:
    rows[row, TRAINED] = (rows[row, TRAINED] & ~STATE_MASK) | np.uint64(state)


@kernel
def set_trained(rows: RowStates, row: int, step: int, state: int) -> None:
    rows[row, TRAINED] = (np.uint64(step) << STATE_BITS) | np.uint64(state)


@kernel
def is_holder(rows: RowStates, row: int, worker: int) -> bool:
    return bool(rows[row, 1 + word_of(worker)] & bit_of(worker))


@kernel
def add_holder(rows: RowStates, row: int, worker: int) -> None:
    rows[row, 1 + word_of(worker)] |= bit_of(worker)


@kernel
def remove_holder(rows: RowStates, row: int, worker: int) -> None:
    """Removes a worker that is a holder."""
    rows[row, 1 + word_of(worker)] ^= bit_of(worker)


@kernel
def is_held(rows: RowStates, row: int) -> bool:
    """Whether anyone holds the row."""
    any_bit = np.uint64(0)
    for q in range(1, rows.shape[1]):
        any_bit |= rows[row, q]
    return bool(any_bit != 0)


@kernel
def gather(rows: RowStates, rows_U: I64) -> tuple[U8, U64]:
    """State and holders of some rows: [U] and [U, Q]."""
    words = rows.shape[1] - 1
    state_U = np.empty(rows_U.size, np.uint8)
    holders_UQ = np.empty((rows_U.size, words), np.uint64)
    for u in range(rows_U.size):
        row = rows_U[u]
        state_U[u] = rows[row, TRAINED] & STATE_MASK
        for q in range(words):
            holders_UQ[u, q] = rows[row, 1 + q]
    return state_U, holders_UQ
