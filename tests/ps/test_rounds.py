"""The barrier by itself: no rows, no sockets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.base.wire import NO_F32
from ps.errors import OutOfOrder
from ps.fingerprints import fingerprint, fingerprint_reference
from ps.phases import EARLY, EVICT, FLUSH, TRAIN
from ps.protocol import Announce, AnnounceArrays, Pull, PullArrays, Push
from ps.rounds import MESSAGE_BYTES, Received, Rounds
from tests.ps.doubles import NO_ROWS, fingerprints, owned

NOTHING = owned(NO_ROWS, NO_F32)


def announce(step: int, pushers: list[int], phase: int = TRAIN) -> Received:
    header = Announce(run="r", generation=1, step=step, phase=phase, pushers=pushers)
    return Received(b"d", header, AnnounceArrays(pushed=fingerprints(*[([], [])] * len(pushers))))


def push(step: int, worker: int, phase: int = TRAIN) -> Received:
    return Received(b"w", Push(run="r", generation=1, step=step, phase=phase, worker=worker), NOTHING)


def pull(step: int, worker: int = 0) -> Received:
    return Received(b"w", Pull(run="r", generation=1, step=step, phase=TRAIN, worker=worker), PullArrays())


def test_round_without_pushers_is_complete_at_once() -> None:
    rounds = Rounds()
    rounds.announce(announce(4, []))
    assert rounds.next_complete() is not None
    assert rounds.applied == (4, TRAIN)


def test_round_waits_for_its_last_pusher() -> None:
    rounds = Rounds()
    rounds.announce(announce(4, [0, 2]))
    rounds.push(push(4, 2))
    assert rounds.next_complete() is None
    rounds.push(push(4, 0))
    complete = rounds.next_complete()
    assert complete is not None
    assert sorted(complete.pushes) == [0, 2]


def test_nobody_waits_for_evictions_before_the_next_step() -> None:
    rounds = Rounds()
    for announced in (announce(4, []), announce(4, [0], EVICT), announce(5, [], EARLY)):
        rounds.announce(announced)
    assert rounds.next_complete() is not None
    assert rounds.pull(pull(4)), "the step's own rows are there"
    assert rounds.next_complete() is None
    assert not rounds.pull(pull(5)), "they may be the rows that are on their way"
    rounds.push(push(4, 0, EVICT))
    assert [rounds.next_complete() is not None, rounds.applied] == [True, (4, EVICT)]


def test_complete_round_waits_for_the_round_before_it() -> None:
    rounds = Rounds()
    rounds.announce(announce(4, [0]))
    rounds.announce(announce(4, [1], FLUSH))
    rounds.push(push(4, 1, FLUSH))
    assert rounds.next_complete() is None
    rounds.push(push(4, 0))
    applied = []
    while rounds.next_complete():
        applied.append(rounds.applied)
    assert applied == [(4, TRAIN), (4, FLUSH)]


def test_early_push_is_handed_back_when_its_round_is_announced() -> None:
    rounds = Rounds()
    early = push(4, 1)
    rounds.push(early)
    assert rounds.next_complete() is None
    assert rounds.announce(announce(4, [1])) == [early]


def test_pull_is_held_until_its_round_is_applied() -> None:
    rounds = Rounds()
    waiting = pull(4)
    assert not rounds.pull(waiting)
    rounds.announce(announce(4, []))
    complete = rounds.next_complete()
    assert complete is not None
    assert complete.pulls == [waiting]
    assert rounds.pull(pull(4))


@pytest.mark.parametrize("phase", [TRAIN, FLUSH])
def test_round_announced_twice_or_late_is_out_of_order(phase: int) -> None:
    rounds = Rounds()
    rounds.announce(announce(4, [], FLUSH))
    with pytest.raises(OutOfOrder, match="announced after"):
        rounds.announce(announce(4, [], phase))


def test_second_push_of_a_worker_is_out_of_order_and_the_first_counts() -> None:
    rounds = Rounds()
    rounds.announce(announce(4, [0]))
    first = push(4, 0)
    rounds.push(first)
    with pytest.raises(OutOfOrder, match="pushed twice"):
        rounds.push(push(4, 0))
    complete = rounds.next_complete()
    assert complete is not None
    assert complete.pushes[0] is first


def test_push_of_a_worker_not_announced_is_out_of_order() -> None:
    rounds = Rounds()
    rounds.announce(announce(4, [0]))
    with pytest.raises(OutOfOrder, match="without being announced"):
        rounds.push(push(4, 1))


def test_push_of_an_applied_round_is_out_of_order() -> None:
    rounds = Rounds()
    rounds.announce(announce(4, []))
    rounds.next_complete()
    with pytest.raises(OutOfOrder, match="the round is over"):
        rounds.push(push(4, 0))


def test_dropped_rounds_are_waited_for_no_more() -> None:
    rounds = Rounds()
    rounds.announce(announce(4, [0]))
    waiting = pull(4)
    rounds.pull(waiting)
    assert rounds.drop() == [waiting]
    assert rounds.next_complete() is None
    rounds.announce(announce(5, []))
    assert rounds.next_complete() is not None


def test_messages_that_wait_are_bounded_in_bytes_until_their_round_comes() -> None:
    rounds = Rounds(held_bytes=3 * MESSAGE_BYTES)
    rounds.push(push(4, 0))
    rounds.pull(pull(4))
    rounds.pull(pull(9))
    with pytest.raises(OutOfOrder, match=r"raise ps\.held_bytes"):
        rounds.pull(pull(4))
    with pytest.raises(OutOfOrder, match=r"raise ps\.held_bytes"):
        rounds.push(push(5, 0))
    for early in rounds.announce(announce(4, [0])):
        rounds.push(early)
    assert rounds.next_complete() is not None
    assert not rounds.pull(pull(5))
    rounds.push(push(5, 0))


@given(st.lists(st.integers(0, 2**40), unique=True), st.lists(st.integers(0, 2**40), unique=True))
def test_fingerprint_equals_the_reference_in_any_order(owned_rows: list[int], part_rows: list[int]) -> None:
    numbers, parts = (np.array(rows[::-1], np.int64) for rows in (owned_rows, part_rows))
    assert int(fingerprint(numbers, parts)) == fingerprint_reference(owned_rows, part_rows)
    if owned_rows != part_rows:
        assert int(fingerprint(parts, numbers)) != fingerprint_reference(owned_rows, part_rows)


@given(st.permutations([(kind, step) for kind in ("push", "pull") for step in range(4)]), st.data())
def test_any_arrival_order_applies_rounds_in_announced_order(order: list[tuple[str, int]], data: st.DataObject) -> None:
    rounds = Rounds()
    arrivals: list[tuple[str, int]] = list(order)
    for step in range(4):
        after = arrivals.index(("announce", step - 1)) + 1 if step else 0
        arrivals.insert(data.draw(st.integers(after, len(arrivals))), ("announce", step))
    applied, answered = [], []
    for kind, step in arrivals:
        if kind == "announce":
            for early in rounds.announce(announce(step, [0])):
                rounds.push(early)
        elif kind == "push":
            rounds.push(push(step, 0))
        elif rounds.pull(pull(step)):
            answered.append(step)
        while complete := rounds.next_complete():
            applied.append(rounds.applied)
            answered += [waiting.header.step for waiting in complete.pulls]
    assert applied == [(step, TRAIN) for step in range(4)]
    assert sorted(answered) == [0, 1, 2, 3]
