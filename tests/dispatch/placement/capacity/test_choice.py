from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.placement.arrays import Bool
from dispatch.placement.capacity.choice import EXPLORED, FIRST_STEPS, SETTLED_LOOK, TRIED, MeasuredChoice
from dispatch.placement.capacity.participation import TRY_SHARE, TRY_STEPS
from dispatch.placement.capacity.set_times import SetTimes, Stay
from dispatch.placement.capacity.step_model import StepModel
from tests.dispatch.placement.capacity.worlds import ChosenRun, World, drive

STEPS = 300
FAST, SLOW = 0.004, 0.04


def regret(world: World, run: ChosenRun) -> tuple[float, float]:
    """Speed against the best fixed set: of the later half, and of all steps."""
    best, own = world.best_fixed(len(run.seconds)), np.array(run.seconds)
    half = own.size // 2
    return float(best[half:].sum() / own[half:].sum()), float(best.sum() / own.sum())


def count(members: tuple[bool, ...]) -> int:
    return sum(members)


@pytest.mark.parametrize(
    ("world", "size"),
    [
        (World((FAST,) * 8, compute=0.004, shared=1.0, decide_several=0.03, cold=0.02), 1),
        (World((FAST,) * 4 + (SLOW,) * 4, compute=0.004, decide_alone=0.008, decide_several=0.03), 1),
        (World((FAST,) * 4 + (SLOW,) * 4, compute=0.17, late=0.01, cold=0.05), 4),
        (World((FAST,) * 8, compute=1.0, late=0.02, cold=0.1), 8),
        (World((0.1, 0.1, 1.0, 1.0), compute=0.06, late=0.02), 1),
        (World((0.05, 0.08, 0.16, 0.5), compute=0.3, late=0.02, cold=0.2), 2),
    ],
    ids=["one GPU for all", "deciding is slow", "half of the links are", "heavy compute", "heavy dense part", "mixed"],
)
def test_the_fastest_set_is_found_and_kept(world: World, size: int) -> None:
    run = drive(world, STEPS)
    assert count(run.settled(100)) == size
    settled, whole = regret(world, run)
    assert (settled > 0.95, whole > 0.85) == (True, True), (settled, whole)


NOISY = {
    "half of the links are slow": World((0.004,) * 4 + (0.04,) * 4, compute=0.3, late=0.012, decide_several=0.03),
    "sets differ little": World((0.01,) * 4 + (0.1,) * 4, compute=0.086, late=0.014, decide_several=0.011),
    "links are fast": World((0.0005,) * 8, compute=0.19, shared=0.1, late=0.012, decide_several=0.03),
    "more than half leave no core": World((0.0005,) * 8, compute=0.19, late=0.005, crowded=0.025, decide_several=0.03),
}
"""of about what was measured in real runs with workers on CPUs"""


@pytest.mark.parametrize("quiet", NOISY.values(), ids=NOISY)
def test_the_choice_holds_on_a_machine_whose_speed_wanders_and_where_changing_sets_costs_steps(quiet: World) -> None:
    runs = []
    for seed in range(8):
        world = replace(quiet, cold=0.05, noise=0.1, drift=0.08, change_over=0.05, seed=seed)
        runs.append(drive(world, 400))
    best = min(quiet.seconds(np.arange(8) < size) for size in range(1, 9))
    settled = [best / np.mean([quiet.seconds(np.array(members)) for members in run.sets[150:]]) for run in runs]
    assert np.median(settled) > 0.97, settled
    assert min(settled) > 0.9, settled
    assert np.median([len(run.changes) for run in runs]) <= 8


def test_single_steps_that_take_long_hide_no_faster_set() -> None:
    crowded = World((0.0005,) * 8, compute=0.145, shared=0.13, late=0.01, crowded=0.02, decide_several=0.02)
    noisy = replace(crowded, odd=0.2, noise=0.12, drift=0.1, change_over=0.05)
    worlds = [replace(noisy, seed=seed) for seed in range(24)]
    assert np.mean([regret(world, drive(world, STEPS))[0] for world in worlds]) > 0.93


def test_the_first_steps_of_a_set_end_neither_a_trial_nor_a_return_to_it() -> None:
    stay = Stay(frozenset("ab"), began=10, is_first=False)
    stay.add(10, 5.0)
    stay.add(11, 5.0)
    assert (stay.is_trial, stay.is_known) == (False, False)
    trial = Stay(frozenset("ab"), began=10, is_first=False, rival=1.0)
    trial.add(10, 3.0)
    assert not trial.is_known, "the first steps of a set are left out"
    trial.add(12, 3.0)
    assert trial.is_known, "it has cost what it may"
    for step, seconds in ((13, 0.5), (14, 0.6), (15, 0.5), (16, 3.0)):
        trial.add(step, seconds)
    assert not trial.is_known, "a single step says little about a set whose others are faster"
    slow_again = Stay(frozenset("ab"), began=10, is_first=False, known=1.0)
    for step in range(12, 15):
        slow_again.add(step, 2.0)
    assert slow_again.is_known, "it is much slower than it was"
    far_slower = Stay(frozenset("ab"), began=10, is_first=False, rival=1.0)
    far_slower.add(10, 5.0)
    assert not far_slower.is_known, "a single step"
    far_slower.add(11, 5.0)
    assert far_slower.is_known
    hopeless = Stay(frozenset("ab"), began=10, is_first=False, rival=1.0)
    hopeless.add(10, 11.0)
    assert hopeless.is_known


def test_what_was_measured_of_a_set_holds_for_one_like_it() -> None:
    world = World((FAST,) * 4, compute=0.1, shared=1.0, late=0.1, change_over=0.05)
    run = drive(world, STEPS)
    tried = {tuple(members) for members in run.sets}
    assert len([members for members in tried if count(members) == 1]) == 1, "the others alone would be as slow"


seconds = st.floats(0.0, 1.0)


@given(
    dense=st.lists(st.floats(0.01, 3.0), min_size=2, max_size=8).map(sorted),
    shared=st.sampled_from([0.0, 0.3, 1.0]),
    late=st.floats(0.0, 0.3),
    decide_alone=st.floats(0.0, 0.5),
    decide_more=st.floats(0.0, 0.5),
    cold=st.floats(0.0, 2.0),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=25, deadline=None)
def test_no_fixed_set_is_much_faster_whatever_the_workers_are_like(
    dense: list[float], shared: float, late: float, decide_alone: float, decide_more: float, cold: float, seed: int
) -> None:
    decide = {"decide_alone": decide_alone, "decide_several": decide_alone + decide_more}
    world = World(tuple(dense), compute=1.0, shared=shared, late=late, cold=cold, seed=seed, **decide)
    settled, whole = regret(world, drive(world, STEPS))
    assert (settled > 0.9, whole > 0.8) == (True, True), (settled, whole)


def test_a_run_begins_with_one_worker_and_finds_a_better_set_within_eight_steps() -> None:
    run = drive(World((FAST,) * 8, compute=1.0), 8)
    assert [count(members) for members in run.sets[:2]] == [1, 1]
    assert count(run.sets[-1]) == 8
    assert [change.reason for change in run.changes.values()] == [
        "one worker is measured first",
        "expected to be faster",
    ]


def test_a_set_that_turns_out_slower_is_left_for_the_one_before_and_the_time_that_took_is_bounded() -> None:
    world = World((FAST,) * 4, compute=0.1, shared=1.0, late=0.1, cold=0.0)
    run = drive(world, STEPS)
    one, trials = world.seconds(np.arange(4) < 1), [count(members) for members in run.sets if count(members) > 1]
    assert trials, "others were tried"
    assert run.settled(100) == (True, False, False, False)
    lost = sum(taken - one for taken, members in zip(run.seconds, run.sets, strict=True) if count(members) > 1)
    longest = max(run.seconds) - one
    assert lost < FIRST_STEPS * one * 1.1 + EXPLORED * sum(run.seconds) + 4 * longest


def test_one_worker_that_was_measured_with_cold_caches_alone_is_tried_again_whatever_other_trials_have_cost() -> None:
    world = World((0.125, 0.125, 0.75, 0.75, 0.75), compute=1.0, shared=1.0, cold=2.0)
    run = drive(world, STEPS)
    assert max(map(count, run.sets)) > 2, "trials of several were expensive"
    assert run.settled(100) == (True, False, False, False, False)
    settled, whole = regret(world, run)
    assert (settled > 0.97, whole > 0.9) == (True, True), (settled, whole)


@pytest.mark.parametrize(("shared", "cold"), [(1.0, 2.5), (1.0, 3.0), (0.3, 3.0), (0.0, 3.0)])
def test_a_generation_that_begins_with_cold_caches_finds_a_set_as_fast_as_the_one_before(
    shared: float, cold: float
) -> None:
    world, times = World((FAST,) * 6, compute=1.0, shared=shared, late=0.1, cold=cold), SetTimes()
    drive(world, STEPS, times)
    again = replace(world)  # as after a crash: what was measured is known, and caches are empty
    settled, whole = regret(again, drive(again, STEPS, times))
    assert (settled > 0.95, whole > 0.9) == (True, True), (settled, whole)


@pytest.mark.parametrize("pace", [1.0, 0.02], ids=["long steps", "short steps"])
def test_a_link_that_becomes_ten_times_slower_is_left_within_sixty_steps_and_nothing_flaps(pace: float) -> None:
    def slow_down(world: World, step: int) -> None:
        if step == 200:
            world.links_n = world.links_n * np.array([1.0, 1.0, 1.0, 30.0])

    run = drive(World((pace * FAST,) * 4, compute=pace * 0.3, late=pace * 0.005), 500, meanwhile=slow_down)
    assert run.sets[199] == (True,) * 4
    assert not any(members[3] for members in run.sets[259:300])
    assert len([step for step in run.changes if step > 200]) <= 4


def test_a_link_of_a_parked_worker_that_becomes_fast_is_found_by_a_try() -> None:
    def speed_up(world: World, step: int) -> None:
        if step == 200:
            world.links_n = np.full(4, FAST)

    run = drive(World((FAST, FAST, FAST, 0.2), compute=0.3, late=0.005), 600, meanwhile=speed_up)
    assert run.sets[199] == (True, True, True, False)
    assert run.settled(50) == (True,) * 4
    assert min(step for step in run.changes if step > 200) - max(step for step in run.tries) <= 2


def test_a_parked_worker_is_tried_as_soon_as_that_is_cheap_enough_though_candidates_are_seldom_compared() -> None:
    run = drive(World((FAST, FAST, FAST, 0.2), compute=0.3, late=0.005), 1000)
    assert run.sets[200] == run.sets[-1] == (True, True, True, False)
    slower = 0.2 + TRY_SHARE * 0.3 / 4 - float(np.median(run.seconds[100:300]))
    cheap_enough = TRY_STEPS * slower / (float(np.median(run.seconds[100:300])) * TRIED)
    assert 0 < min(run.tries) - max(run.changes) - cheap_enough < 2 * SETTLED_LOOK, run.tries


@pytest.mark.parametrize(("step_seconds", "least", "most"), [(0.2, 18, 22), (0.004, 3, 8)])
def test_comparing_candidates_takes_little_time_while_nothing_changes(
    monkeypatch: pytest.MonkeyPatch, step_seconds: float, least: int, most: int
) -> None:
    compared: list[StepModel] = []
    candidates = MeasuredChoice._candidates

    def noting(choice: MeasuredChoice, model: StepModel) -> list[Bool]:
        compared.append(model)
        return candidates(choice, model)

    monkeypatch.setattr(MeasuredChoice, "_candidates", noting)
    world = World((step_seconds,) * 8, compute=step_seconds, shared=1.0, noise=0.1)
    assert count(drive(replace(world), 400).settled(100)) == 1
    before = len(compared)
    drive(replace(world), 1040)
    assert least <= len(compared) - 2 * before <= most


def test_workers_that_are_as_fast_as_those_that_take_part_are_not_tried_a_few_samples_at_a_time() -> None:
    run = drive(World((FAST,) * 8, compute=0.19, late=0.005, crowded=0.05, decide_several=0.03), 600)
    assert 1 < count(run.settled(100)) < 8
    assert not run.tries, "that more of them are slower together is known"


@pytest.mark.parametrize("pace", [1.0, 0.1], ids=["long steps", "short steps"])
def test_a_processor_that_is_taken_away_is_noticed_within_sixty_steps(pace: float) -> None:
    def take_away(world: World, step: int) -> None:
        if step == 200:
            world.compute, world.shared = pace * 0.3, 0.0

    world = World((pace * FAST,) * 4, compute=pace * 0.03, shared=1.0, late=pace * 0.005)
    run = drive(world, 500, meanwhile=take_away)
    assert count(run.sets[199]) == 1
    assert count(run.settled(200)) > 1
    assert any(count(members) > 1 for members in run.sets[200:260])


@pytest.mark.parametrize("change_over", [0.05, 1.0])
@pytest.mark.parametrize("seed", range(8))
def test_a_worker_alone_that_becomes_slower_is_left_for_another_one(seed: int, change_over: float) -> None:
    def slow_down(world: World, step: int) -> None:
        if step == 200:
            world.slowed_n[0] = 6.0

    world = World((FAST,) * 4, compute=0.03, shared=1.0, late=0.05, change_over=change_over, seed=seed)
    run = drive(world, 500, meanwhile=slow_down)
    assert run.sets[199] == (True, False, False, False)
    assert run.settled(200) in {(False, True, False, False), (False, False, True, False), (False, False, False, True)}
    assert not any(members[0] for members in run.sets[259:])
    assert len([step for step in run.changes if step > 200]) <= 2


@pytest.mark.parametrize("seed", range(8))
def test_a_whole_machine_that_becomes_slower_makes_no_set_flap(seed: int) -> None:
    def slow_down(world: World, step: int) -> None:
        if step == 200:
            world.slowed_n[:] = 6.0

    world = World((FAST,) * 4, compute=0.03, shared=1.0, late=0.05, change_over=0.05, seed=seed)
    run = drive(world, 800, meanwhile=slow_down)
    assert count(run.settled(400)) == 1
    assert len([step for step in run.changes if step > 200]) <= 4


def test_what_was_measured_is_known_to_the_next_generation() -> None:
    times, world = SetTimes(), World((FAST,) * 4 + (SLOW,) * 4, compute=0.17, late=0.01)
    first = drive(world, STEPS, times)
    again = drive(world, 20, times)
    assert again.sets[0] == first.settled(100)
    assert again.changes[1].reason == "was the fastest before"


def test_workers_that_must_not_be_parked_take_part_in_every_set() -> None:
    world = World((FAST,) * 4, compute=0.01, late=0.1)
    choice = MeasuredChoice(np.array([True, False, True, False]), "abcd", SetTimes())
    for step in range(1, 60):
        choice.choose(world.model(choice.taking_part_n), step)
        choice.measure(step - 1, world.step(choice.taking_part_n))
        assert choice.taking_part_n[[1, 3]].all()


def test_a_set_that_cannot_hold_the_batch_is_left_at_once() -> None:
    world, choice = World((FAST,) * 3, compute=0.01, late=0.1), MeasuredChoice(np.full(3, True), "abc", SetTimes())
    for step in range(1, 20):
        choice.choose(world.model(choice.taking_part_n), step)
        choice.measure(step - 1, world.step(choice.taking_part_n))
    assert choice.taking_part_n.sum() == 1
    model = world.model(choice.taking_part_n)
    model.most_n[:] = model.samples // 2
    change = choice.choose(model, 20)
    assert change is not None
    assert (change.reason, int(choice.taking_part_n.sum()) > 1) == ("the batch did not fit into the caches", True)


def test_a_set_that_is_made_larger_by_a_bound_is_measured_anew() -> None:
    world, times = World((FAST,) * 3, compute=0.01, late=0.1), SetTimes()
    choice = MeasuredChoice(np.full(3, True), "abc", times)
    for step in range(1, 30):
        if step == 20:
            assert choice.taking_part_n.tolist() == [True, False, False]
            choice.allow(np.array([True, True, False]))
            assert choice.taking_part_n.tolist() == [True, False, True]
        choice.choose(world.model(choice.taking_part_n), step)
        choice.measure(step - 1, world.step(choice.taking_part_n))
    slower = min(time.seconds for members, time in times.within("abc").items() if members != {"a"})
    assert times.within("abc")[frozenset("a")].seconds < slower / 2


def test_sets_with_workers_that_have_left_are_no_rivals() -> None:
    times = SetTimes()
    drive(World((FAST,) * 8, compute=1.0), 60, times)
    world = World((FAST,) * 2, compute=1.0)
    run = drive(world, 60, times)
    assert run.settled(20) == (True, True)
    assert len(run.changes) <= 3
