from collections.abc import Callable
from itertools import pairwise

import pytest

from serving.labels.join import GRACE_MS, LabelJoin
from serving.labels.predictions import Prediction
from serving.labels.state import JoinState
from serving.labels.sums import MOST_WINDOWS, LabelSums, SnapshotWindow, add_to_windows, score

WINDOW_MS = 10_000


@pytest.fixture
def join() -> LabelJoin:
    return LabelJoin(JoinState(since_ms=0), WINDOW_MS, most_waiting=3)


def made(name: str, at_ms: int = 1000, probability: float = 0.25, step: int = 7) -> Prediction:
    return Prediction(name, at_ms, probability, 0, step)


def test_a_label_is_joined_to_the_prediction_of_its_id(join: LabelJoin) -> None:
    join.add_prediction(made("a"))
    join.add_label("a", 1, 2000, 2000)
    total = join.state.total
    assert (total.labels, total.clicks, total.predicted) == (1, 1, 0.25)
    assert total.logloss == pytest.approx(1.3862943611)
    assert join.state.windows == [SnapshotWindow((0, 7), (0, 7), total)]


def test_a_label_that_is_read_first_waits_for_its_prediction(join: LabelJoin) -> None:
    join.add_label("a", 0, 2000, 2000)
    join.add_prediction(made("a"))
    assert (join.state.total.labels, join.state.counts.unknown, join.state.early) == (1, 0, {})


def test_a_second_label_is_a_duplicate_whenever_it_comes(join: LabelJoin) -> None:
    join.add_label("a", 0, 2000, 2000)
    join.add_label("a", 0, 2000, 2000)
    join.add_prediction(made("a"))
    join.add_label("a", 1, 2000, 2000)
    assert (join.state.total.labels, join.state.counts.duplicates) == (1, 2)


def test_a_label_of_no_prediction_is_unknown_after_a_while(join: LabelJoin) -> None:
    join.add_label("a", 0, 2000, 2000)
    join.pass_time(2000, 2000 + GRACE_MS)
    assert join.state.counts.unknown == 0
    join.pass_time(2000, 2001 + GRACE_MS)
    assert (join.state.counts.unknown, join.state.early) == (1, {})


def test_a_label_after_the_window_does_not_count_and_the_prediction_is_missing_its_own(join: LabelJoin) -> None:
    join.add_prediction(made("a"))
    join.add_label("a", 1, 1001 + WINDOW_MS, 0)
    join.pass_time(1001 + WINDOW_MS + GRACE_MS, 0)
    assert (join.state.counts.unknown, join.state.total) == (1, LabelSums(missing=1))
    assert join.state.waiting == {}


def test_a_prediction_waits_until_all_events_of_its_window_are_read(join: LabelJoin) -> None:
    join.add_prediction(made("a"))
    join.pass_time(1000 + WINDOW_MS + GRACE_MS, 10**9)
    assert join.state.total.missing == 0


def test_memory_is_bounded_and_what_is_forgotten_is_counted(join: LabelJoin) -> None:
    for name in "abcde":
        join.add_prediction(made(name))
        join.add_label("a", 1, 1000, 1000)
    assert (list(join.state.waiting), join.state.counts.forgotten) == (["c", "d", "e"], 1)


def test_an_id_that_is_taken_is_left_out(join: LabelJoin) -> None:
    join.add_prediction(made("a"))
    join.add_prediction(made("a", probability=0.75))
    join.add_label("a", 1, 1000, 1000)
    assert (join.state.counts.repeated, join.state.total.predicted) == (1, 0.25)


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_a_certain_prediction_has_a_finite_loss(probability: float) -> None:
    assert score(probability, 1 - int(probability)).loss == pytest.approx(16.6355, abs=1e-3)


def test_a_prediction_that_is_no_number_is_counted_apart(join: LabelJoin) -> None:
    join.add_prediction(made("a", probability=float("nan")))
    join.add_label("a", 1, 1000, 1000)
    assert join.state.total == LabelSums(not_finite=1)


@pytest.mark.parametrize("order", [lambda steps: steps, lambda steps: steps[::-1]])
def test_windows_stay_few_sorted_and_whole(order: Callable[[list[int]], list[int]]) -> None:
    windows: list[SnapshotWindow] = []
    for step in order(list(range(200))):
        add_to_windows(windows, (0, step), LabelSums(labels=1))
    assert len(windows) == MOST_WINDOWS
    assert sum(window.sums.labels for window in windows) == 200
    assert [window.first for window in windows] == sorted(window.first for window in windows)
    assert all(before.last < after.first for before, after in pairwise(windows))
    assert windows[-1].first == windows[-1].last == (0, 199)
