"""Trials of a solver, by times that the tests choose."""

import random
from collections.abc import Iterable

import pytest

from dispatch.alpha.controller import GPU_CALM, GPU_CONTENDED
from dispatch.alpha.trials import FIRST_LOOKS, FORGOTTEN_LOOKS, Trial


class Chosen:
    """A trial at every look, which takes as long as is chosen."""

    def __init__(self) -> None:
        self.seconds = 0.001
        self.waited = 0.0
        """what a solution takes beyond that, as a decision that waits for it sees it"""
        self.solved = 0
        self._clock = 0.0
        self.trial = Trial(self._solve, lambda: self._clock)
        self._now = 0.0

    def _solve(self) -> float:
        self.solved += 1
        self._clock += self.seconds + self.waited
        return self.seconds

    def look(self, times: Iterable[float]) -> list[float | None]:
        slowdowns = []
        for self.seconds in times:
            self._now += 100.0
            self.trial.run_if_due(self._now)
            slowdowns.append(self.trial.slowdown)
        return slowdowns


def test_nothing_is_said_until_it_is_known_what_is_usual() -> None:
    chosen = Chosen()
    assert chosen.look([0.002] * FIRST_LOOKS) == [None] * (FIRST_LOOKS - 1) + [1.0]
    assert chosen.trial.usual_seconds == 0.002


def test_whether_a_solver_is_fast_enough_is_known_after_three_trials() -> None:
    chosen = Chosen()
    expected = []
    for seconds in (0.002, 0.002, 0.004):
        chosen.look([seconds])
        expected.append(chosen.trial.expected_seconds)
    assert expected == [None, None, 0.002]
    assert chosen.trial.slowdown is None
    chosen.look([0.002] * FIRST_LOOKS)
    assert chosen.trial.expected_seconds == chosen.trial.usual_seconds


def test_slowdown_is_the_median_of_three_trials() -> None:
    chosen = Chosen()
    chosen.look([0.002] * FIRST_LOOKS)
    assert chosen.look([0.02, 0.008, 0.006]) == pytest.approx([1.0, 4.0, 4.0])


def test_under_the_runs_own_load_trials_twice_as_slow_as_on_an_idle_machine_are_usual() -> None:
    """Half of the trials meet the kernels of the run's own workers, half the gaps between them."""
    chosen, draw = Chosen(), random.Random(3)
    own = [0.001 * draw.choice([draw.uniform(1.0, 1.2), draw.uniform(1.8, 2.2)]) for _ in range(600)]
    assert max(slowdown for slowdown in chosen.look(own) if slowdown is not None) < GPU_CALM
    assert min(slowdown or 0.0 for slowdown in chosen.look([0.006] * 20)[2:]) >= GPU_CONTENDED
    assert max(slowdown or 9.0 for slowdown in chosen.look(own)[3:]) < GPU_CALM


def test_what_stays_slow_for_minutes_becomes_usual() -> None:
    chosen = Chosen()
    chosen.look([0.002] * 60)
    slowdowns = chosen.look([0.01] * (FORGOTTEN_LOOKS + FIRST_LOOKS))
    assert slowdowns[FORGOTTEN_LOOKS - 2] == pytest.approx(5.0)
    assert slowdowns[-1] == pytest.approx(1.0)


def test_trials_take_a_hundredth_of_the_time_at_most() -> None:
    chosen = Chosen()
    chosen.seconds, at_start = 0.05, chosen.solved
    for now in range(20):
        chosen.trial.run_if_due(now)
    assert chosen.solved - at_start == 2 * 2
    chosen.waited = 0.2
    for now in range(20, 70):
        chosen.trial.run_if_due(now)
    assert chosen.solved - at_start == 3 * 2, "decisions wait for more than what a GPU computes"
