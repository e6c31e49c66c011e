"""What a row costs where all workers reach the shards through one link."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.placement.arrays import F64
from dispatch.placement.capacity.knowledge import WorkerKnowledge
from dispatch.placement.capacity.server_link import ring_saves, shared_costs
from dispatch.placement.capacity.step_model import DenseLoad

COSTS = st.lists(st.floats(0.1, 100.0), min_size=1, max_size=8).map(np.array)


def shares_by_halving(rate_n: F64, server_rate: float) -> F64:
    """The reference: the share at which everybody together uses the whole link, found by halving an interval."""
    low, high = 0.0, float(rate_n.max())
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if np.minimum(rate_n, middle).sum() > server_rate else (middle, high)
    return np.asarray(np.minimum(rate_n, high))


@given(COSTS, st.floats(0.01, 100.0))
def test_a_shared_link_is_divided_equally_and_what_slow_workers_leave_goes_to_the_others(
    row_cost_n: F64, server_cost: float
) -> None:
    cost_n = shared_costs(row_cost_n, server_cost, np.full(row_cost_n.size, True))
    expected_n = 1 / row_cost_n
    if expected_n.sum() > 1 / server_cost:
        expected_n = shares_by_halving(expected_n, 1 / server_cost)
    assert 1 / cost_n == pytest.approx(expected_n, rel=1e-6)


@given(COSTS)
def test_no_shared_link_or_a_wide_one_changes_nothing(row_cost_n: F64) -> None:
    everyone_n = np.full(row_cost_n.size, True)
    assert shared_costs(row_cost_n, 0.0, everyone_n) is row_cost_n
    assert shared_costs(row_cost_n, 1e-6, everyone_n) is row_cost_n


def test_a_worker_without_samples_takes_no_share() -> None:
    cost_n = shared_costs(np.array([1.0, 1.0, 10.0]), 1.0, np.array([True, False, False]))
    assert cost_n.tolist() == [1.0, 1.0, 10.0]


def test_a_step_takes_as_long_as_all_members_keep_the_shared_link_busy() -> None:
    known = WorkerKnowledge(np.ones(4), np.full(4, 1000), DenseLoad(100.0, 300.0), server_cost=2.0)
    known.learn_rows(np.full(4, 8), np.full(4, 40.0))
    several_n, sole_n = np.full(4, True), np.arange(4) == 0
    model = known.model(32, 4, np.zeros(4, np.int64), np.full(4, 32), several_n)
    assert model.time_of(several_n) == 2.0 * (32 * 5.0 + 4 * 100.0)
    assert model.time_of(np.arange(4) < 2) == 2.0 * (32 * 5.0 + 2 * 100.0)
    assert model.time_of(sole_n) < model.time_of(several_n)
    assert model.hand_over_n.tolist() == [600.0] * 4


def test_a_ring_takes_dense_gradients_off_a_narrow_shared_link() -> None:
    # four workers have 0.25 Gbit/s each of the shared link; in a ring each sends 1.5 times the gradients at 1 Gbit/s
    assert ring_saves(10**9, [1.0] * 4, server_gbit=1.0) == pytest.approx(8.0 * (4.0 - 1.5))
    assert ring_saves(10**9, [1.0, 1.0, 1.0, 0.1], server_gbit=1.0) < 0.0


@given(st.lists(st.floats(0.1, 100.0), min_size=2, max_size=8))
def test_without_a_narrow_shared_link_a_ring_saves_nothing(links_gbit: list[float]) -> None:
    assert ring_saves(10**9, links_gbit, server_gbit=0.0) == 0.0
    assert ring_saves(10**9, links_gbit, server_gbit=sum(links_gbit) * 1.01) <= 1e-9
    assert ring_saves(10**9, [0.0, *links_gbit], server_gbit=0.1) == 0.0


def test_the_model_of_a_ring_moves_dense_gradients_at_the_slowest_link_and_none_over_the_shared_one() -> None:
    known = WorkerKnowledge(np.array([1.0, 2.0]), np.full(2, 1000), DenseLoad(100.0, 300.0), server_cost=10.0)
    known.learn_rows(np.full(2, 8), np.full(2, 4.0))
    both_n = np.full(2, True)
    model = known.model(16, 4, np.zeros(2, np.int64), np.full(2, 16), both_n)
    assert model.time_of(both_n) == 10.0 * (16 * 0.5 + 2 * 100.0)
    assert model.in_ring().fixed_n.tolist() == [200.0, 200.0]
    assert model.in_ring().time_of(both_n) < 0.2 * model.time_of(both_n)
