"""A run over a real broker whose workers, dispatcher and broker come and go: each event is trained or dead, once."""

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatch.coordinator import Coordinator
from dispatch.intake import Intake
from infra.base.process import Stop
from infra.kafka.broker import Broker
from ingest.codec.json_events import encode_json
from ingest.kafka.letter_topic import read_kafka_letters
from ingest.kafka.source import KafkaSource
from ps.config import CheckpointConfig, RowConfig
from tests.brokers import TestBroker, fill_topic, running_broker
from tests.end_to_end.interrupting import golden
from tests.end_to_end.operating import (
    crash_once,
    digests,
    history_of,
    members,
    operated,
    restarted,
    tell,
    wait_for,
    wait_for_more,
    wait_until_at_rest,
)
from tests.end_to_end.threads import Plan, Result, Threads, start_worker, train
from tests.ingest.topics import events

EVENTS, POISON_EVERY = 4_000, 25


def poisoned() -> list[bytes]:
    """Events, of which every so many cannot be read."""
    encoded = [encode_json(event) for event in events(EVENTS)]
    return [b"{" if number % POISON_EVERY == 0 else event for number, event in enumerate(encoded)]


class Outage:
    """Kills the broker when the dispatcher that was started again forms its first batch."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self._broker, self._form_again = broker, Intake.form_again
        self.pids: list[int | None] = []
        monkeypatch.setattr(Intake, "form_again", lambda intake, *given: self._strike(intake, *given))

    def _strike(self, intake: Intake, *given: Any) -> Any:
        if not self.pids:
            self._broker.kill()
            self.pids.append(self._broker.pid)
        return self._form_again(intake, *given)

    def end(self) -> None:
        """Waits until it has begun, and starts the broker, which ends with the thread that does so."""
        wait_for(lambda: bool(self.pids), "the broker is away")
        self._broker.start()
        self.pids.append(self._broker.pid)


def test_members_pauses_a_crash_and_an_outage_amid_the_recovery_cost_no_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_broker(tmp_path / "broker") as broker:
        test = TestBroker((broker.address,))
        topic, letters, config = test.new_topic(partitions=2), test.new_topic(partitions=1), test.config()
        fill_topic(config, topic, {number: poisoned()[number::2] for number in range(2)})
        plan = operated(
            tmp_path / "run",
            policy="esd:1",
            batch=16,
            rows=RowConfig(dim=4),
            checkpoints=CheckpointConfig(seconds=0, kept=100),
            stop_at_end=False,
            open_source=lambda: KafkaSource(config, topic),
            kafka=config,
            topic=topic,
            dead_letter_topic=letters,
        )
        stop, is_time = Stop(), threading.Event()

        def operate(threads: Threads, dispatcher: str) -> None:
            wait_for_more(plan, 3)
            start_worker(threads, plan, "worker-2", dispatcher)
            wait_for(lambda: len(members(plan)) == 3, "the third has joined")
            tell(plan, "drain", "worker-0")
            wait_for(lambda: list(members(plan)) == ["worker-1", "worker-2"], "the first has left")
            tell(plan, "pause")
            wait_until_at_rest(plan)
            tell(plan, "resume")
            wait_for_more(plan, 3)
            is_time.set()
            outage.end()
            wait_for_more(plan, 5)

        crash_once(monkeypatch, Coordinator, "announce", lambda *_: is_time.is_set())
        outage = Outage(broker, monkeypatch)
        with restarted(monkeypatch, plan) as crashes:
            result = train_meanwhile(plan, stop, operate)
        assert (len(crashes), len(set(outage.pids))) == (1, 2)
        expect_each_once(plan, [(x.partition, x.offset) for x in read_kafka_letters(config, letters)])
        monkeypatch.undo()
        again = golden(plan, workers=3, kafka=None, policy="random")
        assert digests(again, train(again)) == digests(plan, result)


def train_meanwhile(plan: Plan, stop: Stop, operate: Callable[[Threads, str], None]) -> Result:
    """Trains in other threads, and stops when that is done."""
    runner, results, started = Threads(), list[Result](), list[tuple[Threads, str]]()
    runner.start(lambda: results.append(train(plan, stop, lambda *given: started.append(given[:2]))))
    try:
        wait_for(lambda: bool(started), "the run has started")
        operate(*started[0])
    finally:
        stop.request("all has happened")
        runner.join()
    return results[0]


def expect_each_once(plan: Plan, letters: list[tuple[int, int]]) -> None:
    """Every event that a step took is trained or one letter; ranges tile, as reading the journal checks."""
    history = history_of(plan)
    assert Counter(letters) == Counter(set(letters))
    assert len(letters) == sum(step.manifest.rejected for step in history.steps) > 2
    taken = sum(at.offset for at in history.positions.values())
    assert taken == history.samples + len(letters)
