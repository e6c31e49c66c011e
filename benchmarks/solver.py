"""Exact solvers compared on the same batches: do they reach the same optimum, and how fast.

Each is given the situation of a batch of synthetic clicks and timed from there to the assignment on the host, including
the cost matrix. A solver that cannot run here (no GPU, a library missing, a matrix too large) is reported with the
reason.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from dispatch.placement.assign.backend import assign_on_cpu, trial_situation
from dispatch.placement.assign.cost import cost_matrix
from dispatch.placement.assign.situation import Situation
from dispatch.placement.errors import NoGpu, PlacementError
from infra.base.errors import ConfigError

Assign = Callable[[Situation], NDArray[np.int32]]

ROWS_PER_SAMPLE = 8
"""Distinct rows of a batch: about as many as in Criteo's."""
FIELDS = 26
SLOW_SECONDS = 1.0
"""A solver that takes longer is timed once."""
MOST_EXPANDED = 8192
"""Most rows and columns of an expanded matrix that a host can hold."""
TOLERANCE = 1e-9
"""Relative tolerance for sums of float64 in another order."""


@dataclass(frozen=True)
class SolverResult:
    """One solver on one size; times in milliseconds, None if it did not run."""

    backend: str
    workers: int
    batch: int
    """Samples per worker."""
    p50_ms: float | None = None
    least_ms: float | None = None
    repeat: int = 0
    cost: float | None = None
    equal: bool | None = None
    """Whether the cost is the least found by any backend of the run."""
    reason: str = ""
    """Why it did not run."""


class Unavailable(Exception):
    """A backend cannot run here, or not on this size."""


def run_solver(workers: int, batches: list[int], backends: list[str], repeat: int = 20) -> list[SolverResult]:
    """One result per size and backend."""
    wrong = sorted(set(backends) - set(BACKENDS))
    if wrong or min(batches, default=0) < 1:
        raise ConfigError(
            f"solvers cannot be compared; got backends {backends} and batches {batches}; expected backends out of "
            f"{', '.join(BACKENDS)} and batches of at least 1; correct --backend or --batch"
        )
    results = []
    for batch in batches:
        situation = trial_situation(workers * batch, workers, FIELDS, ROWS_PER_SAMPLE * workers * batch)
        results += _compared([_run_one(name, situation, batch, repeat) for name in backends])
    return results


def _run_one(name: str, situation: Situation, batch: int, repeat: int) -> SolverResult:
    try:
        assign = BACKENDS[name]()
        at_B, times = _timed(assign, situation, repeat)
    except NoGpu:
        return SolverResult(name, situation.workers, batch, reason="no cupy or no GPU")
    except (Unavailable, PlacementError) as error:
        return SolverResult(name, situation.workers, batch, reason=str(error))
    filled_n = np.bincount(at_B, minlength=situation.workers)
    assert (filled_n <= situation.capacity_n).all(), f"{name} exceeds capacities: {filled_n}"
    cost = float(cost_matrix(situation)[np.arange(situation.samples), at_B].sum())
    return SolverResult(name, situation.workers, batch, statistics.median(times), min(times), len(times), cost)


def _timed(assign: Assign, situation: Situation, repeat: int) -> tuple[NDArray[np.int32], list[float]]:
    times: list[float] = []
    while len(times) <= repeat:
        began = perf_counter()
        at_B = assign(situation)
        times.append((perf_counter() - began) * 1000)
        if times[-1] > SLOW_SECONDS * 1000 and len(times) > 1:
            break
    return at_B, times[1:]  # the first compiles


def _compared(results: list[SolverResult]) -> list[SolverResult]:
    least = min((result.cost for result in results if result.cost is not None), default=0.0)
    return [
        result
        if result.cost is None
        else SolverResult(
            **{**vars(result), "equal": bool(abs(result.cost - least) <= TOLERANCE * max(1.0, abs(least)))}
        )
        for result in results
    ]


# ── the solvers ───────────────────────────────────────────────────────────────────────────────────────────────────────
def _cpu() -> Assign:
    return assign_on_cpu


def _cuda() -> Assign:
    from dispatch.placement.assign.cuda.transport import CudaSolver

    return CudaSolver().assign


def _hungarian_cuda() -> Assign:
    from dispatch.placement.assign.cuda.hungarian import hungarian_cuda

    return lambda situation: hungarian_cuda(cost_matrix(situation), situation.capacity_n)


def _scipy() -> Assign:
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise Unavailable("no scipy: extra 'dev'") from error

    def assign(situation: Situation) -> NDArray[np.int32]:
        if situation.capacity_n.sum() > MOST_EXPANDED:
            raise Unavailable(f"over {MOST_EXPANDED} copied columns")
        worker_s = np.repeat(np.arange(situation.workers, dtype=np.int32), situation.capacity_n)
        _, column_k = linear_sum_assignment(np.repeat(cost_matrix(situation), situation.capacity_n, axis=1))
        return worker_s[column_k]

    return assign


def _pot() -> Assign:
    try:
        import ot
    except ImportError as error:
        raise Unavailable("no POT: extra 'dev'") from error

    def assign(situation: Situation) -> NDArray[np.int32]:
        """The surplus of places goes to one more row that costs nothing, since POT requires equal masses."""
        cost_Bn = cost_matrix(situation)
        mass_k = np.append(np.ones(len(cost_Bn)), float(situation.capacity_n.sum() - len(cost_Bn)))
        padded_kn = np.vstack([cost_Bn, np.zeros(situation.workers)])
        moved_kn = ot.emd(mass_k, situation.capacity_n.astype(np.float64), padded_kn, numItermax=10_000_000)
        at_B: NDArray[np.int32] = moved_kn[:-1].argmax(axis=1).astype(np.int32)
        return at_B

    return assign


BACKENDS: dict[str, Callable[[], Assign]] = {
    "cpu": _cpu,
    "cuda": _cuda,
    "hungarian_cuda": _hungarian_cuda,
    "scipy": _scipy,
    "pot": _pot,
}
