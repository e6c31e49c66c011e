"""The learner beside other libraries; those that are not installed are left out."""

from itertools import islice

import pytest

from freshet.comparison import Pass, compare, freshet_many, freshet_one, river_linear, river_pairs, vowpal
from ingest.convert import Event
from ingest.producing.synthetic import synthetic_events


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return list(islice(synthetic_events(0), 300))


@pytest.mark.parametrize("learn", [freshet_many("synthetic"), freshet_one("synthetic", 64)])
def test_a_pass_answers_every_event_before_it_learns_it(learn: Pass, events: list[Event]) -> None:
    found = compare("a pass", learn, events)
    assert (found.name, found.events) == ("a pass", 300)
    assert found.logloss is not None
    assert 0 < found.logloss < 1
    assert found.events_per_second > 0


@pytest.mark.parametrize("learn", [river_linear, river_pairs])
def test_river_answers_every_event(learn: Pass, events: list[Event]) -> None:
    pytest.importorskip("river", reason="the package river is not installed")
    assert all(0 <= chance <= 1 for chance in learn(events))


def test_vowpal_wabbit_answers_probabilities(events: list[Event]) -> None:
    pytest.importorskip("vowpalwabbit", reason="the package vowpalwabbit is not installed")
    assert all(0 <= chance <= 1 for chance in vowpal("-l 0.3")(events))
