"""What decisions come to at a look."""

import pytest

from dispatch.alpha.window import LOOKS, DecisionWindow, StepSeconds
from dispatch.placement.assign.worth import Worth


def test_processor_time_is_of_the_decisions_since_the_last_look() -> None:
    window = DecisionWindow()
    window.note(0.1, 0.1, StepSeconds(), None)
    assert window.close() == 1.0
    window.note(0.1, 0.02, StepSeconds(0.5), None)
    window.note(0.3, 0.08, StepSeconds(0.6, 0.1), None)
    assert window.close() == pytest.approx(0.25)
    assert window.step == (0.6, 0.1)


def test_the_percentile_is_of_the_latest_looks() -> None:
    window = DecisionWindow()
    window.note(9.0, 9.0, StepSeconds(), None)
    for _ in range(LOOKS):
        assert window.p95_seconds() > 1.0
        window.close()
        window.note(0.1, 0.1, StepSeconds(), None)
    assert window.p95_seconds() == pytest.approx(0.1)


def test_what_exact_solving_is_worth_is_the_median_of_the_latest_comparisons() -> None:
    window = DecisionWindow()
    assert window.worth is None
    for worth in (None, Worth(0.3, 0.01), None, Worth(0.2, 0.09), Worth(0.1, 0.02), None):
        window.note(0.1, 0.1, StepSeconds(), worth)
    assert window.worth == (0.2, 0.02)
    window.forget_worth()
    assert window.worth is None


def test_a_look_without_decisions_is_empty() -> None:
    window = DecisionWindow()
    assert window.is_empty
    window.note(0.1, 0.1, StepSeconds(), None)
    assert not window.is_empty
    window.close()
    assert window.is_empty
