"""Which solver a setting gives."""

from collections.abc import Iterator

import numpy as np
import pytest
import structlog
from numpy.typing import NDArray

from dispatch.assign import backend
from dispatch.assign.backend import CPU, Opt, assign_on_cpu, choose_opt, faster, trial_situation
from dispatch.assign.choices import OptBackend
from dispatch.assign.situation import Situation
from dispatch.config import DispatchConfig
from dispatch.errors import NoGpu
from dispatch.policies.registry import build_policy


@pytest.fixture(autouse=True)
def _forgotten_choice() -> Iterator[None]:
    choose_opt.cache_clear()
    yield
    choose_opt.cache_clear()


class AbsentGpu:
    """Stands for the GPU's solver on a machine that has none."""

    def __init__(self) -> None:
        raise NoGpu("no device here")


def test_the_default_is_the_cpu() -> None:
    assert DispatchConfig().opt_backend == "cpu"
    assert choose_opt("cpu") is CPU


@pytest.mark.parametrize("wanted", ["cuda", "auto"])
def test_a_machine_without_gpu_says_so_once_and_uses_the_cpu(
    wanted: OptBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "CudaSolver", AbsentGpu)
    with structlog.testing.capture_logs() as logs:
        assert all(choose_opt(wanted) is CPU for _ in range(3))
    assert [(entry["wanted"], entry["reason"]) for entry in logs] == [(wanted, "no device here")]


def test_auto_takes_the_faster_and_says_what_it_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(backend, "perf_counter", lambda: now[0])

    def slow_assign(situation: Situation) -> NDArray[np.int32]:
        now[0] += 0.05
        return assign_on_cpu(situation)

    slow = Opt("cuda", CPU.solve, slow_assign)
    with structlog.testing.capture_logs() as logs:
        assert faster(CPU, slow) is CPU
        assert faster(slow, CPU) is CPU
    assert logs[0]["chosen"] == "cpu"
    assert logs[0]["cuda_ms"] > logs[0]["cpu_ms"]


def test_esd_asks_the_solver_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Situation] = []

    def remember(situation: Situation) -> NDArray[np.int32]:
        asked.append(situation)
        return assign_on_cpu(situation)

    monkeypatch.setattr("dispatch.assign.backend.choose_opt", lambda wanted: Opt("cuda", CPU.solve, remember))
    situation = trial_situation(64, 4)
    at_B = build_policy("esd:1", 0, "cuda").assign(situation).worker_B
    assert len(asked) == 1
    assert np.array_equal(at_B, build_policy("esd:1", 0).assign(situation).worker_B)


@pytest.mark.parametrize(("samples", "workers"), [(1, 1), (64, 4), (1000, 70)])
def test_trial_batches_can_be_assigned(samples: int, workers: int) -> None:
    situation = trial_situation(samples, workers)
    assert (np.bincount(assign_on_cpu(situation), minlength=workers) <= situation.capacity_n).all()
