"""Early transfers against a slow model: whenever they happen, every worker trains with the newest value of each row.

The model moves whole rows as (row, step that trained them) and parts as (row, step, worker). Early pushes of a step
leave before or after the step before it trains, as drawn for each worker; the shards apply them together. Evictions and
rows written behind leave with them, and are applied as late as can be: before the next round. A flush lies between two
steps without holding anyone up: a worker carries it out when it has trained the step before, and only then begins the
transfers of the next one. The shards apply it in turn, so some workers may have asked for early rows of that step.
"""

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.placement.rows.directory import Directory, Synchronisation
from dispatch.placement.rows.plan import Moves, RoundPlan, ShardPlan, WorkerPlan
from ps.phases import EARLY, EVICT, FLUSH, TRAIN
from tests.dispatch.placement.rows.test_directory import Stream, directory, plan, streams

NEVER = 0


def checkpoint(moves: Moves, phase: int) -> list[tuple[int, int]]:
    evicted = moves.rows.size - moves.evicted
    late = slice(moves.early, evicted)
    chosen = {EARLY: slice(moves.early), TRAIN: late, EVICT: slice(evicted, None), FLUSH: late}[phase]
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
        self.evicted: list[tuple[int, int]] = []
        """rows, and the steps that trained them, on their way"""
        self.evicting: tuple[ShardPlan, ...] = ()
        """what the shards were told about them"""

    def push(self, number: int, worker: WorkerPlan, phase: int) -> None:
        for row, slot in checkpoint(worker.push_owned, phase):
            assert self.slots[number][slot] == (row, self.trained[row][0], False)
            self._take(phase, row)
        for row, slot in checkpoint(worker.push_parts, phase):
            assert self.slots[number][slot] == (row, self.trained[row][0], True)
            self.parts[row].add((self.trained[row][0], number))

    def _take(self, phase: int, row: int) -> None:
        if phase == EVICT:
            self.evicted.append((row, self.trained[row][0]))
        else:
            self.stored[row] = self.trained[row][0]

    def apply_evictions(self) -> None:
        for row, step in self.evicted:
            self.stored[row] = step
        self.evicted.clear()
        self.settle(self.evicting)
        self.evicting = ()

    def flush(self, decided: RoundPlan) -> None:
        """The round of a flush, behind the step before it."""
        self.apply_evictions()
        for number, worker in enumerate(decided.workers):
            self.push(number, worker, FLUSH)
        self.settle(decided.shards)

    def settle(self, shards: tuple[ShardPlan, ...]) -> None:
        for number, shard in enumerate(shards):
            for row in (shard.settled * len(shards) + number).tolist():
                step, users = self.trained[row]
                brought = self.parts.pop(row)
                assert {at for at, _ in brought} == {step}
                assert len(brought) == users
                self.stored[row] = step

    def pull(self, worker: WorkerPlan, phase: int) -> dict[int, tuple[int, int, bool]]:
        """What arrives now, by slot; it enters the cache later."""
        moves = [*checkpoint(worker.pull_full, phase), *checkpoint(worker.pull_values, phase)]
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
@given(stream=streams(), share=st.sampled_from([0.0, 0.5, 1.0]), data=st.data())
def test_early_transfers_move_what_late_ones_would(
    synchronisation: Synchronisation, stream: Stream, share: float, data: st.DataObject
) -> None:
    workers, shards, capacities, steps = stream
    target = directory(*capacities, shards=shards, synchronisation=synchronisation, write_behind=share)
    world = SlowWorld(workers)
    plans = [(step, decide(target, step, event)) for step, event in enumerate(steps, start=1)]
    before: tuple[int, RoundPlan] | None = None
    for step, decided in plans:
        if decided.workers[0].use is None:
            if before is not None:
                world.train(*before)
            world.flush(decided)
            before = None
            continue
        world.apply_evictions()
        hurry = data.draw(st.sets(st.integers(0, workers - 1)))
        leave(world, decided, hurry)
        applied_first = data.draw(st.booleans()) and len(hurry) == workers
        arrived = early_answers(world, decided) if applied_first else []
        if before is not None:
            world.train(*before)
        leave(world, decided, set(range(workers)) - hurry)
        arrived = arrived or early_answers(world, decided)
        world.evicting = decided.evict_shards
        for number, worker in enumerate(decided.workers):
            world.push(number, worker, TRAIN)
        world.settle(decided.shards)
        for number, worker in enumerate(decided.workers):
            world.slots[number] |= arrived[number] | world.pull(worker, TRAIN)
        before = step, decided
    if before is not None:
        world.train(*before)


def decide(target: Directory, step: int, event: tuple[list[list[int]], list[int]] | None) -> RoundPlan:
    return target.flush() if event is None else plan(target, step, *event)


def leave(world: SlowWorld, decided: RoundPlan, workers: set[int]) -> None:
    for number in workers:
        world.push(number, decided.workers[number], EARLY)
        world.push(number, decided.workers[number], EVICT)


def early_answers(world: SlowWorld, decided: RoundPlan) -> list[dict[int, tuple[int, int, bool]]]:
    world.settle(decided.early_shards)
    return [world.pull(worker, EARLY) for worker in decided.workers]


@settings(max_examples=100)
@given(stream=streams())
def test_a_transfer_is_early_if_the_step_before_does_not_train_its_row(stream: Stream) -> None:
    _, shards, capacities, steps = stream
    target, before = directory(*capacities, shards=shards, write_behind=0.5), set[int]()
    for step, event in enumerate(steps, start=1):
        if event is None:
            target.flush()  # the step before is still the one that has to be waited for
            continue
        decided = plan(target, step, *event)
        for worker in decided.workers:
            for moves in (worker.push_owned, worker.push_parts, worker.pull_full, worker.pull_values):
                assert not before & {row for row, _ in [*checkpoint(moves, EARLY), *checkpoint(moves, EVICT)]}
                assert before >= {row for row, _ in checkpoint(moves, TRAIN)}
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


def test_what_only_makes_room_is_waited_for_by_nobody() -> None:
    target = directory(1)
    for step, row in enumerate((1, 2, 3), start=1):
        decided = plan(target, step, [[row]], [0])
    assert decided.workers[0].push_owned.evicted == 0, "the step before trained it"
    target = directory(2)
    for step, row in enumerate((1, 2, 3), start=1):
        decided = plan(target, step, [[row]], [0])
    (evicting,) = decided.evict_shards
    assert (evicting.fresh.tolist(), evicting.pushers) == ([1], (0,))
    assert decided.workers[0].push_owned.evicted == 1
    assert not any(shard.pushers for shard in (*decided.early_shards, *decided.shards))


def test_a_row_trained_before_a_flush_is_still_pulled_late() -> None:
    target = directory(4, 4)
    plan(target, 1, [[1], [1], [2]], [0, 1, 0])
    plan(target, 2, [[3], [4], [4]], [0, 0, 1])
    flushed = target.flush()
    assert sorted(flushed.shards[0].fresh.tolist()) == [1, 2, 3, 4]
    worker = plan(target, 3, [[1], [2], [3], [4]], [1, 1, 1, 1]).workers[1]
    assert sorted(worker.pull_full.rows[: worker.pull_full.early].tolist()) == [1, 2]
    assert sorted(worker.pull_full.rows[worker.pull_full.early :].tolist()) == [3, 4]


def test_rows_written_behind_move_in_the_round_that_nobody_waits_for() -> None:
    target = directory(8, write_behind=1.0)
    plan(target, 1, [[1]], [0])
    plan(target, 2, [[2]], [0])
    decided = plan(target, 3, [[3], [4]], [0, 0])
    (evicting,), moves = decided.evict_shards, decided.workers[0].push_owned
    assert (evicting.fresh.tolist(), evicting.fresh_steps.tolist(), evicting.pushers) == ([1], [1], (0,))
    assert (moves.rows.tolist(), moves.early, moves.evicted) == ([1], 0, 1)
    assert not any(shard.pushers for shard in (*decided.early_shards, *decided.shards))
