"""Forward and backward of a micro-batch, from the values of its rows to their gradients.

A step of a click model is a hundred short kernels. To launch them one by one takes the processor longer than it takes a
GPU to run them. A graph, captured once for each size of micro-batch and then replayed, launches those of the dense part
all at once. Its memory is fixed: inputs are written into it, results are read from it. It has the kernels that run
without it, so its results have the same bits.

A size is captured once it has come several times: capturing takes as long as many steps, and a worker that is only
tried for a few should not be slowed down by it.

Legend: b samples of the micro-batch, F keys per sample, E of them whose embeddings the model uses, N dense inputs, U
rows it uses, D embedding columns, W columns of a value, P keys of pooled tables.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.dense import Dense
from trainer.models.layers import ClickModel
from trainer.rows import look_up

CAPTURED_AFTER = 4
"""Times that a size of micro-batch must have come before it is captured."""
MOST_GRAPHS = 8
"""Most sizes that are captured; others are launched kernel by kernel."""
WARM_UPS = 3
"""Runs before a capture, in which libraries set themselves up; capturing must not see that."""


class MicroBatch(NamedTuple):
    """The samples that a worker trains in a step."""

    values_UW: Tensor
    """Values of the rows that they use."""
    positions_bF: Tensor
    """The row that each key has."""
    dense_bN: Tensor
    labels_b: Tensor
    batch: int
    """Samples of all workers."""
    weights_b: Tensor | None = None
    """How much each sample counts; None: 1."""
    shares_bP: Tensor | None = None
    """Shares of the values of pooled tables; None: there are none."""
    more_labels_bL: Tensor | None = None
    """Labels after the main one, NaN where there is none; None: there is only one."""


class Pass:
    """Forward, and then backward, of one micro-batch, kernel by kernel."""

    def __init__(self, model: ClickModel, dim: int, micro: MicroBatch) -> None:
        """dim: embedding columns of a value."""
        self._micro = micro
        has_wide = micro.values_UW.shape[1] > dim
        self._embeddings_UD = micro.values_UW[:, :dim].detach().requires_grad_()
        self._wide_U1 = micro.values_UW[:, dim:].detach().requires_grad_() if has_wide else None
        wide_bF = None if self._wide_U1 is None else look_up(self._wide_U1, micro.positions_bF).squeeze(-1)
        embeddings_bED = look_up(self._embeddings_UD, micro.positions_bF[:, : model.fields])
        self._logits = model.score(embeddings_bED, wide_bF, micro.dense_bN, micro.shares_bP)
        self.logits_b, self.more_logits_bL = split_labels(self._logits)

    def backward(self) -> Tensor:
        """Gradients of the rows, [U, W]; those of the dense weights are added in their place."""
        micro = self._micro
        torch.autograd.backward(total_loss(self._logits, micro))
        assert self._embeddings_UD.grad is not None, "the embeddings took no part in the forward pass"
        if self._wide_U1 is None:
            return self._embeddings_UD.grad
        assert self._wide_U1.grad is not None, "the wide weights took no part in the forward pass"
        return torch.cat([self._embeddings_UD.grad, self._wide_U1.grad], 1)


def fetch(logits_b: Tensor) -> Callable[[], NDArray[np.float32]]:
    """Begins to copy logits to the processor's memory; the result waits for them."""
    logits_b = logits_b.detach().to(torch.float32).contiguous()
    if not logits_b.is_cuda:
        return logits_b.numpy
    copy_b = torch.empty(logits_b.shape, dtype=torch.float32, pin_memory=True)
    copy_b.copy_(logits_b, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record()

    def wait() -> NDArray[np.float32]:
        arrived.synchronize()
        return copy_b.numpy()

    return wait


def mean_loss(logits_b: Tensor, labels_b: Tensor, batch: int, weights_b: Tensor | None = None) -> Tensor:
    """The loss times the weights, summed over a micro-batch and divided by the size of the whole batch.

    It is divided by the number of samples, not by the sum of their weights: a sample of weight 2 moves the model as two
    equal samples do, whatever the others of its batch weigh.
    """
    summed = torch.nn.functional.binary_cross_entropy_with_logits(logits_b, labels_b, weights_b, reduction="sum")
    return summed / batch


def split_labels(logits: Tensor) -> tuple[Tensor, Tensor | None]:
    """The logits of the main label and, if there are several, of the others."""
    return (logits, None) if logits.dim() == 1 else (logits[:, 0], logits[:, 1:])


def total_loss(logits: Tensor, micro: MicroBatch) -> Tensor:
    """The loss of all labels; where a sample does not have a label, it has no loss."""
    logits_b, more_bL = split_labels(logits)
    loss = mean_loss(logits_b, micro.labels_b, micro.batch, micro.weights_b)
    if more_bL is None or micro.more_labels_bL is None:
        return loss
    known_bL = (~torch.isnan(micro.more_labels_bL)).to(more_bL.dtype)
    weights_bL = known_bL if micro.weights_b is None else known_bL * micro.weights_b.unsqueeze(1)
    return loss + mean_loss(more_bL, micro.more_labels_bL.nan_to_num(), micro.batch, weights_bL)


class Graph:
    """Forward and backward of a model for micro-batches of one size."""

    def __init__(self, model: ClickModel, dense: Dense, dim: int, like: MicroBatch) -> None:
        """dim: embedding columns of a value. like: a micro-batch of this size."""
        self._model = model
        self._dense = dense
        self._dim = dim
        self._values_bFW = like.values_UW.new_zeros(*like.positions_bF.shape, like.values_UW.shape[1]).requires_grad_()
        fixed = {name: torch.zeros_like(given) for name, given in _inputs(like).items()}
        self._micro = MicroBatch(
            values_UW=like.values_UW[:0], positions_bF=like.positions_bF[:0], batch=like.batch, **fixed
        )
        self._logits = self._micro.labels_b
        self._graph = torch.cuda.CUDAGraph()
        self._capture()

    def _capture(self) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._values_bFW.grad = None
                self._compute()
        torch.cuda.current_stream().wait_stream(stream)
        self._values_bFW.grad = None
        # other threads of the process may use the GPU meanwhile
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._compute()

    def _compute(self) -> None:
        self._dense.clear()
        embeddings_bED = self._values_bFW[:, : self._model.fields, : self._dim]
        has_wide = self._values_bFW.shape[2] > self._dim
        # as single kernels get it: with another layout the sum of wide weights would round differently
        wide_bF = self._values_bFW[:, :, self._dim].contiguous() if has_wide else None
        logits = self._model.score(embeddings_bED, wide_bF, self._micro.dense_bN, self._micro.shares_bP)
        self._logits = logits.detach()
        torch.autograd.backward(total_loss(logits, self._micro))

    def run(self, micro: MicroBatch) -> "GraphPass":
        """Starts forward and backward of a micro-batch; they are one."""
        flat = self._values_bFW.detach().view(-1, self._values_bFW.shape[2])
        torch.index_select(micro.values_UW, 0, micro.positions_bF.view(-1), out=flat)
        for name, given in _inputs(micro).items():
            getattr(self._micro, name).copy_(given)
        self._graph.replay()
        assert self._values_bFW.grad is not None, "the rows took no part in the forward pass"
        return GraphPass(*split_labels(self._logits), self._values_bFW.grad, micro)


def _inputs(micro: MicroBatch) -> dict[str, Any]:
    """What is copied into a graph's memory besides the values of rows."""
    names = ("dense_bN", "labels_b", "weights_b", "shares_bP", "more_labels_bL")
    return {name: given for name in names if (given := getattr(micro, name)) is not None}


class GraphPass(NamedTuple):
    """What a graph computes, in memory that its next run overwrites."""

    logits_b: Tensor
    more_logits_bL: Tensor | None
    gradients_bFW: Tensor
    micro: MicroBatch

    def backward(self) -> Tensor:
        """Gradients of the rows, [U, W], summed in the same order as without a graph; those of the dense weights are in
        their place.
        """
        micro = self.micro
        gradients_UW: Tensor = torch.ops.aten.embedding_dense_backward(
            self.gradients_bFW, micro.positions_bF, len(micro.values_UW), -1, False
        )
        return gradients_UW


class Graphs:
    """The graphs of one worker, by size of micro-batch and batch."""

    def __init__(self, model: ClickModel, dense: Dense, dim: int, batch: int | None = None) -> None:
        """batch: samples of a full batch; smaller ones still grow, and are not worth a graph. None: all are full."""
        self._model = model
        self._dense = dense
        self._dim = dim
        self._batch = batch
        self._times: Counter[tuple[int, int]] = Counter()
        self._captured: dict[tuple[int, int], Graph] = {}

    def find(self, micro: MicroBatch) -> Graph | None:
        """The graph for micro-batches like this one; None if they are not captured."""
        size = len(micro.positions_bF), micro.batch
        if self._batch is not None and micro.batch < self._batch:
            return None
        if size not in self._captured:
            self._times[size] += 1
            if self._times[size] < CAPTURED_AFTER or len(self._captured) >= MOST_GRAPHS:
                return None
            self._captured[size] = Graph(self._model, self._dense, self._dim, micro)
        return self._captured[size]
