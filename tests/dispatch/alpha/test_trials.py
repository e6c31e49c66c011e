"""Trials of a solver, by times that the tests choose."""

from collections.abc import Callable

import pytest

from dispatch.alpha.trials import Trial


def taking(*seconds: float) -> Callable[[], float]:
    """Solves that take so long, one after the other."""
    times = iter(seconds)
    return lambda: next(times)


def test_the_fastest_trial_at_start_counts_and_the_first_does_not() -> None:
    assert Trial(taking(0.001, 0.4, 0.3, 0.2, 0.3, 0.5)).least_seconds == 0.2


def test_slowdown_is_the_median_of_three_after_a_warm_up_each() -> None:
    trial = Trial(taking(1, *[0.002] * 5, 1, 0.002, 1, 0.02, 1, 0.008, 1, 0.006))
    slowdowns = []
    for now in range(0, 40, 10):
        trial.look(now)
        slowdowns.append(trial.slowdown)
    assert slowdowns == pytest.approx([1.0, 1.0, 4.0, 4.0])


def test_a_machine_that_was_busy_at_start_is_found_out() -> None:
    trial = Trial(taking(1, *[0.01] * 5, 1, 0.002, 1, 0.01, 1, 0.01))
    for now in range(0, 30, 10):
        trial.look(now)
    assert trial.least_seconds == 0.002
    assert trial.slowdown == pytest.approx(5.0)


def test_trials_take_a_hundredth_of_the_time_at_most() -> None:
    solved: list[float] = []

    def solve() -> float:
        solved.append(0.05)
        return 0.05

    trial = Trial(solve)
    at_start = len(solved)
    for now in range(20):
        trial.look(now)
    assert len(solved) - at_start == 2 * 2
