"""Every event is trained on, dead-lettered, or still in the log; bad ones change nothing."""

import re
import threading
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
from structlog.testing import capture_logs

from dispatch.dense import Reduce
from dispatch.errors import RunEnded
from dispatch.journal.history import read_manifests
from dispatch.placement.errors import CacheTooSmall
from dispatch.protocol import Idle, Welcome
from infra.base.errors import NameTaken
from infra.base.process import Stop
from infra.base.wire import receive
from ingest.batches.manifest import Manifest
from ingest.codec.decoder import KEPT_BYTES, Decoder
from ingest.errors import AbsentField
from ingest.letters.embedded import read_dead_letters
from ingest.log.embedded import LogReader
from ingest.producing.poison import POISON
from ingest.producing.synthetic import synthetic_events
from ingest.streams.position import Position
from ps.config import RowConfig
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.crashing import SOON_SECONDS
from tests.end_to_end.interrupting import golden
from tests.end_to_end.processes import wait_until
from tests.end_to_end.test_exactness import expect_equal
from tests.end_to_end.threads import (
    WAIT_SECONDS,
    Plan,
    Threads,
    model_of,
    start_worker,
    train,
    train_reference,
    wait_for_steps,
)
from tests.end_to_end.withheld import has_generation, paused
from trainer.worker import Worker

GOOD = 1500
MORE_THAN_NEEDED = 20_000
"""events of a run that is stopped long before it has trained them"""
REASONS = {
    "not_json": "not decodable",
    "cut_off": "not decodable",
    "empty": "not decodable",
    "nested": "too deep",
    "no_label": "missing: .*label",
    "bad_label": "label: 2, expected 0 or 1",
    "wrong_type": "wrong type",
    "not_a_number": "not decodable",
    "negative_time": "negative: event_time",
    "negative": "negative: field",
    "oversized": "oversized: field",
    "oversized_record": "oversized: record",
    "too_many_values": "too many values",
    "name_twice": "not decodable: a name is given twice",
    "not_utf8": "not decodable: 'utf-8'",
    "endless_integer": "oversized: Integer",
}


def events_after(plan: Plan, manifests: list[Manifest]) -> int:
    """Events in the log that no manifest covers."""
    source, decoder = LogReader(plan.stream.folder, plan.stream.topic), Decoder(plan.schema)
    ends = {r.partition: r.end for manifest in manifests for r in manifest.ranges}
    left = 0
    for partition in source.partitions():
        start = ends.get(partition, Position(0))
        while records := source.read(partition, start.offset):
            decoded = decoder.decode(records, start)
            left += len(decoded) + len(decoded.rejects)
            start = decoded.end
    source.close()
    return left


@pytest.mark.parametrize("packed", [0, 16])
def test_poison_of_every_kind_is_dead_lettered_once_and_changes_nothing(write_topic: WriteTopic, packed: int) -> None:
    poisoned = Plan(write_topic(GOOD, "poisoned", packed=packed, poison=0.05))
    clean = Plan(write_topic(GOOD, "clean", packed=packed))
    with_poison, without = train(poisoned), train(clean)
    letters = list(read_dead_letters(poisoned.stream.folder))
    assert len(letters) >= GOOD * 0.05
    assert len({(letter.partition, letter.offset, letter.index) for letter in letters}) == len(letters)
    assert with_poison.status.samples == without.status.samples == GOOD
    assert with_poison.status.events.dead_letters == len(letters) == sum(m.rejected for m in with_poison.manifests)
    assert with_poison.rows_RT.tobytes() == without.rows_RT.tobytes()
    assert {n: w.tobytes() for n, w in with_poison.dense.items()} == {n: w.tobytes() for n, w in without.dense.items()}


def test_every_kind_of_poison_has_its_reason(write_topic: WriteTopic) -> None:
    plan = Plan(write_topic(GOOD, poison=0.2))
    train(plan)
    letters = {letter.payload: letter.reason for letter in read_dead_letters(plan.stream.folder)}
    good, found = list(islice(synthetic_events(3), GOOD)), {}
    for kind, poison in POISON.items():
        payloads = (poison(event, plan.schema)[:KEPT_BYTES] for event in good)
        found[kind] = next((letters[payload] for payload in payloads if payload in letters), None)
    assert set(REASONS) == set(POISON)
    assert {kind for kind, reason in REASONS.items() if not re.match(reason, found[kind] or "")} == set(), found


@pytest.mark.parametrize("limit", [1, 64, 1000])
def test_produced_is_trained_plus_dead_lettered_plus_in_flight(write_topic: WriteTopic, limit: int) -> None:
    plan = Plan(write_topic(GOOD, poison=0.1), samples=limit)
    produced = events_after(plan, [])
    result = train(plan)
    assert result.status.samples == limit
    in_flight = events_after(plan, result.manifests)
    assert produced == result.status.samples + result.status.events.dead_letters + in_flight


def test_a_stop_in_mid_run_completes_the_steps_under_way(write_topic: WriteTopic) -> None:
    plan, stop = Plan(write_topic(MORE_THAN_NEEDED)), Stop()

    def stop_later(*_: object) -> None:
        wait_for_steps(plan, 5)
        stop.request("test")

    result = train(plan, stop, stop_later)
    assert 5 * plan.batch <= result.status.samples == sum(m.samples for m in result.manifests) < MORE_THAN_NEEDED
    assert result.status.state == "done"
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)


@pytest.mark.parametrize(("name", "reduce"), [("worker-late", "hub"), ("a-name-that-sorts-first", "ring")])
def test_a_worker_that_comes_and_one_that_goes_start_new_generations(
    write_topic: WriteTopic, name: str, reduce: Reduce
) -> None:
    plan, seen = Plan(write_topic(MORE_THAN_NEEDED), workers=1, batch=32, reduce=reduce), Stop()

    def come_and_go(threads: Threads, dispatcher: str, shards: tuple[str, ...]) -> None:
        leave = Stop()
        wait_for_steps(plan, 5, generation=1)
        start_worker(threads, plan, name, dispatcher, leave)
        wait_for_steps(plan, 5, generation=2)
        leave.request("test")
        wait_for_steps(plan, 5, generation=3)
        seen.request("three generations")

    result = train(plan, seen, come_and_go)
    assert result.status.generation == 3
    assert {w.name for w in result.status.workers if w.traffic.samples} == {"worker-0", name}
    assert result.status.samples == sum(m.samples for m in result.manifests) < MORE_THAN_NEEDED
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)


def test_workers_that_could_use_nccl_change_to_a_ring_and_back(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.main.nccl_device", lambda _: f"GPU {threading.get_ident()}")
    plan, hubs, seen = Plan(write_topic(MORE_THAN_NEEDED), workers=1, batch=32), list[bool](), Stop()
    begin = Worker.begin

    def listening(worker: Worker, welcome: Welcome) -> None:
        hubs.append(welcome.uses_hub)
        begin(worker, welcome)

    monkeypatch.setattr(Worker, "begin", listening)

    def come_and_go(threads: Threads, dispatcher: str, shards: tuple[str, ...]) -> None:
        leave = Stop()
        wait_for_steps(plan, 5, generation=1)
        start_worker(threads, plan, "worker-1", dispatcher, leave)
        wait_for_steps(plan, 5, generation=2)
        leave.request("test")
        wait_for_steps(plan, 5, generation=3)
        seen.request("three generations")

    result = train(plan, seen, come_and_go)
    assert hubs == [True, False, False, True]
    assert result.status.samples == sum(m.samples for m in result.manifests) < MORE_THAN_NEEDED
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)


@pytest.mark.parametrize("reduce", ["hub", "ring"])
def test_a_worker_that_replaces_the_only_one_gets_its_dense_weights(write_topic: WriteTopic, reduce: Reduce) -> None:
    plan = Plan(write_topic(MORE_THAN_NEEDED), workers=1, batch=32, reduce=reduce)
    first_leaves, seen = Stop(), Stop()

    def replace(threads: Threads, dispatcher: str, shards: tuple[str, ...]) -> None:
        wait_for_steps(plan, 5, generation=1)
        start_worker(threads, plan, "a-newcomer", dispatcher)
        wait_for_steps(plan, 1, generation=2)
        first_leaves.request("test")
        wait_for_steps(plan, 5, generation=3)
        seen.request("three generations")

    result = train(plan, seen, replace, worker_stop=first_leaves)
    assert {w.name for w in result.status.workers if w.traffic.samples} == {"worker-0", "a-newcomer"}
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)


def test_when_the_last_worker_leaves_the_run_ends_and_keeps_what_it_learned(write_topic: WriteTopic) -> None:
    plan, leaves = Plan(write_topic(MORE_THAN_NEEDED), workers=2, batch=32), Stop()

    def leave(*_: object) -> None:
        wait_for_steps(plan, 5)
        leaves.request("test")

    stop = Stop()
    result = train(plan, stop, leave, worker_stop=leaves)
    assert stop.reason == "the last worker left"
    assert 0 < result.status.samples < MORE_THAN_NEEDED
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)


@pytest.mark.parametrize("policy", ["esd:1", "fae:0.25:2"])
def test_fewer_workers_get_larger_caches_if_they_need_them(write_topic: WriteTopic, policy: str) -> None:
    plan, leaves = Plan(write_topic(2_000), workers=2, policy=policy, batch=32, cache_rows=200), Stop()

    def leave(*_: object) -> None:
        wait_for_steps(plan, 5)
        leaves.request("test")

    result = train(paused(plan, 20, lambda: has_generation(plan, 2)), beside=leave, leaving_worker=leaves)
    assert (result.status.generation, result.status.samples) == (2, 2_000)
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)


def test_a_hot_set_that_leaves_no_room_for_a_micro_batch_is_refused_at_start(write_topic: WriteTopic) -> None:
    with pytest.raises(CacheTooSmall, match="hot set is too large; its 100 rows leave 100 of 200 slots"):
        train(Plan(write_topic(100), workers=2, policy="fae:0.5", batch=32, cache_rows=200))


def test_a_second_worker_of_one_name_and_a_stranger_change_nothing(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.base.process.CLAIM_SECONDS", 0.0)
    monkeypatch.setattr("trainer.dispatcher.QUIET_SECONDS", SOON_SECONDS)  # the run trains on until it is refused again
    plan, seen = Plan(write_topic(MORE_THAN_NEEDED), workers=1, batch=32), Stop()
    told: list[BaseException] = []

    def steps() -> int:
        return len(read_manifests(plan.folder / "journal"))

    def disturb(threads: Threads, dispatcher: str, shards: tuple[str, ...]) -> None:
        wait_for_steps(plan, 2)
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.connect(dispatcher)
            socket.send_multipart([b"hello", b"there"])
            assert socket.poll(30_000), "the stranger is answered"
        start_worker(threads, plan, "worker-0", dispatcher)
        wait_until(lambda: bool(threads.errors))
        told.append(threads.errors.pop())
        before = steps()
        wait_until(lambda: steps() > before + 4)  # more than may have been on their way
        seen.request("the run went on")

    result = train(plan, seen, disturb)
    assert [type(error) for error in told] == [NameTaken]
    assert "another process is worker 'worker-0', and is alive" in str(told[0])
    assert result.status.generation == 1
    assert result.status.samples == sum(m.samples for m in result.manifests) < MORE_THAN_NEEDED
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)
    assert model_of(train(golden(plan))) == model_of(result)


def test_a_model_that_runs_away_is_told(write_topic: WriteTopic) -> None:
    rows = RowConfig(optimizer="sgd", rate=1e30, wide_rate=1e30)
    with capture_logs() as logs:
        result = train(Plan(write_topic(1_000), rows=rows))
    assert 0 < result.status.quality.not_finite <= 1_000
    (told,) = [line for line in logs if "not finite" in line["event"]]
    assert set(told["workers"]) <= {"worker-0", "worker-1"}
    assert told["workers"]


@pytest.mark.parametrize(("batch", "reduce"), [(1, "hub"), (3, "hub"), (3, "ring")])
def test_batches_smaller_than_the_crew_are_exact(write_topic: WriteTopic, batch: int, reduce: Reduce) -> None:
    plan = Plan(write_topic(60), workers=4, batch=batch, reduce=reduce)
    result = train(plan)
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)


def test_a_worker_that_waits_longer_than_silence_allows_is_kept(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the worker's clock, which goes on after each word that it hears by less than the limit, and else stands."""
    monkeypatch.setattr("dispatch.coordinator.KEEP_ALIVE_SECONDS", 0.01)
    plan = Plan(write_topic(500), workers=2, silence_seconds=20.0, started_workers=1)
    now, waited_long = [0.0], threading.Event()

    def hear(*arguments: Any) -> Any:
        message, arrays = receive(*arguments)
        if isinstance(message, Idle) and not waited_long.is_set():
            now[0] += 0.75 * plan.silence_seconds
        if now[0] > 3 * plan.silence_seconds:
            waited_long.set()
        return message, arrays

    monkeypatch.setattr("trainer.dispatcher.receive", hear)
    monkeypatch.setattr("trainer.dispatcher.time", SimpleNamespace(monotonic=lambda: now[0]))

    def come_late(threads: Threads, dispatcher: str, shards: tuple[str, ...]) -> None:
        assert waited_long.wait(WAIT_SECONDS), "the worker that waits hears nothing"
        start_worker(threads, plan, "worker-1", dispatcher)

    assert train(plan, beside=come_late).status.samples == 500


def test_a_run_of_events_of_another_schema_says_so(write_topic: WriteTopic) -> None:
    status = train(Plan(write_topic(1_200), schema_name="criteo")).status
    assert (status.samples, len(status.fields.absent)) == (1_200, 39)
    assert set(status.fields.present.values()) == {0.0}


def test_a_run_that_stops_for_absent_fields_trains_none_of_their_events(write_topic: WriteTopic) -> None:
    plan = Plan(write_topic(1_200), schema_name="criteo", on_absent_field="stop")
    with pytest.raises(AbsentField, match="'criteo' are absent from all of the first 1,200 events"):
        train(plan)
    assert read_manifests(plan.folder / "journal") == []


def test_a_run_that_is_over_stays_over(write_topic: WriteTopic) -> None:
    plan = Plan(write_topic(100))
    train(plan)
    with pytest.raises(RunEnded, match=r"is over: it ended after step 2 \(end of stream\)"):
        train(plan)


def test_a_cache_that_cannot_hold_a_micro_batch_is_refused_before_anything_starts(write_topic: WriteTopic) -> None:
    folder: Path = write_topic(100)
    with pytest.raises(CacheTooSmall, match=r"raise dispatch\.cache_rows"):
        train(Plan(folder, cache_rows=100))
    assert not (folder / "dense.safetensors").exists()
