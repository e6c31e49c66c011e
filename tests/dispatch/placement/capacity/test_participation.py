from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dispatch.placement.arrays import Bool
from dispatch.placement.capacity.participation import (
    LEAST_WAIT,
    MIN_IMPROVEMENT,
    SETTLING_STEPS,
    TRY_COST,
    TRY_STEPS,
    Participation,
)
from dispatch.placement.capacity.step_model import HAND_OVER_STEPS, DenseLoad, StepModel, rows_of_dense

ALL_MAY = np.full(3, True)


def model(fixed: list[float], sample: list[float], samples: int = 120, most: int = 1000) -> StepModel:
    """A worker that is alone pays as much as others, and no hand-over."""
    times, n = (np.array(fixed), np.array(fixed), np.zeros(len(fixed)), np.array(sample)), len(fixed)
    return StepModel(samples, *times, np.zeros(n, np.int64), np.full(n, most))


def dense(fixed: list[float], sample: float, hand_over: float = 0.0, most: int = 1000) -> StepModel:
    """Of 120 samples, where the fixed part is all dense weights; they are as dear to hand over on every link."""
    n = len(fixed)
    times = np.array(fixed), np.zeros(n), np.full(n, hand_over), np.full(n, sample)
    return StepModel(120, *times, np.zeros(n, np.int64), np.full(n, most))


def settled(participation: Participation, chosen: StepModel, steps: int = SETTLING_STEPS) -> list[list[bool]]:
    """Chooses so many times; who was parked after each."""
    parked = []
    for _ in range(steps):
        participation.choose(chosen)
        parked.append((~participation.taking_part_n).tolist())
    return parked


def slow_time(chosen: StepModel, members: Bool) -> float:
    """The least time in which every member, at its fixed part and fewest samples at least, can train the batch."""
    fixed, each = (chosen.alone_n if members.sum() == 1 else chosen.fixed_n)[members], chosen.sample_n[members]
    least, most = chosen.least_n[members], chosen.most_n[members]
    if most.sum() < chosen.samples:
        return float("inf")
    low = float((fixed + least * each).max(initial=0.0))
    high = float((fixed + most * each).max())
    if np.clip((low - fixed) / each, least, most).sum() >= chosen.samples:
        return low
    for _ in range(60):
        middle = (low + high) / 2
        enough = np.clip((middle - fixed) / each, least, most).sum() >= chosen.samples
        low, high = (low, middle) if enough else (middle, high)
    return high


def slow_hand_over(chosen: StepModel, now: Bool, members: Bool) -> float:
    """The whole over the link of whoever stops or begins to take part alone, spread over steps."""
    sets = () if (now == members).all() else (now, members)
    return sum(float(chosen.hand_over_n[one][0]) for one in sets if one.sum() == 1) / HAND_OVER_STEPS


times = st.floats(0.0, 100.0).map(lambda time: round(time, 3))
some_workers = st.tuples(times, times, times, st.floats(1e-3, 10.0), st.integers(1, 300), st.booleans(), st.booleans())


@given(workers=st.lists(some_workers, min_size=1, max_size=6), samples=st.integers(1, 300))
@settings(max_examples=100, deadline=None)
def test_no_other_set_is_faster_hand_overs_included(
    workers: list[tuple[float, float, float, float, int, bool, bool]], samples: int
) -> None:
    alone, more, hand_over, sample, most, may_park, now = (np.array(column) for column in zip(*workers, strict=True))
    assume(most.sum() >= samples)
    least = np.where(may_park, 0, np.minimum(3, most))
    assume(least.sum() <= samples)
    chosen, now = StepModel(samples, alone + more, alone, hand_over, sample, least, most), now | ~may_park
    assume(now.any())
    best = chosen.best(may_park, now)
    subsets = [np.array(subset) | ~may_park for subset in product([False, True], repeat=len(workers))]
    fastest = min(slow_time(chosen, one) + slow_hand_over(chosen, now, one) for one in subsets if one.any())
    assert chosen.time_after(now, best) == pytest.approx(fastest, rel=1e-6, abs=1e-9)
    assert chosen.time_of(best) == pytest.approx(slow_time(chosen, best), rel=1e-6, abs=1e-9)
    assert best[~may_park].all()
    if best.sum() > 1:
        assert chosen.fixed_n[best & may_park].max(initial=0.0) <= chosen.fixed_n[~best].min(initial=np.inf)


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=8), st.integers(1, 500))
@settings(max_examples=60, deadline=None)
def test_without_a_fixed_part_everyone_takes_part(sample: list[float], samples: int) -> None:
    participation = Participation(np.full(len(sample), True))
    chosen = model([0.0] * len(sample), sample, samples)
    assert not any(any(parked) for parked in settled(participation, chosen, 2 * SETTLING_STEPS))


def test_workers_whose_fixed_part_outlasts_the_step_are_parked_at_once() -> None:
    participation = Participation(ALL_MAY)
    parked = settled(participation, model([1.0, 1.0, 90.0], [1.0, 1.0, 1.0]))
    assert parked == [[False, False, True]] * SETTLING_STEPS


def test_a_change_tells_the_times_of_both_sets() -> None:
    participation, chosen = Participation(ALL_MAY), model([1.0, 1.0, 90.0], [1.0, 1.0, 1.0])
    changes = [change for _ in range(SETTLING_STEPS) if (change := participation.choose(chosen)) is not None]
    (change,) = changes
    assert (change.time, change.time_before) == (61.0, 90.0)
    assert change.parked(["a", "b", "c"]) == ("c",)
    facts = change.facts(["a", "b", "c"])
    assert (facts["step_rows"], facts["step_rows_before"]) == (61.0, 90.0)
    assert facts["fixed_rows"] == {"a": 1.0, "b": 1.0, "c": 90.0}


def test_the_set_stays_while_no_other_is_clearly_better() -> None:
    participation = Participation(ALL_MAY)
    barely, clearly = 61.0 / (1 - MIN_IMPROVEMENT) - 0.1, 61.0 / (1 - MIN_IMPROVEMENT) + 0.1
    assert not any(settled(participation, model([1.0, 1.0, barely], [1.0] * 3), 50)[-1])
    assert settled(participation, model([1.0, 1.0, clearly], [1.0] * 3), 1) == [[False, False, True]]
    # 61 without it, 58.2 with it: not enough to call it back
    assert settled(participation, model([1.0, 1.0, 52.6], [1.0] * 3), 50)[-1] == [False, False, True]
    assert not any(settled(participation, model([1.0, 1.0, 30.0], [1.0] * 3), 1)[-1])


def test_a_set_that_cannot_hold_the_batch_any_more_gives_way_at_once() -> None:
    participation = Participation(ALL_MAY)
    settled(participation, model([1.0, 1.0, 90.0], [1.0] * 3))
    change = participation.choose(model([1.0, 1.0, 90.0], [1.0] * 3, most=50))
    assert change is not None
    assert change.time_before == float("inf")
    assert participation.taking_part_n.all()


def test_workers_with_a_lower_bound_are_never_parked() -> None:
    participation = Participation(np.array([True, True, False]))
    assert not any(settled(participation, model([1.0, 1.0, 1e6], [1.0] * 3), 100)[-1])


def test_parked_workers_are_tried_for_a_few_steps_and_the_dearer_that_is_the_less_often() -> None:
    waits = []
    for fixed in (70.0, 200.0):
        participation, chosen = Participation(ALL_MAY), model([1.0, 1.0, fixed], [1.0] * 3)
        settled(participation, chosen)
        tried = []
        for _ in range(3000):
            participation.choose(chosen)
            tried.append(bool(participation.tried_n[2]))
            assert not participation.tried_n[:2].any()
        first, last = tried.index(True), len(tried) - tried[::-1].index(True)
        waits.append(tried.index(True, first + TRY_STEPS) - first)
        assert tried[first : first + TRY_STEPS + 1] == [True] * TRY_STEPS + [False]
        assert sum(tried) <= TRY_STEPS * -(-last // waits[-1])
    assert waits[0] == LEAST_WAIT + TRY_STEPS
    assert 400 < waits[1] < 600


def test_a_parked_worker_comes_back_when_its_fixed_part_shrinks() -> None:
    participation = Participation(ALL_MAY)
    assert settled(participation, model([1.0, 1.0, 90.0], [1.0] * 3), 1) == [[False, False, True]]
    parked = settled(participation, model([1.0, 1.0, 2.0], [1.0] * 3))
    assert parked == [[False, False, True]] * (SETTLING_STEPS - 1) + [[False] * 3]


def test_one_worker_takes_part_alone_where_dense_weights_outweigh_what_the_others_train() -> None:
    participation, chosen = Participation(ALL_MAY), dense([200.0] * 3, 1.0)
    change = participation.choose(chosen)
    assert change is not None
    assert (change.time, change.time_before) == (120.0, 240.0)
    assert change.parked("abc") == ("b", "c")
    facts = change.facts("abc")
    assert (facts["sole"], facts["fixed_rows"]) == ("a", {"a": 0.0, "b": 0.0, "c": 0.0})


@pytest.mark.parametrize(
    ("fixed", "parked"),
    [([10.0, 10.0, 10.0], []), ([10.0, 10.0, 90.0], [2]), ([90.0, 90.0, 90.0], [1, 2])],
    ids=["all", "two", "one"],
)
def test_the_set_has_as_many_as_the_dense_weights_leave_worthwhile(fixed: list[float], parked: list[int]) -> None:
    participation = Participation(ALL_MAY)
    participation.choose(dense(fixed, 1.0))
    assert np.flatnonzero(~participation.taking_part_n).tolist() == parked


def test_a_worker_that_cannot_hold_the_batch_is_never_alone() -> None:
    participation = Participation(ALL_MAY)
    settled(participation, dense([200.0] * 3, 1.0, most=119), 50)
    assert participation.taking_part_n.sum() == 3
    settled(participation, dense([200.0, 200.0, 300.0], 1.0, most=119), 50)
    assert participation.taking_part_n.tolist() == [True, True, False]


@pytest.mark.parametrize(("bound", "taking_part"), [([2], [2]), ([1, 2], [0, 1, 2])])
def test_nobody_is_alone_while_another_must_not_be_parked(bound: list[int], taking_part: list[int]) -> None:
    participation = Participation(~np.isin(np.arange(3), bound))
    settled(participation, dense([200.0, 300.0, 400.0], 1.0), 50)
    assert np.flatnonzero(participation.taking_part_n).tolist() == taking_part


def test_a_set_of_one_comes_and_goes_only_where_another_set_is_clearly_better() -> None:
    participation = Participation(ALL_MAY)
    barely, clearly = 120.0 / (1 - MIN_IMPROVEMENT) - 40.1, 120.0 / (1 - MIN_IMPROVEMENT) - 39.9
    assert not any(settled(participation, dense([barely] * 3, 1.0), 50)[-1])
    assert settled(participation, dense([clearly] * 3, 1.0), 1) == [[False, True, True]]
    # 120 alone, 114.1 with all: not enough to give it up
    assert settled(participation, dense([74.1] * 3, 1.0), 50)[-1] == [False, True, True]
    assert settled(participation, dense([200.0] * 3, 1.0), 1) == [[False, True, True]]
    assert not any(settled(participation, dense([70.0] * 3, 1.0), 1)[-1])


def test_after_a_change_to_one_worker_nobody_is_called_back_until_it_has_settled() -> None:
    participation = Participation(ALL_MAY)
    assert settled(participation, dense([200.0] * 3, 1.0), 1) == [[False, True, True]]
    parked = settled(participation, dense([1.0] * 3, 1.0))
    assert parked == [[False, True, True]] * (SETTLING_STEPS - 1) + [[False] * 3]


def test_a_hand_over_that_takes_longer_than_it_saves_is_not_made() -> None:
    gain = 240.0 * (1 - MIN_IMPROVEMENT) - 120.0
    for hand_over, is_alone in ((HAND_OVER_STEPS * gain - 1, True), (HAND_OVER_STEPS * gain + 1, False)):
        participation = Participation(ALL_MAY)
        settled(participation, dense([200.0] * 3, 1.0, hand_over), 50)
        assert (participation.taking_part_n.tolist() == [True, False, False]) == is_alone


def test_hand_overs_make_tries_rarer() -> None:
    waits = []
    for hand_over in (0.0, 1000.0):
        participation, chosen = Participation(ALL_MAY), dense([200.0] * 3, 1.0, hand_over)
        waits.append(len(settled_until_tried(participation, chosen)))
    # a step of 120 is 200 longer while another worker is tried, and the whole moves twice
    steps = [(TRY_STEPS * 200.0 + 2 * hand_over) / (120.0 * TRY_COST) for hand_over in (0.0, 1000.0)]
    assert waits == pytest.approx(steps, abs=3)


def settled_until_tried(participation: Participation, chosen: StepModel) -> list[bool]:
    tried: list[bool] = []
    while not participation.tried_n.any():
        participation.choose(chosen)
        tried.append(bool(participation.tried_n.any()))
        assert participation.taking_part_n.tolist() == [True, False, False]
    return tried


def test_dense_weights_count_in_one_direction_and_a_hand_over_with_their_state() -> None:
    assert rows_of_dense(10_000, 500, state_copies=0) == DenseLoad(20.0, 20.0)
    assert rows_of_dense(10_000, 500, state_copies=2) == DenseLoad(20.0, 60.0)
