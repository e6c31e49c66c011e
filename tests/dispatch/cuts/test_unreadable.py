"""Cuts that storage does not give out are tried a few times, left out, and tried again later."""

import pytest

from dispatch.cuts import unreadable
from dispatch.cuts.unreadable import LATER_SECONDS, MOST_TRIES, UnreadableCuts


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(unreadable, "monotonic", lambda: now[0])
    return now


def fail(cuts: UnreadableCuts, number: int, times: int = MOST_TRIES) -> list[bool]:
    return [cuts.note(number, f"cut {number}: a disk that fails") for _ in range(times)]


def test_a_cut_is_left_out_after_some_tries_and_tried_again_later(clock: list[float]) -> None:
    cuts = UnreadableCuts()
    assert fail(cuts, 7) == [*[False] * (MOST_TRIES - 1), True]
    assert fail(cuts, 6, 2) == [False, False]
    clock[0] += LATER_SECONDS - 1
    assert (cuts.left_out(), cuts.reasons) == ({7}, {7: "cut 7: a disk that fails"})
    clock[0] += 1
    assert (cuts.left_out(), cuts.reasons) == (set(), {})
    assert fail(cuts, 7) == [*[False] * (MOST_TRIES - 1), True]  # as often as before


def test_all_may_be_tried_at_once(clock: list[float]) -> None:
    cuts = UnreadableCuts()
    fail(cuts, 7)
    cuts.forget()
    assert cuts.left_out() == set()
