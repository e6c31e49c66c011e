"""What the comparison of solvers checks and how it reports what cannot run."""

import builtins
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks import solver
from benchmarks.solver import run_solver
from dispatch.placement.assign.situation import Situation
from dispatch.placement.errors import NoGpu
from infra.base.errors import ConfigError


def in_order(situation: Situation) -> NDArray[np.int32]:
    """Feasible, but not the cheapest."""
    return np.repeat(np.arange(situation.workers), situation.capacity_n)[: situation.samples].astype(np.int32)


def raise_no_gpu() -> solver.Assign:
    raise NoGpu("no device here")


def test_cpu_scipy_and_pot_reach_the_same_optimum() -> None:
    results = run_solver(4, [8, 32], ["cpu", "scipy", "pot"], repeat=2)
    assert [(result.backend, result.batch) for result in results[::3]] == [("cpu", 8), ("cpu", 32)]
    assert all(result.equal and result.repeat == 2 for result in results)


def test_a_dearer_assignment_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(solver.BACKENDS, "pot", lambda: in_order)
    assert [result.equal for result in run_solver(4, [16], ["cpu", "pot"], repeat=1)] == [True, False]


def test_a_backend_without_gpu_is_reported_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(solver.BACKENDS, "cuda", raise_no_gpu)
    cpu, cuda = run_solver(2, [8], ["cpu", "cuda"], repeat=1)
    assert cpu.equal
    assert (cuda.p50_ms, cuda.equal, cuda.reason) == (None, None, "no cupy or no GPU")


@pytest.mark.parametrize(("backend", "library"), [("scipy", "scipy.optimize"), ("pot", "ot")])
def test_a_missing_library_is_named(backend: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name == library:
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    (result,) = run_solver(2, [8], [backend], repeat=1)
    assert "extra 'dev'" in result.reason


@pytest.mark.parametrize(("batches", "backends"), [([8], ["tpu"]), ([0], ["cpu"]), ([], ["cpu"])])
def test_unknown_backends_and_empty_batches_are_refused(batches: list[int], backends: list[str]) -> None:
    with pytest.raises(ConfigError, match="solvers cannot be compared"):
        run_solver(4, batches, backends)
