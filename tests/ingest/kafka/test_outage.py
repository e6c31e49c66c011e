import pytest

from ingest.kafka.outage import Outage


class Time:
    """A clock that the test sets."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Time:
    clock = Time()
    monkeypatch.setattr("ingest.kafka.outage.time", clock)
    return clock


def silent(outage: Outage, clock: Time, seconds: float) -> None:
    clock.now += seconds
    outage.go_on()


def test_an_outage_is_too_long_only_after_its_limit(clock: Time) -> None:
    outage = Outage(longest_seconds=3, log_seconds=5)
    outage.go_on()
    silent(outage, clock, 3)
    assert not outage.is_too_long
    silent(outage, clock, 0.1)
    assert outage.is_too_long


def test_an_answer_ends_an_outage_and_the_next_one_begins_anew(clock: Time) -> None:
    outage = Outage(longest_seconds=3, log_seconds=5)
    outage.go_on()
    clock.now += 2
    assert outage.end() is None
    silent(outage, clock, 9)
    assert (outage.is_on, outage.silent_seconds, outage.is_too_long) == (True, 0.0, False)


def test_an_outage_is_logged_after_some_patience_and_then_once_in_a_while(clock: Time) -> None:
    outage = Outage(longest_seconds=None, log_seconds=5, patience_seconds=1)
    due = []
    for _ in range(12):
        silent(outage, clock, 1)
        due.append(outage.is_log_due())
    assert [second for second, logged in enumerate(due) if logged] == [1, 6, 11]
    assert outage.end() == 11


def test_outages_that_follow_each_other_are_not_logged_more_often(clock: Time) -> None:
    outage, due = Outage(longest_seconds=None, log_seconds=5), []
    for _ in range(10):
        silent(outage, clock, 1)
        due.append(outage.is_log_due())
        outage.end()
    assert sum(due) == 2
