"""The fastest plain loop: every kernel of a step captured as one CUDA graph, the limit of what a worker can reach.

It knows all rows beforehand and gets the distinct rows of a batch with it, padded to one number with a spare row, since
a graph has fixed sizes. Its gradients are summed in any order, so its results have no fixed bits: it is a limit to
measure, not a way to train.

Legend: B samples, F keys per sample, N dense inputs, R rows, U distinct rows of a batch and their padding, W columns of
a value, S of its state.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from infra.run.settings import Settings
from ps.start import start_rows
from trainer.models.registry import build_model
from trainer.rows import RowOptimizer, float_type

WARM_UPS = 3
"""Steps before the capture, in which libraries set themselves up."""


class KnownBatch(NamedTuple):
    """A batch whose keys have been resolved, in the processor's memory."""

    rows_U: Tensor
    positions_BF: Tensor
    dense_BN: Tensor
    labels_B: Tensor


class CapturedLoop:
    """Trains batches of one size, each by one launch."""

    def __init__(self, settings: Settings, keys_R: NDArray[np.uint64], like: KnownBatch, device: torch.device) -> None:
        """keys_R: all keys of all batches. like: a batch of the size of all, whose number of rows is the most."""
        schema = settings.event_schema
        rows = settings.scaled_rows
        dtype = float_type(rows)
        self._dim = rows.dim
        self._spare = keys_R.size
        self._model = build_model(
            config=settings.model,
            fields=schema.singles,
            dim=rows.dim,
            dense=schema.dense,
            seed=settings.seed,
            dtype=dtype,
            device=device,
            crosses=len(schema.crosses),
        )
        self._dense = torch.optim.Adam(
            self._model.parameters(), lr=settings.model.dense_rate, fused=True, capturable=True
        )
        self._sparse = RowOptimizer(rows, device)
        start_RT = torch.from_numpy(start_rows(rows, settings.seed, np.append(keys_R, keys_R[:1]))).to(device)
        width = rows.shape().value
        self._values_RW = start_RT[:, :width].contiguous()
        self._state_RS = start_RT[:, width:].contiguous()
        self._inputs = KnownBatch(*(array.to(device) for array in like))
        self._logits_B = torch.empty(0)
        self._graph = torch.cuda.CUDAGraph()
        self._capture()

    def _capture(self) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        self._dense.zero_grad()
        with torch.cuda.graph(self._graph):
            self._step()

    def _step(self) -> None:
        rows_U, positions_BF, dense_BN, labels_B = self._inputs
        values_UW = self._values_RW.index_select(0, rows_U).requires_grad_()
        values_BFW = values_UW.index_select(0, positions_BF.view(-1)).view(*positions_BF.shape, -1)
        embeddings_BED = values_BFW[:, : self._model.fields, : self._dim]
        wide_BF = values_BFW[:, :, self._dim] if values_BFW.shape[2] > self._dim else None
        logits_B = self._model(embeddings_BED, wide_BF, dense_BN)
        self._dense.zero_grad()
        torch.autograd.backward(functional.binary_cross_entropy_with_logits(logits_B, labels_B))
        self._dense.step()
        assert values_UW.grad is not None, "the rows took no part in the forward pass"
        state_US = self._state_RS.index_select(0, rows_U)
        new_UW = values_UW.detach()
        self._sparse.update_(new_UW, state_US, values_UW.grad)
        self._values_RW.index_copy_(0, rows_U, new_UW)
        self._state_RS.index_copy_(0, rows_U, state_US)
        self._logits_B = logits_B.detach()

    def train(self, batch: KnownBatch) -> NDArray[np.float32]:
        """Predicts a batch, then trains on it; returns the logits, for which it waits."""
        for held, given in zip(self._inputs, batch, strict=True):
            held[: len(given)].copy_(given)
        self._inputs.rows_U[len(batch.rows_U) :].fill_(self._spare)
        self._graph.replay()
        logits_B: NDArray[np.float32] = self._logits_B.to(torch.float32).cpu().numpy()
        return logits_B
