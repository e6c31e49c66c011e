"""The plain way to train the same model: one process, whole batches, every row in one table.

It shares the models, start values and formulas with the workers and nothing of their machinery (no cache, no slots, no
messages, no flat weights): what n workers compute must equal this, and one worker must not be much slower.

Legend: B samples, F keys per sample, N dense inputs, R known rows, U rows of a batch, K new rows, D embedding columns,
W columns of a value, S of its state, J chunks of a row.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ps.bins import BINS
from ps.columns import KeptColumns, is_kept
from ps.config import RowConfig
from ps.start import start_rows
from ps.utilities import LOWEST_EXPONENT, bins_reference
from trainer.config import ModelConfig
from trainer.labels import smoothed
from trainer.models.layers import Pools
from trainer.models.registry import build_model
from trainer.rows import RowOptimizer, float_type, kept_mask, summed_over

SMALLEST_TABLE = 1024


class Numbering:
    """Row numbers, assigned by first occurrence; those of forgotten keys are assigned again, the lowest first."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._used: dict[int, int] = {}
        """The last step that used each key."""
        self._free: list[int] = []

    def __len__(self) -> int:
        """Numbers assigned, including free ones."""
        return len(self._rows) + len(self._free)

    def number(
        self, keys_BF: NDArray[np.uint64], step: int = 0
    ) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]:
        """The row of each key; the new keys, in the order of their first use, and the rows they got."""
        keys_U, first_U, inverse = np.unique(keys_BF, return_index=True, return_inverse=True)
        rows_U = np.array([self._rows.get(key, -1) for key in keys_U.tolist()], np.int64)
        new_U = np.flatnonzero(rows_U < 0)
        new_U = new_U[np.argsort(first_U[new_U])]
        reused = self._free[: len(new_U)]
        rows_U[new_U] = [*reused, *range(len(self), len(self) + len(new_U) - len(reused))]
        self._free = self._free[len(reused) :]
        self._rows.update(zip(keys_U[new_U].tolist(), rows_U[new_U].tolist(), strict=True))
        self._used.update(dict.fromkeys(keys_U.tolist(), step))
        return rows_U[inverse].reshape(keys_BF.shape), keys_U[new_U], rows_U[new_U]

    def forget(self, before: int, kept: Collection[int] = ()) -> list[int]:
        """Forgets the keys that were last used before a step; returns the rows they had. kept: rows that stay."""
        forgotten = [key for key, step in self._used.items() if step < before and self._rows[key] not in kept]
        rows = [self._rows.pop(key) for key in forgotten]
        for key in forgotten:
            del self._used[key]
        self._free = sorted(self._free + rows)
        return rows

    def knows(self, key: int) -> bool:
        """Whether a key has been seen and not forgotten."""
        return key in self._rows

    def known(self) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """All keys that are known, and their rows."""
        rows = np.fromiter(self._rows.values(), np.int64, len(self._rows))
        return np.fromiter(self._rows, np.uint64, len(self._rows)), rows

    def row(self, key: int) -> int:
        """The row of a key that is known."""
        return self._rows[key]


class Reference:
    """Trains whole batches, one after the other."""

    def __init__(
        self,
        rows: RowConfig,
        model: ModelConfig,
        fields: int,
        dense: int,
        seed: int,
        device: str | torch.device = "cpu",
        batch: int | None = None,
        crosses: int = 0,
        pools: Pools = (),
        labels: int = 1,
    ) -> None:
        """fields: keys with embeddings. batch: samples of a full batch; None: every batch counts as full. crosses: keys
        after those of the fields. pools: the keys of each pooled table. labels: labels of a sample.
        """
        self._config = rows
        self._batch = batch
        self._seed = seed
        self._device = torch.device(device)
        self._dtype = float_type(rows)
        self._smoothing = model.label_smoothing
        self.numbering = Numbering()
        self.model = build_model(
            model, fields, rows.dim, dense, seed, self._dtype, self._device, crosses, pools, labels
        )
        optimizer = torch.optim.Adam if model.dense_optimizer == "adam" else torch.optim.SGD
        self._dense = optimizer(self.model.parameters(), lr=model.dense_rate, fused=True)
        self._sparse = RowOptimizer(rows, self._device)
        self._values_RW = torch.empty(0, rows.shape().value, dtype=self._dtype, device=self._device)
        self._state_RS = torch.empty(0, rows.shape().state, dtype=self._dtype, device=self._device)
        self._known = 0
        self.weight = 1.0
        """What a use of a row adds to the utilities of its chunks."""
        self._kept: KeptColumns = ()

    def step(
        self,
        keys_BF: NDArray[np.uint64],
        dense_BN: NDArray[np.float32],
        labels_B: NDArray[np.float32],
        step: int = 0,
        admit: Callable[[int], int] | None = None,
        weights_B: NDArray[np.float32] | None = None,
        shares_BP: NDArray[np.float32] | None = None,
        more_labels_BL: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:
        """Predicts a batch, then trains on it; returns the logits. step: its number, for ``forget``.

        admit: says how many of so many new rows get chunks, the first ones; None: all. weights_B: how much each sample
        counts; None: 1. shares_BP: those of the values of pooled tables. more_labels_BL: labels after the main one, NaN
        where there is none; the logits are then those of all labels (B × M).
        """
        rows_BF, new_keys, new_rows = self.numbering.number(keys_BF, step)
        self._put(new_rows, new_keys)
        if admit is not None:
            bare_J = np.zeros((len(new_rows) - (chunked := admit(len(new_rows))), self._config.chunks), np.bool_)
            self._reshape(new_rows[chunked:], bare_J, new_keys[chunked:])
        tensors = [torch.from_numpy(array).to(self._device) for array in (rows_BF, dense_BN, labels_B)]
        optional = [
            None if array is None else torch.from_numpy(array).to(self._device, self._dtype)
            for array in (weights_B, shares_BP, more_labels_BL)
        ]
        return self.train(tensors[0], tensors[1].to(self._dtype), tensors[2].to(self._dtype), *optional)

    def train(
        self,
        rows_BF: Tensor,
        dense_BN: Tensor,
        labels_B: Tensor,
        weights_B: Tensor | None = None,
        shares_BP: Tensor | None = None,
        more_labels_BL: Tensor | None = None,
    ) -> NDArray[np.float32]:
        """The same for row numbers that are known already."""
        labels_B = smoothed(labels_B, self._smoothing)
        rows_U, positions_BF = torch.unique(rows_BF, return_inverse=True)
        values_UW = self._values_RW.index_select(0, rows_U).requires_grad_()
        logits_B = self._forward(values_UW, positions_BF, dense_BN, shares_BP)
        if more_labels_BL is None:
            loss = functional.binary_cross_entropy_with_logits(logits_B, labels_B, weights_B)
        else:
            all_BM = torch.cat([labels_B.unsqueeze(1), smoothed(more_labels_BL, self._smoothing)], 1)
            losses_BM = functional.binary_cross_entropy_with_logits(logits_B, all_BM.nan_to_num(), reduction="none")
            losses_B = (losses_BM * ~torch.isnan(all_BM)).sum(1)
            loss = (losses_B if weights_B is None else losses_B * weights_B).mean()
        self._dense.zero_grad()
        torch.autograd.backward(loss)
        self._dense.step()
        self._update_rows(rows_U, values_UW, positions_BF)
        logits: NDArray[np.float32] = logits_B.detach().to(torch.float32).cpu().numpy()
        return logits

    def predict(self, keys_BF: NDArray[np.uint64], dense_BN: NDArray[np.float32]) -> NDArray[np.float32]:
        """The logits of samples whose keys are known."""
        rows_BF, _, _ = self.numbering.number(keys_BF)
        positions_BF = torch.from_numpy(rows_BF).to(self._device)
        with torch.no_grad():
            logits_B = self._forward(self._values_RW, positions_BF, torch.from_numpy(dense_BN).to(self._device))
        logits: NDArray[np.float32] = logits_B.to(torch.float32).cpu().numpy()
        return logits

    def grow(self, keys: NDArray[np.uint64]) -> None:
        """Appends the rows of new keys with their start values."""
        self._put(np.arange(self._known, self._known + len(keys)), keys)

    def forget(self, before: int, kept: Collection[int] = ()) -> None:
        """Forgets the keys that were last used before a step. kept: rows that stay."""
        rows = self.numbering.forget(before, kept)
        self._values_RW[rows] = 0
        self._state_RS[rows] = 0
        if self._config.chunks and self._config.optimizer == "adagrad":  # all chunks are pruned
            self._state_RS[rows, : self._config.dim] = self._config.initial_accumulator

    def count_chunks(self) -> NDArray[np.int64]:
        """Chunks by (whether they are live, chunk number, bin of the utility)."""
        chunks = self._config.chunks
        counts = np.zeros((2, chunks, BINS), np.int64)
        _, _, bins_KJ, is_live_KJ = self._chunks()
        for chunk in range(chunks):
            for is_live in (False, True):
                bins_K = bins_KJ[is_live_KJ[:, chunk] == is_live, chunk]
                counts[int(is_live), chunk] = np.bincount(bins_K, minlength=BINS)
        return counts

    def weigh_columns(self) -> NDArray[np.float64]:
        """Squared gradients of the embedding columns in all live chunks, with the start values of accumulators."""
        dim = self._config.dim
        _, rows_K, _, is_live_KJ = self._chunks()
        is_live_KD = np.repeat(is_live_KJ, dim // self._config.chunks, axis=1)
        accumulators_KD = self._state_RS[rows_K, :dim].cpu().numpy().astype(np.float64)
        weights_D: NDArray[np.float64] = np.where(is_live_KD, accumulators_KD, 0).sum(axis=0)
        return weights_D

    def prune(
        self, evict_below: Sequence[int], bring_from: Sequence[int], halvings: int = 0, columns: KeptColumns = ()
    ) -> None:
        """Prunes live chunks in lower bins, brings pruned ones in higher bins back, and then halves utilities.

        columns: the embedding columns that rows keep from now on; empty: those that they have.
        """
        if columns:
            self._kept = columns
            self._clear_dropped(np.arange(self._known))
        keys_K, rows_K, bins_KJ, is_live_KJ = self._chunks()
        stays_KJ = np.where(is_live_KJ, bins_KJ >= np.array(evict_below), bins_KJ >= np.array(bring_from))
        is_changed_K = (stays_KJ != is_live_KJ).any(axis=1)
        self._reshape(rows_K[is_changed_K], stays_KJ[is_changed_K], keys_K[is_changed_K])
        first = self._config.shape().optimizer_state
        utilities_RJ = self._state_RS[: self._known, first:-1]
        utilities_RJ *= 2.0**-halvings
        utilities_RJ[utilities_RJ < 2.0**LOWEST_EXPONENT] = 0

    def rows(self) -> NDArray[Any]:
        """[value | state] of every row, by row number."""
        tables = (self._values_RW[: self._known], self._state_RS[: self._known])
        rows_RT: NDArray[Any] = torch.cat(tables, 1).cpu().numpy()
        return rows_RT

    def dense_weights(self) -> dict[str, NDArray[Any]]:
        """Dense weights by name."""
        return {name: weight.detach().cpu().numpy() for name, weight in self.model.named_parameters()}

    def _put(self, rows: NDArray[np.int64], keys: NDArray[np.uint64]) -> None:
        """Gives rows keys and their start values."""
        self._known = max(self._known, int(rows.max(initial=-1)) + 1)
        self._reserve(self._known)
        width = self._config.shape().value
        rows_KT = torch.from_numpy(start_rows(self._config, self._seed, keys)).to(self._device)
        rows_K = torch.from_numpy(rows).to(self._device)
        self._values_RW[rows_K] = rows_KT[:, :width]
        self._state_RS[rows_K] = rows_KT[:, width:]
        self._clear_dropped(rows)

    def _clear_dropped(self, rows_K: NDArray[np.int64]) -> None:
        """Sets the columns of rows that were dropped to zero, and their accumulators to their start values."""
        (dropped,) = np.nonzero(~is_kept(self._config.dim, self._kept))
        if dropped.size:
            self._values_RW[rows_K[:, None], dropped] = 0
            self._state_RS[rows_K[:, None], dropped] = self._config.initial_accumulator

    def _chunks(self) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """The keys and rows that are known; by chunk, the bin of the utility and whether it is live."""
        keys_K, rows_K = self.numbering.known()
        chunks = self._config.chunks
        first = self._config.shape().optimizer_state
        state_KS = self._state_RS[rows_K].cpu().numpy()
        masks_K1 = state_KS[:, -1:].astype(np.int64)
        is_live_KJ = (masks_K1 >> np.arange(chunks) & 1).astype(np.bool_)
        return keys_K, rows_K, bins_reference(state_KS[:, first : first + chunks]), is_live_KJ

    def _reshape(self, rows_K: NDArray[np.int64], is_live_KJ: NDArray[np.bool_], keys_K: NDArray[np.uint64]) -> None:
        """Sets which chunks of rows are live. Those that were not begin anew; those that are not are zeros."""
        shape = self._config.shape()
        start_KT = start_rows(self._config, self._seed, keys_K)
        old_KT = torch.cat([self._values_RW[rows_K], self._state_RS[rows_K]], 1).cpu().numpy()
        was_live_KJ = (old_KT[:, -1:].astype(np.int64) >> np.arange(shape.chunks) & 1).astype(np.bool_)
        width = shape.dim // shape.chunks
        for chunk in range(shape.chunks):
            columns = slice(chunk * width, (chunk + 1) * width)
            states = slice(shape.value + columns.start, shape.value + columns.stop)
            is_new_K = is_live_KJ[:, chunk] & ~was_live_KJ[:, chunk]
            is_gone_K = ~is_live_KJ[:, chunk]
            old_KT[is_new_K, columns] = start_KT[is_new_K, columns]
            old_KT[is_gone_K, columns] = 0
            if self._config.optimizer == "adagrad":
                old_KT[is_new_K | is_gone_K, states] = self._config.initial_accumulator
        old_KT[:, -1] = (is_live_KJ << np.arange(shape.chunks)).sum(axis=1)
        rows_KT = torch.from_numpy(old_KT).to(self._device)
        self._values_RW[rows_K] = rows_KT[:, : shape.value]
        self._state_RS[rows_K] = rows_KT[:, shape.value :]
        self._clear_dropped(rows_K)

    def _forward(
        self, values_UW: Tensor, positions_BF: Tensor, dense_BN: Tensor, shares_BP: Tensor | None = None
    ) -> Tensor:
        values_BFW = functional.embedding(positions_BF, values_UW)
        if not self._config.wide:
            return self.model.score(values_BFW, None, dense_BN, shares_BP)
        embeddings_BFD, wide_BF1 = torch.split(values_BFW, [self._config.dim, 1], dim=2)
        return self.model.score(embeddings_BFD[:, : self.model.fields], wide_BF1.squeeze(2), dense_BN, shares_BP)

    def _update_rows(self, rows_U: Tensor, values_UW: Tensor, positions_BF: Tensor) -> None:
        uses_U = None
        if self._config.chunks:
            uses_U = torch.bincount(positions_BF.view(-1), minlength=len(rows_U)).to(self._dtype)
        assert values_UW.grad is not None, "the rows took no part in the forward pass"
        new_UW = values_UW.detach()
        state_US = self._state_RS.index_select(0, rows_U)
        gradients_UW = summed_over(values_UW.grad, len(positions_BF), self._batch)
        if self._kept:
            gradients_UW = gradients_UW * kept_mask(self._config, self._kept, self._device)
        self._sparse.update_(new_UW, state_US, gradients_UW, uses_U, self.weight)
        self._values_RW.index_copy_(0, rows_U, new_UW)
        self._state_RS.index_copy_(0, rows_U, state_US)

    def _reserve(self, needed: int) -> None:
        if needed > len(self._values_RW):
            room = max(SMALLEST_TABLE, 2 * needed)
            self._values_RW = _enlarged(self._values_RW, room)
            self._state_RS = _enlarged(self._state_RS, room)


def _enlarged(table: Tensor, rows: int) -> Tensor:
    larger = table.new_empty(rows, table.shape[1])
    larger[: len(table)] = table
    return larger
