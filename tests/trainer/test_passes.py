"""Forward and backward: a captured graph gives the bits of single kernels."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from ingest.schema import ListPool
from trainer import passes
from trainer.config import ModelConfig
from trainer.dense import Dense
from trainer.models.registry import build_model
from trainer.passes import CAPTURED_AFTER, MOST_GRAPHS, Graph, Graphs, MicroBatch, Pass, fetch

DIM = 8
FIELDS = 5
INPUTS = 3
SEED = 11

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


POOLS = (ListPool(3, 2),)
"""The last two keys are pooled."""


def micro_batches(
    count: int, width: int, device: str, samples: int = 96, has_all: bool = False
) -> Iterator[MicroBatch]:
    """has_all: with weights of samples, shares of pooled values, and a second label that some samples lack."""
    draw = torch.Generator().manual_seed(5)
    for _ in range(count):
        rows = int(torch.randint(20, 60, (1,), generator=draw))
        micro = MicroBatch(
            values_UW=torch.randn(rows, width, generator=draw).to(device),
            positions_bF=torch.randint(0, rows, (samples, FIELDS), generator=draw).to(device),
            dense_bN=torch.randn(samples, INPUTS, generator=draw).to(device),
            labels_b=torch.randint(0, 2, (samples,), generator=draw).float().to(device),
            batch=2 * samples,
        )
        if has_all:
            second_b1 = torch.randint(0, 2, (samples, 1), generator=draw).float()
            second_b1[::3] = torch.nan
            micro = micro._replace(
                weights_b=torch.rand(samples, generator=draw).to(device),
                shares_bP=torch.rand(samples, 2, generator=draw).to(device),
                more_labels_bL=second_b1.to(device),
            )
        yield micro


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("has_all", [False, True])
@pytest.mark.parametrize("name", ["dcn", "wdl", "deepfm", "dlrm"])
def test_a_graph_gives_the_bits_of_single_kernels(name: str, has_all: bool, wide: bool) -> None:
    config = ModelConfig(name=name, mlp=(64, 32), dense_rate=0.1)
    pools = POOLS if has_all else ()
    labels = 2 if has_all else 1
    model = build_model(config, FIELDS, DIM, INPUTS, SEED, torch.float32, torch.device("cuda"), 0, pools, labels)
    dense = Dense(model, config)
    graph = None
    was_anything = np.zeros(3, np.bool_)
    for micro in micro_batches(6, DIM + wide, "cuda", has_all=has_all):
        graph = graph or Graph(model, dense, DIM, micro)
        dense.clear()
        launched = Pass(model, DIM, micro)
        rows_UW = launched.backward()
        alone = [fetch(launched.logits_b)(), rows_UW.cpu().numpy(), dense.gradients.cpu().numpy()]
        replayed = graph.run(micro)
        captured = [fetch(replayed.logits_b)(), replayed.backward().cpu().numpy(), dense.gradients.cpu().numpy()]
        assert all(np.array_equal(one, other) for one, other in zip(alone, captured, strict=True))
        dense.step()
        was_anything |= [np.any(one != 0.0) for one in alone]
    assert was_anything.all()


def test_a_size_is_captured_when_it_has_come_often_and_only_so_many_are(monkeypatch: pytest.MonkeyPatch) -> None:
    captured: list[int] = []
    monkeypatch.setattr(passes, "Graph", lambda _model, _dense, _dim, like: captured.append(len(like.labels_b)))
    config = ModelConfig(mlp=(8,))
    model = build_model(config, FIELDS, DIM, INPUTS, SEED, torch.float32, torch.device("cpu"))
    graphs = Graphs(model, Dense(model, config), DIM)
    sizes = range(10, 10 + MOST_GRAPHS + 2)
    for times in range(1, CAPTURED_AFTER + 2):
        for size in sizes:
            (micro,) = micro_batches(1, DIM, "cpu", size)
            graphs.find(micro)
        assert len(captured) == (MOST_GRAPHS if times >= CAPTURED_AFTER else 0)
    assert captured == list(sizes)[:MOST_GRAPHS]


def test_logits_on_a_processor_are_there_at_once() -> None:
    logits_b = torch.tensor([0.5, -1.0], dtype=torch.float64, requires_grad=True)
    assert fetch(logits_b)().tolist() == [0.5, -1.0]
    assert fetch(logits_b)().dtype == np.float32
