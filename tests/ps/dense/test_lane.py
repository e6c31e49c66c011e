"""Dense weights through a shard: turns are announced, and a pull waits for those before it, piece by piece."""

import re
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.base.wire import NO_ARRAYS, NO_F32, NO_I64, Arrays, Header, Refused
from ps.checkpoints.restore import ModelSettings
from ps.config import DenseRule, RowConfig
from ps.dense.lane import neighbours
from ps.dense.range import pieces_of
from ps.phases import EARLY, FLUSH, TRAIN
from ps.protocol import (
    BARE,
    WHOLE,
    Announce,
    AnnounceArrays,
    Count,
    DenseArrays,
    DensePieces,
    Open,
    Peek,
    PeekArrays,
    PullDense,
    Push,
    PushArrays,
    PushDense,
)
from ps.rounds import MESSAGE_BYTES, Received
from ps.shard import Reply, Shard

WORKERS = 3


def tell(shard: Shard, kind: type[Header], arrays: Arrays = NO_ARRAYS, at_seconds: float = 0.0, **fields: Any) -> Any:
    common: dict[str, Any] = {"run": "r", "generation": 1, "step": 1}
    message = Received(b"w", kind(**common | fields), arrays, at_seconds)
    return [*shard.receive(message), *shard.answer_dense()]


def announce(
    shard: Shard, step: int, gradients: list[int], whole: list[int] | None = None, phase: int = TRAIN
) -> list[Reply]:
    named: dict[str, Any] = {"pushers": [], "dense_whole": whole or [], "dense_gradients": gradients}
    replies: list[Reply] = tell(shard, Announce, AnnounceArrays(), step=step, phase=phase, **named)
    return replies


def push(shard: Shard, step: int, worker: int, form: int, *floats: float, piece: int = 0, **fields: Any) -> list[Reply]:
    named: dict[str, Any] = {"step": step, "phase": TRAIN, "worker": worker, "form": form, "piece": piece} | fields
    replies: list[Reply] = tell(shard, PushDense, DenseArrays(floats=np.array(floats, np.float32)), **named)
    return replies


def pull(shard: Shard, step: int, worker: int = 0, form: int = BARE) -> list[Reply]:
    replies: list[Reply] = tell(shard, PullDense, step=step, worker=worker, form=form)
    return replies


def peek(shard: Shard, generation: int = 1) -> Any:
    (reply,) = tell(shard, Peek, PeekArrays(NO_I64), dense=WHOLE, generation=generation)
    return reply.arrays[-1].tolist()


def dense_of(replies: list[Reply]) -> list[Any]:
    return [reply.arrays[-1].tolist() for reply in replies]


def opened(*weights: float, held_bytes: int = 1 << 20) -> Shard:
    """A shard that was handed weights before step 1, in which nobody trains."""
    made = Shard(ModelSettings(RowConfig(dim=2), 1, 4, DenseRule("sgd", 1.0)), "r", held_bytes)
    tell(made, Open, workers=WORKERS)
    announce(made, 1, [], whole=[0])
    assert push(made, 1, 0, WHOLE, *weights) == []
    return made


@pytest.fixture
def shard() -> Shard:
    return opened(1, 2)


@pytest.fixture
def two_pieces(monkeypatch: pytest.MonkeyPatch) -> Shard:
    monkeypatch.setattr("ps.dense.range.LEAST_PIECE_BYTES", 8)
    return opened(1, 2, 3, 4)


def test_a_pull_waits_for_every_gradient_of_the_step_before(shard: Shard) -> None:
    announce(shard, 2, [0, 2])
    announce(shard, 3, [0])
    assert dense_of(pull(shard, 2)) == [[1, 2]], "its own gradients come after it"
    assert push(shard, 2, 2, BARE, 1, 0) == []
    assert pull(shard, 3) == []
    assert dense_of(push(shard, 2, 0, BARE, 0, 5)) == [[0, -3]]
    assert dense_of(pull(shard, 3, worker=1)) == [[0, -3]]


def test_a_piece_is_answered_while_others_are_on_their_way(two_pieces: Shard) -> None:
    announce(two_pieces, 2, [0, 1])
    announce(two_pieces, 3, [0, 1])
    push(two_pieces, 2, 0, BARE, 1, 1, piece=0)
    assert pull(two_pieces, 3) == []
    (first,) = push(two_pieces, 2, 1, BARE, 1, 1, piece=0)
    assert (first.header.piece, first.header.is_last, dense_of([first])) == (0, False, [[-1, 0]])  # type: ignore[attr-defined]
    push(two_pieces, 2, 0, BARE, 0, 1, piece=1)
    (last,) = push(two_pieces, 2, 1, BARE, 0, 1, piece=1)
    assert (last.header.piece, last.header.is_last, dense_of([last])) == (1, True, [[3, 2]])  # type: ignore[attr-defined]


def test_whole_weights_wait_for_every_piece(two_pieces: Shard) -> None:
    announce(two_pieces, 2, [0])
    announce(two_pieces, 3, [])
    push(two_pieces, 2, 0, BARE, 1, 1, piece=0)
    assert pull(two_pieces, 3, form=WHOLE) == []
    (everything,) = push(two_pieces, 2, 0, BARE, 1, 1, piece=1)
    assert dense_of([everything]) == [[0, 1, 2, 3]]


def test_an_owner_s_weights_replace_what_was_there_before_anyone_pulls(two_pieces: Shard) -> None:
    announce(two_pieces, 2, [1, 2], whole=[0])
    assert pull(two_pieces, 2, worker=1) == []
    assert dense_of(push(two_pieces, 2, 0, WHOLE, 5, 6, 7, 8)) == [[5, 6, 7, 8]]


@given(st.data())
def test_any_order_of_arrival_gives_the_same_bits(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ps.dense.range.LEAST_PIECE_BYTES", 8)
        shard, steps = opened(0, 0, 0, 0), 3
    numbers = np.random.default_rng(1).normal(size=(steps + 2, WORKERS, 4)).astype(np.float32) * 1e4
    expected = np.zeros(4, np.float32)
    for step in range(2, steps + 2):
        announce(shard, step, list(range(WORKERS)))
        expected -= (numbers[step, 0] + numbers[step, 1]) + numbers[step, 2]
    waiting = {(worker, piece): 2 for worker in range(WORKERS) for piece in range(2)}
    while waiting:
        worker, piece = data.draw(st.sampled_from(sorted(waiting)))
        step = waiting[worker, piece]
        push(shard, step, worker, BARE, *numbers[step, worker, 2 * piece : 2 * piece + 2], piece=piece)
        waiting[worker, piece] += 1
        if step == steps + 1:
            del waiting[worker, piece]
    assert peek(shard) == expected.tolist()


def test_sums_do_not_depend_on_the_order_of_arrival(shard: Shard) -> None:
    results = set()
    for step, order in enumerate(permutations(range(WORKERS)), start=2):
        announce(shard, step, list(range(WORKERS)))
        before = peek(shard)[0]
        for worker in order:
            push(shard, step, worker, BARE, [1e8, 1, -1e8][worker], 0)
        results.add(peek(shard)[0] - before)
    assert len(results) == 1


def test_a_gradient_that_comes_before_its_announcement_is_kept(shard: Shard) -> None:
    assert push(shard, 2, 1, BARE, 1, 1) == []
    assert pull(shard, 3) == []
    announce(shard, 2, [1])
    assert dense_of(announce(shard, 3, [])) == [[0, 1]]


@pytest.mark.parametrize(
    ("worker", "fields", "floats", "reason"),
    [
        (1, {}, (1, 1), "without being announced"),
        (0, {"form": WHOLE}, (1, 1), "not announced or is over"),
        (0, {"step": 1}, (1, 1), "not announced or is over"),
        (0, {}, (1, 1, 1), "brought 3 floats"),
        (0, {"piece": 1}, (1, 1), "brought piece 1"),
        (9, {}, (1, 1), "is not one of the 3 workers"),
    ],
)
def test_what_was_not_announced_is_refused_and_changes_nothing(
    shard: Shard, worker: int, fields: dict[str, Any], floats: tuple[float, ...], reason: str
) -> None:
    announce(shard, 2, [0])
    told: dict[str, Any] = {"step": 2, "form": BARE} | fields
    (refused,) = push(shard, told.pop("step"), worker, told.pop("form"), *floats, **told)
    assert isinstance(refused.header, Refused)
    assert re.search(reason, refused.header.reason)
    assert peek(shard) == [1, 2]
    push(shard, 2, 0, BARE, 1, 1)
    assert peek(shard) == [0, 1]


def test_a_piece_that_comes_twice_is_refused(two_pieces: Shard) -> None:
    announce(two_pieces, 2, [0, 1])
    push(two_pieces, 2, 0, BARE, 1, 1)
    (waits,) = push(two_pieces, 2, 0, BARE, 9, 9)
    push(two_pieces, 2, 1, BARE, 0, 0)
    (is_over,) = push(two_pieces, 2, 0, BARE, 9, 9)
    assert all("twice" in refused.header.reason for refused in (waits, is_over))  # type: ignore[attr-defined]
    assert peek(two_pieces) == [0, 1, 3, 4]


def test_what_is_held_is_bounded() -> None:
    shard = opened(1, 2, held_bytes=2 * MESSAGE_BYTES)
    assert push(shard, 5, 1, BARE, 1, 1) == []
    (refused,) = push(shard, 5, 2, BARE, 1, 1)
    assert "ps.held_bytes" in refused.header.reason  # type: ignore[attr-defined]


def test_an_early_round_announces_nothing_dense(shard: Shard) -> None:
    (refused,) = announce(shard, 2, [0], phase=EARLY)
    assert "for an early round" in refused.header.reason  # type: ignore[attr-defined]


def test_a_flush_is_applied_once_the_last_gradient_is(two_pieces: Shard) -> None:
    announce(two_pieces, 2, [2])
    announce(two_pieces, 2, [], phase=FLUSH)
    push(two_pieces, 2, 2, BARE, 1, 1)
    (ledger,) = tell(two_pieces, Count)
    assert ledger.header.applied_step < 2
    push(two_pieces, 2, 2, BARE, 1, 1, piece=1)
    (ledger,) = tell(two_pieces, Count)
    assert (ledger.header.applied_step, ledger.header.applied_phase) == (2, FLUSH)
    assert ledger.arrays[-2].tolist() == [4, 4], "floats pushed in both steps"
    tell(two_pieces, Open, workers=1, generation=2)
    assert peek(two_pieces, generation=2) == [0, 1, 2, 3]


def test_workers_get_the_same_pieces_though_replies_leave_at_once(two_pieces: Shard) -> None:
    for worker in range(WORKERS):
        assert pull(two_pieces, 2, worker) == []
    header = Announce(run="r", generation=1, step=2, phase=TRAIN, pushers=[], dense_gradients=[0])
    assert list(two_pieces.receive(Received(b"w", header, AnnounceArrays()))) == []
    got = []
    for reply in two_pieces.answer_dense():
        assert isinstance(reply.header, DensePieces)
        assert reply.buffer is not None
        got.append(reply.arrays[-1].tolist())
        reply.buffer.sent([])  # its memory may be used again from now on
    assert got == [[1, 2, 3, 4]] * WORKERS
    assert all(buffer.idle for buffer in two_pieces._buffers._buffers)


def test_pulls_that_wait_are_refused_when_a_generation_begins(shard: Shard) -> None:
    assert pull(shard, 4) == []
    replies = tell(shard, Open, workers=1, generation=2)
    assert [type(reply.header).__name__ for reply in replies] == ["Refused", "Opened"]


def test_the_last_piece_tells_how_far_apart_a_worker_s_pieces_came(two_pieces: Shard) -> None:
    announce(two_pieces, 2, [0])
    announce(two_pieces, 3, [0])
    push(two_pieces, 2, 0, BARE, 1, 1, at_seconds=10.0)
    push(two_pieces, 2, 0, BARE, 1, 1, piece=1, at_seconds=12.5)
    (told,) = (reply.header for reply in pull(two_pieces, 3))
    assert isinstance(told, DensePieces)
    assert (told.pushed_bytes, told.pushed_seconds, told.is_last) == (8, 2.5, True)


def test_pieces_that_came_together_leave_together(two_pieces: Shard) -> None:
    announce(two_pieces, 2, [0, 1])
    announce(two_pieces, 3, [0, 1])
    push(two_pieces, 2, 0, BARE, 1, 1, piece=0)
    push(two_pieces, 2, 0, BARE, 1, 1, piece=1)
    assert pull(two_pieces, 3) == []
    common: dict[str, Any] = {"run": "r", "generation": 1, "step": 2, "phase": TRAIN, "worker": 1, "form": BARE}
    for piece in (0, 1):
        header = PushDense(**common, piece=piece)
        assert list(two_pieces.receive(Received(b"w", header, DenseArrays(np.ones(2, np.float32))))) == []
    (both,) = two_pieces.answer_dense()
    assert isinstance(both.header, DensePieces)
    assert (both.header.piece, both.header.pieces, both.header.is_last) == (0, 2, True)
    assert both.arrays[-1].tolist() == [-1, 0, 1, 2]


def test_pieces_leave_before_rows_are_changed(two_pieces: Shard) -> None:
    announce(two_pieces, 2, [0])
    named: dict[str, Any] = {"run": "r", "generation": 1, "phase": TRAIN}
    pushed = AnnounceArrays(pushed=np.zeros(1, np.uint64))
    assert list(two_pieces.receive(Received(b"w", Announce(**named, step=3, pushers=[1]), pushed))) == []
    assert pull(two_pieces, 3) == []
    header = PushDense(**named, step=2, worker=0, form=BARE, piece=0)
    assert list(two_pieces.receive(Received(b"w", header, DenseArrays(np.ones(2, np.float32))))) == []
    rows = Push(**named, step=3, worker=1)
    first, *_ = two_pieces.receive(Received(b"w", rows, PushArrays(NO_I64, NO_F32, NO_I64, NO_F32)))
    assert isinstance(first.header, DensePieces)
    assert first.arrays[-1].tolist() == [0, 1]


@given(st.lists(st.integers(0, 20), unique=True).map(sorted))
def test_neighbours_are_ranges_of_all_pieces(pieces: list[int]) -> None:
    ranges = list(neighbours(pieces))
    assert [piece for each in ranges for piece in each] == pieces
    assert all(before.stop < after.start for before, after in pairwise(ranges))


def test_gradients_are_added_as_they_come_in_worker_order(two_pieces: Shard) -> None:
    announce(two_pieces, 2, [0, 1, 2])
    for worker in (1, 0):
        push(two_pieces, 2, worker, BARE, 1, 1)
    (turn,) = two_pieces._lane._turns
    assert (turn.used[0], turn.of(0)) == (2, {}), "nothing is kept of gradients that are in the sum"
    (refused,) = push(two_pieces, 2, 1, BARE, 9, 9)
    assert "twice" in refused.header.reason  # type: ignore[attr-defined]
    push(two_pieces, 2, 2, BARE, 1, 1)
    assert peek(two_pieces) == [-2, -1, 3, 4]


@given(st.integers(0, 1 << 21), st.sampled_from([4, 8]))
def test_pieces_are_a_range_split_up(length: int, itemsize: int) -> None:
    pieces = pieces_of(length, itemsize)
    assert [piece.start for piece in pieces] == [0, *(piece.stop for piece in pieces[:-1])]
    assert pieces[-1].stop == length
    assert 1 <= len(pieces) <= 8


def test_weights_of_a_second_flush_at_one_step_are_awaited_on_their_own(shard: Shard) -> None:
    announce(shard, 2, [], phase=TRAIN)
    announce(shard, 2, [], whole=[0], phase=FLUSH)
    assert push(shard, 2, 0, WHOLE, 3, 4, phase=FLUSH) == []
    assert push(shard, 2, 0, WHOLE, 5, 6, phase=FLUSH + 1) == [], "held until it is announced"
    announce(shard, 2, [], whole=[1], phase=FLUSH + 2)
    (ledger,) = tell(shard, Count)
    assert (ledger.header.applied_step, ledger.header.applied_phase) == (2, FLUSH + 1)
    assert push(shard, 2, 1, WHOLE, 7, 8, phase=FLUSH + 2) == []
    (ledger,) = tell(shard, Count)
    assert (ledger.header.applied_step, ledger.header.applied_phase) == (2, FLUSH + 2)
    assert peek(shard) == [7, 8]
    (refused,) = push(shard, 2, 0, WHOLE, 9, 9, phase=FLUSH)
    assert isinstance(refused.header, Refused)


def test_step_before_dense_weights_that_are_awaited_counts_with_all_its_flushes(shard: Shard) -> None:
    for phase in (TRAIN, FLUSH, FLUSH + 1):
        announce(shard, 2, [], phase=phase)
    announce(shard, 3, [0])
    (ledger,) = tell(shard, Count)
    assert (ledger.header.applied_step, ledger.header.applied_phase) >= (2, FLUSH + 1)
    assert ledger.header.applied_step < 3


def test_copy_is_of_the_weights_before_later_gradients_whatever_arrives_first(two_pieces: Shard) -> None:
    announce(two_pieces, 2, [0])
    push(two_pieces, 2, 0, BARE, 1, 1, piece=0)
    copy = two_pieces._lane.copy()
    announce(two_pieces, 3, [0])
    push(two_pieces, 3, 0, BARE, 1, 1, piece=0)
    assert not copy.is_complete
    push(two_pieces, 2, 0, BARE, 1, 1, piece=1)
    push(two_pieces, 3, 0, BARE, 1, 1, piece=1)
    assert copy.is_complete
    assert copy.whole.tolist() == [0, 1, 2, 3]
    assert peek(two_pieces) == [-1, 0, 1, 2]
