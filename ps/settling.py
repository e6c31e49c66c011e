"""How the summed parts of a split row change it if rows are in chunks.

A part is [gradient | uses | weight]: the gradient of one worker's samples, how often they used the row, and what a use
weighs in that step (ps/utilities.py). For each row, in order:

1. Every chunk's utility grows by (uses · norm) · weight, in the rows' floating point type. The norm is that of the
   chunk's gradient, which a pruned one has, too; if uses alone count, it is 1.
2. Gradients of pruned chunks become 0.
3. The optimizer is applied once.

Legend: K rows, P columns of a part, T of value and state, W of a value.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from infra.base.kernels import kernel
from ps.config import RowConfig
from ps.optimizers import update_reference, update_row


class Chunking(NamedTuple):
    """The chunks of a row, as kernels take them."""

    chunks: int
    width: int
    """Columns of a chunk."""
    first_utility: int
    """The column of a row that holds the utility of its first chunk."""
    by_gradient: bool
    """Whether the norm of a gradient counts, or uses alone."""


def chunking_of(config: RowConfig) -> Chunking:
    """Raises ValueError for whole rows."""
    if not config.chunks:
        raise ValueError("rows are whole; expected chunks; set rows.chunks")
    shape = config.shape()
    return Chunking(
        chunks=config.chunks,
        width=config.dim // config.chunks,
        first_utility=shape.value + shape.optimizer_state,
        by_gradient=config.utility == "gradient",
    )


@kernel
def settle_row(rule: Any, chunking: Any, row_T: Any, part_P: Any) -> None:
    """Inside a kernel: applies the sum of a row's parts to the row; the gradients of pruned chunks become 0 in it."""
    width = part_P.shape[0] - 2
    uses = part_P[width]
    weight = part_P[width + 1]
    mask = int(row_T[row_T.shape[0] - 1])
    for chunk in range(chunking.chunks):
        first = chunk * chunking.width
        norm = row_T.dtype.type(1)
        if chunking.by_gradient:
            squares = row_T.dtype.type(0)
            for c in range(first, first + chunking.width):
                squares += part_P[c] * part_P[c]
            norm = np.sqrt(squares)
        row_T[chunking.first_utility + chunk] += (uses * norm) * weight
        if not mask >> chunk & 1:
            part_P[first : first + chunking.width] = 0
    update_row(rule, row_T, part_P[:width])


@kernel
def settle_rows(rule: Any, chunking: Any, rows_KT: Any, parts_KP: Any) -> None:
    """Applies the summed parts of each row, in place."""
    for k in range(rows_KT.shape[0]):
        settle_row(rule, chunking, rows_KT[k], parts_KP[k])


def settle_rows_reference(config: RowConfig, rows_KT: NDArray[Any], parts_KP: NDArray[Any]) -> NDArray[Any]:
    """The rows after the summed parts of each, in plain numpy."""
    shape = config.shape()
    chunking = chunking_of(config)
    gradients_KW = parts_KP[:, : shape.value].copy()
    utilities = rows_KT[:, chunking.first_utility : -1].copy()
    masks_K = rows_KT[:, -1].astype(np.int64)
    for chunk in range(chunking.chunks):
        columns = gradients_KW[:, chunk * chunking.width : (chunk + 1) * chunking.width]
        norm_K = np.ones(len(rows_KT), rows_KT.dtype)
        if chunking.by_gradient:
            squares_K = np.zeros(len(rows_KT), rows_KT.dtype)
            for column_K in columns.T:
                squares_K = squares_K + column_K * column_K
            norm_K = np.sqrt(squares_K)
        utilities[:, chunk] += (parts_KP[:, -2] * norm_K) * parts_KP[:, -1]
        columns[masks_K >> chunk & 1 == 0] = 0
    updated = update_reference(config, rows_KT[:, : chunking.first_utility], gradients_KW)
    return np.hstack([updated, utilities, rows_KT[:, -1:]])
