"""What moves of the dense weights, and where they are summed."""

import pytest

from dispatch.dense import NO_MOVES, DenseMoves, DenseTurns, Reduce, check_reduce, uses_hub
from infra.base.errors import ConfigError
from ps.protocol import BARE, NO_DENSE, WHOLE


def started(workers: int, hub: bool = True) -> DenseTurns:
    turns = DenseTurns()
    assert not turns.start_generation(workers, hub)
    return turns


def test_the_first_member_hands_the_start_values_in() -> None:
    everyone = (0, 1, 2)
    assert started(3).train([4, 4, 4]) == DenseMoves(0, everyone, BARE, everyone)


def test_who_has_samples_pulls_the_weights_and_pushes_a_gradient() -> None:
    turns = started(3)
    turns.train([4, 4, 4])
    assert turns.train([0, 8, 4]) == DenseMoves(None, (1, 2), BARE, (1, 2))
    assert turns.train([0, 0, 12]) == DenseMoves(None, (2,), BARE, (2,)), "alone by chance"
    assert turns.flush() == NO_MOVES


def test_one_worker_moves_nothing_before_the_flush() -> None:
    turns = started(1)
    assert [turns.train([4]), turns.train([4])] == [NO_MOVES, NO_MOVES]
    assert turns.flush() == DenseMoves(0)


def test_one_worker_takes_once_what_the_shards_have() -> None:
    turns = started(2)
    turns.train([2, 2])
    turns.flush()
    assert not turns.start_generation(1, hub=True)
    assert turns.train([4]) == DenseMoves(None, (0,), WHOLE)
    assert turns.train([4]) == NO_MOVES
    assert turns.flush() == DenseMoves(0)


def test_who_trains_alone_owns_them_until_others_take_part() -> None:
    turns = started(3)
    turns.train([4, 4, 4])
    assert turns.train([0, 12, 0], sole=1) == DenseMoves(None, (1,), WHOLE)
    assert turns.train([0, 12, 0], sole=1) == NO_MOVES
    assert turns.train([0, 0, 12], sole=2) == DenseMoves(1, (2,), WHOLE)
    assert turns.train([6, 6, 0]) == DenseMoves(2, (0, 1), BARE, (0, 1))
    assert turns.flush() == NO_MOVES


def test_a_generation_without_a_step_gives_back_nothing_it_has_not_taken() -> None:
    turns = started(1)
    assert turns.flush() == DenseMoves(0)
    turns.start_generation(1, hub=True)
    assert turns.flush() == NO_MOVES


def test_a_ring_moves_nothing_to_the_shards_before_the_flush() -> None:
    turns = started(2, hub=False)
    assert [turns.train([4, 0]), turns.train([0, 4])] == [DenseMoves(in_ring=True, are_all_ordered=True)] * 2
    assert turns.flush() == DenseMoves(0, are_all_ordered=True)


@pytest.mark.parametrize("hub", [True, False])
def test_whoever_comes_after_a_ring_finds_the_newest_on_the_shards(hub: bool) -> None:
    turns = started(2, hub=False)
    turns.train([4, 0])
    turns.flush()
    assert turns.start_generation(2, hub) is not hub, "the first of a ring takes them before it shares them"
    assert turns.train([0, 4]).giver is None


def test_a_ring_writes_what_it_trained_after_a_flush_too() -> None:
    turns = started(2, hub=False)
    turns.flush()
    assert turns.flush().giver is None
    turns.train([4, 0])
    assert turns.flush().giver == 0


def test_moves_are_those_of_a_worker() -> None:
    moves = DenseMoves(1, (0, 2), BARE, (2,))
    assert [moves.pulled_by(worker) for worker in range(3)] == [BARE, NO_DENSE, BARE]
    allowed = [[bool(most) for most in moves.most_bytes(worker)] for worker in range(3)]
    assert allowed == [[False, True], [True, False], [True, True]]


def test_moves_involve_those_who_move_something_and_in_a_ring_everyone() -> None:
    assert [DenseMoves(1, (0,), WHOLE).involve(worker) for worker in range(3)] == [True, True, False]
    assert [DenseMoves(None, (0,), BARE, (2,)).involve(worker) for worker in range(3)] == [True, False, True]
    ring = started(2, hub=False)
    assert all(moves.involve(worker) for moves in (ring.train([4, 0]), ring.flush(), ring.flush()) for worker in (0, 1))


@pytest.mark.parametrize(
    ("reduce", "hot", "may_sum", "devices", "hub"),
    [
        ("auto", False, True, ["", ""], True),
        ("auto", False, True, ["a", ""], True),
        ("auto", False, True, ["a", "a"], True),
        ("auto", False, True, ["a", "b"], False),
        ("auto", False, True, ["a"], True),
        ("auto", False, False, ["a", "b"], True),
        ("auto", True, True, ["", ""], False),
        ("hub", False, True, ["a", "b"], True),
        ("ring", False, True, ["", ""], False),
        ("gloo", False, True, ["", ""], False),
        ("nccl", False, True, ["a", "b"], False),
    ],
)
def test_a_ring_is_for_gpus_of_their_own_or_who_asks_for_it(
    reduce: Reduce, hot: bool, may_sum: bool, devices: list[str], hub: bool
) -> None:
    assert uses_hub(reduce, hot, may_sum, devices) is hub


def test_a_hub_cannot_sum_replicated_rows() -> None:
    check_reduce("auto", "fae:0.1:8", has_hot_set=True)
    check_reduce("hub", "esd:1", has_hot_set=False)
    with pytest.raises(ConfigError, match=r"policy fae:0.1:8 replicates rows, .* 'hub'; expected a ring; set trainer"):
        check_reduce("hub", "fae:0.1:8", has_hot_set=True)
