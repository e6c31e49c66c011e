"""The rows of one snapshot: values by row number, found by key, without optimizer state.

A key that the table does not know, because it never occurred, was rare or was forgotten, has the value of the row that
rare keys of its field share; if there is none, exactly the value that training would start its row with: zeros if
training has no memory for its chunks.

Legend: B samples, F keys a sample, K rows, W columns of a value.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from infra.base.wire import NO_U8
from ps.columns import KeptColumns, is_kept
from ps.config import RowConfig
from ps.keys import usable
from ps.start import start_rows
from serving.rows.index import KeyIndex
from serving.rows.values import PrunedValues, WholeValues

DTYPES = {"float32": torch.float32, "float16": torch.float16}


class RowTable:
    """Values by key, on the CPU or a GPU; the index is on the CPU."""

    def __init__(
        self,
        config: RowConfig,
        seed: int,
        dtype: torch.dtype,
        device: torch.device,
        rare_F: NDArray[np.uint64] | None = None,
        kept: KeptColumns = (),
    ) -> None:
        """rare_F: the key of the row that rare keys of each column share; None: there is none. kept: the embedding
        columns that rows have kept; empty: all.
        """
        self.kept = kept
        self._rare_F = rare_F
        self._config = config
        self._seed = seed
        self._device = device
        self._width = config.shape().value
        self._index = KeyIndex()
        self._values: PrunedValues | WholeValues
        if config.chunks:
            self._values = PrunedValues(config, self._index.capacity, dtype, device, kept)
        else:
            self._values = WholeValues(config, self._index.capacity, dtype, device)
        self.are_new_keys_bare = False
        """Whether training would begin a new key with all its chunks pruned."""

    def __len__(self) -> int:
        """Keys known."""
        return self._index.known

    @property
    def nbytes(self) -> int:
        return self._index.nbytes + self._values.nbytes

    def reserve(self, rows: int, chunks: int = 0) -> None:
        """Makes room for that many row numbers in total, and for an eighth more than before at least; and for that many
        live chunks in total, if rows have any.
        """
        self._index.reserve(rows)
        self._values.reserve(self._index.capacity, chunks)

    def put(
        self,
        numbers_K: NDArray[np.int64],
        keys_K: NDArray[np.uint64],
        values_KW: NDArray[Any],
        masks_K: NDArray[np.uint8] = NO_U8,
    ) -> None:
        """Sets the keys, or FREE, and the values of row numbers, each of which may occur once; see ``enter``.

        masks_K: the live chunks of each row, if rows have any.
        """
        self._index.assign(numbers_K, keys_K)
        self._values.put(numbers_K, values_KW, masks_K)

    def enter(self) -> int:
        """Makes what was put known, and gives idle memory back; returns how many rows have the key of another one."""
        self._values.compact()
        return self._index.enter()

    def look_up(self, keys_BF: NDArray[np.uint64]) -> Tensor:
        """The values of keys in float32, B × F × W."""
        keys_K = usable(np.ascontiguousarray(keys_BF).reshape(-1))
        numbers_K = self._index.find(keys_K)
        (unknown,) = np.nonzero(numbers_K < 0)
        if unknown.size and self._rare_F is not None:
            numbers_K[unknown] = self._index.find(self._rare_F)[unknown % self._rare_F.size]
            unknown = unknown[numbers_K[unknown] < 0]
        numbers_K[unknown] = 0  # any row, to keep the lookup in range; overwritten below
        found_KW = self._values.select(numbers_K)
        if unknown.size and self.are_new_keys_bare:
            found_KW[torch.from_numpy(unknown).to(self._device)] = 0
        elif unknown.size:
            start_KW = start_rows(self._config, self._seed, keys_K[unknown])[:, : self._width].astype(np.float32)
            start_KW[:, np.flatnonzero(~is_kept(self._config.dim, self.kept))] = 0
            found_KW[torch.from_numpy(unknown).to(self._device)] = torch.from_numpy(start_KW).to(self._device)
        return found_KW.view(*keys_BF.shape, self._width)


def look_up_reference(
    rows: dict[int, list[float]], config: RowConfig, seed: int, keys_BF: NDArray[np.uint64]
) -> NDArray[np.float32]:
    """What ``RowTable.look_up`` must return, computed with a dictionary."""
    width = config.shape().value
    start = {key: start_rows(config, seed, np.array([key], np.uint64))[0, :width] for key in keys_BF.reshape(-1)}
    found = [rows.get(int(key), start[key]) for key in keys_BF.reshape(-1)]
    return np.array(found, np.float32).reshape(*keys_BF.shape, width)
