"""Link shaping, on a clock that the tests wind."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.base.errors import ConfigError
from infra.base.link import Bucket, Link


class WoundClock:
    """Time that passes only by sleeping, and by as much too long as the test says."""

    def __init__(self, oversleep_seconds: float = 0.0) -> None:
        self.now = 100.0
        self.oversleep = oversleep_seconds
        self.sleeps: list[float] = []

    def read(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds + self.oversleep


def shaped(clock: WoundClock, gbit: float | None = 1.0, burst: int = 0) -> Link:
    return Link(gbit, burst_bytes=burst, clock=clock.read, sleep=clock.sleep)


def bucket(clock: WoundClock, burst: int = 0) -> Bucket:
    """One direction of a link of 1 Gbit/s."""
    return Bucket(125e6, burst, clock.read)


def test_unshaped_link_never_sleeps() -> None:
    clock = WoundClock()
    shaped(clock, gbit=None).exchange(10**9)
    assert clock.sleeps == []


@pytest.mark.parametrize("gbit", [0.0, -1.0, math.nan, math.inf])
def test_impossible_bandwidth_is_a_config_error(gbit: float) -> None:
    with pytest.raises(ConfigError, match="expected a number above 0"):
        Link(gbit)


def test_transfer_takes_bytes_over_bandwidth() -> None:
    clock = WoundClock()
    shaped(clock, gbit=0.5).exchange(62_500_000)
    assert clock.now == pytest.approx(101.0)


def test_each_direction_carries_at_its_own_speed() -> None:
    clock = WoundClock()
    link = Link(1.0, burst_bytes=0, clock=clock.read, sleep=clock.sleep, uplink_gbit=0.1)
    assert link._buckets is not None
    up, down = (bucket.reserve(12_500_000) for bucket in link._buckets)
    assert (up - clock.now, down - clock.now) == pytest.approx((1.0, 0.1))
    link.exchange(12_500_000)
    assert clock.now == pytest.approx(102.0), "behind what the uplink carries already"


@pytest.mark.parametrize(("gbit", "uplink_gbit"), [(None, 0.1), (1.0, 0.0), (1.0, -1.0), (1.0, float("inf"))])
def test_an_impossible_uplink_is_a_config_error(gbit: float | None, uplink_gbit: float) -> None:
    with pytest.raises(ConfigError, match="a link cannot have"):
        Link(gbit, uplink_gbit=uplink_gbit)


def test_headers_take_their_share_of_the_link() -> None:
    clock = WoundClock()
    link = Link(0.5, burst_bytes=0, clock=clock.read, sleep=clock.sleep, payload_share=0.5)
    link.exchange(62_500_000)
    assert clock.now == pytest.approx(102.0)


def test_an_exchange_waits_for_what_either_direction_carries_already() -> None:
    clock = WoundClock()
    link = shaped(clock, gbit=0.5)
    assert link._buckets is not None
    _, down = link._buckets
    down.reserve(62_500_000)
    link.exchange(62_500_000)
    assert clock.now == pytest.approx(102.0)


def test_transfers_follow_each_other_without_a_gap_however_late_they_are_noticed() -> None:
    clock = WoundClock()
    up = bucket(clock)
    assert up.reserve(125_000_000) == pytest.approx(101.0)
    clock.now = 100.9
    assert up.reserve(125_000_000) == pytest.approx(102.0)
    assert up.reserve(0) == pytest.approx(102.0)
    clock.now = 105.0
    assert up.reserve(125_000_000) == pytest.approx(106.0)
    assert clock.sleeps == []


def test_reservations_have_the_burst_of_an_idle_link() -> None:
    clock = WoundClock()
    up = bucket(clock, burst=1000)
    assert up.reserve(1000) == pytest.approx(100.0, abs=1e-9)
    assert up.reserve(1000) == pytest.approx(100.0 + 8e-6, abs=1e-9)
    clock.now = 200.0
    assert up.reserve(1000) == pytest.approx(200.0, abs=1e-9)


def test_oversleep_is_credited_to_one_transfer() -> None:
    clock = WoundClock()
    up = bucket(clock)
    up.credit(0.05)
    clock.now = 200.0
    assert up.reserve(12_500_000) == pytest.approx(200.05)
    clock.now = 300.0
    assert up.reserve(12_500_000) == pytest.approx(300.1)


def test_burst_passes_at_once_and_only_once() -> None:
    clock = WoundClock()
    link = shaped(clock, burst=1000)
    link.exchange(1000)
    assert clock.sleeps == []
    link.exchange(1000)
    assert clock.sleeps == [pytest.approx(8e-6)]


def test_idle_link_saves_up_no_more_than_the_burst() -> None:
    clock = WoundClock()
    link = shaped(clock, burst=1000)
    clock.now += 3600
    link.exchange(126_000)
    assert clock.sleeps == [pytest.approx(1e-3)]


@given(st.lists(st.integers(1, 2_000_000), min_size=50, max_size=100), st.floats(0.0, 0.002))
def test_coarse_sleeps_do_not_add_up(sizes: list[int], oversleep: float) -> None:
    clock = WoundClock(oversleep)
    link = shaped(clock, gbit=0.5)
    for size in sizes:
        link.exchange(size)
    ideal = sum(sizes) * 8 / 0.5e9
    assert ideal - 1e-9 <= clock.now - 100.0 <= ideal + oversleep + 1e-9


def test_suspended_process_does_not_catch_up_for_free() -> None:
    clock = WoundClock(oversleep_seconds=3600.0)
    link = shaped(clock)
    link.exchange(1)
    clock.oversleep = 0.0
    before = clock.now
    link.exchange(125_000_000)
    assert clock.now - before == pytest.approx(0.9)
