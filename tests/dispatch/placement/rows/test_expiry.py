"""When keys are forgotten: by steps and by event time, now and then, and never while steps are under way."""

from dispatch.placement.rows.expiry import HOUR_SECONDS, PARTS, Expiry, StepTime

BEGAN = 1.7e9


def forgotten(expiry: Expiry, steps: range, hours_a_step: float) -> dict[int, int]:
    """Steps in which keys are forgotten, with the step since which they must have been used."""
    found = {step: expiry.forget_before(step, BEGAN + step * hours_a_step * HOUR_SECONDS) for step in steps}
    return {step: before for step, before in found.items() if before}


def test_nothing_is_forgotten_unless_asked_for() -> None:
    assert forgotten(Expiry(0, 0.0), range(1, 1000), 1.0) == {}


def test_after_so_many_steps_sixteen_times_in_that_period() -> None:
    assert forgotten(Expiry(5, 0.0), range(1, 9), 1.0) == {6: 1, 7: 2, 8: 3}
    found = forgotten(Expiry(160, 0.0), range(1, 481), 1.0)
    assert len(found) == 2 * PARTS
    assert all(before == step - 160 for step, before in found.items())


def test_after_so_many_hours_of_events_a_sixteenth_later_at_most() -> None:
    found = forgotten(Expiry(0, 24.0), range(1, 241), 0.5)  # 24 hours are 48 steps
    assert next(iter(found)) > 48
    assert len(found) == (240 - 48) // 3, "every hour and a half"
    assert all(48 <= step - before <= 48 + 3 for step, before in found.items())


def test_a_run_goes_on_from_the_times_of_its_checkpoint() -> None:
    whole, first = Expiry(0, 24.0), Expiry(0, 24.0)
    expected = forgotten(whole, range(1, 200), 0.5)
    before = forgotten(first, range(1, 120), 0.5)
    assert len(first.times) <= PARTS + 1
    assert before | forgotten(Expiry(0, 24.0, times=first.times), range(120, 200), 0.5) == expected


def test_steps_that_are_repeated_leave_the_times_that_they_left_before() -> None:
    decided, repeated = Expiry(0, 24.0), Expiry(0, 24.0)
    for step in range(1, 40):
        decided.forget_before(step, BEGAN + step * 1800.0)
        repeated.note(step, BEGAN + step * 1800.0)
    assert repeated.times == decided.times
    by_steps = Expiry(5, 0.0)
    assert not by_steps.note(1, BEGAN)
    assert by_steps.times == ()


def test_a_time_is_noted_if_it_is_a_sixteenth_of_the_period_later_than_the_last() -> None:
    expiry, hours = Expiry(0, 16.0), (0.0, 0.5, 1.0, 0.9, 1.9, 2.0)
    noted = [expiry.note(step, BEGAN + hour * HOUR_SECONDS) for step, hour in enumerate(hours, 1)]
    assert noted == [True, False, True, False, False, True]
    assert [time.step for time in expiry.times] == [1, 3, 6]


def test_after_a_gap_in_the_stream_no_step_under_way_loses_its_keys() -> None:
    expiry = Expiry(0, 1.0, lookahead=3, times=[StepTime(100, BEGAN)])
    assert expiry.forget_before(101, BEGAN + 30 * 24 * HOUR_SECONDS) == 101 - 3 - 2


def test_without_event_times_nothing_is_forgotten() -> None:
    expiry = Expiry(0, 1.0)
    assert [expiry.forget_before(step, 0.0) for step in range(1, 50)] == [0] * 49
    assert expiry.times == ()
