"""Which solver a setting gives."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import structlog
from numpy.typing import NDArray

from dispatch.config import DispatchConfig
from dispatch.placement.assign import backend
from dispatch.placement.assign.backend import CPU, Opt, assign_on_cpu, choose_backend, faster, trial_situation, use_opt
from dispatch.placement.assign.choices import OptBackend
from dispatch.placement.assign.cost import cost_matrix
from dispatch.placement.assign.cuda.transport import MOST_WORKERS
from dispatch.placement.assign.situation import Situation
from dispatch.placement.assign.solver import solve_again
from dispatch.placement.errors import NoGpu
from dispatch.placement.policies.registry import build_policy


@pytest.fixture(autouse=True)
def _forgotten_choice() -> Iterator[None]:
    for made in (use_opt, choose_backend):
        made.cache_clear()
    yield
    for made in (use_opt, choose_backend):
        made.cache_clear()


class AbsentGpu:
    """Stands for the GPU's solver on a machine that has none."""

    def __init__(self) -> None:
        raise NoGpu("no device here")


def test_the_default_is_auto() -> None:
    assert DispatchConfig().opt_backend == "auto"
    assert DispatchConfig().alpha is None


def test_auto_is_the_cpu_on_a_machine_without_gpu_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "CudaSolver", AbsentGpu)
    with structlog.testing.capture_logs() as logs:
        assert choose_backend("auto", 64, 4) == choose_backend("cpu", 64, 4) == "cpu"
    assert use_opt("cpu") is CPU
    assert logs == []


def test_auto_asks_no_gpu_for_more_workers_than_its_solver_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "use_opt", lambda _: pytest.fail("asked for a GPU"))
    assert choose_backend("auto", 4096, MOST_WORKERS + 1) == "cpu"


@pytest.mark.parametrize("named", ["cuda", "hungarian"])
def test_a_gpu_that_is_named_and_not_there_is_refused(named: OptBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "CudaSolver", AbsentGpu)
    with pytest.raises(NoGpu, match="no device here"):
        choose_backend(named, 64, 4)


def test_auto_takes_the_faster_and_says_what_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(backend, "perf_counter", lambda: now[0])

    def slow_assign(situation: Situation) -> NDArray[np.int32]:
        now[0] += 0.05
        return assign_on_cpu(situation)

    slow, situation = Opt("cuda", slow_assign), trial_situation(64, 4)
    with structlog.testing.capture_logs() as logs:
        assert faster(CPU, slow, situation) is CPU
        assert faster(slow, CPU, situation) is CPU
    assert logs[0]["chosen"] == "cpu"
    assert logs[0]["cuda_ms"] > logs[0]["cpu_ms"]


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_a_named_gpu_builds_the_costs_and_solves_at_any_alpha_above_0(
    alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def costs(situation: Situation) -> NDArray[np.float64]:
        asked.append("costs")
        return cost_matrix(situation)

    def again(
        cost_kn: NDArray[np.float64], capacity_n: NDArray[np.int64], price_n: NDArray[np.float64]
    ) -> NDArray[np.int32]:
        asked.append("solve")
        return solve_again(cost_kn, capacity_n, price_n)

    def assign(situation: Situation) -> NDArray[np.int32]:
        return again(costs(situation), situation.capacity_n, np.zeros(situation.workers))

    gpu = Opt("cuda", assign, again, costs)
    monkeypatch.setattr("dispatch.placement.assign.backend.use_opt", lambda _: gpu)
    situation = replace(trial_situation(64, 4), alpha=alpha)
    for policy in ("esd", "joint:0"):
        build_policy(policy, 0, "cuda").assign(situation)
    assert asked == ["costs", "solve"] * 2


def test_esd_asks_the_solver_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Situation] = []

    def remember(situation: Situation) -> NDArray[np.int32]:
        asked.append(situation)
        return assign_on_cpu(situation)

    monkeypatch.setattr("dispatch.placement.assign.backend.use_opt", lambda _: Opt("cuda", remember))
    situation = trial_situation(64, 4)
    at_B = build_policy("esd:1", 0, "cuda").assign(situation).worker_B
    assert len(asked) == 1
    assert np.array_equal(at_B, build_policy("esd:1", 0).assign(situation).worker_B)


@pytest.mark.parametrize(("samples", "workers"), [(1, 1), (64, 4), (1000, 70)])
def test_trial_batches_can_be_assigned(samples: int, workers: int) -> None:
    situation = trial_situation(samples, workers)
    assert (np.bincount(assign_on_cpu(situation), minlength=workers) <= situation.capacity_n).all()
