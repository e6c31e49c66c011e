"""Opt against two independent oracles and the plain reference. The oracles solve the matrix with copied columns."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from dispatch.placement.assign.reference.transport import solve_transport_reference
from dispatch.placement.assign.solver import solve_transport
from dispatch.placement.errors import BadCost, Infeasible
from tests.dispatch.placement.assign.costs import KINDS, Floats, Ints, cases, draw_capacities, draw_cost, total


def scipy_optimum(cost: Floats, capacity: Ints) -> float:
    expanded = np.repeat(cost, np.minimum(capacity, len(cost)), axis=1)
    rows, columns = linear_sum_assignment(expanded)
    return float(expanded[rows, columns].sum())


def pot_optimum(cost: Floats, capacity: Ints) -> float:
    """The surplus of places goes to one more row that costs nothing, since POT wants equal masses."""
    import ot  # takes seconds, and every worker of a test run imports this module

    surplus = float(capacity.sum() - len(cost))
    mass = np.append(np.ones(len(cost)), surplus)
    moved = ot.emd(mass, capacity.astype(float), np.vstack([cost, np.zeros(cost.shape[1])]), numItermax=1_000_000)
    return float((moved[:-1] * cost).sum())


def test_any_matrix_gives_the_optimum_of_scipy_and_pot() -> None:
    for cost, capacity in cases(seed=1, count=150):
        at = solve_transport(cost, capacity)
        assert (np.bincount(at, minlength=len(capacity)) <= capacity).all()
        assert total(cost, at) == pytest.approx(scipy_optimum(cost, capacity), rel=1e-9, abs=1e-9)
        assert total(cost, at) == pytest.approx(pot_optimum(cost, capacity), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8, 16])
def test_equal_capacities_give_the_optimum_of_scipy(kind: str, workers: int) -> None:
    cost = draw_cost(kind, 32 * workers, workers, np.random.default_rng(workers))
    capacity = np.full(workers, 32)
    at = solve_transport(cost, capacity)
    assert np.bincount(at, minlength=workers).tolist() == [32] * workers
    assert total(cost, at) == pytest.approx(scipy_optimum(cost, capacity), rel=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_many_samples_with_unequal_capacities_give_the_optimum_of_pot(kind: str) -> None:
    rng = np.random.default_rng(7)
    cost = draw_cost(kind, 3000, 12, rng)
    capacity = draw_capacities(3000, 12, 40, rng)
    at = solve_transport(cost, capacity)
    assert (np.bincount(at, minlength=12) <= capacity).all()
    assert total(cost, at) == pytest.approx(pot_optimum(cost, capacity), rel=1e-9)


@pytest.mark.parametrize("workers", [64, 128])
def test_many_workers_give_the_optimum_of_pot(workers: int) -> None:
    cost = draw_cost("skewed", 16 * workers, workers, np.random.default_rng(3))
    at = solve_transport(cost, np.full(workers, 16))
    assert np.bincount(at, minlength=workers).tolist() == [16] * workers
    assert total(cost, at) == pytest.approx(pot_optimum(cost, np.full(workers, 16)), rel=1e-9)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Floats, Ints]:
    workers, samples = draw(st.integers(1, 6)), draw(st.integers(0, 14))
    costs = st.lists(st.integers(-3, 3), min_size=workers, max_size=workers)
    cost = np.array(draw(st.lists(costs, min_size=samples, max_size=samples)), float).reshape(samples, workers)
    capacity = np.array(draw(st.lists(st.integers(0, 9), min_size=workers, max_size=workers)))
    capacity[draw(st.integers(0, workers - 1))] += max(0, samples - int(capacity.sum()))
    return cost, capacity


@given(problems())
@settings(max_examples=300, deadline=None)
def test_small_tied_problems_give_the_optimum_within_capacities(problem: tuple[Floats, Ints]) -> None:
    cost, capacity = problem
    at = solve_transport(cost, capacity)
    assert at.shape == (len(cost),)
    assert (np.bincount(at, minlength=len(capacity)) <= capacity).all()
    assert total(cost, at) == pytest.approx(scipy_optimum(cost, capacity), abs=1e-9)


def test_reference_reaches_the_same_optimum() -> None:
    for cost, capacity in cases(seed=2, count=40):
        at = solve_transport_reference(cost, capacity)
        assert (np.bincount(at, minlength=len(capacity)) <= capacity).all()
        assert total(cost, at) == pytest.approx(total(cost, solve_transport(cost, capacity)), rel=1e-9, abs=1e-7)


def test_equal_input_gives_equal_output_and_is_left_alone() -> None:
    cost = draw_cost("tied", 500, 8, np.random.default_rng(5))
    before = cost.copy()
    first = solve_transport(cost, np.full(8, 63))
    assert np.array_equal(first, solve_transport(cost.copy(), np.full(8, 63)))
    assert np.array_equal(cost, before)


def test_float32_costs_are_solved_like_their_float64_values() -> None:
    cost = np.random.default_rng(6).random((64, 4)).astype(np.float32)
    assert np.array_equal(solve_transport(cost, [16] * 4), solve_transport(cost.astype(np.float64), [16] * 4))


def test_strided_costs_are_solved_like_contiguous_ones() -> None:
    cost = np.random.default_rng(8).random((4, 64)).T
    assert np.array_equal(solve_transport(cost, [16] * 4), solve_transport(np.ascontiguousarray(cost), [16] * 4))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e200])
def test_cost_that_is_no_usable_number_is_refused_with_its_place(value: float) -> None:
    cost = np.ones((4, 2))
    cost[3, 1] = value
    with pytest.raises(BadCost, match="sample 3 on worker 1"):
        solve_transport(cost, [2, 2])


@pytest.mark.parametrize("capacity", [[2, 1], [5, -1], [2.0, 2.0]])
def test_capacities_that_cannot_hold_the_batch_are_refused(capacity: list[float]) -> None:
    with pytest.raises(Infeasible, match="cannot assign 4 samples"):
        solve_transport(np.ones((4, 2)), capacity)


@pytest.mark.parametrize(("shape", "capacity"), [((4, 2), [4]), ((4,), [4]), ((4, 0), [])])
def test_shapes_that_do_not_fit_are_refused(shape: tuple[int, ...], capacity: list[int]) -> None:
    with pytest.raises(BadCost, match="shape"):
        solve_transport(np.ones(shape), capacity)
