import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps.phases import TRAIN
from ps.timing import LinkTimer, covered


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr("ps.timing.perf_counter", lambda: now[0])
    return now


def test_waiting_at_the_shard_is_not_the_link_s_time(clock: list[float]) -> None:
    timer = LinkTimer()
    timer.asked((TRAIN, 0), 10)
    clock[0] = 5.0
    timer.answered((TRAIN, 0), 90, held_seconds=4.0, was_awaited=True)
    assert timer.take_times() == pytest.approx((100, 1.0))


def test_answers_on_their_way_at_once_count_once(clock: list[float]) -> None:
    timer = LinkTimer()
    timer.asked((TRAIN, 0), 0)
    timer.asked((TRAIN, 1), 0)
    for shard, at in ((0, 4.0), (1, 6.0)):
        clock[0] = at
        timer.answered((TRAIN, shard), 10, held_seconds=3.0, was_awaited=True)
    assert timer.take_times() == pytest.approx((20, 3.0))


def test_every_step_starts_anew(clock: list[float]) -> None:
    timer = LinkTimer()
    timer.asked((TRAIN, 0), 1)
    assert timer.take_times() == (0, 0.0)
    clock[0] = 1.0
    timer.answered((TRAIN, 0), 1, held_seconds=0.5, was_awaited=True)
    assert timer.take_times() == pytest.approx((2, 0.5))


def test_an_answer_that_nobody_waited_for_says_nothing(clock: list[float]) -> None:
    timer = LinkTimer()
    timer.asked((TRAIN, 0), 10)
    clock[0] = 5.0
    timer.answered((TRAIN, 0), 90, held_seconds=4.0, was_awaited=False)
    assert timer.take_times() == (0, 0.0)


def test_dense_weights_that_come_before_an_answer_count_with_it(clock: list[float]) -> None:
    timer = LinkTimer()
    timer.passed(1000)
    timer.asked((TRAIN, 0), 10)
    timer.passed(100)
    clock[0] = 2.0
    timer.answered((TRAIN, 0), 90, held_seconds=0.0, was_awaited=True)
    timer.passed(1000)
    assert timer.take_times() == pytest.approx((200, 2.0))


def test_the_spacing_of_a_gradient_s_pieces_counts_alone(clock: list[float]) -> None:
    timer = LinkTimer()
    timer.asked((TRAIN, 0), 10)
    clock[0] = 5.0
    timer.answered((TRAIN, 0), 90, held_seconds=4.0, was_awaited=True)
    timer.gave(700, 2.0)
    timer.gave(300, 1.0)
    assert timer.take_times() == (1000, 3.0)
    assert timer.take_times() == (0, 0.0)


@pytest.mark.parametrize("held", [-1.0, 99.0])
def test_a_clock_that_cannot_be_right_gives_no_negative_time(clock: list[float], held: float) -> None:
    timer = LinkTimer()
    timer.asked((TRAIN, 0), 1)
    clock[0] = 2.0
    timer.answered((TRAIN, 0), 1, held, was_awaited=True)
    assert 0.0 <= timer.take_times()[1] <= 2.0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), max_size=12))
def test_covered_is_the_number_of_unit_intervals_inside(spans: list[tuple[int, int]]) -> None:
    inside = {second for began, length in spans for second in range(began, began + length)}
    assert covered([(float(began), float(began + length)) for began, length in spans]) == len(inside)
