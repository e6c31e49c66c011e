"""Early transfers against a slow model: whenever they happen, every worker trains with the newest value of each row.

The model moves whole rows as (row, step that trained them) and parts as (row, step, worker). Early pushes of a step
happen before or after the step before it trains, as drawn for each worker; the shards apply them together.
"""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.rows.directory import Synchronisation
from dispatch.rows.plan import Moves, RoundPlan, ShardPlan, WorkerPlan
from tests.dispatch.rows.test_directory import Stream, directory, plan, streams

NEVER = 0


def cut(moves: Moves, is_early: bool) -> list[tuple[int, int]]:
    chosen = slice(None, moves.early) if is_early else slice(moves.early, None)
    return list(zip(moves.rows[chosen].tolist(), moves.slots[chosen].tolist(), strict=True))


class SlowWorld:
    """Shards and caches that know of every row which step trained it."""

    def __init__(self, workers: int) -> None:
        self.stored: dict[int, int] = defaultdict(int)
        """by row, on the shards"""
        self.parts: dict[int, set[tuple[int, int]]] = defaultdict(set)
        """by row, on the shards: step and worker"""
        self.slots: list[dict[int, tuple[int, int, bool]]] = [{} for _ in range(workers)]
        """of each worker: row, step, whether it is a part"""
        self.trained: dict[int, tuple[int, int]] = {}
        """by row: the last step, and how many workers used it then"""

    def push(self, number: int, worker: WorkerPlan, is_early: bool) -> None:
        for row, slot in cut(worker.push_owned, is_early):
            assert self.slots[number][slot] == (row, self.trained[row][0], False)
            self.stored[row] = self.trained[row][0]
        for row, slot in cut(worker.push_parts, is_early):
            assert self.slots[number][slot] == (row, self.trained[row][0], True)
            self.parts[row].add((self.trained[row][0], number))

    def settle(self, shards: tuple[ShardPlan, ...]) -> None:
        for number, shard in enumerate(shards):
            for row in (shard.settled * len(shards) + number).tolist():
                step, users = self.trained[row]
                brought = self.parts.pop(row)
                assert {at for at, _ in brought} == {step}
                assert len(brought) == users
                self.stored[row] = step

    def pull(self, worker: WorkerPlan, is_early: bool) -> dict[int, tuple[int, int, bool]]:
        """What arrives now, by slot; it enters the cache later."""
        moves = [*cut(worker.pull_full, is_early), *cut(worker.pull_values, is_early)]
        return {slot: (row, self.stored[row], False) for row, slot in moves}

    def train(self, step: int, decided: RoundPlan) -> None:
        users: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, worker in enumerate(decided.workers):
            for slot in worker.use_slots.tolist():
                row, version, is_part = self.slots[number][slot]
                assert (version, is_part) == (self.trained.get(row, (NEVER, 0))[0], False)
                users[row].append((number, slot))
        for row, places in users.items():
            self.trained[row] = step, len(places)
            for number, slot in places:
                self.slots[number][slot] = (row, step, len(places) > 1)


@pytest.mark.parametrize("synchronisation", ["on_demand", "full"])
@settings(max_examples=200)
@given(stream=streams(), data=st.data())
def test_early_transfers_move_what_late_ones_would(
    synchronisation: Synchronisation, stream: Stream, data: st.DataObject
) -> None:
    workers, shards, capacities, steps = stream
    target, world = directory(*capacities, shards=shards, synchronisation=synchronisation), SlowWorld(workers)
    plans = [(step, plan(target, step, *event)) for step, event in enumerate(steps, start=1) if event is not None]
    before: tuple[int, RoundPlan] | None = None
    for step, decided in plans:
        hurry = data.draw(st.sets(st.integers(0, workers - 1)))
        for number in hurry:
            world.push(number, decided.workers[number], is_early=True)
        applied_first = data.draw(st.booleans()) and len(hurry) == workers
        arrived: list[dict[int, tuple[int, int, bool]]] = [{} for _ in range(workers)]
        if applied_first:
            world.settle(decided.early_shards)
            arrived = [world.pull(worker, is_early=True) for worker in decided.workers]
        if before is not None:
            world.train(*before)
        if not applied_first:
            for number in set(range(workers)) - hurry:
                world.push(number, decided.workers[number], is_early=True)
            world.settle(decided.early_shards)
            arrived = [world.pull(worker, is_early=True) for worker in decided.workers]
        for number, worker in enumerate(decided.workers):
            world.push(number, worker, is_early=False)
        world.settle(decided.shards)
        for number, worker in enumerate(decided.workers):
            world.slots[number] |= arrived[number] | world.pull(worker, is_early=False)
        before = step, decided
    if before is not None:
        world.train(*before)


@settings(max_examples=100)
@given(stream=streams())
def test_a_transfer_is_early_if_the_step_before_does_not_train_its_row(stream: Stream) -> None:
    _, shards, capacities, steps = stream
    target, before = directory(*capacities, shards=shards), set[int]()
    for step, event in enumerate(steps, start=1):
        if event is None:
            continue
        decided = plan(target, step, *event)
        for worker in decided.workers:
            for moves in (worker.push_owned, worker.push_parts, worker.pull_full, worker.pull_values):
                assert not before & {row for row, _ in cut(moves, is_early=True)}
                assert before >= {row for row, _ in cut(moves, is_early=False)}
        before = {row for rows in event[0] for row in rows}


def test_rows_of_a_first_step_are_early() -> None:
    decided = plan(directory(8, 8), 1, [[1], [2], [3]], [0, 0, 1])
    assert [worker.pull_full.early for worker in decided.workers] == [2, 1]


def test_every_shard_is_told_of_early_and_late_pushes_apart() -> None:
    target = directory(8, 8)
    plan(target, 1, [[1]], [0])
    plan(target, 2, [[2]], [0])
    decided = plan(target, 3, [[1], [2]], [1, 1])
    (early,), (late,) = decided.early_shards, decided.shards
    assert (early.fresh.tolist(), early.pushers) == ([1], (0,))
    assert (late.fresh.tolist(), late.pushers) == ([2], (0,))
    assert decided.workers[0].push_owned.early == 1
