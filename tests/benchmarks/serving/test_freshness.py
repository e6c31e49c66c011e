"""The age of an event is the time from its append to the first answer of a snapshot that has learnt from it."""

import pytest

from benchmarks.serving.freshness import SeenSnapshots, ages_of
from infra.base.errors import FreshetError

ASKED = SeenSnapshots(times=[10.0, 11.0, 12.0], snapshots=[(0, 3), (0, 7), (1, 8)])


def test_an_event_is_as_old_as_the_first_answer_that_knows_it() -> None:
    assert ages_of([(9.0, 2), (9.0, 3), (9.5, 4), (9.5, 8)], ASKED) == [1.0, 1.0, 1.5, 2.5]


def test_an_event_that_no_answer_knows_is_an_error() -> None:
    with pytest.raises(FreshetError, match="step 9 was not served"):
        ages_of([(9.0, 9)], ASKED)
