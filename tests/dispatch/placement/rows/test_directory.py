from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dispatch.placement.errors import CacheTooSmall
from dispatch.placement.rows.directory import Directory, Synchronisation
from dispatch.placement.rows.index import BatchRows, Index
from dispatch.placement.rows.plan import Moves, RoundPlan
from dispatch.placement.rows.states import CLEAN, OWNED, REPLICATED, SPLIT
from infra.base.distinct import number_keys
from ps.keys import FREE
from tests.dispatch.placement.rows.slow_directory import SlowDirectory, SlowMoves

STATES = {"clean": CLEAN, "owned": OWNED, "split": SPLIT, "replicated": REPLICATED}
SYNCHRONISATIONS: tuple[Synchronisation, ...] = ("on_demand", "full")
KINDS: tuple[tuple[str, Synchronisation], ...] = (
    ("lru", "on_demand"),
    ("lfu", "on_demand"),
    ("emark", "on_demand"),
    ("lfu", "full"),
    ("emark", "full"),
)
"""evictions and synchronisations; every stream is tried with all, since to draw one takes longer than to try it"""
KINDS_WITH_A_HOT_SET: tuple[tuple[str, Synchronisation], ...] = (
    ("lru", "on_demand"),
    ("lfu", "full"),
    ("emark", "full"),
)
Stream = tuple[int, int, list[int], list[tuple[list[list[int]], list[int]] | None]]


def batch_of(samples: list[list[int]]) -> BatchRows:
    """Rows given directly; local numbers in order of first use."""
    flat = [row for sample in samples for row in sample]
    rows = list(dict.fromkeys(flat))
    local = np.array([rows.index(row) for row in flat], np.int32).reshape(len(samples), -1)
    return BatchRows(local, np.array(rows, np.int64), max(rows, default=-1) + 1, np.empty(0, np.uint64))


def directory(
    *capacities: int,
    eviction: str = "lru",
    shards: int = 1,
    synchronisation: Synchronisation = "on_demand",
    replicas: int = 0,
    write_behind: float = 0.0,
) -> Directory:
    return Directory(np.array(capacities, np.int64), eviction, shards, synchronisation, replicas, write_behind)


def plan(target: Directory, step: int, samples: list[list[int]], assignment: list[int]) -> RoundPlan:
    return target.plan(step, batch_of(samples), np.array(assignment, np.int32))


def pairs(moves: Moves) -> list[tuple[int, int]]:
    return list(zip(moves.rows.tolist(), moves.slots.tolist(), strict=True))


def as_sets(decided: RoundPlan) -> tuple[set[tuple[int, int, int, str]], set[tuple[int, int, int, str]], set[int]]:
    pushes: set[tuple[int, int, int, str]] = set()
    pulls: set[tuple[int, int, int, str]] = set()
    for j, worker in enumerate(decided.workers):
        pushes |= {(j, row, slot, "owned") for row, slot in pairs(worker.push_owned)}
        pushes |= {(j, row, slot, "part") for row, slot in pairs(worker.push_parts)}
        pulls |= {(j, row, slot, "full") for row, slot in pairs(worker.pull_full)}
        pulls |= {(j, row, slot, "value") for row, slot in pairs(worker.pull_values)}
    shards = len(decided.shards)
    every = [*enumerate(decided.early_shards), *enumerate(decided.shards), *enumerate(decided.evict_shards)]
    settled = {int(number) * shards + s for s, shard in every for number in shard.settled}
    return pushes, pulls, settled


def expect_same(decided: RoundPlan, moves: SlowMoves, workers: int) -> None:
    pushes, pulls, settled = as_sets(decided)
    assert pushes == {(j, row, slot, kind.split("_")[0]) for j, row, slot, kind in moves.pushes}
    assert pulls == moves.pulls
    assert settled == moves.settled
    for j in range(workers):
        by_reason = {"update": 0, "evict": 0, "behind": 0, "flush": 0}
        for worker, _, _, kind in moves.pushes:
            by_reason[kind.split("_")[1]] += worker == j
        assert decided.traffic.update_push[j] == by_reason["update"]
        assert decided.traffic.evict_push[j] == by_reason["evict"]
        assert decided.traffic.behind_push[j] == by_reason["behind"]
        assert decided.traffic.flush_push[j] == by_reason["flush"]
        assert decided.traffic.miss_pull[j] == sum(worker == j for worker, *_ in moves.pulls)


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """Workers, shards, cache sizes and a sequence of (batch, assignment); None stands for a flush."""
    workers = draw(st.integers(1, 4))
    fields = draw(st.integers(1, 3))
    universe = draw(st.integers(fields, 14))
    per_worker = draw(st.integers(1, 3))
    capacities = [draw(st.integers(fields * per_worker, fields * per_worker + 6)) for _ in range(workers)]
    steps: list[tuple[list[list[int]], list[int]] | None] = []
    for _ in range(draw(st.integers(1, 14))):
        if draw(st.integers(0, 9)) == 0:
            steps.append(None)
            continue
        size = draw(st.integers(1, workers * per_worker))
        rows = st.lists(st.integers(0, universe - 1), min_size=fields, max_size=fields)
        places = [j for j in range(workers) for _ in range(per_worker)]
        steps.append((draw(st.lists(rows, min_size=size, max_size=size)), draw(st.permutations(places))[:size]))
    return workers, draw(st.integers(1, 3)), capacities, steps


@settings(max_examples=300)
@given(stream=streams())
def test_any_stream_equals_the_slow_directory(stream: Stream) -> None:
    workers, shards, capacities, steps = stream
    for eviction, synchronisation in KINDS:
        note(f"eviction {eviction}, synchronisation {synchronisation}")
        fast = directory(*capacities, eviction=eviction, shards=shards, synchronisation=synchronisation)
        slow = SlowDirectory(capacities, eviction, synchronisation)
        for step, event in enumerate(steps, start=1):
            expect_same_step(fast, slow, step, event, workers)


@settings(max_examples=300)
@given(stream=streams(), share=st.sampled_from([0.05, 0.3, 0.5, 1.0]), hot=st.sets(st.integers(0, 13)))
def test_any_stream_written_behind_equals_the_slow_directory(stream: Stream, share: float, hot: set[int]) -> None:
    workers, shards, capacities, steps = stream
    replicas = min(2, len(hot))
    larger = [capacity + replicas for capacity in capacities]
    for synchronisation in SYNCHRONISATIONS:
        note(f"synchronisation {synchronisation}")
        chosen: tuple[Synchronisation, int, float] = synchronisation, replicas, share
        fast = Directory(np.array(larger, np.int64), "emark", shards, *chosen)
        slow = SlowDirectory(larger, "emark", *chosen)
        for step, event in enumerate(steps, start=1):
            if step == 4 and replicas:
                fast.replicate(np.array(sorted(hot)[:replicas], np.int64), for_good=True)
                slow.replicate(sorted(hot)[:replicas], for_good=True)
            expect_same_step(fast, slow, step, event, workers)


@settings(max_examples=200)
@given(stream=streams(), replicas=st.integers(1, 3), hot=st.sets(st.integers(0, 13), min_size=1), at=st.integers(0, 6))
def test_any_stream_with_a_hot_set_equals_the_slow_directory(
    stream: Stream, replicas: int, hot: set[int], at: int
) -> None:
    workers, shards, capacities, steps = stream
    larger, chosen = [capacity + replicas for capacity in capacities], sorted(hot)[:replicas]
    for eviction, synchronisation in KINDS_WITH_A_HOT_SET:
        note(f"eviction {eviction}, synchronisation {synchronisation}")
        fast = directory(*larger, eviction=eviction, shards=shards, synchronisation=synchronisation, replicas=replicas)
        slow = SlowDirectory(larger, eviction, synchronisation, replicas)
        for step, event in enumerate(steps, start=1):
            if step == at + 1:
                fast.replicate(np.array(chosen, np.int64), for_good=True)
                slow.replicate(chosen, for_good=True)
            expect_same_step(fast, slow, step, event, workers)


@settings(max_examples=200)
@given(
    stream=streams(),
    replicas=st.integers(1, 4),
    sets=st.dictionaries(st.integers(1, 14), st.sets(st.integers(0, 13)), min_size=1),
)
def test_any_stream_with_hot_sets_that_follow_each_other_equals_the_slow_directory(
    stream: Stream, replicas: int, sets: dict[int, set[int]]
) -> None:
    workers, shards, capacities, steps = stream
    larger = [capacity + replicas for capacity in capacities]
    for eviction, synchronisation in KINDS_WITH_A_HOT_SET:
        note(f"eviction {eviction}, synchronisation {synchronisation}")
        fast = directory(*larger, eviction=eviction, shards=shards, synchronisation=synchronisation, replicas=replicas)
        slow = SlowDirectory(larger, eviction, synchronisation, replicas)
        for step, event in enumerate(steps, start=1):
            if event is not None and step in sets:
                before = set(slow.hot)
                chosen = sorted(before & sets[step] | set(sorted(sets[step] - before)[: replicas - len(before)]))
                fast.replicate(np.array(chosen, np.int64))
                slow.replicate(chosen)
                assert fast.replicated.tolist() == chosen
            expect_same_step(fast, slow, step, event, workers)


@settings(max_examples=300)
@given(stream=streams(), expire=st.integers(2, 6), hot=st.sets(st.integers(0, 13)), share=st.sampled_from([0.0, 0.5]))
def test_any_stream_whose_rows_are_forgotten_equals_the_slow_directory(
    stream: Stream, expire: int, hot: set[int], share: float
) -> None:
    workers, shards, capacities, steps = stream
    replicas = min(2, len(hot))
    larger = [capacity + replicas for capacity in capacities]
    for synchronisation in SYNCHRONISATIONS:
        chosen: tuple[Synchronisation, int, float] = synchronisation, replicas, share
        fast = Directory(np.array(larger, np.int64), "emark", shards, *chosen)
        slow = SlowDirectory(larger, "emark", *chosen)
        keys = np.full(14, FREE)
        for step, event in enumerate(steps, start=1):
            if event is not None:
                forgotten = slow.forget(step - expire)
                assert fast.forget(keys, step - expire).rows.tolist() == forgotten
                keys[forgotten] = FREE
            if step == 4 and replicas:
                fast.replicate(np.array(sorted(hot)[:replicas], np.int64), for_good=True)
                slow.replicate(sorted(hot)[:replicas], for_good=True)
            if event is not None:
                keys[np.array(event[0]).reshape(-1)] = 7
            expect_same_step(fast, slow, step, event, workers)


ROUND = st.tuples(st.integers(1, 14), st.dictionaries(st.integers(0, 13), st.integers(0, 255)), st.booleans())
"""A step after which a round of pruning comes, the masks that it changes, and whether all copies are dropped."""


@settings(max_examples=300)
@given(stream=streams(), new=st.integers(0, 255), rounds=st.lists(ROUND, max_size=4), expire=st.integers(2, 8))
def test_any_stream_whose_rows_are_pruned_equals_the_slow_directory(
    stream: Stream, new: int, rounds: list[tuple[int, dict[int, int], bool]], expire: int
) -> None:
    workers, shards, capacities, steps = stream
    for eviction, synchronisation in KINDS:
        fast = directory(*capacities, eviction=eviction, shards=shards, synchronisation=synchronisation)
        slow = SlowDirectory(capacities, eviction, synchronisation)
        keys = np.full(14, FREE)
        for step, event in enumerate(steps, start=1):
            if event is not None:
                live = sum(mask.bit_count() for mask in slow.masks.values())
                forgotten = slow.forget(step - expire)
                live -= sum(mask.bit_count() for mask in slow.masks.values())
                found = fast.forget(keys, step - expire)
                assert (found.rows.tolist(), found.live) == (forgotten, live)
                keys[forgotten] = FREE
                admit_new_rows(fast, slow, keys, event[0], new)
            expect_same_step(fast, slow, step, event, workers)
            for _, masks, drops_all in (each for each in rounds if each[0] == step):
                expect_same_step(fast, slow, step, None, workers)
                prune(fast, slow, {row: mask for row, mask in masks.items() if keys[row] != FREE}, drops_all)
            expect_same_masks(fast, slow)


def admit_new_rows(
    fast: Directory, slow: SlowDirectory, keys: NDArray[np.uint64], samples: list[list[int]], mask: int
) -> None:
    new = [row for row in dict.fromkeys(np.array(samples).reshape(-1).tolist()) if keys[row] == FREE]
    keys[new] = 7
    fast.set_masks(np.array(new, np.int64), np.full(len(new), mask, np.uint8))
    slow.masks |= dict.fromkeys(new, mask)


def prune(fast: Directory, slow: SlowDirectory, masks: dict[int, int], drops_all: bool) -> None:
    fast.reshape(np.array(list(masks), np.int64), np.array(list(masks.values()), np.uint8))
    slow.reshape(masks)
    if drops_all:
        fast.drop_copies()
        slow.drop_copies()


def expect_same_masks(fast: Directory, slow: SlowDirectory) -> None:
    assert fast.masks(np.arange(14)).tolist() == [slow.masks.get(row, 0) for row in range(14)]


def test_masks_stay_over_a_change_of_members_and_come_from_a_checkpoint() -> None:
    old = directory(4)
    old.load(np.array([3, 0, 5]), np.array([0b10, 0, 0b11], np.uint8))
    plan(old, 6, [[1], [2]], [0, 0])
    old.flush()
    new = directory(4, 4)
    new.continue_from(old, [0, None])
    assert new.masks(np.arange(4)).tolist() == [0b10, 0, 0b11, 0]
    assert new.forget(np.full(3, 7, np.uint64), before=4)[1] == 1
    assert new.masks(np.arange(3)).tolist() == [0, 0, 0b11]


def test_a_checkpoint_without_masks_is_loaded_with_steps_alone() -> None:
    target = directory(4)
    target.load(np.array([3, -1, 5]))
    assert target.masks(np.arange(3)).tolist() == [0, 0, 0]
    assert target.forget(np.full(3, 7, np.uint64), before=4).rows.tolist() == [0, 1]


def expect_same_step(
    fast: Directory, slow: SlowDirectory, step: int, event: tuple[list[list[int]], list[int]] | None, workers: int
) -> None:
    if event is None:
        expect_same(fast.flush(), slow.flush(), workers)
        caches = [fast.cached(j) for j in range(workers)]
    else:
        decided, moves = plan(fast, step, *event), slow.plan(step, *event)
        caches = [fast.cached(j) for j in range(workers)]
        expect_same(decided, moves, workers)
        expect_slots_of_the_step(caches, decided, *event)
        expect_reduced(caches, decided, moves.reduced)
    everyone = set(range(workers))
    for number, row in slow.rows.items():
        assert fast.holders(number) == (STATES[row.state], everyone if row.state == "replicated" else row.holders)
    for j, capacity in enumerate(slow.capacities):
        ordinary = {held.row: slot for slot, held in slow.slots[j].items()}
        assert caches[j] == ordinary | slow.hot_slots(j)
        assert len(caches[j]) <= capacity


def expect_reduced(caches: list[dict[int, int]], decided: RoundPlan, reduced: list[int]) -> None:
    """The same rows in the same order on every worker, at the end of its used slots."""
    assert decided.traffic.reduced == len(reduced)
    for j, worker in enumerate(decided.workers):
        held = {slot: row for row, slot in caches[j].items()}
        tail = worker.use_slots[len(worker.use_slots) - worker.replicated :]
        assert [held[int(slot)] for slot in tail] == reduced


def expect_slots_of_the_step(
    caches: list[dict[int, int]], decided: RoundPlan, samples: list[list[int]], assignment: list[int]
) -> None:
    """Every key of every sample points at a slot that really holds its row: rows in use were not evicted."""
    for j, worker in enumerate(decided.workers):
        assert worker.use is not None
        mine = [rows for rows, w in zip(samples, assignment, strict=True) if w == j]
        held = {slot: row for row, slot in caches[j].items()}
        assert [held[int(worker.use_slots[p])] for p in worker.use.positions] == [row for rows in mine for row in rows]
        assert decided.traffic.lookups[j] == len({row for rows in mine for row in rows})


def test_an_owned_row_used_by_its_owner_alone_moves_nothing() -> None:
    target = directory(4, 4)
    plan(target, 1, [[7]], [0])
    decided = plan(target, 2, [[7]], [0])
    assert as_sets(decided) == (set(), set(), set())


def test_an_owned_but_idle_row_asked_for_by_another_is_pushed_with_state_and_pulled() -> None:
    target = directory(4, 4)
    plan(target, 1, [[7]], [0])
    pushes, pulls, _ = as_sets(plan(target, 2, [[7], [3]], [1, 0]))
    assert {(j, row, kind) for j, row, _, kind in pushes} == {(0, 7, "owned")}
    assert {(j, row, kind) for j, row, _, kind in pulls} == {(1, 7, "full"), (0, 3, "full")}
    assert target.holders(7) == (OWNED, {1})


def test_a_split_row_is_settled_by_all_parts_and_pulled_by_every_user() -> None:
    target = directory(4, 4, 4)
    plan(target, 1, [[7], [7]], [0, 1])
    assert target.holders(7) == (SPLIT, {0, 1})
    pushes, pulls, settled = as_sets(plan(target, 2, [[7], [7]], [1, 2]))
    assert {(j, kind) for j, _, _, kind in pushes} == {(0, "part"), (1, "part")}
    assert {(j, kind) for j, _, _, kind in pulls} == {(1, "value"), (2, "value")}
    assert settled == {7}


def test_a_part_evicted_early_leaves_the_row_split_over_the_others() -> None:
    target = directory(1, 2)
    plan(target, 1, [[7], [7]], [0, 1])
    decided = plan(target, 2, [[5]], [0])
    assert decided.traffic.evict_push.tolist() == [1, 0]
    assert target.holders(7) == (SPLIT, {1})
    assert as_sets(decided)[2] == set()
    _, _, settled = as_sets(plan(target, 3, [[7]], [0]))
    assert settled == {7}


def test_under_full_synchronisation_every_update_is_pushed_in_the_next_step() -> None:
    target = directory(4, 4, synchronisation="full")
    plan(target, 1, [[7, 8], [8, 9]], [0, 1])
    pushes, pulls, settled = as_sets(plan(target, 2, [[7, 3]], [0]))
    assert {(j, row, kind) for j, row, _, kind in pushes} == {
        (0, 7, "owned"), (1, 9, "owned"), (0, 8, "part"), (1, 8, "part"),
    }  # fmt: skip
    assert {(j, row) for j, row, *_ in pulls} == {(0, 3)}
    assert settled == {8}
    assert target.holders(9) == (CLEAN, {1})


def test_under_full_synchronisation_nothing_is_pushed_when_it_is_evicted() -> None:
    target = directory(2, 2, synchronisation="full")
    traffic = [plan(target, step, [[2 * step, 2 * step + 1]], [0]).traffic for step in range(1, 5)]
    assert [t.evict_push.sum() for t in traffic] == [0, 0, 0, 0]
    assert [t.update_push.sum() for t in traffic] == [0, 2, 2, 2]


def hot_directory(shards: int = 1) -> Directory:
    """Row 7 is replicated from step 2 on, after two workers have trained it."""
    target = directory(4, 4, shards=shards, synchronisation="full", replicas=2)
    plan(target, 1, [[7], [7]], [0, 1])
    target.replicate(np.array([7], np.int64), for_good=True)
    return target


def test_a_hot_row_is_settled_and_pulled_with_state_by_everyone() -> None:
    pushes, pulls, settled = as_sets(plan(hot_directory(), 2, [[5]], [0]))
    assert {(j, row, kind) for j, row, _, kind in pushes} == {(0, 7, "part"), (1, 7, "part")}
    assert pulls == {(0, 7, 3, "full"), (1, 7, 3, "full"), (0, 5, 1, "full")}
    assert settled == {7}


def test_a_hot_row_moves_nothing_but_gradients() -> None:
    target = hot_directory()
    plan(target, 2, [[7]], [0])
    decided = plan(target, 3, [[7], [7]], [0, 1])
    assert as_sets(decided) == (set(), set(), set())
    assert (decided.traffic.reduced, decided.traffic.hits.tolist()) == (1, [1, 1])
    assert target.holders(7) == (REPLICATED, {0, 1})


def test_pulls_of_the_hot_set_are_no_misses_of_samples() -> None:
    traffic = plan(hot_directory(), 2, [[7]], [0]).traffic
    assert (traffic.miss_pull.tolist(), traffic.hits.tolist(), traffic.lookups.tolist()) == ([1, 1], [1, 0], [1, 0])


def test_one_worker_writes_a_hot_row_back_with_the_step_that_changed_it() -> None:
    target = hot_directory(shards=2)
    plan(target, 2, [[7]], [0])
    plan(target, 3, [[5]], [0])
    decided = target.flush()
    assert pairs(decided.workers[0].push_owned) == [(5, 1), (7, 3)]
    assert dict(zip(decided.shards[1].fresh.tolist(), decided.shards[1].fresh_steps.tolist(), strict=True)) == {
        3: 2, 2: 3,
    }  # fmt: skip
    assert target.flush().traffic.pushes.sum() == 0


def test_policies_see_a_hot_row_as_clean_and_held_by_all() -> None:
    target = directory(*([4] * 70), replicas=1)
    target.replicate(np.array([7], np.int64), for_good=True)
    state_U, holders_UQ = target.look_up(batch_of([[7, 5]]))
    assert state_U.tolist() == [CLEAN, CLEAN]
    assert holders_UQ.tolist() == [[2**64 - 1, 63], [0, 0]]


def test_a_micro_batch_larger_than_what_the_hot_set_leaves_is_refused() -> None:
    target = directory(3, 3, replicas=2)
    with pytest.raises(CacheTooSmall, match=r"worker 0 cannot hold .* 1 slots"):
        plan(target, 1, [[1], [2]], [0, 0])


def test_fresh_rows_carry_the_step_that_last_changed_them() -> None:
    target = directory(2, 2, shards=2)
    plan(target, 3, [[4], [5]], [0, 0])
    plan(target, 4, [[4]], [0])
    decided = target.flush()
    assert [(s.fresh.tolist(), s.fresh_steps.tolist(), s.pushers) for s in decided.shards] == [
        ([2], [4], (0,)),
        ([2], [3], (0,)),
    ]


def test_a_row_pushed_in_a_step_is_as_new_as_the_step_that_trained_it() -> None:
    target = directory(2, 2)
    plan(target, 3, [[4]], [0])
    (shard,) = plan(target, 5, [[4]], [1]).shards
    assert (shard.fresh.tolist(), shard.fresh_steps.tolist()) == ([4], [3])


def test_growth_of_the_directory_keeps_what_it_knew() -> None:
    target = directory(4, 4)
    plan(target, 3, [[4], [5], [5]], [0, 0, 1])
    plan(target, 4, [[100_000]], [1])
    assert (target.holders(4), target.holders(5)) == ((OWNED, {0}), (SPLIT, {0, 1}))
    (shard,) = target.flush().shards
    assert dict(zip(shard.fresh.tolist(), shard.fresh_steps.tolist(), strict=True)) == {4: 3, 5: 3, 100_000: 4}


def test_a_second_flush_moves_nothing() -> None:
    target = directory(4, 4)
    plan(target, 1, [[1], [1], [2]], [0, 1, 0])
    target.flush()
    assert target.flush().traffic.pushes.sum() == 0


def test_a_micro_batch_larger_than_the_cache_is_refused_and_nothing_changes() -> None:
    target = directory(2, 2)
    with pytest.raises(CacheTooSmall, match=r"worker 0 cannot hold .* 2 slots"):
        plan(target, 1, [[1], [2], [3]], [0, 0, 0])
    assert target.cached(0) == {}
    assert target.holders(1) == (CLEAN, set())


def test_workers_beyond_one_word_are_holders_too() -> None:
    target = directory(*([2] * 130))
    plan(target, 1, [[1], [1], [2]], [3, 129, 70])
    assert target.holders(1) == (SPLIT, {3, 129})
    assert target.holders(2) == (OWNED, {70})
    pushes, _, _ = as_sets(plan(target, 2, [[1], [2]], [64, 65]))
    assert {(j, row) for j, row, _, _ in pushes} == {(3, 1), (129, 1), (70, 2)}


def test_lists_are_grouped_by_shard() -> None:
    target = directory(64, shards=3)
    decided = plan(target, 1, [[row] for row in range(20)], [0] * 20)
    shards: NDArray[np.int64] = decided.workers[0].pull_full.rows % 3
    assert shards.tolist() == sorted(shards.tolist())


def test_memory_of_a_known_key_stays_under_64_bytes_for_8_workers() -> None:
    keys, index = 400_000, Index()
    target = directory(*([keys * 8 // 100] * 8))
    for part in np.random.default_rng(1).integers(0, 2**64, (100, keys // 100, 1), np.uint64):
        target.look_up(index.resolve(number_keys(part)))
    assert (index.nbytes + target.nbytes) / keys < 64


def test_the_busier_way_of_a_link_counts_pushes_or_pulls_and_all_reduced_rows_beside_them() -> None:
    target = directory(8, 8)
    plan(target, 1, [[1, 2], [3, 4]], [0, 1])
    traffic = plan(target, 2, [[5, 6], [1, 2], [5, 7]], [0, 1, 1]).traffic
    # worker 0 pushes 1 and 2 with state and pulls 6 with it, 5 without; worker 1 pulls 1, 2 and 7 with it, 5 without
    assert traffic.whole_rows(0.5).tolist() == [2 + 1.5, 3.5]
    assert traffic.busier_way(0.5).tolist() == [2.0, 3.5]
    assert replace(traffic, reduced=4).busier_way(0.5).tolist() == [2.0 + 2.0, 3.5 + 2.0]
    ratio_n = np.array([3.0, 0.5])
    up_n = traffic.owned_push + 0.5 * (traffic.pushes - traffic.owned_push)
    down_n = traffic.full_pull + 0.5 * (traffic.miss_pull - traffic.full_pull)
    assert traffic.busier_way(0.5, ratio_n).tolist() == np.maximum(ratio_n * up_n, down_n).tolist() == [6.0, 3.5]
    assert traffic.whole_rows(0.5, ratio_n).tolist() == (down_n + ratio_n * up_n).tolist()


def test_smaller_rows_count_by_their_size_except_for_parts() -> None:
    target = directory(8, 8)
    target.use_sizes(np.array([0.25, 0.5, 0.75, 1.0]))
    target.set_masks(np.arange(8), np.array([3, 0, 1, 3, 3, 2, 1, 3], np.uint8))
    sizes = target.sizes(np.array([1, 2, 7, 9]))
    assert sizes is not None
    assert sizes.tolist() == [0.25, 0.5, 1.0, 0.25]
    plan(target, 1, [[1, 2], [3, 4]], [0, 1])
    traffic = plan(target, 2, [[5, 6], [1, 2], [5, 7]], [0, 1, 1]).traffic
    # worker 0 pushes 1 and 2 with state and pulls 6 with it, 5 without; worker 1 pulls 1, 2 and 7 with it, 5 without
    pushed, value = 0.25 + 0.5, 0.5 * 0.75
    assert traffic.whole_rows(0.5).tolist() == [pushed + 0.5 + value, 0.25 + 0.5 + 1.0 + value]
    assert traffic.busier_way(0.5).tolist() == [0.5 + value, 0.25 + 0.5 + 1.0 + value]
    flushed = target.flush().traffic
    # each pushes its part of 5; worker 0 owns 6; worker 1 owns 1, 2, 3, 4 and 7
    assert flushed.whole_rows(0.5).tolist() == [0.5 + 0.5, 0.5 + 0.25 + 0.5 + 3.0]


@settings(max_examples=100)
@given(stream=streams(), value_share=st.floats(0.1, 1.0))
def test_traffic_of_rows_of_size_one_is_that_of_whole_rows_to_the_bit(stream: Stream, value_share: float) -> None:
    _, _, capacities, steps = stream
    whole, sized = directory(*capacities), directory(*capacities)
    sized.use_sizes(np.ones(4))
    for step, event in enumerate(steps, start=1):
        one, other = ((each.flush() if event is None else plan(each, step, *event)).traffic for each in (whole, sized))
        assert one.missing is None
        assert np.array_equal(one.whole_rows(value_share), other.whole_rows(value_share))
        assert np.array_equal(one.busier_way(value_share), other.busier_way(value_share))


def test_the_longest_untrained_rows_are_written_behind_and_stay_with_their_owner() -> None:
    target = directory(8, 8, write_behind=0.5)
    plan(target, 1, [[1], [2]], [0, 0])
    plan(target, 2, [[3], [1]], [0, 0])
    decided = plan(target, 3, [[4], [5], [6], [9]], [0, 0, 1, 1])
    assert decided.traffic.behind_push.tolist() == [1, 0]
    assert decided.traffic.owned_push.tolist() == [1, 0]
    assert (target.holders(2), target.holders(1)) == ((CLEAN, {0}), (OWNED, {0}))
    assert as_sets(plan(target, 4, [[2]], [0]))[1] == set(), "its copy is the newest"
    assert sorted(row for row, _ in pairs(target.flush().workers[0].push_owned)) == [1, 2, 3, 4, 5]


def test_a_budget_below_one_row_adds_up_over_steps() -> None:
    target = directory(64, write_behind=0.25)
    written = [plan(target, step, [[step]], [0]).traffic.behind_push.sum() for step in range(1, 13)]
    assert written == [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]


def test_a_clean_row_is_not_written_behind() -> None:
    target = directory(8, 8, write_behind=1.0)
    plan(target, 1, [[1], [2], [2]], [0, 0, 1])
    target.flush()
    for step in range(2, 6):
        assert plan(target, step, [[7 + step]], [1]).traffic.behind_push[0] == 0


def hot_set_of(target: Directory, slow: SlowDirectory, hot: list[int]) -> None:
    target.replicate(np.array(hot, np.int64), for_good=True)
    slow.replicate(hot, for_good=True)


@pytest.mark.parametrize(
    ("eviction", "synchronisation"),
    [("lru", "on_demand"), ("lfu", "on_demand"), ("emark", "on_demand"), ("lru", "full")],
)
@settings(max_examples=100)
@given(first=streams(), second=streams(), replicas=st.tuples(st.integers(0, 2), st.integers(0, 2)), data=st.data())
def test_any_stream_over_a_change_of_members_equals_the_slow_directory(
    eviction: str,
    synchronisation: Synchronisation,
    first: Stream,
    second: Stream,
    replicas: tuple[int, int],
    data: st.DataObject,
) -> None:
    workers, shards, capacities, steps = first
    sizes = [capacity + replicas[0] for capacity in capacities]
    fast = directory(*sizes, eviction=eviction, shards=shards, synchronisation=synchronisation, replicas=replicas[0])
    slow = SlowDirectory(sizes, eviction, synchronisation, replicas[0])
    if replicas[0]:
        hot_set_of(fast, slow, [3])
    for step, event in enumerate([*steps, None], start=1):
        expect_same_step(fast, slow, step, event, workers)
    others, later_shards, needed, later_steps = second
    everyone: list[int | None] = [*range(workers), *[None] * others]
    members = data.draw(st.permutations(everyone))[:others]
    least = [capacity + replicas[1] for capacity in needed]
    later_sizes = [max(least[j], 0 if was is None else sizes[was]) for j, was in enumerate(members)]
    kinds: tuple[Synchronisation, int] = synchronisation, replicas[1]
    later = Directory(np.array(later_sizes, np.int64), eviction, later_shards, *kinds)
    slow_later = SlowDirectory(later_sizes, eviction, *kinds)
    assert later.continue_from(fast, members) == slow_later.continue_from(slow, members)
    if replicas[1]:
        hot_set_of(later, slow_later, [5])
    for step, event in enumerate([None, *later_steps], start=len(steps) + 2):
        expect_same_step(later, slow_later, step, event, others)


def test_a_worker_that_stays_keeps_its_slots_under_another_number() -> None:
    old = directory(4, 4, 6)
    plan(old, 1, [[1], [2], [3], [3], [5]], [0, 1, 1, 2, 2])
    old.flush()
    new = directory(6, 4, 8)
    assert new.continue_from(old, [2, None, 0]) == [True, False, False]
    assert [new.cached(j) for j in range(3)] == [old.cached(2), {}, {}]
    assert (new.holders(5), new.holders(1), new.holders(3)) == ((CLEAN, {0}), (CLEAN, set()), (CLEAN, set()))
    pushes, pulls, _ = as_sets(plan(new, 2, [[5], [3], [1]], [0, 0, 2]))
    assert pushes == set()
    assert {(j, row) for j, row, *_ in pulls} == {(0, 3), (2, 1)}


def test_caches_are_taken_over_only_when_every_row_has_been_written_back() -> None:
    old = directory(4)
    plan(old, 1, [[1]], [0])
    with pytest.raises(AssertionError, match="not been written back"):
        directory(4).continue_from(old, [0])


def test_marks_stay_with_a_cache_that_is_kept() -> None:
    old = directory(3, eviction="emark")
    used_rows: list[list[int]] = [[1, 2, 3], [3], [3], [4], [2]]
    for step, rows in enumerate(used_rows, start=1):
        plan(old, step, [[row] for row in rows], [0] * len(rows))
    old.flush()
    new = directory(3, eviction="emark")
    new.continue_from(old, [0])
    plan(new, 6, [[5]], [0])
    assert set(new.cached(0)) == {2, 4, 5}, "row 3 has the lowest mark, though it was used most"
