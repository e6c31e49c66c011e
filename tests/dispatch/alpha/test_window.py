"""What decisions come to at a look."""

import pytest

from dispatch.alpha.window import LOOKS, DecisionWindow


def test_processor_time_is_of_the_decisions_since_the_last_look() -> None:
    window = DecisionWindow()
    window.note(0.1, 0.1, None, None)
    assert window.close() == 1.0
    window.note(0.1, 0.02, 0.5, None)
    window.note(0.3, 0.08, 0.6, None)
    assert window.close() == pytest.approx(0.25)
    assert window.busy_seconds == 0.6


def test_the_percentile_is_of_the_latest_looks() -> None:
    window = DecisionWindow()
    window.note(9.0, 9.0, None, None)
    for _ in range(LOOKS):
        assert window.p95_seconds() > 1.0
        window.close()
        window.note(0.1, 0.1, None, None)
    assert window.p95_seconds() == pytest.approx(0.1)


def test_what_was_saved_stays_known_until_the_next_comparison() -> None:
    window = DecisionWindow()
    for saved in (None, 0.3, None, 0.2, None):
        window.note(0.1, 0.1, None, saved)
    assert window.saved_share == 0.2


def test_a_look_without_decisions_is_empty() -> None:
    window = DecisionWindow()
    assert window.is_empty
    window.note(0.1, 0.1, None, None)
    assert not window.is_empty
    window.close()
    assert window.is_empty
