import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.placement.capacity.link_costs import (
    FIRST_TRANSFERS,
    KNOWN_TRANSFERS,
    LEAST_BYTES,
    LinkState,
    MeasuredLinks,
)

MEGABYTE = 1_000_000
ENOUGH = FIRST_TRANSFERS + KNOWN_TRANSFERS
NAMES = ["a", "b"]


def measured(*gbit: float, steps: int = ENOUGH) -> MeasuredLinks:
    links = MeasuredLinks()
    for _ in range(steps):
        for name, speed in zip("abc", gbit, strict=False):
            links.of(name).add(MEGABYTE, MEGABYTE * 8e-9 / speed)
    return links


@pytest.mark.parametrize(
    ("gbit", "costs"),
    [
        ((1.0, 0.125), [1, 8]),
        ((0.5, 5.0), [2**3.25, 1]),
        ((1.0, 0.75), [1, 1]),
        ((1.0, 0.6), [1, 2**0.75]),
        ((9.0, 1e-6), [1, 1024]),
    ],
)
def test_costs_are_in_units_of_the_fastest_and_in_steps_of_a_fifth(gbit: tuple[float, float], costs: list[int]) -> None:
    assert measured(*gbit).row_costs(NAMES).tolist() == costs


@given(st.floats(1e-3, 0.6))
def test_a_cost_differs_from_the_ratio_of_two_links_by_a_tenth_at_most(gbit: float) -> None:
    _, cost = measured(1.0, gbit).row_costs(NAMES)
    assert 1 / 1.1 < cost * gbit < 1.1


def test_links_are_equal_until_they_are_known() -> None:
    assert measured(1.0, 0.125, steps=ENOUGH - 1).row_costs(NAMES).tolist() == [1, 1]
    assert measured(1.0, 0.125, steps=ENOUGH).row_costs(NAMES).tolist() == [1, 8]


def test_the_first_transfers_are_left_out() -> None:
    links = MeasuredLinks()
    for seconds in [9.0] * FIRST_TRANSFERS + [0.008] * KNOWN_TRANSFERS:
        links.of("a").add(MEGABYTE, seconds)
    assert links.of("a").gbit == pytest.approx(1.0)


def test_a_worker_does_not_look_slower_because_it_moves_little() -> None:
    links = measured(1.0, 1.0)
    for _ in range(40):
        links.of("b").add(LEAST_BYTES - 1, 1.0)
    assert links.row_costs(NAMES).tolist() == [1, 1]


def test_hiccups_change_nothing_and_a_slower_link_is_followed() -> None:
    links = measured(1.0, 1.0, steps=20)
    for number in range(40):
        links.of("b").add(MEGABYTE, 60.0 if number % 2 else 0.008)
        assert links.row_costs(NAMES).tolist() == [1, 1]
    for _ in range(20):
        links.of("b").add(MEGABYTE, MEGABYTE * 8e-9 / 0.125)
    assert links.row_costs(NAMES).tolist() == [1, 8]


def test_costs_stay_while_a_speed_hovers_between_two_of_them() -> None:
    links, seen = measured(1.0, 0.25, steps=20), set()
    for number in range(80):
        links.of("a").add(MEGABYTE, MEGABYTE * 8e-9)
        links.of("b").add(MEGABYTE, MEGABYTE * 8e-9 / (0.2 if number // 20 % 2 else 0.34))
        seen.add(tuple(links.row_costs(NAMES).tolist()))
    assert seen == {(1.0, 4.0)}


def test_a_worker_that_comes_back_is_still_known() -> None:
    links = measured(1.0, 0.125, 0.125)
    links.row_costs(["a", "b", "c"])
    assert links.row_costs(["c", "b"]).tolist() == [1, 1]
    assert links.row_costs(["a", "c"]).tolist() == [1, 8]


@given(st.lists(st.tuples(st.integers(-1, 10**9), st.floats()), max_size=30))
def test_whatever_is_reported_costs_can_be_used(reports: list[tuple[int, float]]) -> None:
    links = measured(1.0, 0.3)
    for nbytes, seconds in reports:
        links.of("b").add(nbytes, seconds)
        links.of("b").add_probe(nbytes, seconds)
        costs = links.row_costs(NAMES)
        assert costs.min() == 1.0
        assert costs.max() <= 1024


def test_an_idle_link_that_has_changed_is_known_anew_after_two_measurements() -> None:
    links = measured(0.2, 0.2, steps=20)
    link = links.of("a")
    slow = MEGABYTE * 8e-9 / 0.02
    assert [link.add_probe(MEGABYTE, slow) for _ in range(3)] == [False, False, True]
    assert link.gbit == pytest.approx(0.02)
    assert links.row_costs(NAMES).tolist() == [2**3.25, 1]
    assert link.add_probe(MEGABYTE, slow * 1.5)
    assert link.gbit == pytest.approx(0.02), "about as fast as it was"


def test_one_odd_measurement_of_an_idle_link_changes_nothing() -> None:
    links = measured(0.2, 0.2, steps=20)
    link = links.of("a")
    usual, odd = MEGABYTE * 8e-9 / 0.2, MEGABYTE * 8e-9 / 0.02
    for seconds, is_the_same in ((odd, False), (usual, True), (odd, False), (usual, True)):
        assert link.add_probe(MEGABYTE, seconds) == is_the_same
        assert link.gbit == pytest.approx(0.2)


def test_only_two_odd_measurements_that_agree_replace_the_speed_of_an_idle_link() -> None:
    link = measured(0.2, 0.2, steps=20).of("a")
    for gbit in (0.02, 2.0, 0.05, 0.5):  # a busy machine, and none of them like the one before
        assert not link.add_probe(MEGABYTE, MEGABYTE * 8e-9 / gbit)
        assert link.gbit == pytest.approx(0.2)
    assert not link.add_probe(MEGABYTE, MEGABYTE * 8e-9 / 0.6)
    assert list(link.gbits) == pytest.approx([0.5, 0.6]), "each measurement counts once"
    assert link.add_probe(MEGABYTE, MEGABYTE * 8e-9 / 0.5)


def test_a_measurement_of_few_bytes_says_nothing() -> None:
    links = measured(1.0, 1.0)
    assert links.of("a").add_probe(0, 0.0)
    assert not links.of("unknown").add_probe(0, 0.0)
    assert links.of("a").gbit == pytest.approx(1.0)


def add_uplinks(links: MeasuredLinks, *gbit: float, steps: int = ENOUGH) -> None:
    for _ in range(steps):
        for name, speed in zip("abc", gbit, strict=False):
            links.uplink_of(name).add(MEGABYTE, MEGABYTE * 8e-9 / speed)


def test_each_direction_has_a_cost_of_its_own() -> None:
    links = measured(1.0, 0.5)
    add_uplinks(links, 0.125, 0.25)
    costs = links.costs(NAMES)
    assert (costs.pull_n.tolist(), costs.push_n.tolist()) == ([1, 2], [8, 4])


def test_a_direction_that_is_not_known_counts_as_the_other() -> None:
    links = measured(1.0, 0.125)
    assert links.costs(NAMES).push_n.tolist() == links.costs(NAMES).pull_n.tolist() == [1, 8]
    other = MeasuredLinks()
    add_uplinks(other, 1.0, 0.125)
    assert other.costs(NAMES).pull_n.tolist() == other.costs(NAMES).push_n.tolist() == [1, 8]
    assert other.fastest_gbit(NAMES) == pytest.approx(1.0)


def test_no_uplink_counts_as_faster_than_the_fastest_downlink() -> None:
    links = measured(1.0, 0.5)
    add_uplinks(links, 60.0, 4.0)
    assert links.costs(NAMES).push_n.tolist() == [1, 1]


def test_an_uplink_keeps_its_cost_while_its_speed_hardly_changes() -> None:
    links = measured(1.0, 1.0)
    add_uplinks(links, 1.0, 0.25)
    assert links.costs(NAMES).push_n.tolist() == [1, 4]
    add_uplinks(links, 1.0, 0.2, steps=40)
    assert links.costs(NAMES).push_n.tolist() == [1, 4]
    add_uplinks(links, 1.0, 0.1, steps=40)
    assert links.costs(NAMES).push_n.tolist() == [1, 2**3.25]


def test_a_state_saved_before_uplinks_were_measured_is_read() -> None:
    old = msgspec.json.decode(b'{"gbits": [1.0, 1.0], "transfers": 4, "slower": 0.0}', type=LinkState)
    slow = msgspec.json.decode(b'{"gbits": [0.125, 0.125], "transfers": 4, "slower": 3.0}', type=LinkState)
    links = MeasuredLinks()
    links.load({"a": old, "b": slow})
    costs = links.costs(NAMES)
    assert costs.pull_n.tolist() == costs.push_n.tolist() == [1, 8]
    add_uplinks(links, 1.0, 0.0625)
    again = MeasuredLinks()
    again.load(links.save())
    assert again.costs(NAMES).push_n.tolist() == [1, 16]
