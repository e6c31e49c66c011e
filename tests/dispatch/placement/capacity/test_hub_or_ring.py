"""The choice between hub and ring: expected by the links, confirmed or taken back by the clock."""

import pytest

from dispatch.placement.capacity.hub_or_ring import EXPLORED, MAY_COST, TRIAL_STEPS, HubOrRing, WayChange
from dispatch.placement.capacity.set_times import LEAST_WAIT, LEFT_OUT, RECENT


def measured(choice: HubOrRing, seconds: float, steps: int, is_settled: bool = True) -> list[WayChange]:
    """The changes that follow from so many steps."""
    changes = [choice.measure(seconds, is_settled) for _ in range(steps)]
    return [change for change in changes if change is not None]


def tried(hub: float = 1.0) -> HubOrRing:
    """One that has just begun a generation in a ring, after steps over the hub."""
    choice = HubOrRing()
    choice.start_generation(is_open=True, is_ring=False)
    measured(choice, hub, LEFT_OUT + RECENT)
    assert choice.consider(0.9 * hub) is not None
    choice.start_generation(is_open=True, is_ring=True)
    return choice


def test_a_ring_that_is_clearly_faster_is_tried() -> None:
    choice = HubOrRing()
    choice.start_generation(is_open=True, is_ring=False)
    measured(choice, 1.0, LEFT_OUT + RECENT)
    assert choice.due_after == 1.0
    assert choice.consider(1.4) is None
    assert not choice.has_changed
    assert choice.consider(0.94) == WayChange(True, "expected to be faster", 0.94, 1.0)
    assert choice.has_changed


@pytest.mark.parametrize("expected", [0.96, 1.0, 1.3])
def test_a_ring_that_should_be_about_as_fast_is_tried_and_after_a_loss_not_for_long(expected: float) -> None:
    choice = HubOrRing()
    choice.start_generation(is_open=True, is_ring=False)
    measured(choice, 1.0, LEFT_OUT + RECENT)
    assert choice.consider(expected) == WayChange(True, "only the clock can tell", expected, 1.0)
    choice.start_generation(is_open=True, is_ring=True)
    measured(choice, 1.2, TRIAL_STEPS)
    choice.start_generation(is_open=True, is_ring=False)
    measured(choice, 1.0, int(MAY_COST / EXPLORED) - 1)
    assert choice.consider(expected) is None
    measured(choice, 1.0, 1)
    assert choice.consider(expected) is not None


def test_nothing_is_considered_until_it_is_found_who_takes_part() -> None:
    choice = HubOrRing()
    choice.start_generation(is_open=True, is_ring=False)
    measured(choice, 1.0, 100, is_settled=False)
    assert choice.due_after is None


def test_a_ring_that_was_faster_stays() -> None:
    choice = tried()
    (change,) = measured(choice, 0.8, TRIAL_STEPS)
    assert change == WayChange(True, "was faster when measured", 0.8, 1.0)
    assert choice.is_ring
    assert not measured(choice, 0.8, 100)


def test_a_ring_that_was_slower_is_taken_back_and_tried_again_later() -> None:
    choice = tried()
    (change,) = measured(choice, 1.1, TRIAL_STEPS)
    assert (change.is_ring, choice.has_changed) == (False, True)
    choice.start_generation(is_open=True, is_ring=False)
    measured(choice, 1.0, 2 * LEAST_WAIT - 1)
    assert choice.due_after is None
    measured(choice, 1.0, 1)
    assert choice.due_after == 1.0


@pytest.mark.parametrize(("hub", "is_tried"), [(1.15, False), (1.17, True)])
def test_a_ring_that_lost_to_the_first_steps_of_a_run_is_tried_again(hub: float, is_tried: bool) -> None:
    choice = tried()
    measured(choice, 1.1, TRIAL_STEPS)
    choice.start_generation(is_open=True, is_ring=False)
    measured(choice, hub, 2 * LEAST_WAIT)
    change = WayChange(True, "the hub is slower than the ring was", 1.1, hub)
    assert choice.consider(hub) == (change if is_tried else None)


def test_a_trial_that_costs_too_much_ends_at_once() -> None:
    choice = tried()
    assert not measured(choice, 100.0, LEFT_OUT)
    assert not measured(choice, 1.0 + MAY_COST - 0.5, 1)
    (change,) = measured(choice, 2.0, 1)
    assert not change.is_ring


def test_a_ring_that_has_become_much_slower_is_left() -> None:
    choice = tried()
    measured(choice, 0.8, TRIAL_STEPS)
    assert not measured(choice, 0.9, RECENT)
    (change,) = measured(choice, 1.4, RECENT)
    assert change.reason == "the ring has become slower"


def test_a_ring_that_is_slowed_down_and_not_much_slower_than_the_hub_was_stays() -> None:
    choice = tried()
    measured(choice, 0.3, TRIAL_STEPS)
    assert not measured(choice, 1.2, RECENT), "it was left because the machine is busy"
    assert choice.is_ring
    (change,) = measured(choice, 1.4, RECENT)
    assert (change.is_ring, change.seconds) == (False, 1.0)


def test_what_a_checkpoint_stores_goes_on() -> None:
    choice = tried()
    measured(choice, 0.8, TRIAL_STEPS)
    again = HubOrRing(choice.save())
    again.start_generation(is_open=True, is_ring=again.is_ring)
    assert again.is_ring
    assert not measured(again, 0.8, TRIAL_STEPS)


@pytest.mark.parametrize("is_ring", [False, True])
def test_where_settings_leave_nothing_open_nothing_changes(is_ring: bool) -> None:
    choice = HubOrRing()
    choice.start_generation(is_open=False, is_ring=is_ring)
    assert not measured(choice, 1.0, 2 * TRIAL_STEPS)
    assert (choice.due_after, choice.has_changed) == (None, False)
