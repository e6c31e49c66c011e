import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.progress import freshness
from dispatch.progress.freshness import BUCKETS, UNIT_MS, Delays, Freshness, bucket_of, middle_of, percentile_seconds

SECOND = 1000


def arrived(*seconds: float) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([1e12 + SECOND * each for each in seconds], np.int64)


def event_times(count: int, newest: float = 5.0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.linspace(1.0, newest, count)


@given(st.lists(st.integers(0, (1 << 40) - 1), min_size=1, max_size=50))
def test_middle_of_a_bucket_is_within_three_percent_of_its_values(values: list[int]) -> None:
    for value, bucket in zip(values, bucket_of(np.array(values)), strict=True):
        assert 0 <= bucket < BUCKETS
        assert abs(middle_of(int(bucket)) - value) <= value / 32 + 0.5


def test_buckets_ascend_with_their_values() -> None:
    buckets = bucket_of(np.arange(5000))
    assert (np.diff(buckets) >= 0).all()
    assert buckets[:33].tolist() == list(range(33))
    assert bucket_of(np.array([-5, 1 << 50])).tolist() == [0, BUCKETS - 1]


def test_percentiles_are_those_of_the_sorted_delays() -> None:
    delays, ms = Delays(), np.random.default_rng(1).integers(0, 100_000, 4000)
    delays.add(ms, np.ones(4000, np.int64))
    for share in (0.5, 0.99):
        assert percentile_seconds(delays.counts, share) == pytest.approx(np.quantile(ms, share) / 1000, rel=0.04)
    assert percentile_seconds(np.zeros(BUCKETS, np.int64), 0.5) is None


def test_events_are_measured_when_their_step_is_served_and_once() -> None:
    fresh = Freshness(lambda: "append")
    fresh.add(1, arrived(0, 0.5), event_times(2))
    fresh.add(2, arrived(1, 1, 1, 1), event_times(4, 9.0))
    fresh.add(3, arrived(2), event_times(1))
    fresh.live(2, 1e9 + 2.0)
    fresh.live(2, 1e9 + 50.0)
    fresh.live(1, 1e9 + 60.0)
    status = fresh.status()
    assert status.events == 6
    assert status.clock == "append"
    assert status.p50_seconds == pytest.approx(1.0, rel=0.04)
    assert status.p99_seconds == pytest.approx(2.0, rel=0.04)
    assert status.age_seconds is not None
    assert status.age_seconds > 1e9
    fresh.live(7, 1e9 + 2.5)
    assert fresh.status().events == 7


def test_step_that_is_trained_again_counts_once_and_not_if_it_was_served() -> None:
    fresh = Freshness()
    for step in (1, 2, 3):
        fresh.add(step, arrived(step), event_times(1))
    fresh.live(1, 1e9 + 2)
    for step in (1, 2, 3):  # back to a checkpoint before step 1
        fresh.add(step, arrived(step), event_times(1))
    fresh.live(3, 1e9 + 4)
    assert fresh.status().events == 3


def test_unknown_arrivals_are_left_out() -> None:
    fresh = Freshness()
    fresh.add(1, np.array([-1, 0]), event_times(2))
    fresh.live(1, 1e9)
    assert fresh.status().events == 0


def test_memory_is_bounded_and_what_is_forgotten_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freshness, "MOST_TIMES", 10)
    fresh = Freshness()
    for step in range(1, 9):
        fresh.add(step, arrived(*(step + UNIT_MS * each / 1000 for each in range(4))), event_times(4))
    fresh.live(8, 1e9 + 10)
    assert (fresh.status().events, fresh.status().forgotten) == (8, 24)
    assert fresh._times == 0


def test_percentiles_are_of_the_latest_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(freshness, "monotonic", lambda: now[0])
    fresh = Freshness()
    fresh.add(1, arrived(0), event_times(1))
    fresh.live(1, 1e9 + 1)
    now[0] += 40
    assert fresh.status().p50_seconds is not None
    now[0] += 40
    assert fresh.status().p50_seconds is None
    assert fresh.status().events == 1


def test_events_dated_ahead_are_counted_and_say_nothing_about_age(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1e9
    monkeypatch.setattr(freshness, "time", lambda: now)
    fresh = Freshness()
    fresh.add(1, arrived(0, 0, 0), np.array([now - 7.0, now + 3600.0, now + 1e9]))
    fresh.add(2, arrived(1), np.array([now + 3600.0]))
    assert fresh.status().ahead == 0, "nobody serves them"
    fresh.live(2, now + 2.0)
    assert (fresh.status().ahead, fresh.status().events, fresh.status().age_seconds) == (3, 4, 7.0)
    now += 1000.0
    assert fresh.status().age_seconds == 1007.0


def test_an_event_of_a_clock_that_is_a_little_ahead_is_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freshness, "time", lambda: 1e9)
    fresh = Freshness()
    fresh.add(1, arrived(0), np.array([1e9 + freshness.AHEAD_SECONDS]))
    fresh.live(1, 1e9)
    assert (fresh.status().ahead, fresh.status().age_seconds) == (0, 0.0)
