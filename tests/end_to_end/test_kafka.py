"""Whole runs over a real broker: equal to the embedded log, through a broker's death, a growing topic, duplicates."""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dispatch.journal.history import read_manifests
from infra.base.process import Stop
from infra.kafka.broker import Broker
from ingest.batches.manifest import Manifest
from ingest.codec.json_events import encode_json
from ingest.errors import SourceUnavailable
from ingest.kafka.config import Client, KafkaConfig
from ingest.kafka.source import KafkaSource
from ingest.log.embedded import LogReader, LogWriter
from ingest.streams.source import Record
from tests.brokers import TestBroker, admin, fill_topic, producer, running_broker, send
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.interrupting import interrupt
from tests.end_to_end.processes import wait_until
from tests.end_to_end.threads import WAIT_SECONDS, Plan, Threads, batches, model_of, train, wait_for_steps
from tests.ingest.topics import events

DOWN_SECONDS = float(os.environ.get("KAFKA_DOWN_SECONDS", "1"))
"""how long the broker stays dead; docs/operations.md tells how to try it for longer"""
LARGE_BYTES = 4 << 20
"""poison has records of over a megabyte"""
CLIENTS: tuple[Client, ...] = ("kafka-python", "confluent-kafka")


def copy_log(folder: Path, kafka: TestBroker, topic: str) -> None:
    """The same records, per partition, as the embedded log holds."""
    reader = LogReader(folder / "log", "clicks")
    for partition in reader.partitions():
        records: list[Record] = []
        while len(records) < reader.span(partition)[1]:
            records += reader.read(partition, len(records))
        copied = {partition: [record.payload for record in records]}
        fill_topic(kafka.config(), topic, copied, max_request_size=LARGE_BYTES)
    reader.close()


@pytest.mark.parametrize(("client", "packed", "poison"), [(CLIENTS[0], 0, 0.05), (CLIENTS[1], 16, 0.0)])
def test_a_run_over_kafka_equals_the_run_over_the_log_bit_for_bit(
    kafka: TestBroker, write_topic: WriteTopic, tmp_path: Path, client: Client, packed: int, poison: float
) -> None:
    folder = write_topic(600, partitions=3, packed=packed, poison=poison)
    topic = kafka.new_topic(partitions=3, **{"max.message.bytes": str(LARGE_BYTES)})
    copy_log(folder, kafka, topic)
    over_log = train(Plan(folder, workers=2))
    plan = Plan(tmp_path / "kafka", workers=2, open_source=lambda: KafkaSource(kafka.config(client), topic))
    over_kafka = train(plan)
    assert over_kafka.manifests == over_log.manifests
    assert sum(manifest.samples for manifest in over_log.manifests) == 600
    assert np.array_equal(over_kafka.rows_RT, over_log.rows_RT)
    assert np.array_equal(over_kafka.last_steps_R, over_log.last_steps_R)
    assert over_kafka.dense.keys() == over_log.dense.keys()
    assert all(np.array_equal(over_kafka.dense[name], over_log.dense[name]) for name in over_log.dense)
    assert over_kafka.status.quality.logloss == over_log.status.quality.logloss


@pytest.mark.parametrize("client", CLIENTS)
def test_an_interrupted_run_over_kafka_goes_on_and_equals_the_run_over_the_log(
    kafka: TestBroker, write_topic: WriteTopic, tmp_path: Path, client: Client
) -> None:
    folder = write_topic(600, partitions=3, packed=16)
    topic = kafka.new_topic(partitions=3)
    copy_log(folder, kafka, topic)
    over_log = train(Plan(folder, policy="random"))
    source, patience = (lambda: KafkaSource(kafka.config(client), topic)), 20.0
    plan = Plan(tmp_path / "kafka", policy="random", open_source=source, silence_seconds=patience)
    interrupt(plan, 6)
    over_kafka = train(plan)
    assert [manifest.ranges for manifest in over_kafka.manifests] == [m.ranges for m in over_log.manifests]
    assert model_of(over_kafka) == model_of(over_log)


def payloads(count: int, partitions: int, first: int = 0) -> dict[int, list[bytes]]:
    """Different events, one after the other over the partitions."""
    encoded = [encode_json(event) for event in events(first + count)[first:]]
    return {number: encoded[number::partitions] for number in range(partitions)}


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("own")) as broker:
        yield broker


class UnreadUntil(KafkaSource):
    """A topic whose last records are not read until something has happened."""

    def __init__(self, config: KafkaConfig, topic: str, last: int, has_happened: threading.Event) -> None:
        super().__init__(config, topic)
        self._last, self._has_happened = last, has_happened

    def read(self, partition: int, offset: int, max_bytes: int = 1 << 20) -> list[Record]:
        if offset >= self._last and not self._has_happened.is_set():
            raise SourceUnavailable("not yet")
        return super().read(partition, offset, max_bytes)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_broker_that_dies_and_comes_back_costs_no_event_and_none_is_trained_twice(
    own_broker: Broker, tmp_path: Path, client: Client
) -> None:
    test = TestBroker((own_broker.address,))
    # Small answers and buffers, so that most of the topic is still unread when the broker dies.
    topic, config = test.new_topic(partitions=2), test.config(client, fetch_bytes=16384, buffer_bytes=8192)
    fill_topic(config, topic, payloads(1280, 2), batch_size=2048)
    is_dead = threading.Event()
    plan = Plan(tmp_path, stop_at_end=False, open_source=lambda: UnreadUntil(config, topic, 320, is_dead))
    stop, threads, results = Stop(), Threads(), []
    threads.start(lambda: results.append(train(plan, stop)))
    wait_for_steps(plan, 3)
    died = own_broker.pid
    own_broker.kill()
    is_dead.set()
    assert sum(manifest.samples for manifest in read_manifests(tmp_path / "journal")) < 1280
    time.sleep(DOWN_SECONDS)
    own_broker.start()
    assert own_broker.pid != died
    fill_topic(config, topic, payloads(320, 2, first=1280))
    wait_for_samples(plan, threads, 1600)
    stop.request("all trained")
    threads.join()
    assert results[0].status.samples == 1600
    assert results[0].status.events.lag == 0
    check_once_each(results[0].manifests, {0: 800, 1: 800})


def wait_for_samples(plan: Plan, threads: Threads, samples: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS + DOWN_SECONDS
    while sum(manifest.samples for manifest in read_manifests(plan.folder / "journal")) < samples:
        assert not threads.errors, threads.errors
        assert time.monotonic() < deadline, "training did not go on"
        time.sleep(0.02)


def check_once_each(manifests: Sequence[Manifest], ends: dict[int, int]) -> None:
    """Ranges of each partition follow each other without a gap or an overlap, from 0 to the end."""
    for partition, end in ends.items():
        ranges = [r for manifest in manifests for r in manifest.ranges if r.partition == partition]
        assert ranges[0].start.offset == 0
        assert ranges[-1].end.offset == end
        assert all(before.end == after.start for before, after in pairwise(ranges))


@pytest.mark.parametrize("client", CLIENTS)
def test_a_topic_that_grows_in_mid_run_is_trained_whole(kafka: TestBroker, tmp_path: Path, client: Client) -> None:
    topic, config = kafka.new_topic(partitions=4), kafka.config(client)
    fill_topic(config, topic, payloads(256, 4))
    plan = Plan(tmp_path, stop_at_end=False, open_source=lambda: KafkaSource(config, topic))
    stop, threads, results = Stop(), Threads(), []
    threads.start(lambda: results.append(train(plan, stop)))
    wait_for_steps(plan, 2)
    with admin(config) as broker:
        broker.create_partitions({topic: 8})
    fill_topic(config, topic, payloads(512, 8, first=256))
    wait_for_samples(plan, threads, 768)
    stop.request("all trained")
    threads.join()
    assert results[0].status.samples == 768
    check_once_each(results[0].manifests, {number: 128 if number < 4 else 64 for number in range(8)})


@pytest.mark.parametrize("over_kafka", [False, True])
def test_events_over_the_lag_bound_are_skipped_and_every_event_is_accounted_for(
    kafka: TestBroker, tmp_path: Path, over_kafka: bool
) -> None:
    topic, config = kafka.new_topic(partitions=2), kafka.config()

    def write(count: int, first: int) -> None:
        parts = payloads(count, 2, first)
        if over_kafka:
            fill_topic(config, topic, parts)
            return
        with closing(LogWriter(tmp_path / "log", "clicks", 2)) as writer:
            for number, part in parts.items():
                writer.append(number, [(None, payload) for payload in part])

    write(500, 0)
    source = (lambda: KafkaSource(config, topic)) if over_kafka else None
    plan = Plan(tmp_path, stop_at_end=False, lag_bound=100, open_source=source)
    stop, threads, results = Stop(), Threads(), []
    threads.start(lambda: results.append(train(plan, stop)))
    wait_until(lambda: accounted(plan) == 500)
    write(64, 500)
    wait_for_samples(plan, threads, 64)
    stop.request("all accounted for")
    threads.join()
    status, skipped = results[0].status, sum(m.skipped_events for m in results[0].manifests)
    assert (status.samples, status.events.skipped, skipped, status.events.lag) == (64, 500, 500, 0)


def accounted(plan: Plan) -> int:
    """Events trained, rejected or skipped, going by the manifests."""
    return sum(m.samples + m.rejected + m.skipped_events for m in read_manifests(plan.folder / "journal"))


def test_an_event_delivered_twice_is_trained_twice_and_every_delivery_once(kafka: TestBroker, tmp_path: Path) -> None:
    topic, config = kafka.new_topic(partitions=1), kafka.config()
    event = encode_json(events(1)[0])
    fill_topic(config, topic, {0: [event] * 3 + payloads(61, 1, first=1)[0]})
    plan = Plan(tmp_path, open_source=lambda: KafkaSource(config, topic))
    result = train(plan)
    assert result.status.samples == 64
    (samples,) = batches(plan, result.manifests)
    assert max(Counter(keys.tobytes() for keys in samples.keys_BF).values()) == 3


def test_the_group_shows_where_the_run_is(kafka: TestBroker, tmp_path: Path) -> None:
    topic, group = kafka.new_topic(partitions=2), kafka.new_name()
    fill_topic(kafka.config(), topic, payloads(128, 2))
    train(Plan(tmp_path, open_source=lambda: KafkaSource(kafka.config(group=group), topic)))
    assert kafka.committed(group) == {(topic, 0): 64, (topic, 1): 64}


def test_offsets_with_gaps_are_trained_to_their_end(kafka: TestBroker, tmp_path: Path) -> None:
    topic, config = kafka.new_topic(partitions=1), kafka.config()
    parts = payloads(96, 3)
    with producer(config, transactional_id=kafka.new_name()) as client:
        client.init_transactions()
        for number, end in ((0, "commit"), (1, "abort"), (2, "commit")):
            client.begin_transaction()
            send(client, topic, 0, parts[number])
            getattr(client, f"{end}_transaction")()
    result = train(Plan(tmp_path, open_source=lambda: KafkaSource(config, topic)))
    assert result.status.samples == 64
    assert result.status.events.lag == 0
