"""Checkpoints that storage does not give out are tried a few times, left out, and tried again later."""

import pytest

from dispatch.checkpoints import unreadable
from dispatch.checkpoints.unreadable import LATER_SECONDS, MOST_TRIES, UnreadableCheckpoints


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(unreadable, "monotonic", lambda: now[0])
    return now


def fail(checkpoints: UnreadableCheckpoints, number: int, times: int = MOST_TRIES) -> list[bool]:
    return [checkpoints.note(number, f"checkpoint {number}: a disk that fails") for _ in range(times)]


def test_a_checkpoint_is_left_out_after_some_tries_and_tried_again_later(clock: list[float]) -> None:
    checkpoints = UnreadableCheckpoints()
    assert fail(checkpoints, 7) == [*[False] * (MOST_TRIES - 1), True]
    assert fail(checkpoints, 6, 2) == [False, False]
    clock[0] += LATER_SECONDS - 1
    assert (checkpoints.left_out(), checkpoints.reasons) == ({7}, {7: "checkpoint 7: a disk that fails"})
    clock[0] += 1
    assert (checkpoints.left_out(), checkpoints.reasons) == (set(), {})
    assert fail(checkpoints, 7) == [*[False] * (MOST_TRIES - 1), True]  # as often as before


def test_all_may_be_tried_at_once(clock: list[float]) -> None:
    checkpoints = UnreadableCheckpoints()
    fail(checkpoints, 7)
    checkpoints.forget()
    assert checkpoints.left_out() == set()
