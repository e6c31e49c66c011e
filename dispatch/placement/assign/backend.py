"""Where Opt runs: on the CPU, on a GPU by one of two methods, or where a trial problem was solved faster.

If a GPU is set explicitly, it is used, or NoGpu is raised; ``auto`` uses the CPU if there is no GPU. The total cost of
an assignment does not depend on the choice, but assignments of equal cost may differ: a run that must repeat bit for
bit on any machine must set one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from time import perf_counter

import numpy as np
import structlog

from dispatch.placement.arrays import F64, I32
from dispatch.placement.assign.choices import Backend, OptBackend
from dispatch.placement.assign.cost import cost_matrix
from dispatch.placement.assign.cuda.hungarian import hungarian_cuda
from dispatch.placement.assign.cuda.transport import MOST_WORKERS, CudaSolver, load_cupy
from dispatch.placement.assign.situation import Situation
from dispatch.placement.assign.solver import SolveAgain, solve_again, solve_transport
from dispatch.placement.errors import NoGpu
from dispatch.placement.rows.holders import only
from dispatch.placement.rows.states import CLEAN, OWNED

Assign = Callable[[Situation], I32]

TRIAL_SAMPLES = 1024
TRIAL_FIELDS = 26
TRIAL_WORKERS = 8
TRIAL_ROWS = 8192
TRIALS = 5
"""Number of trials, of which the fastest counts; one more before them compiles and fills caches."""


@dataclass(frozen=True)
class Opt:
    """An exact solver: for a whole batch, for a finished matrix similar to the one before, and its builder of the
    matrix.
    """

    name: Backend
    assign: Assign
    again: SolveAgain = solve_again
    costs: Callable[[Situation], F64] = cost_matrix
    device_seconds: Callable[[], float] | None = None
    """How long the latest assignment took by the device's own clock; None: only the wall clock is available."""


def assign_on_cpu(situation: Situation) -> I32:
    """Runs Opt on a whole batch."""
    return solve_transport(cost_matrix(situation), situation.capacity_n)


CPU = Opt("cpu", assign_on_cpu)


@cache
def use_opt(backend: Backend) -> Opt:
    """The solver of a backend, created once per process; raises NoGpu if it needs a GPU and there is none."""
    if backend == "cpu":
        return CPU
    solver = CudaSolver()
    if backend == "cuda":
        again = lambda cost_kn, capacity_n, _: solver.solve(cost_kn, capacity_n)  # noqa: E731
        return Opt("cuda", solver.assign, again, solver.cost_matrix, solver.device_seconds)
    return Opt(
        "hungarian",
        lambda situation: hungarian_cuda(solver.cost_matrix(situation), situation.capacity_n),
        lambda cost_kn, capacity_n, _: hungarian_cuda(cost_kn, capacity_n),
        solver.cost_matrix,
    )


@cache
def choose_backend(wanted: OptBackend, samples: int, workers: int) -> Backend:
    """The backend that a setting means on this machine, for batches of this size; determined once per process."""
    if wanted != "auto":
        return use_opt(wanted).name
    if workers > MOST_WORKERS:
        return "cpu"
    try:
        gpu = use_opt("cuda")
    except NoGpu:
        return "cpu"
    return faster(CPU, gpu, trial_situation(samples, workers)).name


def has_gpu() -> bool:
    """Whether exact assignment could run on a GPU."""
    try:
        load_cupy()
    except NoGpu:
        return False
    return True


def faster(first: Opt, second: Opt, situation: Situation) -> Opt:
    """The one that assigns the batch faster."""
    first_seconds, second_seconds = (_least_seconds(opt.assign, situation) for opt in (first, second))
    chosen = first if first_seconds <= second_seconds else second
    times = {f"{first.name}_ms": first_seconds * 1000, f"{second.name}_ms": second_seconds * 1000}
    structlog.get_logger().info("measured where exact assignment is faster", chosen=chosen.name, **times)
    return chosen


def trial_situation(
    samples: int = TRIAL_SAMPLES, workers: int = TRIAL_WORKERS, fields: int = TRIAL_FIELDS, rows: int = TRIAL_ROWS
) -> Situation:
    """A synthetic batch of clicks: a few rows used often, half of the workers behind links ten times slower."""
    rng = np.random.default_rng(1)
    owner_U = rng.integers(0, workers, rows)
    return Situation(
        step=0,
        local_BF=(rng.random((samples, fields)) ** 3 * rows).astype(np.int32),
        state_U=rng.choice([CLEAN, OWNED], rows).astype(np.uint8),
        holders_UQ=only(owner_U, workers),
        row_cost_n=np.where(np.arange(workers) < (workers + 1) // 2, 1.0, 10.0),
        capacity_n=np.full(workers, -(-samples // workers), np.int64),
    )


def trial_seconds(opt: Opt, situation: Situation) -> float:
    """How long one assignment takes, by the device's own clock if it has one."""
    began = perf_counter()
    opt.assign(situation)
    return opt.device_seconds() if opt.device_seconds is not None else perf_counter() - began


def _least_seconds(assign: Assign, situation: Situation) -> float:
    assign(situation)
    seconds = []
    for _ in range(TRIALS):
        began = perf_counter()
        assign(situation)
        seconds.append(perf_counter() - began)
    return min(seconds)
