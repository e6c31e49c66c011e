"""A worker's cache of rows: values in one tensor and optimizer state in another, addressed by slot.

The dispatcher knows which row is in which slot, what is evicted and what is outdated; the cache only moves numbers
between slots and messages. It takes no part in autograd.

Legend: C slots, K rows of one transfer, W columns of a value, S of its state, T = W + S, P of a part.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ps.protocol import RowShape


class RowCache:
    """values_CW and state_CS on one device."""

    def __init__(self, slots: int, shape: RowShape, dtype: torch.dtype, device: torch.device) -> None:
        self.values_CW = torch.zeros(slots, shape.value, dtype=dtype, device=device)
        self.state_CS = torch.zeros(slots, shape.state, dtype=dtype, device=device)
        self._part_state = shape.part - shape.value
        self._part = shape.part
        self._total = shape.total
        self._float = self.values_CW.new_empty(0, device="cpu").numpy().dtype
        self._device = device

    def take_full(self, slots_K: NDArray[np.int32]) -> NDArray[Any]:
        """[value | state] of the slots, as a fresh array that a message may keep."""
        if not slots_K.size:
            return np.empty((0, self._total), self._float)
        index_K = self.index(slots_K)
        pair = (self.values_CW.index_select(0, index_K), self.state_CS.index_select(0, index_K))
        rows_KT: NDArray[Any] = torch.cat(pair, 1).cpu().numpy()
        return rows_KT

    def take_parts(self, slots_K: NDArray[np.int32]) -> NDArray[Any]:
        """Parts of split rows: gradients and, if rows can be pruned, uses and weight; a fresh array."""
        if not slots_K.size:
            return np.empty((0, self._part), self._float)
        index_K = self.index(slots_K)
        parts = self.values_CW.index_select(0, index_K)
        if self._part_state:
            parts = torch.cat([parts, self.state_CS[:, : self._part_state].index_select(0, index_K)], 1)
        part_KP: NDArray[Any] = parts.cpu().numpy()
        return part_KP

    def put_uses(self, index_K: Tensor, uses_K: Tensor, weight: float) -> None:
        """Notes, beside the parts in these slots, how often the rows were used and what a use weighs; the state of a
        split row is of no use to anyone.
        """
        self.state_CS[index_K, 0] = uses_K
        self.state_CS[index_K, 1] = weight

    def put_full(self, slots_K: NDArray[np.int32], rows_KT: NDArray[Any]) -> None:
        """Writes [value | state] rows into the slots."""
        if not slots_K.size:
            return
        index_K = self.index(slots_K)
        tensor_KT = self.tensor(rows_KT)
        width = self.values_CW.shape[1]
        self.values_CW.index_copy_(0, index_K, tensor_KT[:, :width])
        self.state_CS.index_copy_(0, index_K, tensor_KT[:, width:])

    def put_values(self, slots_K: NDArray[np.int32], values_KW: NDArray[Any]) -> None:
        """Writes values into the slots and leaves their state unchanged: nobody will use it."""
        if slots_K.size:
            self.values_CW.index_copy_(0, self.index(slots_K), self.tensor(values_KW))

    def index(self, slots_K: NDArray[np.int32]) -> Tensor:
        """Slots, or positions, in the form that torch requires."""
        if self._device.type == "cuda":
            return self._upload(slots_K, torch.int32).to(torch.int64)
        return torch.from_numpy(slots_K.astype(np.int64))

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """A received array on the cache's device, without a copy if torch can use it in place."""
        received = torch.from_numpy(np.require(array, requirements="W"))
        return self._upload(array, received.dtype) if self._device.type == "cuda" else received

    def _upload(self, array: NDArray[Any], dtype: torch.dtype) -> Tensor:
        """Copies an array to the GPU without waiting for it: only memory that is page-locked can be copied so."""
        staged = torch.empty(array.shape, dtype=dtype, pin_memory=True)
        np.copyto(staged.numpy(), array)
        return staged.to(self._device, non_blocking=True)
