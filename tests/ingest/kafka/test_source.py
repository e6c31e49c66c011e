"""Both client libraries behind one source, against a real broker."""

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from kafka.structs import TopicPartition

from ingest.batches.job import LoaderJob, OutOfRange
from ingest.batches.loader import Loader
from ingest.codec.json_events import encode_json
from ingest.errors import OffsetOutOfRange, SourceError, SourceUnavailable
from ingest.kafka.clients.base import Fetched
from ingest.kafka.config import Client
from ingest.kafka.source import KafkaSource
from ingest.streams.position import Position, Range
from ingest.streams.source import Record
from tests.brokers import TestBroker, admin, fill_topic, producer, send
from tests.ingest.topics import SYNTHETIC, drain, events

CLIENTS: tuple[Client, ...] = ("kafka-python", "confluent-kafka")
Open = Callable[..., KafkaSource]


@pytest.fixture(params=CLIENTS)
def open_source(request: pytest.FixtureRequest, kafka: TestBroker) -> Iterator[Open]:
    """Opens sources on one of the libraries, and closes them."""
    opened: list[KafkaSource] = []

    def opening(topic: str, **values: object) -> KafkaSource:
        opened.append(KafkaSource(kafka.config(request.param, **values), topic))
        return opened[-1]

    yield opening
    for source in opened:
        source.close()


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [str(number).encode() for number in range(first, first + count)]


def read_all(source: KafkaSource, partition: int, offset: int = 0, max_bytes: int = 1 << 20) -> list[Record]:
    """To the end."""
    records: list[Record] = []
    while more := patiently(source, partition, records[-1].offset + 1 if records else offset, max_bytes):
        records += more
    return records


def patiently(source: KafkaSource, partition: int, offset: int, max_bytes: int = 1 << 20) -> list[Record]:
    """As the loader does: what is not available now is asked for again."""
    while True:
        with suppress(SourceUnavailable):
            return source.read(partition, offset, max_bytes)


def payloads(records: list[Record]) -> list[bytes]:
    return [record.payload for record in records]


def test_records_come_back_in_the_order_of_each_partition(kafka: TestBroker, open_source: Open) -> None:
    topic = kafka.new_topic(partitions=2)
    fill_topic(kafka.config(), topic, {0: numbered(300), 1: numbered(20, 1000)})
    source = open_source(topic)
    assert source.partitions() == [0, 1]
    assert (source.span(0), source.span(1)) == ((0, 300), (0, 20))
    first = patiently(source, 0, 0, max_bytes=30)
    assert 0 < len(first) < 300
    assert payloads(first + read_all(source, 0, first[-1].offset + 1)) == numbered(300)
    assert payloads(read_all(source, 1)) == numbered(20, 1000)
    assert patiently(source, 1, 20) == []


@pytest.mark.parametrize("clock", ["CreateTime", "LogAppendTime"])
def test_whose_times_the_records_have_is_known_once_some_were_read(
    kafka: TestBroker, open_source: Open, clock: str
) -> None:
    topic = kafka.new_topic(partitions=1, **{"message.timestamp.type": clock})
    fill_topic(kafka.config(), topic, {0: numbered(3)})
    source = open_source(topic)
    assert source.clock == ""
    assert all(record.time_ms > 1e12 for record in read_all(source, 0))
    assert source.clock == clock


@pytest.mark.parametrize("compression", ["gzip", "lz4", "zstd"])
def test_compressed_records_are_read(kafka: TestBroker, open_source: Open, compression: str) -> None:
    topic = kafka.new_topic(partitions=1)
    fill_topic(kafka.config(), topic, {0: numbered(50)}, compression_type=compression)
    assert payloads(read_all(open_source(topic), 0)) == numbered(50)


def test_reading_may_begin_again_anywhere(kafka: TestBroker, open_source: Open) -> None:
    topic = kafka.new_topic(partitions=1)
    fill_topic(kafka.config(), topic, {0: numbered(100)})
    source = open_source(topic)
    for offset in (70, 10, 99, 0, 0):
        assert patiently(source, 0, offset)[0].offset == offset


def test_records_that_come_later_are_read(kafka: TestBroker, open_source: Open) -> None:
    topic = kafka.new_topic(partitions=1)
    source = open_source(topic)
    assert patiently(source, 0, 0) == []
    fill_topic(kafka.config(), topic, {0: numbered(3)})
    records: list[Record] = []
    while len(records) < 3:
        records += patiently(source, 0, len(records))
    assert payloads(records) == numbered(3)


def test_a_read_ends_as_soon_as_its_records_are_there(kafka: TestBroker, open_source: Open) -> None:
    topic = kafka.new_topic(partitions=1)
    source = open_source(topic)
    assert patiently(source, 0, 0) == []
    fill_topic(kafka.config(), topic, {0: numbered(3)})
    poll = source._consumer.poll
    came: dict[int, Fetched] = {}

    def poll_once(seconds: float) -> dict[int, Fetched]:
        assert not came, f"waits {seconds} s for more"
        while not came:
            came.update({partition: found for partition, found in poll(0.05).items() if found.records})
        return came

    source._consumer.poll = poll_once  # type: ignore[method-assign]
    assert payloads(patiently(source, 0, 0)) == payloads(came[0].records) != []


def test_a_partition_that_has_enough_ready_is_paused_and_loses_nothing(kafka: TestBroker, open_source: Open) -> None:
    topic = kafka.new_topic(partitions=2)
    big = [bytes([number % 256]) * 1000 for number in range(400)]
    fill_topic(kafka.config(), topic, {0: big, 1: big})
    source = open_source(topic, buffer_bytes=40_000, fetch_bytes=80_000)
    patiently(source, 1, 0, 1)
    seen = 0
    for record in read_all(source, 0, max_bytes=5000):
        assert record.payload == big[record.offset]
        seen = max(seen, source._buffers[1].size_bytes)
    assert source._paused == {1}
    client_queue = (64 << 10) + 80_000 // 4  # what librdkafka keeps ready of a partition, and one answer beyond it
    assert seen <= 40_000 + client_queue, "a partition with less than it may have, and one poll"
    assert payloads(read_all(source, 1)) == big


def test_what_a_transaction_leaves_behind_is_a_gap(kafka: TestBroker, open_source: Open) -> None:
    topic = kafka.new_topic(partitions=1)
    with producer(kafka.config(), transactional_id=kafka.new_name()) as client:
        client.init_transactions()
        for numbers, end in ((numbered(3), "commit"), (numbered(4, 10), "abort"), (numbered(2, 20), "commit")):
            client.begin_transaction()
            send(client, topic, 0, numbers)
            getattr(client, f"{end}_transaction")()
    source = open_source(topic)
    records = read_all(source, 0)
    assert [record.offset for record in records] == [0, 1, 2, 9, 10]
    assert payloads(records) == [*numbered(3), *numbered(2, 20)]
    assert source.span(0) == (0, 11)  # and not the marker behind the last record, which nobody can read


def test_a_read_ends_where_nothing_but_the_marker_of_a_transaction_is_left(
    kafka: TestBroker, open_source: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingest.kafka.source.WAIT_SECONDS", 30.0)
    topic = kafka.new_topic(partitions=1)
    with producer(kafka.config(), transactional_id=kafka.new_name()) as client:
        client.init_transactions()
        client.begin_transaction()
        send(client, topic, 0, numbered(3))
        client.commit_transaction()
    source = open_source(topic)
    assert source.span(0) == (0, 4)
    assert source.read(0, 3) == []


def test_an_open_transaction_is_not_seen_until_it_is_committed(kafka: TestBroker, open_source: Open) -> None:
    topic = kafka.new_topic(partitions=1)
    source = open_source(topic)
    with producer(kafka.config(), transactional_id=kafka.new_name()) as client:
        client.init_transactions()
        client.begin_transaction()
        send(client, topic, 0, numbered(3))
        assert patiently(source, 0, 0) == []
        client.commit_transaction()
    records: list[Record] = []
    while len(records) < 3:
        records += patiently(source, 0, len(records))
    assert payloads(records) == numbered(3)


def test_a_record_without_a_value_is_an_empty_one(kafka: TestBroker, open_source: Open) -> None:
    topic = kafka.new_topic(partitions=1)
    fill_topic(kafka.config(), topic, {0: [b"a", None, b"b"]})
    assert payloads(read_all(open_source(topic), 0)) == [b"a", b"", b"b"]


def test_records_that_are_gone_are_reported_with_what_is_left(kafka: TestBroker, open_source: Open) -> None:
    topic = kafka.new_topic(partitions=1)
    fill_topic(kafka.config(), topic, {0: numbered(10)})
    delete_records(kafka, topic, 6)
    source = open_source(topic)
    with pytest.raises(OffsetOutOfRange, match=r"record 2 of partition 0.* holds 6 to 9; expected"):
        patiently(source, 0, 2)
    with pytest.raises(OffsetOutOfRange, match=r"record 11 of partition 0.* holds 6 to 9"):
        patiently(source, 0, 11)
    assert payloads(read_all(source, 0, 6)) == numbered(4, 6)


@pytest.mark.parametrize("policy", ["earliest", "newest"])
def test_a_loader_goes_on_where_the_policy_says_when_records_are_gone(
    kafka: TestBroker, open_source: Open, policy: OutOfRange
) -> None:
    topic = kafka.new_topic(partitions=1)
    fill_topic(kafka.config(), topic, {0: [encode_json(event) for event in events(40)]})
    delete_records(kafka, topic, 24)
    job = LoaderJob(SYNTHETIC, 16, {0: Position(0)}, stop_at_end=True, on_out_of_range=policy)
    batches = list(drain(Loader(open_source(topic), job)))
    to = 24 if policy == "earliest" else 40
    assert batches[0].skipped == (Range(0, Position(0), Position(to)),)
    assert sum(len(batch.samples) for batch in batches) == 40 - to


def test_new_partitions_are_noticed(kafka: TestBroker, open_source: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingest.kafka.source.DESCRIBE_SECONDS", 0.0)
    topic = kafka.new_topic(partitions=1)
    source = open_source(topic)
    assert source.partitions() == [0]
    grow(kafka, topic, 3)
    while source.partitions() != [0, 1, 2]:
        pass
    fill_topic(kafka.config(), topic, {2: numbered(5)})
    assert payloads(read_all(source, 2)) == numbered(5)


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_deleted_stops_the_reader(
    kafka: TestBroker, open_source: Open, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    monkeypatch.setattr("ingest.kafka.source.DESCRIBE_SECONDS", 0.0)
    topic = kafka.new_topic(partitions=1)
    fill_topic(kafka.config(), topic, {0: numbered(5)})
    source = open_source(topic)
    patiently(source, 0, 0, 1)
    with admin(kafka.config()) as client:
        client.delete_topics([topic])
    if again:
        kafka.create(topic, 1)
    with pytest.raises(SourceError, match=rf"{topic}' has been deleted .*start a new run"):
        look_for_ever(source)


def test_a_topic_that_is_not_there_is_reported_at_the_start(kafka: TestBroker, open_source: Open) -> None:
    with pytest.raises(SourceError, match=r"topic 'nowhere' is not on Kafka at .*; expected it .*create it"):
        open_source("nowhere")


def test_a_broker_that_is_not_there_is_reported_at_the_start(open_source: Open) -> None:
    with pytest.raises(SourceError, match=r"127\.0\.0\.1:9.*; (expected|check)"):
        open_source("clicks", servers=("127.0.0.1:9",), request_seconds=1)


def test_a_time_is_turned_into_an_offset(kafka: TestBroker, open_source: Open) -> None:
    topic = kafka.new_topic(partitions=1)
    with producer(kafka.config()) as client:
        for number in range(10):
            client.send(topic, value=b"x", partition=0, timestamp_ms=1_000_000 + 1000 * number).get(30)
    source = open_source(topic)
    assert source.offset_at(0, 1_003_500) == 4
    assert source.offset_at(0, 0) == 0
    assert source.offset_at(0, 2_000_000) == 10


def test_the_group_shows_how_far_a_run_is_and_is_never_read_back(kafka: TestBroker, open_source: Open) -> None:
    topic, group = kafka.new_topic(partitions=2), kafka.new_name()
    fill_topic(kafka.config(), topic, {0: numbered(9), 1: numbered(9)})
    source = open_source(topic, group=group)
    read_all(source, 0)
    source.commit({0: 7, 1: 3})
    source.close()
    assert committed(kafka, group, topic) == {0: 7, 1: 3}
    assert payloads(read_all(open_source(topic, group=group), 0)) == numbered(9)


def look_for_ever(source: KafkaSource) -> None:
    while True:
        source.partitions()


def committed(kafka: TestBroker, group: str, topic: str) -> dict[int, int]:
    return {partition: offset for (name, partition), offset in kafka.committed(group).items() if name == topic}


def delete_records(kafka: TestBroker, topic: str, before: int) -> None:
    with admin(kafka.config()) as client:
        client.delete_records({TopicPartition(topic, 0): before})


def grow(kafka: TestBroker, topic: str, partitions: int) -> None:
    with admin(kafka.config()) as client:
        client.create_partitions({topic: partitions})
