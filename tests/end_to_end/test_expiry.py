"""Keys that are forgotten, and rare ones that share a row: the model is that of one process that does the same."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dispatch.config import MemoryConfig
from dispatch.journal.history import read_history
from dispatch.placement.rows.admission import count_reference
from infra.base.errors import ConfigError
from infra.base.storage import Storage
from ingest.keys import rare_keys
from ps.checkpoints.manifest import manifest_numbers
from ps.config import CheckpointConfig
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.interrupting import golden, interrupt
from tests.end_to_end.test_exactness import expect_equal, rows_of
from tests.end_to_end.threads import Plan, Result, batches, model_key, model_of, new_reference, train
from trainer.reference import Reference

STEPS, BATCH, EXPIRE = 24, 64, 5
CACHE_ROWS = {1: 1400, 2: 700, 4: 360}
"""slots of a cache, by the number of workers: some rows are evicted before they are forgotten, and some are not"""
POLICIES = ["esd:1", "het", "fae:0.15:4", "joint:2:elastic"]
OFTEN = CheckpointConfig(seconds=0.02, kept=1000)


def plan_of(write_topic: WriteTopic, workers: int = 2, policy: str = "esd:1", **more: Any) -> Plan:
    settings: dict[str, Any] = {"rows": rows_of("adagrad", "float64"), "cache_rows": CACHE_ROWS[workers]}
    settings["memory"] = MemoryConfig(expire_steps=EXPIRE)
    return Plan(write_topic(STEPS * BATCH), workers, policy, batch=BATCH, **{**settings, **more})


class ExactCounts:
    """Rare keys of a process that counts every key exactly."""

    def __init__(self, plan: Plan) -> None:
        self._counts: dict[int, int] = {}
        self._rare_F = rare_keys(plan.schema.columns).tolist()
        self._after = plan.memory.admit_after

    def replace(self, reference: Reference, keys_BF: NDArray[np.uint64]) -> NDArray[np.uint64]:
        return np.array([[self._used(reference, *each) for each in enumerate(keys)] for keys in keys_BF], np.uint64)

    def _used(self, reference: Reference, place: int, key: np.uint64) -> int:
        if reference.numbering.knows(int(key)):
            return int(key)
        (is_admitted,) = count_reference(self._counts, [int(key)], self._after)
        return int(key) if is_admitted else self._rare_F[place]


_references: dict[tuple[Any, ...], Reference] = {}
"""Processes that forgot, by everything that they depend on: most tests compare their run with the same one."""


def forgetting(plan: Plan, result: Result, expire_steps: int = EXPIRE) -> Reference:
    """One process on whole batches, which forgets on its own account; rows that are replicated stay."""
    hot = {step.step: step.hot_rows() for step in read_history(plan.folder / "journal").steps}
    kept_rows = tuple(None if rows is None else rows.tobytes() for rows in hot.values())
    key = (*model_key(plan, result.manifests), expire_steps, plan.memory.admit_after, kept_rows)
    if key not in _references:
        _references[key] = _train_forgetting(plan, result, expire_steps, hot)
    return _references[key]


def _train_forgetting(
    plan: Plan, result: Result, expire_steps: int, hot: dict[int, NDArray[np.int64] | None]
) -> Reference:
    reference = new_reference(plan)
    counts = ExactCounts(plan)
    kept: NDArray[np.int64] = np.empty(0, np.int64)
    for step, samples in enumerate(batches(plan, result.manifests), 1):
        reference.forget(step - expire_steps, kept)
        keys_BF = counts.replace(reference, samples.keys_BF)
        reference.step(keys_BF, samples.dense_BN, samples.labels_B, step)
        kept = kept if (chosen := hot[step]) is None else chosen
    return reference


def expect_forgotten(plan: Plan, result: Result) -> None:
    """The run is that of a process which forgets, and not that of one which does not: many numbers are used again."""
    reference = forgetting(plan, result)
    expect_equal(result, reference, tolerance=1e-9)
    assert len(reference.numbering) < 0.8 * len(forgetting(plan, result, expire_steps=STEPS).numbering)


@pytest.mark.parametrize(("workers", "policy"), [*product([2, 4], POLICIES), (1, "esd:1")])
def test_any_workers_and_policy_equal_one_process_that_forgets(
    write_topic: WriteTopic, workers: int, policy: str
) -> None:
    plan = plan_of(write_topic, workers, policy)
    expect_forgotten(plan, train(plan))


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("how", [{"write_behind": 1.0}, {"lookahead": 3}, {"eviction": "lfu", "cache_rows": 400}])
def test_however_rows_move_the_same_keys_are_forgotten(
    write_topic: WriteTopic, shards: int, how: dict[str, Any]
) -> None:
    plan = plan_of(write_topic, shards=shards, **how)
    expect_forgotten(plan, train(plan))


@pytest.mark.parametrize("expire", [0, EXPIRE])
def test_rare_keys_share_the_row_of_their_field(write_topic: WriteTopic, expire: int) -> None:
    plan = plan_of(write_topic, memory=MemoryConfig(expire_steps=expire, admit_after=3), checkpoints=OFTEN)
    result = train(plan)
    reference = forgetting(plan, result, expire or STEPS)
    expect_equal(result, reference, tolerance=1e-9)
    kept = forgetting(Plan(**{**vars(plan), "memory": MemoryConfig()}), result, expire or STEPS)
    assert len(reference.numbering) < 0.8 * len(kept.numbering)
    assert result.status.keys.known + result.status.keys.free == len(reference.numbering)
    assert result.status.keys.rare > 1000
    assert (result.status.keys.forgotten > 0) == (expire > 0)
    assert model_of(train(golden(plan, memory=MemoryConfig()))) == model_of(result), "a replay needs no counts"


def test_counts_begin_anew_when_a_run_is_resumed_and_the_model_is_that_of_its_journal(write_topic: WriteTopic) -> None:
    plan = plan_of(write_topic, memory=MemoryConfig(admit_share=0.2), checkpoints=OFTEN)
    interrupt(plan, 9)
    counted = Plan(**{**vars(plan), "memory": MemoryConfig(admit_after=2)})
    interrupt(counted, 15)
    result = train(counted)
    assert result.status.keys.rare > 1000
    assert model_of(train(golden(plan))) == model_of(result)


def test_a_replay_forgets_what_the_run_forgot_whatever_its_settings(write_topic: WriteTopic) -> None:
    plan = plan_of(write_topic, checkpoints=OFTEN)
    result = train(plan)
    replayed = train(golden(plan, memory=MemoryConfig(expire_steps=9)))
    assert model_of(replayed) == model_of(result)


def test_a_resumed_run_knows_when_each_key_was_last_used(write_topic: WriteTopic) -> None:
    """It goes back to a checkpoint, from which the last steps come, and forgets as if it had never ended."""
    plan = plan_of(write_topic, checkpoints=OFTEN)
    interrupt(plan, 14)
    assert manifest_numbers(Storage.at(plan.folder / "checkpoints"))
    expect_forgotten(plan, train(plan))


def test_keys_are_forgotten_after_hours_of_events_also_when_a_run_is_resumed(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[bytes, float] = {}

    def ten_minutes_later(times_B: NDArray[np.float64]) -> tuple[float, int]:
        return seen.setdefault(times_B.tobytes(), 1.7e9 + 600.0 * len(seen)), 0  # the same for a batch formed again

    monkeypatch.setattr("dispatch.intake.newest_event_time", ten_minutes_later)
    plan = plan_of(write_topic, memory=MemoryConfig(expire_hours=1.0), checkpoints=OFTEN)
    interrupt(plan, 14)
    result = train(plan)
    steps = read_history(plan.folder / "journal").steps
    assert all(step.forget_before for step in steps[8:]), "six steps are an hour"
    reference = new_reference(plan)
    for step, samples in zip(steps, batches(plan, result.manifests), strict=True):
        reference.forget(step.forget_before)
        reference.step(samples.keys_BF, samples.dense_BN, samples.labels_B, step.step)
    expect_equal(result, reference, tolerance=1e-9)
    assert model_of(train(golden(plan, memory=MemoryConfig()))) == model_of(result)


@pytest.mark.parametrize(("before", "after"), [(0, EXPIRE), (EXPIRE, 0)])
def test_a_resumed_run_may_begin_or_cease_to_forget(write_topic: WriteTopic, before: int, after: int) -> None:
    plan = plan_of(write_topic, memory=MemoryConfig(expire_steps=before))
    interrupt(plan, 12)
    resumed = Plan(**{**vars(plan), "memory": MemoryConfig(expire_steps=after)})
    result = train(resumed)
    steps = [step.forget_before > 0 for step in read_history(plan.folder / "journal").steps]
    assert [any(steps[:12]), any(steps[12:])] == [before > 0, after > 0]
    assert model_of(train(golden(plan))) == model_of(result)


def test_keys_cannot_be_forgotten_while_steps_that_use_them_are_under_way(write_topic: WriteTopic) -> None:
    with pytest.raises(ConfigError, match="cannot be forgotten after 4 steps while 4 are under way"):
        train(plan_of(write_topic, lookahead=3, memory=MemoryConfig(expire_steps=4)))
