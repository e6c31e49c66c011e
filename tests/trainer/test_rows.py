"""The sparse optimizers on tensors against formulas written out by hand, and against the PS's own."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from ps.config import OptimizerName, RowConfig
from ps.optimizers import rule_of, update_rows
from ps.settling import settle_rows_reference
from trainer.rows import RowOptimizer, look_up

CPU = torch.device("cpu")
DIM = 3


def configured(optimizer: OptimizerName, wide: bool = True) -> RowConfig:
    return RowConfig(dim=DIM, wide=wide, optimizer=optimizer, float_dtype="float64", rate=0.1, wide_rate=0.5)


def drawn(config: RowConfig, rows: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator, shape = np.random.default_rng(seed), config.shape()
    widths = (shape.value, shape.state, shape.value)
    values, state, gradients = (generator.normal(size=(rows, w)).astype(config.float_dtype) for w in widths)
    return torch.from_numpy(values), torch.from_numpy(np.abs(state)), torch.from_numpy(gradients)


def test_sgd_moves_against_the_gradient() -> None:
    values, state = torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64), torch.empty(1, 0, dtype=torch.float64)
    RowOptimizer(configured("sgd"), CPU).update_(values, state, torch.ones(1, 4, dtype=torch.float64))
    torch.testing.assert_close(values, torch.tensor([[0.9, 1.9, 2.9, 3.5]], dtype=torch.float64))


def test_adagrad_divides_by_the_root_of_summed_squares() -> None:
    values, state = torch.zeros(1, 4, dtype=torch.float64), torch.full((1, 4), 9.0, dtype=torch.float64)
    RowOptimizer(configured("adagrad"), CPU).update_(values, state, torch.full((1, 4), 4.0, dtype=torch.float64))
    torch.testing.assert_close(values, torch.tensor([[-0.08, -0.08, -0.08, -0.4]], dtype=torch.float64))
    torch.testing.assert_close(state, torch.full((1, 4), 25.0, dtype=torch.float64))


def test_rowwise_adagrad_shares_one_accumulator_but_for_the_wide_column() -> None:
    values, state = torch.zeros(1, 4, dtype=torch.float64), torch.tensor([[11.0, 9.0]], dtype=torch.float64)
    gradients = torch.tensor([[3.0, 3.0, 3.0 * 8**0.5 / 2, 4.0]], dtype=torch.float64)
    RowOptimizer(configured("rowwise_adagrad"), CPU).update_(values, state, gradients)
    mean_of_squares = (9 + 9 + 18) / 3
    torch.testing.assert_close(state, torch.tensor([[11 + mean_of_squares, 25.0]], dtype=torch.float64))
    scale = torch.tensor([0.1, 0.1, 0.1, 0.5], dtype=torch.float64) / torch.tensor([23.0, 23.0, 23.0, 25.0]).sqrt()
    torch.testing.assert_close(values, -gradients * scale)


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
@pytest.mark.parametrize("wide", [True, False])
@given(rows=st.integers(0, 20), seed=st.integers(0, 1000))
@example(rows=9, seed=546)  # a step that takes nearly all of a value away
def test_workers_and_shards_compute_the_same_rows(optimizer: OptimizerName, wide: bool, rows: int, seed: int) -> None:
    config = configured(optimizer, wide)
    values, state, gradients = drawn(config, rows, seed)
    before = torch.cat([values, state], 1).numpy()
    shard_rows = before.copy()
    update_rows(rule_of(config), shard_rows, gradients.numpy())
    RowOptimizer(config, CPU).update_(values, state, gradients)
    difference = np.abs(torch.cat([values, state], 1).numpy() - shard_rows)
    # a sum is rounded by the size of what is added, however little remains
    assert (difference <= 4 * np.finfo(np.float64).eps * (np.abs(before) + np.abs(shard_rows))).all()


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
@pytest.mark.parametrize("chunks", [1, 2])
@given(rows=st.integers(0, 20), seed=st.integers(0, 1000))
def test_workers_and_shards_compute_the_same_rows_in_chunks(
    optimizer: OptimizerName, chunks: int, rows: int, seed: int
) -> None:
    config = RowConfig(dim=4, chunks=chunks, optimizer=optimizer, float_dtype="float64")
    values, state, gradients = drawn(config, rows, seed)
    generator = np.random.default_rng(seed)
    state[:, -1] = torch.from_numpy(generator.integers(1 << chunks, size=rows))
    uses = torch.from_numpy(generator.integers(1, 9, rows).astype(np.float64))
    parts = torch.cat([gradients, uses[:, None], torch.full((rows, 1), 2.5, dtype=torch.float64)], 1).numpy()
    expected = settle_rows_reference(config, torch.cat([values, state], 1).numpy(), parts)
    RowOptimizer(config, CPU).update_(values, state, gradients, uses, weight=2.5)
    np.testing.assert_allclose(torch.cat([values, state], 1).numpy(), expected, rtol=1e-12, atol=1e-12)


def test_look_up_adds_the_gradients_of_a_position_met_often() -> None:
    values = torch.arange(6.0).view(3, 2).requires_grad_()
    found = look_up(values, torch.tensor([[0, 2], [2, 2]]))
    torch.autograd.backward(found.sum())
    assert found.tolist() == [[[0.0, 1.0], [4.0, 5.0]], [[4.0, 5.0], [4.0, 5.0]]]
    assert values.grad is not None
    assert values.grad.tolist() == [[1.0, 1.0], [0.0, 0.0], [3.0, 3.0]]


@pytest.mark.parametrize("threads", [1, 2])
def test_look_up_sums_gradients_in_the_same_order_every_time(threads: int) -> None:
    generator = torch.Generator().manual_seed(0)
    positions = torch.randint(50, (400, 20), generator=generator)
    weights = torch.randn(400, 20, 16, generator=generator)
    gradients = []
    torch.set_num_threads(threads)
    for _ in range(3):
        values = torch.zeros(50, 16, requires_grad=True)
        torch.autograd.backward((look_up(values, positions) * weights).sum())
        gradients.append(values.grad)
    torch.set_num_threads(1)
    assert gradients[0] is not None
    assert all(other is not None and torch.equal(gradients[0], other) for other in gradients[1:])
