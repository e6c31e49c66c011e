"""Whether replicated rows pay: tried once the time without them is known, confirmed or taken back by the clock."""

import pytest

from dispatch.placement.capacity.replica_trial import TRIAL_STEPS, ReplicaTrial, ReplicaVerdict
from dispatch.placement.capacity.set_times import LEAST_WAIT, LEFT_OUT

ENOUGH = LEFT_OUT + TRIAL_STEPS


class Steps:
    """Steps of a generation, one after the other."""

    def __init__(self, is_open: bool = True) -> None:
        self.trial = ReplicaTrial()
        self.trial.start_generation(is_open)
        self.step = 1

    def measure(self, seconds: float, steps: int, is_settled: bool = True) -> list[ReplicaVerdict]:
        """The verdicts that follow from so many steps."""
        numbers = range(self.step, self.step + steps)
        self.step += steps
        verdicts = [self.trial.measure(number, seconds, is_settled) for number in numbers]
        return [verdict for verdict in verdicts if verdict is not None]

    def choose(self, rows: int, ahead: int = 0) -> None:
        self.trial.choose(self.step + ahead, rows)


def test_rows_are_replicated_once_the_time_without_them_is_known() -> None:
    steps = Steps()
    steps.measure(1.0, ENOUGH - 1)
    assert not steps.trial.allows
    steps.measure(1.0, 1)
    assert steps.trial.allows


def test_replicas_that_make_steps_faster_stay() -> None:
    steps = Steps()
    steps.measure(1.0, ENOUGH)
    steps.choose(7)
    assert steps.measure(0.9, ENOUGH) == [ReplicaVerdict(True, 0.9, 1.0)]
    steps.choose(5)
    assert not steps.measure(3.0, 5 * ENOUGH)
    assert steps.trial.allows


def test_replicas_that_make_steps_slower_leave_and_are_tried_after_waits_that_double() -> None:
    steps = Steps()
    steps.measure(1.0, ENOUGH)
    for losses in (1, 2, 3):
        steps.choose(7)
        assert steps.measure(1.1, ENOUGH) == [ReplicaVerdict(False, 1.1, 1.0)]
        assert not steps.trial.allows
        steps.choose(0)
        wait = LEAST_WAIT << losses
        steps.measure(1.0, wait - 1)
        assert not steps.trial.allows
        steps.measure(1.0, 1)
        assert steps.trial.allows


def test_steps_that_were_decided_before_a_choice_count_as_without() -> None:
    steps = Steps()
    steps.measure(1.0, ENOUGH)
    steps.choose(7, ahead=3)
    assert not steps.measure(1.0, 3)
    assert steps.measure(0.9, ENOUGH) == [ReplicaVerdict(True, 0.9, 1.0)]


def test_nothing_is_compared_across_a_change_of_the_workers() -> None:
    steps = Steps()
    steps.measure(1.0, ENOUGH)
    steps.choose(7)
    steps.measure(0.9, 20)
    steps.trial.forget_steps()
    assert not steps.measure(0.5, ENOUGH)
    assert not steps.trial.allows
    steps.choose(0)
    steps.measure(1.0, ENOUGH)
    assert steps.trial.allows


def test_steps_of_a_ring_on_trial_do_not_count() -> None:
    steps = Steps()
    steps.measure(1.0, 5 * ENOUGH, is_settled=False)
    assert not steps.trial.allows


@pytest.mark.parametrize("seconds", [0.5, 2.0])
def test_where_the_clock_does_not_decide_rows_may_always_be_replicated(seconds: float) -> None:
    steps = Steps(is_open=False)
    assert steps.trial.allows
    steps.measure(1.0, ENOUGH)
    steps.choose(7)
    assert not steps.measure(seconds, ENOUGH)
    assert steps.trial.allows
