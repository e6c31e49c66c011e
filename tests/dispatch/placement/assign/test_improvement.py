import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dispatch.placement.assign.annealing import anneal, sweep, sweep_reference
from dispatch.placement.assign.backend import Opt, assign_on_cpu
from dispatch.placement.assign.batch_cost import Placement, batch_cost
from dispatch.placement.assign.cost import cost_matrix
from dispatch.placement.assign.hybrid import assign_hybrid
from dispatch.placement.assign.improvement import Joint, improve, rung
from dispatch.placement.assign.situation import Situation
from dispatch.placement.assign.solver import solve_again, solve_transport
from dispatch.placement.rows.states import CLEAN
from tests.dispatch.placement.assign.situations import draw_situation, with_sizes, with_uplinks

seeds = st.integers(0, 10_000)


@given(seeds, st.integers(1, 6), st.integers(0, 40))
@settings(max_examples=60, deadline=None)
def test_rounds_never_make_the_batch_dearer_and_keep_who_has_how_many(seed: int, workers: int, samples: int) -> None:
    places = np.random.default_rng(seed).multinomial(samples + seed % 5, np.full(workers, 1 / workers))
    situation = draw_situation(seed, samples, workers=workers, capacity_n=places.astype(np.int64))
    start_B = solve_transport(cost_matrix(situation), situation.capacity_n)
    situation = with_sizes(situation, seed) if seed % 2 else situation
    situation = with_uplinks(situation, seed) if seed % 3 else situation
    at_B = improve(situation, start_B, rounds=4, seed=seed)
    assert batch_cost(situation, at_B) <= batch_cost(situation, start_B) + 1e-9
    assert np.array_equal(np.bincount(at_B, minlength=workers), np.bincount(start_B, minlength=workers))


@given(seeds, st.sampled_from([1, 2, 3, 8, 70]), st.sampled_from([1.0, 0.5]), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_marginal_cost_is_what_the_batch_costs_more_with_the_sample_there(
    seed: int, workers: int, value_share: float, are_sized: bool, are_skewed: bool
) -> None:
    drawn = draw_situation(seed, samples=16, fields=3, workers=workers)
    situation = dataclasses.replace(drawn, value_share=value_share)
    situation = with_sizes(situation, seed) if are_sized else situation
    situation = with_uplinks(situation, seed) if are_skewed else situation
    at_B = np.random.default_rng(seed).integers(0, workers, 16, dtype=np.int32)
    moving_k = np.array([seed % 16])
    marginal_n = Placement(situation, at_B).marginal_costs(moving_k)[0]
    placed = [at_B.copy() for _ in range(workers)]
    for worker in range(workers):
        placed[worker][moving_k] = worker
    cost_n = np.array([batch_cost(situation, there_B) for there_B in placed])
    np.testing.assert_allclose(marginal_n - marginal_n[0], cost_n - cost_n[0], atol=1e-3)


@given(seeds, st.sampled_from([1, 2, 3, 8, 70]), st.sampled_from([1.0, 0.5]), st.booleans(), st.booleans())
@settings(max_examples=60, deadline=None)
def test_costs_of_placements_differ_by_what_their_batches_cost(
    seed: int, workers: int, value_share: float, are_sized: bool, are_skewed: bool
) -> None:
    drawn = draw_situation(seed, samples=16, fields=3, workers=workers)
    situation = dataclasses.replace(drawn, value_share=value_share)
    situation = with_sizes(situation, seed) if are_sized else situation
    situation = with_uplinks(situation, seed) if are_skewed else situation
    one_B, other_B = np.random.default_rng(seed).integers(0, workers, (2, 16), dtype=np.int32)
    placed = Placement(situation, one_B)
    before = placed.cost()
    placed.move(np.arange(16), other_B)
    change = batch_cost(situation, other_B) - batch_cost(situation, one_B)
    assert placed.cost() == pytest.approx(Placement(situation, other_B).cost())
    assert placed.cost() - before == pytest.approx(change)


@given(seeds, st.sampled_from([1, 2, 3, 5]), st.floats(0.0, 20.0), st.booleans(), st.booleans())
@settings(max_examples=30, deadline=None)
def test_a_sweep_takes_each_sample_where_the_whole_batch_is_cheapest(
    seed: int, workers: int, heat: float, are_sized: bool, are_skewed: bool
) -> None:
    situation = draw_situation(seed, samples=12, fields=3, workers=workers)
    situation = with_sizes(situation, seed) if are_sized else situation
    situation = with_uplinks(situation, seed) if are_skewed else situation
    draw = np.random.default_rng(seed)
    start_B = draw.integers(0, workers, 12, dtype=np.int32)
    order_B, noise_Bn = draw.permutation(12), heat * draw.random((12, workers)) + 1e-6 * draw.random((12, workers))
    price_n, most_n = draw.random(workers), np.bincount(start_B, minlength=workers) + 1
    placed = Placement(situation, start_B)
    expected_B = sweep_reference(situation, start_B, order_B, noise_Bn, price_n, most_n, 0.3)
    sweep(placed, order_B, noise_Bn, price_n, most_n, 0.3)
    assert np.array_equal(placed.at_B, expected_B)
    assert placed.cost() == pytest.approx(Placement(situation, expected_B).cost())


@given(seeds, st.integers(1, 6), st.integers(1, 40))
@settings(max_examples=20, deadline=None)
def test_annealing_leaves_who_has_how_many(seed: int, workers: int, samples: int) -> None:
    places_n = np.random.default_rng(seed).multinomial(samples, np.full(workers, 1 / workers))
    placed = Placement(draw_situation(seed, samples, workers=workers), np.zeros(samples, np.int32))
    anneal(placed, places_n, np.random.default_rng(seed))
    assert np.array_equal(placed.counts_n, places_n)


def _cold(seed: int) -> Situation:
    """A batch of which nobody holds anything yet."""
    situation = draw_situation(seed, samples=64, fields=6)
    nobody_UQ = np.zeros_like(situation.holders_UQ)
    return dataclasses.replace(situation, state_U=np.full_like(situation.state_U, CLEAN), holders_UQ=nobody_UQ)


def test_annealing_makes_first_batches_cheaper_than_rounds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    annealed = sum(batch_cost(_cold(seed), Joint(8, 0).assign(_cold(seed)).worker_B) for seed in range(4))
    monkeypatch.setattr("dispatch.placement.assign.improvement.is_cold", lambda *_: False)
    assert annealed < sum(batch_cost(_cold(seed), Joint(8, 0).assign(_cold(seed)).worker_B) for seed in range(4))


def test_a_first_batch_is_assigned_alike_every_time() -> None:
    assert np.array_equal(Joint(8, 3).assign(_cold(5)).worker_B, Joint(8, 3).assign(_cold(5)).worker_B)


def test_a_first_batch_is_not_annealed_when_the_budget_is_spent() -> None:
    spent = dataclasses.replace(_cold(5), budget_seconds=0.0)
    assert np.array_equal(Joint(8, 0).assign(spent).worker_B, solve_transport(cost_matrix(spent), spent.capacity_n))


def test_samples_that_share_rows_are_brought_together() -> None:
    situation = Situation(
        step=1,
        local_BF=np.array([[0, 2], [1, 3], [0, 4], [1, 5]], np.int32),
        state_U=np.full(6, CLEAN, np.uint8),
        holders_UQ=np.zeros((6, 1), np.uint64),
        row_cost_n=np.ones(2),
        capacity_n=np.full(2, 2, np.int64),
    )
    at_B = Joint(rounds=8, seed=0).assign(situation).worker_B
    assert at_B[0] == at_B[2] != at_B[1] == at_B[3]


def test_a_row_that_a_sample_names_twice_counts_once() -> None:
    situation = draw_situation(3, samples=20)
    twice = dataclasses.replace(situation, local_BF=np.repeat(situation.local_BF, 2, axis=1))
    start_B = solve_transport(cost_matrix(situation), situation.capacity_n)
    assert np.array_equal(improve(situation, start_B, 4, seed=1), improve(twice, start_B, 4, seed=1))


def test_the_seed_decides_which_half_moves() -> None:
    answers = {Joint(1, seed).assign(draw_situation(4)).worker_B.tobytes() for seed in range(8)}
    assert len(answers) > 1


def test_no_round_is_begun_when_the_budget_is_spent() -> None:
    situation = draw_situation(5)
    spent = dataclasses.replace(situation, budget_seconds=0.0)
    assert np.array_equal(
        Joint(8, 0).assign(spent).worker_B, solve_transport(cost_matrix(situation), situation.capacity_n)
    )
    assert not np.array_equal(Joint(8, 0).assign(situation).worker_B, Joint(8, 0).assign(spent).worker_B)


def test_fewer_rounds_than_set_are_told() -> None:
    policy, situation = Joint(8, 0), draw_situation(5)
    assert policy.assign(dataclasses.replace(situation, budget_seconds=0.0)).was_shortened
    assert not policy.assign(dataclasses.replace(situation, budget_seconds=60.0)).was_shortened


@pytest.mark.parametrize(
    ("alpha", "share", "rounds"),
    [(0, 0, 0), (0.125, 0.5, 0), (0.25, 1, 0), (0.26, 1, 1), (0.5, 1, 3), (0.75, 1, 6), (1, 1, 8)],
)
def test_alpha_is_a_ladder_from_heu_over_opt_to_all_rounds(alpha: float, share: float, rounds: int) -> None:
    assert rung(alpha, 8) == (share, rounds)


@pytest.mark.parametrize("alpha", [0.0, 0.1, 0.2])
def test_alpha_up_to_a_quarter_mixes_heu_and_opt(alpha: float) -> None:
    situation = dataclasses.replace(draw_situation(7), alpha=alpha)
    expected_B = assign_hybrid(cost_matrix(situation), situation.capacity_n, 4 * alpha)
    assert np.array_equal(Joint(8, 0).assign(situation).worker_B, expected_B)


def test_alpha_of_a_quarter_is_opt() -> None:
    situation = dataclasses.replace(draw_situation(7), alpha=0.25)
    assert np.array_equal(Joint(8, 0).assign(situation).worker_B, assign_on_cpu(situation))


def test_alpha_between_a_quarter_and_one_does_some_of_the_rounds() -> None:
    situation = dataclasses.replace(draw_situation(7), alpha=0.75)
    whole = dataclasses.replace(situation, alpha=1.0)
    assert np.array_equal(Joint(8, 0).assign(situation).worker_B, Joint(6, 0).assign(whole).worker_B)


def test_opt_gets_fewer_samples_and_no_round_follows_when_it_took_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("dispatch.placement.assign.improvement.perf_counter", lambda: now[0])

    def assign_slowly(situation: Situation) -> NDArray[np.int32]:
        now[0] += 0.02
        return assign_on_cpu(situation)

    policy = Joint(8, 0, Opt("cpu", assign_slowly))
    situation = dataclasses.replace(draw_situation(5), budget_seconds=0.01)
    assert policy.assign(situation).was_shortened
    again = policy.assign(situation)
    least_B = assign_hybrid(cost_matrix(situation), situation.capacity_n, 0.0)
    assert again.was_shortened
    assert cost_matrix(situation)[np.arange(48), again.worker_B].sum() <= (
        cost_matrix(situation)[np.arange(48), least_B].sum() + 1e-9
    )
    assert not np.array_equal(again.worker_B, assign_on_cpu(situation))


def test_start_and_rounds_are_solved_by_the_chosen_backend() -> None:
    seen: list[str] = []

    def assign(situation: Situation) -> NDArray[np.int32]:
        seen.append("start")
        return assign_on_cpu(situation)

    def again(
        cost_kn: NDArray[np.float64], capacity_n: NDArray[np.int64], price_n: NDArray[np.float64]
    ) -> NDArray[np.int32]:
        seen.append("round")
        return solve_again(cost_kn, capacity_n, price_n)

    situation = draw_situation(5)
    at_B = Joint(3, 0, Opt("cuda", assign, again)).assign(situation).worker_B
    assert seen == ["start", "round", "round", "round"]
    assert np.array_equal(at_B, Joint(3, 0).assign(situation).worker_B)
