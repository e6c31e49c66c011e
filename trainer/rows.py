"""The sparse optimizers on tensors: how one gradient each changes many rows, in place.

The formulas are those of the parameter server, so it does not matter where a row is trained. Gradients are those of the
mean loss of the whole batch; with g the gradient of an embedding column:

* sgd: v -= rate·g
* adagrad: G += g²; v -= rate·g / (√G + eps), one G per column
* rowwise_adagrad: G += mean of g²; v -= rate·g / (√G + eps), one G per row

The wide column does the same with ``wide_rate`` and, in both Adagrads, a separate G (the last of the state).

Legend: K rows, D embedding columns, W columns of a value, S of the state.
"""

import torch
from torch import Tensor

from ps.config import RowConfig


class RowOptimizer:
    """Applies a run's sparse optimizer to rows copied from a cache or a table."""

    def __init__(self, config: RowConfig, device: torch.device) -> None:
        rates = [config.rate] * config.dim + [config.wide_rate] * int(config.wide)
        self._name = config.optimizer
        self._dim = config.dim
        self._eps = config.eps
        self._rates_W = torch.tensor(rates, dtype=float_type(config), device=device)

    def update_(self, values_KW: Tensor, state_KS: Tensor, gradients_KW: Tensor) -> None:
        """Changes values and state in place by one gradient per row."""
        scaled_KW = gradients_KW * self._rates_W
        if self._name == "sgd":
            values_KW.sub_(scaled_KW)
        elif self._name == "adagrad":
            state_KS.addcmul_(gradients_KW, gradients_KW)
            values_KW.addcdiv_(scaled_KW, state_KS.sqrt().add_(self._eps), value=-1)
        else:
            self._rowwise_(values_KW, state_KS, gradients_KW, scaled_KW)

    def _rowwise_(self, values_KW: Tensor, state_KS: Tensor, gradients_KW: Tensor, scaled_KW: Tensor) -> None:
        dim = self._dim
        embedding_KD = gradients_KW[:, :dim]
        wide_K1 = gradients_KW[:, dim:]
        state_KS[:, :1].add_(embedding_KD.square().mean(1, keepdim=True))
        state_KS[:, 1:].addcmul_(wide_K1, wide_K1)
        roots_KS = state_KS.sqrt().add_(self._eps)
        values_KW[:, :dim].addcdiv_(scaled_KW[:, :dim], roots_KS[:, :1], value=-1)
        values_KW[:, dim:].addcdiv_(scaled_KW[:, dim:], roots_KS[:, 1:], value=-1)


def float_type(config: RowConfig) -> torch.dtype:
    """The floating point type of a run's rows, model and gradients."""
    return torch.float64 if config.float_dtype == "float64" else torch.float32


def look_up(values_KW: Tensor, positions_BF: Tensor) -> Tensor:
    """values[positions], with a gradient that is always summed in the same order.

    On the CPU ``index_select`` sums its gradient in the order of the positions and is faster; on CUDA it adds
    atomically, in any order, while ``embedding`` sorts first.
    """
    if values_KW.is_cuda:
        return torch.nn.functional.embedding(positions_BF, values_KW)
    return values_KW.index_select(0, positions_BF.view(-1)).view(*positions_BF.shape, -1)
