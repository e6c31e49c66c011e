"""How long a step takes, from how long its parts take.

A step of several workers, in time:

    compute of the step ──────────┐
    early rows of the next step ──┼─► late rows: pushed, then pulled ─► dense weights, both ways at once ─► next step
    decision on the next step ────┘

Early rows are those that the step does not train (dispatch/placement/rows/plan.py); they move while it computes. Late
ones wait for its new values: a shard answers a pull once all announced pushes have arrived, so pushes and pulls follow
each other. For a worker that trains alone no row waits for anyone else and the dense weights do not move.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PlannedParts:
    """Seconds of the parts of some steps; of each part those of the slowest worker."""

    compute: F64
    early_rows: F64
    """Rows that move while the step before computes; for a worker alone all of its rows."""
    late_rows: F64
    dense: F64
    """Dense weights, one way."""
    decide: F64
    is_alone: NDArray[np.bool_]
    """Whether one worker trains alone, which owns the dense weights."""


def step_seconds(parts: PlannedParts) -> F64:
    """Seconds of each step: of overlapping parts the longest counts; parts that wait for others are added.

    One worker: max(compute, rows, decide). Several: max(compute, early rows, decide) + late rows + dense one way.
    """
    together = np.maximum(np.maximum(parts.compute, parts.early_rows), parts.decide)
    return together + np.where(parts.is_alone, 0.0, parts.late_rows + parts.dense)


def limit_of(parts: PlannedParts) -> str:
    """What takes most of the time: compute, rows, dense or deciding."""
    together = {
        "compute": float(parts.compute.mean()),
        "rows": float(parts.early_rows.mean()),
        "deciding": float(parts.decide.mean()),
    }
    longest = max(together, key=lambda part: together[part])
    several = np.where(parts.is_alone, 0.0, 1.0)
    spent = {longest: together[longest], "dense": float((several * parts.dense).mean())}
    spent["rows"] = spent.get("rows", 0.0) + float((several * parts.late_rows).mean())
    return max(spent, key=lambda part: spent[part])
