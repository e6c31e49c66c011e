"""The learner beside other libraries; those that are not installed are left out."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from benchmarks.river import linear_model, pairs_model
from benchmarks.vowpal import USUAL
from freshet.comparison import Pass, compare, freshet_many, freshet_one, river, vowpal
from ingest.convert import Event
from ingest.producing.synthetic import synthetic_events


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return list(islice(synthetic_events(0), 300))


def learns_something(learn: Pass, events: list[Event]) -> bool:
    """Whether it answers each event, and ranks them better than chance."""
    found = compare("a pass", learn, events)
    return found.events == len(events) and found.auc is not None and found.auc > 0.5


@pytest.mark.parametrize("learn", [freshet_many("synthetic"), freshet_one("synthetic", 64)])
def test_a_pass_answers_every_event_before_it_learns_it(learn: Pass, events: list[Event]) -> None:
    found = compare("a pass", learn, events)
    assert (found.name, found.events) == ("a pass", 300)
    assert found.logloss is not None
    assert 0 < found.logloss < 1
    assert found.events_per_second > 0


@pytest.mark.parametrize("build", [linear_model, pairs_model])
def test_river_answers_every_event(build: Callable[[], Any], events: list[Event]) -> None:
    pytest.importorskip("river", reason="the package river is not installed")
    assert learns_something(river(build), events)


@pytest.mark.parametrize("options", [USUAL, f"-q cc {USUAL}"])
def test_vowpal_wabbit_answers_every_event(options: str, events: list[Event]) -> None:
    pytest.importorskip("vowpalwabbit", reason="the package vowpalwabbit is not installed")
    assert learns_something(vowpal(options), events)
