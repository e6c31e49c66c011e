"""The GPU's solver against the CPU's. What needs no GPU, the method itself in numpy, is tested everywhere."""

from dataclasses import replace

import numpy as np
import pytest

from dispatch.placement.assign.backend import assign_on_cpu, choose_backend, has_gpu, use_opt
from dispatch.placement.assign.batch_cost import batch_cost
from dispatch.placement.assign.choices import Backend
from dispatch.placement.assign.cost import cost_matrix
from dispatch.placement.assign.cuda.hungarian import hungarian_cuda
from dispatch.placement.assign.cuda.transport import CudaSolver
from dispatch.placement.assign.levels import level_places, level_strides
from dispatch.placement.assign.reference.cuda_transport import solve_transport_cuda_reference
from dispatch.placement.assign.solver import solve_transport
from dispatch.placement.errors import BadCost, Infeasible, NoGpu
from dispatch.placement.policies.registry import build_policy
from tests.dispatch.placement.assign.costs import KINDS, Floats, Ints, cases, draw_capacities, draw_cost, total
from tests.dispatch.placement.assign.situations import draw_situation, with_sizes, with_uplinks

HAS_GPU = has_gpu()
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="needs cupy and a CUDA device")


@pytest.fixture(scope="module")
def solver() -> CudaSolver:
    return CudaSolver()


def assert_optimal(cost: Floats, capacity: Ints, at: Ints) -> None:
    assert at.shape == (len(cost),)
    assert (np.bincount(at, minlength=len(capacity)) <= capacity).all()
    assert total(cost, at) == pytest.approx(total(cost, solve_transport(cost, capacity)), rel=1e-9, abs=1e-7)  # type: ignore[arg-type]


# ── without a GPU ─────────────────────────────────────────────────────────────────────────────────────────────────────
def test_the_method_reaches_the_optimum_on_any_matrix() -> None:
    for cost, capacity in cases(seed=11, count=80):
        assert_optimal(cost, capacity, solve_transport_cuda_reference(cost, capacity).astype(np.int64))


@pytest.mark.parametrize("kind", KINDS)
def test_the_method_reaches_the_optimum_through_coarse_levels(kind: str) -> None:
    cost = draw_cost(kind, 1024, 8, np.random.default_rng(4))
    assert len(level_strides(1024, 8)) == 4
    assert_optimal(cost, np.full(8, 128), solve_transport_cuda_reference(cost, np.full(8, 128)).astype(np.int64))


@pytest.mark.parametrize(("samples", "surplus"), [(1024, 0), (1000, 7), (4097, 5000)])
def test_every_level_has_places_for_its_samples(samples: int, surplus: int) -> None:
    capacity = draw_capacities(samples, 8, surplus, np.random.default_rng(1))
    for stride in level_strides(samples, 8):
        part = -(-samples // stride)
        places = level_places(capacity, part, samples)
        assert (places >= 0).all()
        assert places.sum() >= part
    assert np.array_equal(places, np.minimum(capacity, samples))


@pytest.mark.skipif(HAS_GPU, reason="needs a machine without a GPU")
def test_a_machine_without_gpu_is_told_what_is_missing() -> None:
    with pytest.raises(NoGpu, match=r"dispatch\.opt_backend"):
        CudaSolver()
    for named in ("cuda", "hungarian"):
        with pytest.raises(NoGpu, match=r"dispatch\.opt_backend"):
            build_policy("esd:1", 0, named)


# ── on a GPU ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.gpu
@needs_gpu
def test_any_matrix_gives_the_optimum_of_the_cpu(solver: CudaSolver) -> None:
    for cost, capacity in cases(seed=3, count=300):
        assert_optimal(cost, capacity, solver.solve(cost, capacity).astype(np.int64))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [1, 2, 3, 8, 13, 32, 33, 64])
def test_equal_capacities_give_the_optimum_of_the_cpu(solver: CudaSolver, kind: str, workers: int) -> None:
    cost = draw_cost(kind, 64 * workers, workers, np.random.default_rng(workers))
    assert_optimal(cost, np.full(workers, 64), solver.solve(cost, np.full(workers, 64)).astype(np.int64))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("surplus", [0, 3, 9000])
def test_unequal_capacities_give_the_optimum_of_the_cpu(solver: CudaSolver, kind: str, surplus: int) -> None:
    rng = np.random.default_rng(surplus)
    cost, capacity = draw_cost(kind, 3000, 12, rng), draw_capacities(3000, 12, surplus, rng)
    assert_optimal(cost, capacity, solver.solve(cost, capacity).astype(np.int64))


@pytest.mark.gpu
@needs_gpu
def test_the_most_workers_give_the_optimum_of_the_cpu(solver: CudaSolver) -> None:
    cost = draw_cost("skewed", 16 * 128, 128, np.random.default_rng(3))
    assert_optimal(cost, np.full(128, 16), solver.solve(cost, np.full(128, 16)).astype(np.int64))


@pytest.mark.gpu
@needs_gpu
def test_one_matrix_of_equal_costs_is_spread_over_all_places(solver: CudaSolver) -> None:
    at = solver.solve(np.ones((5000, 8)), np.array([5000 - 7, 1, 1, 1, 1, 1, 1, 1]))
    assert np.bincount(at).tolist() == [4993, 1, 1, 1, 1, 1, 1, 1]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("kind", KINDS)
def test_equal_input_gives_equal_output(solver: CudaSolver, kind: str) -> None:
    cost = draw_cost(kind, 2000, 16, np.random.default_rng(5))
    first = solver.solve(cost, np.full(16, 130))
    assert all(np.array_equal(first, solver.solve(cost, np.full(16, 130))) for _ in range(5))
    assert np.array_equal(first, CudaSolver().solve(cost, np.full(16, 130)))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("workers", [1, 2, 8, 64, 65, 100])
@pytest.mark.parametrize(("value_share", "parts_hold"), [(1.0, True), (0.5, True), (17 / 19, True), (0.5, False)])
def test_the_matrix_is_built_as_on_the_cpu_bit_for_bit(
    solver: CudaSolver, workers: int, value_share: float, parts_hold: bool
) -> None:
    drawn = draw_situation(workers, samples=300, fields=26, workers=workers)
    links = 2.0 ** (np.random.default_rng(workers).integers(0, 20, workers) / 4)
    even = replace(drawn, value_share=value_share, parts_hold=parts_hold)
    for situation in (even, replace(even, row_cost_n=links), with_uplinks(replace(even, row_cost_n=links), workers)):
        assert np.array_equal(solver.cost_matrix(situation), cost_matrix(situation))


def test_costs_by_size_come_from_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    situation = with_sizes(draw_situation(3, samples=64), seed=3)
    monkeypatch.setattr(CudaSolver, "solve", lambda _, cost_kn, capacity_n: solve_transport(cost_kn, capacity_n))
    without_device = object.__new__(CudaSolver)
    assert np.array_equal(without_device.assign(situation), assign_on_cpu(situation))
    assert np.array_equal(without_device.cost_matrix(situation), cost_matrix(situation))


@pytest.mark.gpu
@needs_gpu
def test_a_batch_is_assigned_at_the_least_cost(solver: CudaSolver) -> None:
    for seed in range(20):
        drawn = draw_situation(seed, samples=512, fields=8, workers=1 + seed)
        situation = with_sizes(drawn, seed) if seed % 2 else drawn
        at = solver.assign(situation).astype(np.int64)
        assert_optimal(cost_matrix(situation), situation.capacity_n, at)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("backend", ["cuda", "hungarian"])
def test_joint_on_the_gpu_is_about_as_cheap_as_on_the_cpu(backend: Backend) -> None:
    situation = draw_situation(9, samples=512, fields=8, workers=8)
    cpu, gpu = (build_policy("joint", 0, each).assign(situation).worker_B for each in ("cpu", backend))
    assert (np.bincount(gpu, minlength=8) <= situation.capacity_n).all()
    assert batch_cost(situation, gpu) == pytest.approx(batch_cost(situation, cpu), rel=0.05)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("backend", ["cuda", "hungarian"])
@pytest.mark.parametrize("alpha", [0.125, 0.5, 1.0])
def test_esd_on_the_gpu_costs_what_it_costs_on_the_cpu(backend: Backend, alpha: float) -> None:
    situation = replace(draw_situation(9, samples=512, fields=8, workers=8), alpha=alpha)
    cpu, gpu = (build_policy("esd", 0, each).assign(situation).worker_B for each in ("cpu", backend))
    assert (np.bincount(gpu, minlength=8) <= situation.capacity_n).all()
    assert total(cost_matrix(situation), gpu) == pytest.approx(total(cost_matrix(situation), cpu), rel=1e-9)


@pytest.mark.gpu
@needs_gpu
def test_an_empty_batch_is_assigned_to_nobody(solver: CudaSolver) -> None:
    assert solver.solve(np.empty((0, 3)), [1, 1, 1]).shape == (0,)


@pytest.mark.gpu
@needs_gpu
def test_bad_input_is_refused_like_on_the_cpu(solver: CudaSolver) -> None:
    with pytest.raises(BadCost, match="sample 0 on worker 1"):
        solver.solve(np.array([[1.0, np.nan]]), [1, 1])
    with pytest.raises(Infeasible, match="cannot assign 2 samples"):
        solver.solve(np.ones((2, 2)), [1, 0])
    with pytest.raises(BadCost, match="129 workers"):
        solver.solve(np.ones((2, 129)), [1] * 129)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("kind", KINDS)
def test_the_expanded_hungarian_gives_the_optimum_of_the_cpu(kind: str) -> None:
    rng = np.random.default_rng(2)
    cost, capacity = draw_cost(kind, 200, 5, rng), draw_capacities(200, 5, 11, rng)
    assert_optimal(cost, capacity, hungarian_cuda(cost, capacity).astype(np.int64))


@pytest.mark.gpu
@needs_gpu
def test_a_setting_gives_the_solver_it_names() -> None:
    named: tuple[Backend, ...] = ("cpu", "cuda", "hungarian")
    assert [choose_backend(name, 64, 4) for name in named] == list(named)
    assert choose_backend("auto", 64, 4) in ("cpu", "cuda")
    assert use_opt("hungarian").assign is not use_opt("cuda").assign


@pytest.mark.gpu
@needs_gpu
def test_the_device_times_what_it_solves(solver: CudaSolver) -> None:
    situation = draw_situation(3)
    solver.assign(situation)
    assert solver.device_seconds() > 0.0
    solver.solve(np.empty((0, 4)), np.ones(4, np.int64))
    assert solver.device_seconds() >= 0.0
