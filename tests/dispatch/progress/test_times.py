import pytest

from dispatch.progress.status import DecisionStatus
from dispatch.progress.times import DecisionTimes, StepTimes


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that steps see."""
    moment = [0.0]
    monkeypatch.setattr("dispatch.progress.times.monotonic", lambda: moment[0])
    return moment


def test_a_step_s_time_runs_from_the_last_one_s_end_unless_nothing_was_under_way(now: list[float]) -> None:
    times = StepTimes()
    for begins, idle, ends in ((0.0, True, 1.0), (1.5, False, 2.0), (10.0, True, 11.0)):
        now[0] = begins
        times.begin(idle)
        now[0] = ends
        times.end(1)
    assert times.step_ms == 1000.0


def test_the_rate_is_that_of_the_latest_seconds(now: list[float]) -> None:
    times = StepTimes()
    for seconds, samples in ((0.0, 100), (100.0, 100), (101.0, 50), (102.0, 50)):
        now[0] = seconds
        times.end(samples)
    assert times.samples_per_second == pytest.approx(50)


def test_there_is_no_rate_once_nothing_was_trained_for_a_while(now: list[float]) -> None:
    times = StepTimes()
    for seconds in (1.0, 2.0):
        now[0] = seconds
        times.begin(idle=True)
        times.end(100)
    now[0] = 6.9
    assert times.idle_seconds == pytest.approx(4.9)
    assert times.samples_per_second == pytest.approx(100)
    now[0] = 62.0
    assert (times.idle_seconds, times.samples_per_second) == (60.0, 0.0)
    times.begin(idle=True)
    assert times.idle_seconds == 0.0


def test_a_run_without_any_event_is_idle_from_its_beginning(now: list[float]) -> None:
    times = StepTimes()
    now[0] += 30.0
    assert times.idle_seconds == 30.0
    times.begin(idle=True)
    assert times.idle_seconds == 0.0


def test_a_long_step_is_not_idle(now: list[float]) -> None:
    times = StepTimes()
    for seconds in (0.0, 10.0):
        now[0] = seconds
        times.begin(idle=False)
        times.begin(idle=False)
        times.end(50)
    now[0] = 19.0
    assert times.idle_seconds == 0.0
    assert times.samples_per_second == pytest.approx(5)


def test_nothing_is_known_before_the_first_step() -> None:
    times = StepTimes()
    assert (times.seconds, times.step_ms, times.samples_per_second) == (0.0, 0.0, 0.0)
    assert DecisionTimes().status() == DecisionStatus()


def test_late_and_shortened_decisions_are_counted() -> None:
    times = DecisionTimes()
    times.add(0.001, is_late=True, is_shortened=False)
    times.add(0.003, is_late=True, is_shortened=True)
    assert times.status() == DecisionStatus(mean_ms=2.0, deadline_misses=2, cut_short=1)


def test_percentiles_leave_out_what_was_decided_before_the_mark() -> None:
    times = DecisionTimes()
    times.add(9.0, is_late=False, is_shortened=False)
    assert times.percentiles_ms() == (0.0, 0.0)
    times.mark()
    times.add(0.002, is_late=False, is_shortened=False)
    assert times.percentiles_ms() == (2.0, 2.0)
