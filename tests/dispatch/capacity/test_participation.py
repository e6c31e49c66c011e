from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dispatch.arrays import Bool
from dispatch.capacity.participation import (
    CLEARLY,
    LEAST_WAIT,
    SETTLING_STEPS,
    TRY_STEPS,
    Participation,
    StepModel,
    rows_of_dense,
)

ALL_MAY = np.full(3, True)


def model(fixed: list[float], sample: list[float], samples: int = 120, most: int = 1000, least: int = 0) -> StepModel:
    n = len(fixed)
    return StepModel(samples, np.array(fixed), np.array(sample), np.full(n, least), np.full(n, most))


def settled(participation: Participation, chosen: StepModel, steps: int = SETTLING_STEPS) -> list[list[bool]]:
    """Chooses so many times; who was parked after each."""
    parked = []
    for _ in range(steps):
        participation.choose(chosen)
        parked.append((~participation.taking_part_n).tolist())
    return parked


def slow_time(chosen: StepModel, members: Bool) -> float:
    """The least time in which every member, at its fixed part and fewest samples at least, can train the batch."""
    fixed, each = chosen.fixed_n[members], chosen.sample_n[members]
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


times = st.floats(0.0, 100.0).map(lambda time: round(time, 3))


@given(
    workers=st.lists(
        st.tuples(times, st.floats(1e-3, 10.0), st.integers(1, 200), st.booleans()), min_size=1, max_size=6
    ),
    samples=st.integers(1, 300),
)
@settings(max_examples=100, deadline=None)
def test_no_other_set_is_faster_and_the_best_one_is_a_prefix_by_fixed_time(
    workers: list[tuple[float, float, int, bool]], samples: int
) -> None:
    fixed, sample, most, may_park = (np.array(column) for column in zip(*workers, strict=True))
    assume(most.sum() >= samples)
    least = np.where(may_park, 0, np.minimum(3, most))
    assume(least.sum() <= samples)
    chosen = StepModel(samples, fixed, sample, least, most)
    best = chosen.best(may_park)
    subsets = [np.array(subset) | ~may_park for subset in product([False, True], repeat=len(workers))]
    fastest = min(slow_time(chosen, subset) for subset in subsets if subset.any())
    assert chosen.time_of(best) == pytest.approx(fastest, rel=1e-6, abs=1e-9)
    assert chosen.time_of(best) == pytest.approx(slow_time(chosen, best), rel=1e-6, abs=1e-9)
    assert best[~may_park].all()
    parked = fixed[~best]
    assert (fixed[best & may_park].max(initial=0.0) <= parked.min(initial=np.inf)) or not parked.size


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
    barely, clearly = 61.0 / (1 - CLEARLY) - 0.1, 61.0 / (1 - CLEARLY) + 0.1
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


def test_dense_weights_both_ways_count_twice_unless_they_travel_at_the_same_time() -> None:
    assert rows_of_dense(10_000, 500) == 40.0
    assert rows_of_dense(10_000, 500, is_duplex=True) == 20.0
