"""How long a step takes, from its parts."""

import numpy as np
import pytest

from infra.plan.model import PlannedParts, limit_of, step_seconds


def parts(
    compute: float, early: float, late: float, dense: float, decide: float, is_alone: bool = False, steps: int = 1
) -> PlannedParts:
    compute_S, early_S, late_S, dense_S, decide_S = np.full((steps, 5), (compute, early, late, dense, decide), float).T
    return PlannedParts(compute_S, early_S, late_S, dense_S, decide_S, np.full(steps, is_alone))


@pytest.mark.parametrize(
    ("longest", "expected"), [((5, 2, 1), 5), ((2, 5, 1), 5), ((1, 2, 5), 5)], ids=["compute", "rows", "deciding"]
)
def test_one_worker_waits_for_the_longest_of_compute_rows_and_deciding(
    longest: tuple[float, float, float], expected: float
) -> None:
    compute, rows, decide = longest
    assert step_seconds(parts(compute, rows, 7, 9, decide, is_alone=True)).tolist() == [expected]


def test_several_workers_wait_for_late_rows_and_dense_weights_too() -> None:
    assert step_seconds(parts(5, 2, 0.5, 3, 1, steps=2)).tolist() == [8.5, 8.5]
    assert step_seconds(parts(1, 2, 0.5, 3, 1)).tolist() == [5.5]


@pytest.mark.parametrize(
    ("found", "limit"),
    [
        (parts(5, 2, 1, 3, 1), "compute"),
        (parts(1, 2, 1, 2.5, 1), "rows"),
        (parts(1, 2, 0, 3, 1), "dense"),
        (parts(1, 2, 0, 3, 4), "deciding"),
        (parts(5, 2, 9, 9, 1, is_alone=True), "compute"),
    ],
)
def test_the_limit_is_what_most_of_the_time_goes_to(found: PlannedParts, limit: str) -> None:
    assert limit_of(found) == limit
