"""What is known of every row, stored together so that one fetch is enough.

A row is 1 + Q words of 64 bits: its state (2 bits), its mask (8) and the step that last trained it (54) in the first,
its holders in the others (dispatch/placement/rows/holders.py). Bit k of a mask is set if chunk k of the row is live;
without chunks it is 0.

Legend: R rows, U distinct rows of a batch, Q words of 64 workers each.
"""

import numpy as np
from numba import prange

from dispatch.placement.arrays import I64, U8, U64
from dispatch.placement.rows.holders import bit_of, word_of
from infra.base.growing import GrowingArray
from infra.base.kernels import kernel, range_of, ranges_for, threaded

CLEAN = 0
"""The PS and every holder have the newest value; as memory that was never used is zero, new rows begin so."""
OWNED = 1
"""The one holder trained it alone and has the only newest value."""
SPLIT = 2
"""The holders trained it together; each has a partial gradient and nobody the newest value."""
REPLICATED = 3
"""Every worker has the newest value, in a separate slot, and changes it in step with the others. Only the directory
knows this state: policies see such a row as CLEAN and held by everybody.
"""

TRAINED = 0
"""the first word of a row: the step that last trained it, its mask and its state"""
STATE_BITS = np.uint64(2)
STATE_MASK = np.uint64(3)
CHUNKS_MASK = np.uint64(0xFF << 2)
"""the bits of a row's mask"""
STEP_AT = np.uint64(10)
"""the lowest bit of the step"""

RowStates = U64
"""[R, 1 + Q]."""


def growing_states(words: int) -> GrowingArray:
    """Any number of rows that are clean and held by nobody."""
    return GrowingArray(np.uint64, 1 + words)


def copy_clean(rows: RowStates, states: RowStates) -> None:
    """Gives new states the masks and last trained steps of these rows."""
    np.bitwise_and(rows[:, TRAINED], ~STATE_MASK, out=states[:, TRAINED])


def set_last_steps(states: RowStates, last_steps_R: I64, masks_R: U8 | None = None) -> None:
    """Gives new states these last trained steps and masks. masks_R: None if rows have no chunks."""
    states[:, TRAINED] = np.maximum(last_steps_R, 0).astype(np.uint64) << STEP_AT
    if masks_R is not None:
        set_masks(states, np.arange(last_steps_R.size), masks_R)


def set_masks(rows: RowStates, numbers: I64, masks: U8) -> None:
    """Sets the masks of rows with different numbers."""
    others = rows[numbers, TRAINED] & ~CHUNKS_MASK
    rows[numbers, TRAINED] = others | (masks.astype(np.uint64) << STATE_BITS)


def masks_of(rows: RowStates, numbers: I64) -> U8:
    """The masks of some rows."""
    masks: U8 = ((rows[numbers, TRAINED] & CHUNKS_MASK) >> STATE_BITS).astype(np.uint8)
    return masks


def is_any_unwritten(rows: RowStates) -> bool:
    """Whether the PS lacks the newest value of any row, except replicated ones."""
    return bool(np.isin(rows[:, TRAINED] & STATE_MASK, (OWNED, SPLIT)).any())


@kernel
def state_of(rows: RowStates, row: int) -> int:
    return int(rows[row, TRAINED] & STATE_MASK)


@kernel
def step_of(rows: RowStates, row: int) -> int:
    """The step that last trained the row."""
    return int(rows[row, TRAINED] >> STEP_AT)


@kernel
def live_chunks(rows: RowStates, row: int) -> int:
    """The number of live chunks of the row."""
    left = rows[row, TRAINED] & CHUNKS_MASK
    count = 0
    while left != 0:
        left &= left - np.uint64(1)
        count += 1
    return count


@kernel
def set_state(rows: RowStates, row: int, state: int) -> None:
    rows[row, TRAINED] = (rows[row, TRAINED] & ~STATE_MASK) | np.uint64(state)


@kernel
def set_trained(rows: RowStates, row: int, step: int, state: int) -> None:
    rows[row, TRAINED] = (np.uint64(step) << STEP_AT) | (rows[row, TRAINED] & CHUNKS_MASK) | np.uint64(state)


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


def gather(rows: RowStates, rows_U: I64) -> tuple[U8, U64]:
    """State and holders of some rows: [U] and [U, Q]."""
    state_U = np.empty(rows_U.size, np.uint8)
    holders_UQ = np.empty((rows_U.size, rows.shape[1] - 1), np.uint64)
    _gather(ranges_for(rows_U.size), rows, rows_U, state_U, holders_UQ)
    return state_U, holders_UQ


@threaded
def _gather(ranges: int, rows: RowStates, rows_U: I64, state_U: U8, holders_UQ: U64) -> None:
    for k in prange(ranges):
        _gather_range(k, ranges, rows, rows_U, state_U, holders_UQ)


@kernel
def _gather_range(k: int, ranges: int, rows: RowStates, rows_U: I64, state_U: U8, holders_UQ: U64) -> None:
    first, end = range_of(k, ranges, rows_U.size)
    for u in range(first, end):
        row = rows_U[u]
        state_U[u] = rows[row, TRAINED] & STATE_MASK
        for q in range(holders_UQ.shape[1]):
            holders_UQ[u, q] = rows[row, 1 + q]
