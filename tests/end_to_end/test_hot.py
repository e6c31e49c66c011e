"""Rows that are replicated, and no longer so, at checkpoints: nothing changes in the model, and no bit over a crash."""

from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest

from dispatch import training
from dispatch.config import MemoryConfig
from dispatch.journal.history import History, read_history
from dispatch.placement.arrays import F64, I64
from dispatch.placement.capacity import hub_or_ring, replica_trial
from dispatch.placement.rows.two_fold import TwoFold
from ps.config import CheckpointConfig, RowConfig
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.crashing import Strike, check_run, train_struck
from tests.end_to_end.interrupting import golden
from tests.end_to_end.test_exactness import expect_equal, rows_of
from tests.end_to_end.threads import (
    Plan,
    Threads,
    model_of,
    start_worker,
    train,
    train_reference,
    wait_for_steps,
)
from tests.end_to_end.withheld import has_generation, paused

STEPS, BATCH = 24, 64
OFTEN = CheckpointConfig(seconds=0.02, kept=1000)
IN_A_RING: dict[str, Any] = {"cache_rows": 900, "reduce": "ring", "checkpoints": OFTEN, "silence_seconds": 20.0}


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has every choice exchange rows: a third of the replicated ones leave, and rows that were used enter."""
    turns = list[int]()

    def choose(two_fold: TwoFold, replicated: I64, _row_cost_n: F64, _link_cost_n: F64) -> I64:
        turns.append(len(turns))
        stays = replicated[(replicated + len(turns)) % 3 > 0]
        used = np.setdiff1d(np.flatnonzero(two_fold._steps_R), replicated)
        entering = used[: min(6, two_fold._most - replicated.size)]
        return np.sort(np.concatenate((stays, entering)))

    monkeypatch.setattr(TwoFold, "choose", choose)


def hot_sets(history: History) -> list[set[int]]:
    return [set(rows.tolist()) for step in history.steps if (rows := step.hot_rows()) is not None]


def expect_exchanges(history: History) -> None:
    sets = hot_sets(history)
    assert any(before - after for before, after in pairwise(sets))
    assert any(after - before for before, after in pairwise(sets))


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize(
    ("workers", "policy", "optimizer"),
    [
        (2, "esd:1:hot", "adagrad"),
        (4, "esd:0.5:hot:full", "sgd"),
        (3, "joint:2:elastic:hot", "rowwise_adagrad"),
    ],
)
def test_rows_that_are_replicated_for_a_while_equal_one_process(
    write_topic: WriteTopic, workers: int, policy: str, optimizer: str
) -> None:
    plan = Plan(write_topic(STEPS * BATCH), workers, policy, rows=rows_of(optimizer), **IN_A_RING)
    result = train(plan)
    expect_exchanges(read_history(plan.folder / "journal"))
    assert sum(worker.traffic.all_reduces for worker in result.status.workers) > 0
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)


@pytest.mark.usefixtures("restless")
def test_a_run_that_crashes_while_rows_are_exchanged_recovers_to_the_same_bits(write_topic: WriteTopic) -> None:
    small: dict[str, Any] = {"rows": RowConfig(dim=4), "memory": MemoryConfig(expire_steps=3), "batch": 32}
    steps = 56  # so many between two crashes that several checkpoints are taken, also where they take long
    plan = Plan(write_topic(steps * 32, poison=0.05), 3, "esd:1:hot", **IN_A_RING, **small)
    strikes = Strike("backward", 11), Strike("pull", 22), Strike("journalled", 33), Strike("push_half_applied", 44)
    expect_exchanges(check_run(plan, train_struck(plan, *strikes), steps * 32))


@pytest.mark.usefixtures("restless")
def test_a_run_that_a_worker_joins_while_rows_are_exchanged_is_replayed(write_topic: WriteTopic) -> None:
    plan = Plan(write_topic(40 * BATCH), 2, "joint:2:hot", rows=RowConfig(dim=5), **IN_A_RING)

    def join_late(threads: Threads, dispatcher: str, _shards: tuple[str, ...]) -> None:
        wait_for_steps(plan, 5)
        start_worker(threads, plan, "worker-7", dispatcher)

    result = train(paused(plan, 20, lambda: has_generation(plan, 2)), beside=join_late)
    history = read_history(plan.folder / "journal")
    assert [len(past.record.members) for past in history.generations] == [2, 3]
    expect_exchanges(history)
    replayed = train(golden(plan, workers=3, policy="esd:1", cache_rows=400, checkpoints=CheckpointConfig(seconds=0)))
    assert model_of(replayed) == model_of(result)


@pytest.fixture
def promising(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a ring look much faster than it is, and ends its trial with the first steps that are measured."""
    monkeypatch.setattr(training, "ring_saves", lambda *_: 1e9)
    monkeypatch.setattr(hub_or_ring, "MAY_COST", -1e9)


@pytest.mark.usefixtures("promising", "restless")
def test_a_ring_that_is_tried_and_taken_back_equals_one_process(write_topic: WriteTopic) -> None:
    exact: dict[str, Any] = {"rows": RowConfig(dim=4, float_dtype="float64"), "cache_rows": 900, "checkpoints": OFTEN}
    plan = Plan(write_topic(48 * 32), 2, "esd:1:hot", batch=32, choose="clock", **exact)
    result = train(plan)
    begun = [past.record for past in read_history(plan.folder / "journal").generations]
    assert [record.uses_hub for record in begun] == [True, False, True]
    assert {record.reason for record in begun[1:]} == {"hub or ring changed"}
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-9)


@pytest.fixture
def long_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a ring look much faster than it is, and be tried for 64 steps, whatever they cost."""
    monkeypatch.setattr(training, "ring_saves", lambda *_: 1e9)
    monkeypatch.setattr(hub_or_ring, "MAY_COST", 1e9)


@pytest.mark.usefixtures("long_trial")
def test_a_run_that_crashes_while_a_ring_is_tried_recovers_to_the_same_bits(write_topic: WriteTopic) -> None:
    exact: dict[str, Any] = {"rows": RowConfig(dim=4), "cache_rows": 900, "checkpoints": OFTEN, "silence_seconds": 20.0}
    plan = Plan(write_topic(48 * 32), 2, "esd:1:hot", batch=32, choose="clock", **exact)
    worker, dispatcher = Strike("backward", 26), Strike("journalled", 36)
    history = check_run(plan, train_struck(plan, worker, dispatcher), 48 * 32)
    begun = [past.record for past in history.generations]
    assert [record.uses_hub for record in begun] == [True, False, False, False]
    assert [record.reason for record in begun[1:]] == ["hub or ring changed", "resumed", "resumed"]


@pytest.fixture
def slow_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has a ring be confirmed after four steps, and replicas be taken back after four."""
    monkeypatch.setattr(training, "ring_saves", lambda *_: 1e9)
    faster, slower = count(1e8, -1), count(1e8, -1)
    monkeypatch.setattr(hub_or_ring, "median", lambda _: next(faster))
    monkeypatch.setattr(hub_or_ring, "TRIAL_STEPS", 4)
    monkeypatch.setattr(replica_trial, "median", lambda _: next(slower))
    monkeypatch.setattr(replica_trial, "TRIAL_STEPS", 4)


@pytest.mark.usefixtures("slow_replicas", "restless")
def test_replicas_that_are_tried_and_taken_back_equal_one_process(write_topic: WriteTopic) -> None:
    exact: dict[str, Any] = {"rows": RowConfig(dim=4, float_dtype="float64"), "cache_rows": 900, "checkpoints": OFTEN}
    plan = Plan(write_topic(72 * 32), 2, "esd:1:hot", batch=32, choose="clock", **exact)
    result = train(plan)
    history = read_history(plan.folder / "journal")
    assert [past.record.uses_hub for past in history.generations] == [True, False]
    sets = hot_sets(history)
    tried = [bool(rows) for rows in sets]
    assert any(before and not after for before, after in pairwise(tried))
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-9)


def test_over_the_hub_nothing_is_replicated_and_no_bit_differs(write_topic: WriteTopic) -> None:
    models = []
    for policy in ("esd:1", "esd:1:hot"):
        plan = Plan(write_topic(8 * BATCH, policy.replace(":", "-")), 2, policy, cache_rows=900, reduce="hub")
        models.append(model_of(train(plan)))
        assert read_history(plan.folder / "journal").generations[0].record.replicas == 0
    assert models[0] == models[1]
