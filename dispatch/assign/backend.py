"""Where Opt runs: on the CPU, on a GPU, or wherever a trial problem was solved sooner.

Without a GPU a warning is logged once and the CPU is used. The total cost of an assignment does not depend on the
choice, but equally cheap assignments may differ: a run that must repeat bit for bit needs cpu or cuda, not auto.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from time import perf_counter
from typing import Literal

import numpy as np
import structlog

from dispatch.arrays import I32
from dispatch.assign.choices import OptBackend
from dispatch.assign.cost import cost_matrix
from dispatch.assign.cuda.transport import CudaSolver
from dispatch.assign.situation import Situation
from dispatch.assign.solver import Solve, SolveAgain, solve_again, solve_transport
from dispatch.errors import NoGpu
from dispatch.rows.holders import only
from dispatch.rows.states import CLEAN, OWNED

Assign = Callable[[Situation], I32]

TRIAL_SAMPLES, TRIAL_FIELDS, TRIAL_WORKERS, TRIAL_ROWS = 1024, 26, 8, 8192
TRIALS = 5
"""of which the fastest counts; one more before them compiles and fills caches"""


@dataclass(frozen=True)
class Opt:
    """An exact solver: of a finished matrix, of a whole batch, and of a matrix like the one before."""

    name: Literal["cpu", "cuda"]
    solve: Solve
    assign: Assign
    again: SolveAgain = solve_again
    device_seconds: Callable[[], float] | None = None
    """how long the latest assignment took by the device's own clock; None: there is none but the wall's"""


def assign_on_cpu(situation: Situation) -> I32:
    """Opt over a whole batch."""
    return solve_transport(cost_matrix(situation), situation.capacity_n)


CPU = Opt("cpu", solve_transport, assign_on_cpu)


@cache
def choose_opt(wanted: OptBackend) -> Opt:
    """The solver for a setting; settled once a process, so that all steps use the same one."""
    if wanted == "cpu":
        return CPU
    log = structlog.get_logger()
    try:
        solver = CudaSolver()
    except NoGpu as error:
        log.warning("no GPU for exact assignment; the CPU does it", wanted=wanted, reason=str(error))
        return CPU
    gpu = Opt(
        "cuda",
        solver.solve,
        solver.assign,
        lambda cost_kn, capacity_n, _: solver.solve(cost_kn, capacity_n),
        solver.device_seconds,
    )
    return gpu if wanted == "cuda" else faster(CPU, gpu)


def faster(first: Opt, second: Opt) -> Opt:
    """Whichever assigns a made-up batch sooner."""
    situation = trial_situation()
    first_seconds, second_seconds = (_least_seconds(opt.assign, situation) for opt in (first, second))
    chosen = first if first_seconds <= second_seconds else second
    times = {f"{first.name}_ms": first_seconds * 1000, f"{second.name}_ms": second_seconds * 1000}
    structlog.get_logger().info("measured where exact assignment is faster", chosen=chosen.name, **times)
    return chosen


def trial_situation(
    samples: int = TRIAL_SAMPLES, workers: int = TRIAL_WORKERS, fields: int = TRIAL_FIELDS, rows: int = TRIAL_ROWS
) -> Situation:
    """A batch like one of clicks: few rows used often, half the workers behind links ten times slower."""
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
    """How long one assignment takes, by the device's own clock where it has one."""
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
