from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.base.wire import NO_ARRAYS
from ps.phases import EARLY, TRAIN
from ps.protocol import Pull, Push, PushArrays
from ps.rounds import Received
from ps.shard import time_push
from ps.timing import LinkTimer, LinkTimes, covered

DENSE = -1


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("ps.timing.perf_counter", lambda: now[0])
    return now


def test_only_what_passes_after_the_announcement_is_the_link_s_time(clock: list[float]) -> None:
    timer = LinkTimer()
    timer.asked((TRAIN, 0))
    clock[0] = 5.0
    timer.coming((TRAIN, 0), was_awaited=True)
    clock[0] = 6.0
    timer.answered((TRAIN, 0), 90)
    assert timer.take_times() == (90, 1.0, 0, 0.0)


def test_answers_on_their_way_at_once_count_once(clock: list[float]) -> None:
    timer = LinkTimer()
    for shard in (0, 1):
        clock[0] = 3.0 + shard
        timer.coming((TRAIN, shard), was_awaited=True)
    for shard, at in ((0, 5.0), (1, 6.0)):
        clock[0] = at
        timer.answered((TRAIN, shard), 10)
    assert timer.take_times() == (20, 3.0, 0, 0.0)


def test_every_step_starts_anew(clock: list[float]) -> None:
    timer = LinkTimer()
    timer.coming((TRAIN, 0), was_awaited=True)
    timer.pushed(TRAIN, 5, 2.0)
    assert timer.take_times() == (0, 0.0, 5, 2.0)
    clock[0] = 1.0
    timer.answered((TRAIN, 0), 1)
    assert timer.take_times() == (1, 1.0, 0, 0.0)


def test_an_answer_whose_announcement_nobody_waited_for_says_nothing(clock: list[float]) -> None:
    timer = LinkTimer()
    timer.coming((TRAIN, 0), was_awaited=False)
    clock[0] = 5.0
    timer.answered((TRAIN, 0), 90)
    timer.answered((TRAIN, 1), 90)
    assert timer.take_times() == LinkTimes()


def test_dense_weights_that_come_before_an_answer_count_with_it(clock: list[float]) -> None:
    timer = LinkTimer()
    timer.passed((DENSE, 0), 1000)
    timer.coming((TRAIN, 0), was_awaited=True)
    timer.passed((DENSE, 1), 100)
    clock[0] = 2.0
    timer.answered((TRAIN, 0), 90)
    timer.passed((DENSE, 0), 1000)
    assert timer.take_times() == (190, 2.0, 0, 0.0)


def test_dense_weights_that_are_announced_are_timed(clock: list[float]) -> None:
    timer = LinkTimer()
    timer.coming((DENSE, 0), was_awaited=True)
    clock[0] = 2.0
    timer.passed((DENSE, 0), 1000)
    timer.passed((DENSE, 0), 1000)
    assert timer.take_times() == (1000, 2.0, 0, 0.0)


def test_pieces_of_a_gradient_and_pushed_rows_go_up_one_after_the_other(clock: list[float]) -> None:
    timer = LinkTimer()
    timer.gave(700, 2.0)
    timer.gave(300, 1.0)
    timer.pushed(EARLY, 40, 0.5)
    timer.pushed(TRAIN, 10, 0.25)
    timer.pushed(TRAIN, 10, 0.5)  # to another shard, behind the first
    timer.pushed(TRAIN, 0, 0.0)
    assert timer.take_times() == (0, 0.0, 1060, 4.0)
    assert timer.take_times() == LinkTimes()


def test_a_push_follows_its_request_by_what_passes_at_the_sender(clock: list[float]) -> None:
    timer = LinkTimer()
    timer.asked((TRAIN, 0))
    clock[0] = 0.25
    assert (timer.since_asked((TRAIN, 0)), timer.since_asked((TRAIN, 1))) == (0.25, 0.0)


@pytest.mark.parametrize(
    ("arrived", "after", "was_awaited", "timed"),
    [
        (5.0, 0.5, True, (800, 2.5)),
        (5.0, 0.5, False, (0, 0.0)),  # the request waited until the shard had time for it
        (2.1, 0.5, True, (0, 0.0)),
    ],
)
def test_a_shard_times_what_is_pushed_after_a_request(
    arrived: float, after: float, was_awaited: bool, timed: tuple[int, float]
) -> None:
    at: dict[str, Any] = {"run": "r", "generation": 1, "step": 1, "phase": TRAIN, "worker": 0}
    rows = PushArrays(np.empty(0, np.int64), np.empty(200, np.float32), np.empty(0, np.int64), np.empty(0, np.float32))
    pull = Received(b"w", Pull(**at), NO_ARRAYS, at_seconds=2.0, was_awaited=was_awaited)
    push = Received(b"w", Push(**at, after_seconds=after), rows, at_seconds=arrived)
    assert time_push(pull, push) == timed


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=12))
def test_covered_is_the_number_of_unit_intervals_inside(spans: list[tuple[int, int]]) -> None:
    inside = {second for began, length in spans for second in range(began, began + length)}
    assert covered([(float(began), float(began + length)) for began, length in spans]) == len(inside)
