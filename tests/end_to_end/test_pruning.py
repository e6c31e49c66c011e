"""Rows of which chunks are pruned: the model is that of one process that does the same."""

from copy import deepcopy
from itertools import product
from typing import Any

import numpy as np
import pytest

from dispatch.config import MemoryConfig
from dispatch.journal.history import read_history
from dispatch.placement.rows.pruning import Pruner
from infra.base.errors import ConfigError
from ps.config import CheckpointConfig, RowConfig
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.interrupting import golden, interrupt
from tests.end_to_end.test_exactness import expect_equal, rows_of
from tests.end_to_end.threads import Plan, Result, batches, dispatch_job, model_key, model_of, new_reference, train
from trainer.reference import Reference

STEPS, BATCH, EVERY = 24, 64, 5
CACHE_ROWS = {1: 1400, 2: 700, 4: 360}
"""slots of a cache, by the number of workers: some rows are evicted between two rounds"""
POLICIES = ["esd:1", "het", "joint:2:elastic"]
OFTEN = CheckpointConfig(seconds=0.02, kept=1000)
TO_A_THIRD = MemoryConfig(prune_share=0.66, prune_steps=EVERY, prune_enforce=0.0)


def chunked(optimizer: str = "adagrad", chunks: int = 2, float_dtype: str = "float64", **more: Any) -> RowConfig:
    settings = {**rows_of(optimizer, float_dtype).model_dump(), "chunks": chunks, "half_life_steps": 6, **more}
    return RowConfig.model_validate(settings)


def budget_of(rows: RowConfig, chunks: int) -> MemoryConfig:
    """A budget of so many chunks."""
    columns = rows.dim // rows.chunks * (2 if rows.optimizer == "adagrad" else 1)
    nbytes = chunks * columns * np.dtype(rows.float_dtype).itemsize
    return MemoryConfig(budget_mb=(nbytes + 1) / (1 << 20), prune_steps=EVERY, prune_enforce=0.0)


def plan_of(write_topic: WriteTopic, workers: int = 2, policy: str = "esd:1", **more: Any) -> Plan:
    settings: dict[str, Any] = {"rows": chunked(), "cache_rows": CACHE_ROWS[workers], "memory": TO_A_THIRD}
    return Plan(
        write_topic(STEPS * BATCH), **{"workers": workers, "policy": policy, "batch": BATCH, **settings, **more}
    )


_references: dict[tuple[Any, ...], tuple[Reference, Pruner]] = {}
"""Processes that pruned, by everything that they depend on: many tests compare their run with the same one."""


def pruning(plan: Plan, result: Result) -> tuple[Reference, Pruner]:
    """One process on whole batches, which prunes on its own account; it may be trained further."""
    key = (*model_key(plan, result.manifests), repr(plan.memory))
    if key not in _references:
        _references[key] = _train_pruning(plan, result)
    return deepcopy(_references[key])


def _train_pruning(plan: Plan, result: Result) -> tuple[Reference, Pruner]:
    reference = new_reference(plan)
    pruner = Pruner(dispatch_job(plan, "tcp://127.0.0.1:*").prune_terms())
    for step, samples in enumerate(batches(plan, result.manifests), 1):
        if pruner.is_due(step - 1):
            counts_LKN = reference.count_chunks()
            weights_D = reference.weigh_columns() if pruner.terms.drops_columns else None
            done = pruner.plan(step - 1, counts_LKN, weights_D)
            reference.prune(*done)
            after_LKN = reference.count_chunks()
            live, now = int(counts_LKN[1].sum()), int(after_LKN[1].sum())
            pruner.end_round(step - 1, done, live, max(0, live - now), max(0, now - live))
        reference.weight = pruner.weight(step)
        if plan.memory.expire_steps:
            before = int(reference.count_chunks()[1].sum())
            reference.forget(step - plan.memory.expire_steps)
            pruner.forget(before - int(reference.count_chunks()[1].sum()))
        reference.step(samples.keys_BF, samples.dense_BN, samples.labels_B, step, pruner.admit)
    return reference, pruner


def masks_of(rows_RT: Any) -> Any:
    return rows_RT[:, -1].astype(np.int64)


def expect_pruned(plan: Plan, result: Result) -> None:
    """The run is that of a process which prunes: the same chunks are live, with the same values and utilities."""
    reference, pruner = pruning(plan, result)
    expect_equal(result, reference, tolerance=1e-9)
    masks = masks_of(result.rows_RT)
    assert np.array_equal(masks, masks_of(reference.rows()))
    live = sum(int(mask).bit_count() for mask in masks)
    assert result.status.chunks.live == live == pruner.state.live
    assert result.status.chunks.pruned + result.status.chunks.brought_back > 100
    assert live < 0.8 * plan.rows.chunks * len(masks)


@pytest.mark.parametrize(("workers", "policy"), [*product([2, 4], POLICIES), (1, "esd:1")])
def test_any_workers_and_policy_equal_one_process_that_prunes(
    write_topic: WriteTopic, workers: int, policy: str
) -> None:
    plan = plan_of(write_topic, workers, policy)
    expect_pruned(plan, train(plan))


@pytest.mark.parametrize("chunks", [1, 2, 8])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise_adagrad"])
@pytest.mark.parametrize("utility", ["gradient", "frequency"])
def test_any_chunks_optimizer_and_utility_equal_one_process(
    write_topic: WriteTopic, chunks: int, optimizer: str, utility: str
) -> None:
    plan = plan_of(write_topic, rows=chunked(optimizer, chunks, utility=utility))
    expect_pruned(plan, train(plan))


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("how", [{"write_behind": 1.0}, {"lookahead": 3}, {"eviction": "lfu", "cache_rows": 400}])
def test_however_rows_move_the_same_chunks_are_pruned(
    write_topic: WriteTopic, shards: int, how: dict[str, Any]
) -> None:
    plan = plan_of(write_topic, shards=shards, **how)
    expect_pruned(plan, train(plan))


@pytest.mark.parametrize("shape", ["linear", "power:0.5", "1,3"])
def test_chunk_numbers_are_pruned_as_their_shape_says(write_topic: WriteTopic, shape: str) -> None:
    plan = plan_of(write_topic, memory=TO_A_THIRD.model_copy(update={"prune_shape": shape}))
    result = train(plan)
    expect_pruned(plan, result)
    masks = masks_of(result.rows_RT)
    assert np.count_nonzero(masks & 1) > 1.2 * np.count_nonzero(masks & 2)


@pytest.mark.parametrize(("expire", "budget"), [(0, 1100), (7, 700)])
def test_there_are_never_more_live_chunks_than_the_budget_allows(
    write_topic: WriteTopic, expire: int, budget: int
) -> None:
    rows = chunked()
    memory = budget_of(rows, budget).model_copy(update={"expire_steps": expire})
    plan = plan_of(write_topic, rows=rows, memory=memory, batch=32)
    result = train(plan)
    expect_pruned(plan, result)
    assert result.status.chunks.budget == budget >= result.status.chunks.live
    assert any(step.chunked is not None for step in read_history(plan.folder / "journal").steps), "it was full"


def dropped_columns(rows: RowConfig, result: Result) -> list[int]:
    """Embedding columns that are zero in all rows."""
    return np.flatnonzero((result.rows_RT[:, : rows.dim] == 0).all(axis=0)).tolist()


def expect_narrow(plan: Plan, result: Result) -> None:
    """The first round, and no other one, dropped half of the columns of each chunk, of old rows and of new ones."""
    rounds = [step.pruned for step in read_history(plan.folder / "journal").steps if step.pruned]
    kept = rounds[0].columns
    width = plan.rows.dim // plan.rows.chunks
    by_chunk = np.bincount(np.array(kept) // width, minlength=plan.rows.chunks)
    assert (by_chunk == -(-width // 2)).all()
    assert not any(later.columns for later in rounds[1:])
    assert dropped_columns(plan.rows, result) == sorted(set(range(plan.rows.dim)) - set(kept))
    assert result.status.chunks.columns == len(kept)


@pytest.mark.parametrize(("workers", "policy", "shards"), [(1, "esd:1", 1), (2, "het", 3), (4, "joint:2:elastic", 2)])
@pytest.mark.parametrize("chunks", [1, 2])
def test_any_workers_and_policy_drop_the_columns_that_one_process_drops(
    write_topic: WriteTopic, workers: int, policy: str, shards: int, chunks: int
) -> None:
    memory = TO_A_THIRD.model_copy(update={"columns": 0.5})
    plan = plan_of(write_topic, workers, policy, rows=chunked(chunks=chunks), memory=memory, shards=shards)
    result = train(plan)
    expect_pruned(plan, result)
    expect_narrow(plan, result)


def test_a_budget_has_room_for_more_chunks_once_they_are_narrow(write_topic: WriteTopic) -> None:
    rows = chunked()
    memory = budget_of(rows, 1100).model_copy(update={"columns": 0.5})
    plan = plan_of(write_topic, rows=rows, memory=memory, batch=32)
    result = train(plan)
    expect_pruned(plan, result)
    expect_narrow(plan, result)
    width = rows.dim // rows.chunks
    assert result.status.chunks.budget == 1100 * width // -(-width // 2) >= result.status.chunks.live > 1100
    assert result.status.chunks.live * result.status.chunks.bytes <= memory.budget_mb * (1 << 20)


@pytest.mark.parametrize("at", [3, 9])
def test_a_run_resumed_before_or_after_columns_were_dropped_equals_one_that_never_ended(
    write_topic: WriteTopic, at: int
) -> None:
    memory = MemoryConfig(columns=0.5, prune_steps=EVERY)
    plan = plan_of(write_topic, memory=memory, checkpoints=OFTEN)
    interrupt(plan, at)
    interrupt(plan, 16)
    result = train(plan)
    reference, _ = pruning(plan, result)
    expect_equal(result, reference, tolerance=1e-9)
    expect_narrow(plan, result)
    assert model_of(train(golden(plan, memory=MemoryConfig()))) == model_of(result), "a replay needs no settings"


def train_twice(write_topic: WriteTopic, rows: RowConfig) -> tuple[Result, Result]:
    """The same run on one worker and on four."""
    first, second = (
        train(plan_of(lambda samples, name=name: write_topic(samples, name), workers, rows=rows))
        for name, workers in (("a", 1), ("b", 4))
    )
    return first, second


def test_by_gradients_few_chunks_differ_in_float32_between_numbers_of_workers(write_topic: WriteTopic) -> None:
    first, second = train_twice(write_topic, chunked(float_dtype="float32"))
    differing = np.bitwise_count(masks_of(first.rows_RT) ^ masks_of(second.rows_RT)).sum()
    assert differing <= 0.01 * 2 * len(first.rows_RT), f"{differing} of {2 * len(first.rows_RT)} chunks"


def test_by_uses_alone_the_same_chunks_are_pruned_in_float32(write_topic: WriteTopic) -> None:
    first, second = train_twice(write_topic, chunked(float_dtype="float32", utility="frequency"))
    assert np.array_equal(masks_of(first.rows_RT), masks_of(second.rows_RT))
    assert first.rows_RT[:, -3:-1].tobytes() == second.rows_RT[:, -3:-1].tobytes(), "utilities"


def test_a_resumed_run_prunes_as_if_it_had_never_ended(write_topic: WriteTopic) -> None:
    plan = plan_of(write_topic, checkpoints=OFTEN)
    interrupt(plan, 9)
    interrupt(plan, 16)
    result = train(plan)
    expect_pruned(plan, result)
    assert model_of(train(golden(plan, memory=MemoryConfig()))) == model_of(result), "a replay needs no settings"


def test_utilities_that_would_overflow_are_halved_and_nothing_else_changes(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatch.placement.rows.pruning.MOST_HALF_LIVES", 2)
    plan = plan_of(write_topic, rows=chunked(half_life_steps=3), checkpoints=OFTEN)
    interrupt(plan, 13)
    result = train(plan)
    expect_pruned(plan, result)
    assert any(step.pruned and step.pruned.halvings for step in read_history(plan.folder / "journal").steps)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rows": rows_of("adagrad"), "memory": TO_A_THIRD}, "rows.chunks"),
        ({"memory": budget_of(chunked(), 1000), "batch": 4096, "cache_rows": 50_000}, "has room for 1000 chunks"),
        ({"memory": TO_A_THIRD.model_copy(update={"prune_shape": "1,2,3"})}, "memory.prune_shape is '1,2,3'"),
        ({"policy": "fae:0.15:4"}, "replicates rows"),
        ({"rows": rows_of("adagrad"), "memory": MemoryConfig(columns=0.5)}, "rows.chunks"),
        ({"rows": chunked("sgd"), "memory": MemoryConfig(columns=0.5)}, "expected 'adagrad'"),
    ],
)
def test_settings_that_cannot_be_met_are_told_before_anything_starts(
    write_topic: WriteTopic, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        train(plan_of(write_topic, **settings))


def test_contradicting_settings_are_told() -> None:
    with pytest.raises(ValueError, match="rows of 6 columns cannot be divided into 4 chunks"):
        RowConfig.model_validate({"dim": 6, "chunks": 4})
    with pytest.raises(ValueError, match=r"both to 1 MiB and by a share of 0\.5"):
        MemoryConfig(budget_mb=1, prune_share=0.5)
