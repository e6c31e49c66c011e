"""The sparse optimizers: how one gradient changes one row, in place.

Gradients are those of the summed loss of the whole batch, divided by the size of a full batch. Arithmetic stays in the
rows' floating point type, as it does in a worker's cache, so it does not matter where a row is trained. For embedding
columns, with g the gradient:

* sgd              v -= rate·g
* adagrad          G += g²; v -= rate·g / (√G + eps), one G a column
* rowwise_adagrad  G += mean of g²; v -= rate·g / (√G + eps), one G a row

The wide column does the same with ``wide_rate`` and, in both Adagrads, a G of its own (the last of the state).

Legend: K rows, W columns of a value, T of value and state.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from infra.base.kernels import kernel
from ps.config import RowConfig

SGD = 0
ADAGRAD = 1
ROWWISE_ADAGRAD = 2
_CODES = {"sgd": SGD, "adagrad": ADAGRAD, "rowwise_adagrad": ROWWISE_ADAGRAD}


class Rule(NamedTuple):
    """A row optimizer as kernels take it; the floats have the rows' type."""

    code: int
    dim: int
    wide: bool
    rate: Any
    wide_rate: Any
    eps: Any


def rule_of(config: RowConfig) -> Rule:
    as_float = np.dtype(config.float_dtype).type
    return Rule(
        code=_CODES[config.optimizer],
        dim=config.dim,
        wide=config.wide,
        rate=as_float(config.rate),
        wide_rate=as_float(config.wide_column_rate),
        eps=as_float(config.eps),
    )


@kernel
def update_row(rule: Any, row_T: Any, gradient_W: Any) -> None:
    """Inside a kernel: applies one gradient to one row."""
    if rule.code == SGD:
        _sgd(rule, row_T, gradient_W)
    elif rule.code == ADAGRAD:
        _adagrad(rule, row_T, gradient_W)
    else:
        _rowwise_adagrad(rule, row_T, gradient_W)


@kernel
def _sgd(rule: Any, row_T: Any, gradient_W: Any) -> None:
    for c in range(rule.dim):
        row_T[c] -= rule.rate * gradient_W[c]
    if rule.wide:
        row_T[rule.dim] -= rule.wide_rate * gradient_W[rule.dim]


@kernel
def _adagrad(rule: Any, row_T: Any, gradient_W: Any) -> None:
    width = gradient_W.shape[0]
    for c in range(width):
        rate = rule.rate if c < rule.dim else rule.wide_rate
        gradient = gradient_W[c]
        total = row_T[width + c] + gradient * gradient
        row_T[width + c] = total
        row_T[c] -= rate * gradient / (np.sqrt(total) + rule.eps)


@kernel
def _rowwise_adagrad(rule: Any, row_T: Any, gradient_W: Any) -> None:
    width = gradient_W.shape[0]
    squares = row_T.dtype.type(0)
    for c in range(rule.dim):
        squares += gradient_W[c] * gradient_W[c]
    total = row_T[width] + squares / row_T.dtype.type(rule.dim)
    row_T[width] = total
    for c in range(rule.dim):
        row_T[c] -= rule.rate * gradient_W[c] / (np.sqrt(total) + rule.eps)
    if rule.wide:
        gradient = gradient_W[rule.dim]
        total = row_T[width + 1] + gradient * gradient
        row_T[width + 1] = total
        row_T[rule.dim] -= rule.wide_rate * gradient / (np.sqrt(total) + rule.eps)


@kernel
def update_rows(rule: Any, rows_KT: Any, gradients_KW: Any) -> None:
    """Applies one gradient to each row, in place."""
    for k in range(rows_KT.shape[0]):
        update_row(rule, rows_KT[k], gradients_KW[k])


def update_reference(config: RowConfig, rows_KT: NDArray[Any], gradients_KW: NDArray[Any]) -> NDArray[Any]:
    """The rows after one gradient each, in plain numpy."""
    dim = config.dim
    width = config.shape().value
    rates_W = np.array([config.rate] * dim + [config.wide_column_rate] * int(config.wide), rows_KT.dtype)
    values_KW = rows_KT[:, :width]
    state_KS = rows_KT[:, width:]
    squares_KW = gradients_KW * gradients_KW
    if config.optimizer == "sgd":
        changed_KT: NDArray[Any] = values_KW - rates_W * gradients_KW
        return changed_KT
    if config.optimizer == "rowwise_adagrad":
        squares_KS = np.hstack([squares_KW[:, :dim].mean(axis=1, keepdims=True), squares_KW[:, dim:]])
        state_KS = state_KS + squares_KS
        scale_KW = np.hstack([np.repeat(state_KS[:, :1], dim, axis=1), state_KS[:, 1:]])
    else:
        state_KS = scale_KW = state_KS + squares_KW
    eps = rows_KT.dtype.type(config.eps)
    return np.hstack([values_KW - rates_W * gradients_KW / (np.sqrt(scale_KW) + eps), state_KS])
