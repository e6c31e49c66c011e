"""A run that was interrupted goes on in its folder, and its model is that of an uninterrupted replay of its journal."""

from contextlib import closing, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import zmq
from structlog.testing import capture_logs

from dispatch.coordinator import Coordinator
from dispatch.dense import Reduce
from dispatch.errors import SettingsChanged
from dispatch.intake import Intake
from dispatch.journal.history import read_history
from dispatch.journal.records import StepDecided
from dispatch.placement.assign.situation import Assignment
from dispatch.placement.decide import Assigned, Decider, Decision
from dispatch.placement.rows.index import BatchRows
from dispatch.recovery import assemble
from infra.base.process import Stop
from infra.base.storage import Storage
from ingest.batches.batch import Batch
from ingest.batches.replay import GoesOn
from ingest.letters.embedded import read_dead_letters
from ps.checkpoints.manifest import manifest_numbers, read_manifest
from ps.client import ShardClient
from ps.config import CheckpointConfig, RowConfig
from tests.end_to_end.conftest import WriteTopic, write_clicks
from tests.end_to_end.crashing import patient_for
from tests.end_to_end.interrupting import golden, interrupt
from tests.end_to_end.operating import history_of, operated, redecided, tell, wait_for
from tests.end_to_end.threads import (
    RUN,
    Plan,
    Result,
    Threads,
    model_of,
    running_shards,
    start_worker,
    train,
    wait_for_steps,
)
from tests.end_to_end.withheld import has_generation, paused
from tests.ports import free_port

STEPS, BATCH = 14, 64
LONG = 40 * BATCH
"""events of a run in which something happens meanwhile"""


COMMON: dict[str, Any] = {"policy": "random", "cache_rows": 300, "rows": RowConfig(dim=5), "silence_seconds": 20.0}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Result]:
    """A run that nothing happened to, over the same events as those that are killed."""
    plan = Plan(write_clicks(tmp_path_factory.mktemp("whole"), STEPS * BATCH, poison=0.05), **COMMON)
    return plan, train(plan)


@pytest.mark.parametrize("after", ["decide", "record", "write_dead_letters", "announce", "order", "complete"])
def test_a_run_killed_after_any_line_goes_on_and_equals_one_that_was_not(
    whole: tuple[Plan, Result], write_topic: WriteTopic, after: str
) -> None:
    undisturbed, expected = whole
    killed = Plan(write_topic(STEPS * BATCH, "killed", poison=0.05), **COMMON)
    interrupt(killed, 7, after)
    before = read_history(killed.folder / "journal")
    assert before.step == 7
    result = train(killed)
    history = read_history(killed.folder / "journal")
    assert history.steps[: before.step] == before.steps
    assert model_of(result) == model_of(expected)
    assert result.status.quality == expected.status.quality
    assert result.status.events == expected.status.events
    assert [m.ranges for m in result.manifests] == [m.ranges for m in expected.manifests]
    letters = [list(read_dead_letters(plan.folder / "log")) for plan in (undisturbed, killed)]
    assert [(x.partition, x.offset) for x in letters[0]] == [(x.partition, x.offset) for x in letters[1]]
    assert history.ended is not None
    assert history.ended.differs_at is None


def test_a_run_goes_on_with_other_caches_shards_and_policy_and_equals_its_replay(write_topic: WriteTopic) -> None:
    folder, rows = write_topic(STEPS * BATCH), RowConfig(dim=5, optimizer="rowwise_adagrad")
    common: dict[str, Any] = {"folder": folder, "rows": rows, "silence_seconds": 20.0, "workers": 3}
    interrupt(Plan(**common, policy="esd:0.5", cache_rows=300, shards=2), 6)
    interrupt(Plan(**common, policy="joint:2:elastic", cache_rows=400, shards=1, eviction="lru"), 11)
    last = Plan(**common, policy="het", cache_rows=2048, shards=3)
    result = train(last)
    assert result.status.samples == STEPS * BATCH
    history = read_history(folder / "journal")
    assert [past.steps[-1].step for past in history.generations] == [6, 11, STEPS]
    replayed = train(golden(last, cache_rows=250, shards=2))
    assert model_of(replayed) == model_of(result)
    assert replayed.status.quality == result.status.quality
    again = read_history(folder.parent / "golden" / "journal")
    assert history.ended is not None
    assert again.ended is not None
    assert (again.ended.rows_digest, again.ended.differs_at) == (history.ended.rows_digest, None)


@pytest.mark.parametrize("policy", ["fae:0.15:4", "random"])
def test_a_journal_with_changing_members_and_a_hot_set_is_replayed(write_topic: WriteTopic, policy: str) -> None:
    plan = Plan(write_topic(LONG), 2, policy, cache_rows=700, rows=RowConfig(dim=5), silence_seconds=20.0)

    def join_late(threads: Threads, dispatcher: str, shards: tuple[str, ...]) -> None:
        wait_for_steps(plan, 5)
        start_worker(threads, plan, "worker-7", dispatcher)

    result = train(paused(plan, 20, lambda: has_generation(plan, 2)), beside=join_late)
    history = read_history(plan.folder / "journal")
    assert [len(past.record.members) for past in history.generations] == [2, 3]
    assert (policy == "random") is all(step.hot is None for step in history.steps)
    replayed = train(golden(plan, workers=3, policy="esd:1", cache_rows=400))
    assert model_of(replayed) == model_of(result)
    again = plan.folder.parent / "first generation"
    assert train(golden(plan, folder=again, policy="random", last_step=4)).status.step == 4


@pytest.mark.parametrize("reduce", ["hub", "ring"])
def test_a_journal_in_which_a_worker_left_is_replayed(write_topic: WriteTopic, reduce: Reduce) -> None:
    plan, leaves = Plan(write_topic(LONG), 3, "random", rows=RowConfig(dim=5), reduce=reduce), Stop()

    def leave_early(_threads: Threads, _dispatcher: str, _shards: tuple[str, ...]) -> None:
        wait_for_steps(plan, 5)
        leaves.request("test")

    result = train(paused(plan, 20, lambda: has_generation(plan, 2)), beside=leave_early, leaving_worker=leaves)
    history = read_history(plan.folder / "journal")
    assert [len(past.record.members) for past in history.generations] == [3, 2]
    assert model_of(train(golden(plan))) == model_of(result)


def test_a_journal_in_which_a_worker_owned_the_dense_weights_for_a_while_is_replayed(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(write_topic(STEPS * BATCH), policy="random", rows=RowConfig(dim=5))
    alone, assign = range(5, 12), Decider._assign

    def assign_to_1(decider: Decider, step: int, rows: BatchRows, *asked: Any) -> Assigned:
        if step not in alone:
            return assign(decider, step, rows, *asked)
        worker_B = np.ones(len(rows.local_BF), np.int32)
        return Assigned(Assignment(worker_B), decider._directory.plan(step, rows, worker_B))

    with monkeypatch.context() as patched:
        patched.setattr(Decider, "_assign", assign_to_1)
        patched.setattr(Decider, "_update_capacities", lambda decider, plan: 1 if not plan.samples[0] else None)
        result = train(plan)
    steps = read_history(plan.folder / "journal").steps
    assert [step.step for step in steps if step.sole == 1] == list(alone)
    assert model_of(train(golden(plan))) == model_of(result)


def test_a_replay_may_end_earlier(write_topic: WriteTopic) -> None:
    plan = Plan(write_topic(STEPS * BATCH), policy="random", rows=RowConfig(dim=5))
    short = Plan(write_topic(STEPS * BATCH, "short"), policy="random", rows=RowConfig(dim=5), samples=9 * BATCH)
    train(plan)
    assert model_of(train(golden(plan, last_step=9))) == model_of(train(short))


def test_what_is_left_of_the_samples_is_trained_after_an_interruption(write_topic: WriteTopic) -> None:
    plan = Plan(write_topic(STEPS * BATCH), samples=9 * BATCH + 5, silence_seconds=20.0)
    interrupt(plan, 4)
    assert train(Plan(**{**vars(plan), "samples": None})).status.samples == 9 * BATCH + 5


@pytest.mark.parametrize("of", ["shard", "dispatcher"])
def test_a_resume_whose_newest_checkpoint_is_damaged_begins_with_the_one_before(
    write_topic: WriteTopic, of: str
) -> None:
    whole = Plan(write_topic(LONG, "whole"), policy="random", silence_seconds=20.0)
    killed = replace(whole, folder=write_topic(LONG, "killed"), checkpoints=CheckpointConfig(seconds=0.001, kept=100))
    expected = train(whole)
    interrupt(killed, 33)
    storage = Storage.at(killed.folder / "checkpoints")
    *_, before, newest = manifest_numbers(storage)
    manifest = read_manifest(storage, newest)
    part = manifest.dispatcher if of == "dispatcher" else manifest.shards[0].files[-1]
    path = killed.folder / "checkpoints" / part.name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    with capture_logs() as logs:
        result = train(killed)
    assert part.name in str([line for line in logs if line["log_level"] == "error"])
    starts = [line["step"] for line in logs if line["event"] == "generation started"]
    assert starts[0] == read_manifest(storage, before).step
    assert model_of(result) == model_of(expected)


def test_a_step_that_does_not_come_out_the_same_is_named(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(write_topic(STEPS * BATCH), policy="random", rows=RowConfig(dim=5))
    train(plan)
    repeat = Decider.repeat

    def swap(decider: Decider, step: int, keys: Any, worker_B: Any, **others: Any) -> Decision:
        return repeat(decider, step, keys, worker_B * 0 if step == 6 else worker_B, **others)

    monkeypatch.setattr(Decider, "repeat", swap)
    train(golden(plan))
    ended = read_history(plan.folder.parent / "golden" / "journal").ended
    assert ended is not None
    assert ended.differs_at is not None
    assert 6 <= ended.differs_at <= 8


def test_settings_that_must_stay_are_named_and_the_run_can_still_go_on(write_topic: WriteTopic) -> None:
    plan = Plan(write_topic(STEPS * BATCH), rows=RowConfig(dim=5), silence_seconds=20.0)
    interrupt(plan, 4)
    with pytest.raises(SettingsChanged, match=r"rows\.dim was 5 and is 6;"):
        train(Plan(**{**vars(plan), "rows": RowConfig(dim=6)}))
    assert train(plan).status.samples == STEPS * BATCH


def test_steps_that_need_more_workers_than_there_are_are_decided_anew(write_topic: WriteTopic) -> None:
    samples = 11 * BATCH + 5
    plan = Plan(write_topic(STEPS * BATCH), rows=RowConfig(dim=5), silence_seconds=20.0, samples=samples)
    interrupt(plan, 4)
    result = train(Plan(**{**vars(plan), "workers": 1, "replace_seconds": 0.001}))
    assert result.status.samples == samples
    history = read_history(plan.folder / "journal")
    assert [len(past.record.members) for past in history.generations] == [1]
    assert [step.step for step in history.steps] == list(range(1, 13))
    assert model_of(train(golden(plan))) == model_of(result)


def test_a_stop_during_the_replay_saves_nothing_and_loses_nothing(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, stop = Plan(write_topic(STEPS * BATCH), silence_seconds=20.0), Stop()
    interrupt(plan, 9)
    form_again = Intake.form_again

    def stop_at_5(intake: Intake, recorded: StepDecided, goes_on: GoesOn) -> Batch:
        if recorded.step == 5:
            stop.request("test")
        return form_again(intake, recorded, goes_on)

    with monkeypatch.context() as patched:
        patched.setattr(Intake, "form_again", stop_at_5)
        patched.setattr("tests.end_to_end.threads.collect", lambda plan, shards, status: status)
        train(plan, stop)
    assert stop.requested
    assert not (plan.folder / "dense.safetensors").exists()
    assert train(plan).status.samples == STEPS * BATCH


def test_a_dispatcher_whose_stream_is_away_during_the_replay_is_there_for_everyone_else(
    write_topic: WriteTopic,
) -> None:
    plan, told = operated(write_topic(STEPS * BATCH)), list[str]()
    interrupt(plan, 9)
    away = paused(plan, 4, lambda: bool(told))
    result = train(away, beside=lambda *_: told.append(tell(plan, "checkpoint")))
    assert told == ["a checkpoint is taken after step 9"], "the newest on record, and not the one that is trained again"
    assert result.status.samples == STEPS * BATCH
    assert read_history(plan.folder / "journal").last_generation == 3, "nobody was lost"


def test_a_command_after_steps_were_declared_void_is_answered_with_the_newest_that_is_not(
    write_topic: WriteTopic,
) -> None:
    plan, told = operated(write_topic(STEPS * BATCH), replace_seconds=0.2), list[str]()
    interrupt(plan, 9)

    def checkpoint(*_: object) -> None:
        wait_for(lambda: redecided(plan) == 1, "the steps on record are void")
        wait_for(lambda: has_generation(plan, 2), "they are decided anew")
        told.append(tell(plan, "checkpoint"))

    with patient_for(lambda: 1):
        train(replace(paused(plan, 4, lambda: bool(told)), workers=1), beside=checkpoint)
    assert int(told[0].removeprefix("a checkpoint is taken after step ")) < 9
    assert history_of(plan).samples == STEPS * BATCH


def test_a_stop_while_the_stream_is_away_during_the_replay_is_heard(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, stop = operated(write_topic(STEPS * BATCH)), Stop()
    interrupt(plan, 9)

    def stop_it(*_: object) -> None:
        wait_for(lambda: has_generation(plan, 2), "steps are trained again")
        tell(plan, "stop")

    with monkeypatch.context() as patched:
        patched.setattr("tests.end_to_end.threads.collect", lambda plan, shards, status: status)
        train(paused(plan, 4, lambda: False), stop, beside=stop_it)
    assert stop.requested
    assert train(plan).status.samples == STEPS * BATCH


def test_a_shard_that_served_an_earlier_dispatcher_goes_back_to_the_checkpoint(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Plan(write_topic(STEPS * BATCH, "whole"), policy="random", silence_seconds=20.0)
    plan, port = Plan(**{**vars(whole), "folder": write_topic(STEPS * BATCH, "killed")}), free_port()
    expected = train(whole)
    monkeypatch.setattr("tests.end_to_end.threads.free_port", lambda: port)
    with running_shards(plan, f"tcp://127.0.0.1:{port}") as shards:
        monkeypatch.setattr("tests.end_to_end.threads.running_shards", lambda *_: nullcontext(shards))
        interrupt(plan, 4)
        with zmq.Context() as context, closing(ShardClient(context, shards, plan.scaled_rows, RUN)) as client:
            client.open(1, 0)
            assert client.peek(np.arange(1))[0].any(), "they have rows already"
        assert model_of(train(plan)) == model_of(expected)


def test_a_run_that_was_stopped_before_it_began_can_still_begin(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, stop = Plan(write_topic(STEPS * BATCH)), Stop()
    stop.request("test")
    with monkeypatch.context() as patched:
        patched.setattr("tests.end_to_end.threads.collect", lambda plan, shards, status: status)
        train(Plan(**{**vars(plan), "started_workers": 0}), stop)
    assert train(plan).status.samples == STEPS * BATCH


def test_a_worker_may_leave_during_a_replay_that_can_do_without_it(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, leaves = Plan(write_topic(STEPS * BATCH), silence_seconds=20.0), Stop()
    interrupt(plan, 5)
    interrupt(plan, 9)
    calls = list[Coordinator]()

    def lose_one(coordinator: Coordinator, workers: int, patience_seconds: float | None = None) -> bool:
        calls.append(coordinator)
        while len(calls) == 1 and len(coordinator.crew.roster.able) < 3:  # so that the last one has no part
            coordinator.poll(0.05)
        if len(calls) == 2:  # of the first generation on record, of the second
            leaves.request("test")
        while leaves.requested and len(coordinator.crew.roster.able) > 2:
            coordinator.poll(0.05)
        return assemble(coordinator, workers, patience_seconds)

    monkeypatch.setattr("dispatch.recovery.assemble", lose_one)
    result = train(Plan(**{**vars(plan), "workers": 3}), leaving_worker=leaves)
    assert leaves.requested
    assert result.status.samples == STEPS * BATCH
