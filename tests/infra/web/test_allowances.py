"""Token buckets of clients, on a clock that the test holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.web.limits import RATE_SECONDS, Allowances

RATE = 4.0
MOST = int(RATE * RATE_SECONDS)


class Clock:
    """Shows the time that it was set to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def sent(allowances: Allowances, count: int, client: str = "a") -> int:
    """How many of so many requests are allowed."""
    return sum(allowances.spend(client) == 0 for _ in range(count))


def test_a_client_may_send_the_requests_of_ten_seconds_at_once_and_then_goes_on_at_the_rate() -> None:
    clock = Clock()
    allowances = Allowances(RATE, clock)
    assert sent(allowances, 2 * MOST) == MOST
    for _ in range(3):
        clock.now += 2.0
        assert sent(allowances, MOST) == 2 * RATE


def test_there_is_no_moment_when_a_client_may_send_as_much_again() -> None:
    """Windows would allow it on both sides of where one ends and the next begins."""
    for offset in range(4 * RATE_SECONDS):
        clock = Clock()
        allowances = Allowances(RATE, clock)
        clock.now += offset / 4
        assert sent(allowances, 2 * MOST) == MOST
        clock.now += 0.25
        assert sent(allowances, 2 * MOST) == 1


def test_who_waits_as_long_as_it_is_told_is_served_and_not_before() -> None:
    clock = Clock()
    allowances = Allowances(RATE, clock)
    sent(allowances, MOST)
    clock.now += 0.0625
    assert allowances.spend("a") == pytest.approx(0.1875)
    clock.now += 0.125
    assert allowances.spend("a") == pytest.approx(0.0625), "asking costs nothing"
    clock.now += 0.0625
    assert sent(allowances, 2) == 1


def test_a_rate_below_one_in_ten_seconds_allows_one_at_a_time() -> None:
    clock = Clock()
    allowances = Allowances(1 / 64, clock)
    assert (sent(allowances, 2), allowances.spend("a")) == (1, 64.0)
    clock.now += 63
    assert allowances.spend("a") == 1.0
    clock.now += 1000
    assert sent(allowances, 2) == 1, "nobody saves up more than fits the bucket"


def test_clients_do_not_share_and_are_forgotten_once_their_buckets_are_full() -> None:
    clock = Clock()
    allowances = Allowances(RATE, clock)
    assert [sent(allowances, 2 * MOST, client) for client in ("a", "b")] == [MOST, MOST]
    clock.now += RATE_SECONDS / 2
    assert (sent(allowances, 1, "c"), len(allowances)) == (1, 3)
    clock.now += RATE_SECONDS / 2
    assert (sent(allowances, 1, "c"), len(allowances)) == (1, 1)
    assert sent(allowances, 2 * MOST, "a") == MOST


@given(st.lists(st.tuples(st.integers(0, 80), st.integers(0, 60)), min_size=2, max_size=12))
def test_any_span_of_time_has_at_most_a_bucket_and_what_flowed_in_meanwhile(steps: list[tuple[int, int]]) -> None:
    clock = Clock()
    allowances, seen = Allowances(RATE, clock), [(clock.now, 0)]
    for quarter_seconds, requests in steps:
        clock.now += quarter_seconds / 4
        seen.append((clock.now, sent(allowances, requests)))
    for first in range(len(seen)):
        for last in range(first, len(seen)):
            seconds = seen[last][0] - seen[first][0]
            assert sum(count for _, count in seen[first : last + 1]) <= MOST + RATE * seconds
