from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dispatch.placement.assign.backend import trial_situation
from dispatch.placement.assign.choices import Criterion
from dispatch.placement.assign.cost import cost_matrix
from dispatch.placement.assign.hybrid import (
    Mix,
    assign_heu,
    assign_heu_reference,
    assign_hybrid,
    assign_literal,
    opt_share,
    order_by,
    order_by_reference,
    rank,
    rank_reference,
)
from dispatch.placement.assign.solver import coarse_prices, solve_again, solve_transport
from dispatch.placement.errors import BadCost, Infeasible

CRITERIA: tuple[Criterion, ...] = ("min2-min", "min3-min", "min3-min2", "mean")
MIXES: tuple[Mix, ...] = (assign_hybrid, assign_literal)
Floats = NDArray[np.float64]


def draw_cost(seed: int, samples: int, workers: int, tied: bool = False) -> Floats:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 4, (samples, workers)).astype(float) if tied else rng.random((samples, workers))


def total(cost: Floats, at: NDArray[np.int32]) -> float:
    return float(cost[np.arange(len(cost)), at].sum())


def heu(cost: Floats, order: NDArray[np.int64], capacity: NDArray[np.int64]) -> NDArray[np.int32]:
    at = np.full(len(cost), -1, np.int32)
    assign_heu(cost, order, capacity.copy(), at)
    return at


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("workers", [1, 2, 3, 9])
@pytest.mark.parametrize("tied", [False, True])
def test_order_equals_reference(criterion: Criterion, workers: int, tied: bool) -> None:
    cost = draw_cost(1, 200, workers, tied)
    assert np.array_equal(order_by(cost, criterion), order_by_reference(cost, criterion))


@given(st.integers(0, 10_000), st.integers(1, 60), st.booleans())
@settings(max_examples=60, deadline=None)
def test_rank_by_counting_equals_reference(seed: int, samples: int, tied: bool) -> None:
    score = draw_cost(seed, samples, 1, tied)[:, 0]
    assert np.array_equal(rank(score), rank_reference(score))


def test_criteria_rank_by_what_they_name() -> None:
    cost = np.array([[0.0, 1.0, 9.0], [0.0, 5.0, 6.0], [8.0, 8.0, 8.0]])
    assert [order_by(cost, criterion).tolist() for criterion in CRITERIA] == [
        [1, 0, 2],
        [0, 1, 2],
        [0, 1, 2],
        [2, 1, 0],
    ]


@pytest.mark.parametrize("tied", [False, True])
def test_heu_equals_reference(tied: bool) -> None:
    cost = draw_cost(2, 90, 5, tied)
    expected = np.full(90, -1, np.int32)
    assign_heu_reference(cost, order_by(cost), np.array([10, 0, 30, 25, 25]), expected)
    assert np.array_equal(heu(cost, order_by(cost), np.array([10, 0, 30, 25, 25])), expected)


@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 12), st.booleans())
@settings(max_examples=150, deadline=None)
def test_heu_error_of_each_sample_stays_within_theorem_1(seed: int, workers: int, m: int, tied: bool) -> None:
    """After i samples at most ⌊i/m⌋ workers are full, so sample i gets at worst its (⌊i/m⌋+1)-th least cost."""
    cost = draw_cost(seed, workers * m, workers, tied)
    order = order_by(cost)
    at = heu(cost, order, np.full(workers, m))
    sorted_cost = np.sort(cost, axis=1)
    for i, sample in enumerate(order):
        assert cost[sample, at[sample]] <= sorted_cost[sample, i // m]


@pytest.mark.parametrize("mix", MIXES)
@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(0, 40), st.floats(0, 1), st.sampled_from(CRITERIA))
@settings(max_examples=100, deadline=None)
def test_any_share_keeps_to_any_capacities(
    mix: Mix, seed: int, workers: int, samples: int, alpha: float, criterion: Criterion
) -> None:
    cost = draw_cost(seed, samples, workers)
    rng = np.random.default_rng(seed)
    capacity = rng.multinomial(samples + int(rng.integers(0, 9)), np.full(workers, 1 / workers)).astype(np.int64)
    at = mix(cost, capacity, alpha, criterion, solve_again)
    assert at.shape == (samples,)
    assert (np.bincount(at, minlength=workers) <= capacity).all()


@pytest.mark.parametrize("mix", MIXES)
@given(st.integers(0, 10_000), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_no_share_costs_less_than_opt_alone(mix: Mix, seed: int, alpha: float) -> None:
    cost, capacity = draw_cost(seed, 40, 4), np.full(4, 10)
    least = total(cost, solve_transport(cost, capacity))
    assert total(cost, mix(cost, capacity, alpha, "min2-min", solve_again)) >= least - 1e-9


@given(st.integers(0, 10_000), st.integers(1, 8), st.booleans(), st.lists(st.floats(0.05, 1), max_size=4))
@settings(max_examples=100, deadline=None)
def test_above_0_more_alpha_never_costs_more(seed: int, workers: int, tied: bool, alphas: list[float]) -> None:
    cost = draw_cost(seed, 40 * workers, workers, tied)
    capacity = np.full(workers, 40 + seed % 3)
    costs = [total(cost, assign_hybrid(cost, capacity, alpha)) for alpha in sorted([0.05, *alphas, 1.0])]
    assert all(more <= less + 1e-9 for less, more in pairwise(costs))


def test_an_eighth_saves_most_of_what_opt_saves() -> None:
    """Half of the links ten times slower: Heu fills the fast workers with whoever comes first."""
    situation = trial_situation(1024, 8)
    cost, capacity = cost_matrix(situation), situation.capacity_n
    by_heu, by_eighth, by_opt = (total(cost, assign_hybrid(cost, capacity, alpha)) for alpha in (0.0, 0.125, 1.0))
    assert by_opt < 0.97 * by_heu
    assert by_heu - by_eighth > 0.7 * (by_heu - by_opt)


def test_the_published_mix_can_cost_more_than_heu_alone() -> None:
    cost, capacity = draw_cost(41, 40, 4, tied=True), np.full(4, 10)
    assert total(cost, assign_literal(cost, capacity, 0.25)) > total(cost, assign_literal(cost, capacity, 0.0)) + 10


def test_alpha_0_is_heu_in_regret_order() -> None:
    cost, capacity = draw_cost(3, 60, 6), np.full(6, 10)
    regret = np.diff(np.sort(cost, axis=1)[:, :2], axis=1)[:, 0]
    assert np.array_equal(assign_hybrid(cost, capacity, 0.0), heu(cost, rank_reference(regret), capacity))
    assert np.array_equal(assign_literal(cost, capacity, 0.0), heu(cost, order_by(cost), capacity))


@pytest.mark.parametrize("mix", MIXES)
def test_alpha_1_is_opt(mix: Mix) -> None:
    cost, capacity = draw_cost(4, 60, 6), np.full(6, 10)
    at = mix(cost, capacity, 1.0, "min2-min", solve_again)
    assert total(cost, at) == pytest.approx(total(cost, solve_transport(cost, capacity)))


def test_alpha_between_gives_opt_the_samples_of_least_regret_under_prices_and_the_places_that_are_left() -> None:
    cost, capacity = draw_cost(5, 80, 4), np.full(4, 21)
    seen: list[tuple[Floats, NDArray[np.int64]]] = []

    def spy(cost_kn: Floats, capacity_n: NDArray[np.int64], price_n: Floats) -> NDArray[np.int32]:
        seen.append((cost_kn, capacity_n))
        return solve_again(cost_kn, capacity_n, price_n)

    at = assign_hybrid(cost, capacity, 0.495, again=spy)
    priced = cost + coarse_prices(cost, capacity)
    regret = np.diff(np.sort(priced, axis=1)[:, :2], axis=1)[:, 0]
    order, by_heu, left = rank_reference(regret), np.full(80, -1, np.int32), capacity.copy()
    assign_heu(priced, order[:54], left, by_heu)
    assert np.array_equal(seen[0][0], cost[order[54:]])
    assert np.array_equal(seen[0][1], left)
    assert np.array_equal(at[order[:54]], by_heu[order[:54]])


def test_the_published_mix_gives_opt_a_share_of_every_worker() -> None:
    cost, capacity = draw_cost(5, 80, 4), np.full(4, 20)
    seen: list[tuple[Floats, NDArray[np.int64]]] = []

    def spy(cost_kn: Floats, capacity_n: NDArray[np.int64], price_n: Floats) -> NDArray[np.int32]:
        seen.append((cost_kn, capacity_n))
        return solve_again(cost_kn, capacity_n, price_n)

    assign_literal(cost, capacity, 0.33, again=spy)
    assert seen[0][1].tolist() == [6, 6, 6, 6]
    assert np.array_equal(seen[0][0], cost[order_by(cost)[:24]])


@pytest.mark.parametrize(
    ("samples", "capacity", "alpha", "share", "exact"),
    [
        (80, [20] * 4, 0.33, [6] * 4, 24),
        (100, [100], 0.29, [29], 29),
        (60, [20] * 4, 0.5, [10] * 4, 30),
        (30, [3, 27], 0.5, [1, 13], 14),
    ],
)
def test_share_of_opt_is_rounded_down_per_worker(
    samples: int, capacity: list[int], alpha: float, share: list[int], exact: int
) -> None:
    got, count = opt_share(samples, np.array(capacity), alpha)
    assert (got.tolist(), count) == (share, exact)


def test_places_that_opt_did_not_need_are_left_for_heu() -> None:
    cost = np.array([[0.0, 9.0], [1.0, 0.0], [1.0, 0.0]])
    assert opt_share(3, np.array([2, 2]), 0.5)[1] == 1
    assert assign_literal(cost, np.array([2, 2]), 0.5).tolist() == [0, 1, 1]


def test_heu_refuses_too_few_places() -> None:
    with pytest.raises(Infeasible, match="cannot assign 4 samples"):
        assign_hybrid(np.ones((4, 2)), np.array([2, 1]), 0.0)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_cost_that_is_not_a_number_is_refused_at_any_alpha(alpha: float) -> None:
    cost = np.ones((4, 2))
    cost[2, 1] = np.nan
    with pytest.raises(BadCost, match="sample 2 on worker 1"):
        assign_hybrid(cost, np.array([2, 2]), alpha)
