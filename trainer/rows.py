"""The sparse optimizers on tensors: how one gradient each changes many rows, in place.

The formulas are those of the parameter server, so it does not matter where a row is trained. Gradients are those of the
loss summed over the whole batch and divided by the size of a full batch: a sample moves a row as far in a small batch
as in a full one. With g the gradient of an embedding column:

* sgd: v -= rate·g
* adagrad: G += g²; v -= rate·g / (√G + eps), one G per column
* rowwise_adagrad: G += mean of g²; v -= rate·g / (√G + eps), one G per row

The wide column does the same with ``wide_rate`` and, in both Adagrads, a separate G (the last of the state).

Legend: K rows, D embedding columns, W columns of a value, S of the state, J chunks of a row.
"""

import numpy as np
import torch
from torch import Tensor

from ps.columns import KeptColumns, is_kept
from ps.config import RowConfig


class RowOptimizer:
    """Applies a run's sparse optimizer to rows copied from a cache or a table.

    If rows can be pruned, it also adds to the utilities of their chunks, and leaves pruned chunks as they are.
    """

    def __init__(self, config: RowConfig, device: torch.device) -> None:
        self._shape = config.shape()
        self._is_weighed_by_gradient = config.utility == "gradient"
        rates = [config.rate] * config.dim + [config.wide_column_rate] * int(config.wide)
        self._name = config.optimizer
        self._dim = config.dim
        self._eps = config.eps
        self._rates_W = torch.tensor(rates, dtype=float_type(config), device=device)

    def update_(
        self,
        values_KW: Tensor,
        state_KS: Tensor,
        gradients_KW: Tensor,
        uses_K: Tensor | None = None,
        weight: float = 0.0,
    ) -> None:
        """Changes values and state in place by one gradient per row.

        uses_K, weight: how often each row was used and what a use adds to a utility, if rows can be pruned.
        """
        if self._shape.chunks:
            assert uses_K is not None, "rows that can be pruned were updated without their uses"
            gradients_KW = self._weigh_(state_KS, gradients_KW, uses_K, weight)
            state_KS = state_KS[:, : self._shape.optimizer_state]
        scaled_KW = gradients_KW * self._rates_W
        if self._name == "sgd":
            values_KW.sub_(scaled_KW)
        elif self._name == "adagrad":
            state_KS.addcmul_(gradients_KW, gradients_KW)
            values_KW.addcdiv_(scaled_KW, state_KS.sqrt().add_(self._eps), value=-1)
        else:
            self._rowwise_(values_KW, state_KS, gradients_KW, scaled_KW)

    def _weigh_(self, state_KS: Tensor, gradients_KW: Tensor, uses_K: Tensor, weight: float) -> Tensor:
        """Adds to the utilities; returns the gradients without those of pruned chunks."""
        chunks = self._shape.chunks
        first = self._shape.optimizer_state
        gradients_KJc = gradients_KW[:, : self._dim].reshape(len(gradients_KW), chunks, self._dim // chunks)
        used_KJ = uses_K.unsqueeze(1).expand(-1, chunks)
        if self._is_weighed_by_gradient:
            used_KJ = used_KJ * gradients_KJc.square().sum(2).sqrt()
        state_KS[:, first : first + chunks] += used_KJ * weight
        masks_K1 = state_KS[:, -1:].to(torch.int64)
        is_live_KJ = masks_K1.bitwise_right_shift(torch.arange(chunks, device=masks_K1.device)).bitwise_and(1)
        live_KD = (gradients_KJc * is_live_KJ.unsqueeze(2)).flatten(1)
        return torch.cat([live_KD, gradients_KW[:, self._dim :]], 1)

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


def kept_mask(config: RowConfig, kept: KeptColumns, device: torch.device) -> Tensor:
    """By value column, 1 if rows have kept it, and 0 if all have dropped it."""
    is_kept_W = np.append(is_kept(config.dim, kept), np.ones(int(config.wide), np.bool_))
    return torch.from_numpy(is_kept_W).to(device, float_type(config))


def summed_over(gradients_KW: Tensor, batch: int, full: int | None) -> Tensor:
    """Gradients of the mean loss of a batch, as those of its summed loss in units of a full batch; None: it is one."""
    return gradients_KW if full is None or batch == full else gradients_KW * (batch / full)


def look_up(values_KW: Tensor, positions_BF: Tensor) -> Tensor:
    """values[positions], with a gradient that is always summed in the same order.

    On the CPU ``index_select`` sums its gradient in the order of the positions and is faster; on CUDA it adds
    atomically, in any order, while ``embedding`` sorts first.
    """
    if values_KW.is_cuda:
        return torch.nn.functional.embedding(positions_BF, values_KW)
    return values_KW.index_select(0, positions_BF.reshape(-1)).view(*positions_BF.shape, -1)
