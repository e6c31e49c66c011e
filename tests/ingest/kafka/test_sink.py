"""Events written to a real broker are in the same partitions as in the embedded log, and all that counts is there."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from infra.base.process import Stop
from ingest.config import StreamConfig
from ingest.errors import BrokerError, SinkError
from ingest.kafka.clients.peek import peek
from ingest.kafka.config import Client, KafkaConfig
from ingest.kafka.sink import KafkaSink
from ingest.kafka.topics import end_offsets
from ingest.log.embedded import LogReader
from ingest.main import ProducerJob, run_producer
from tests.brokers import TestBroker

CLIENTS: tuple[Client, ...] = ("kafka-python", "confluent-kafka")


def records_of(config: KafkaConfig, topic: str) -> dict[int, list[tuple[bytes | None, bytes]]]:
    """Key and payload of every record, by partition."""
    ends = end_offsets(config, topic)
    found: dict[int, list[tuple[bytes | None, bytes]]] = {partition: [] for partition in ends}
    for record in peek(config, topic, {partition: (0, end) for partition, end in ends.items()}):
        found[record.partition].append((record.key, record.value))
    return found


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("packed", [0, 64])
def test_events_lie_in_the_partitions_of_the_embedded_log(
    kafka: TestBroker, tmp_path: Path, client: Client, packed: int
) -> None:
    config, topic = kafka.config(client), kafka.new_topic(partitions=3)
    options: dict[str, Any] = {"limit": 700, "seed": 5, "samples_per_record": packed}
    run_producer(ProducerJob(StreamConfig(folder=tmp_path, partitions=3), **options), Stop())
    made = run_producer(ProducerJob(StreamConfig(source="kafka", topic=topic), config, **options), Stop())
    reader = LogReader(tmp_path, "clicks")
    logged = {p: [(record.key, record.payload) for record in reader.read(p, 0, 1 << 24)] for p in range(3)}
    reader.close()
    assert records_of(config, topic) == logged
    assert (made.events, made.records) == (700, sum(map(len, logged.values())))


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_compression_is_as_set(kafka: TestBroker, compression: str) -> None:
    config, topic = kafka.config(compression=compression), kafka.new_topic(partitions=1)
    with closing(KafkaSink(config, topic, Stop())) as sink:
        sink.write({0: [(None, b"x" * 10_000)] * 10})
    (record, *_) = peek(config, topic, {0: (0, 10)})
    assert len(records_of(config, topic)[0]) == 10
    assert record.serialized_value_size == 10_000


def test_a_second_synthetic_stream_goes_on_where_the_topic_ends(kafka: TestBroker, tmp_path: Path) -> None:
    stream = StreamConfig(source="kafka", topic=kafka.new_topic(partitions=2))
    for _ in range(2):
        run_producer(ProducerJob(stream, kafka.config(), limit=30, seed=1), Stop())
    run_producer(ProducerJob(StreamConfig(folder=tmp_path), limit=60, seed=1), Stop())
    reader = LogReader(tmp_path, "clicks")
    logged = {p: [(record.key, record.payload) for record in reader.read(p, 0)] for p in range(2)}
    reader.close()
    assert records_of(kafka.config(), stream.topic) == logged


@pytest.mark.parametrize("client", CLIENTS)
def test_a_record_that_the_topic_does_not_take_is_reported(kafka: TestBroker, client: Client) -> None:
    topic = kafka.new_topic(partitions=1, **{"max.message.bytes": "1000"})
    with closing(KafkaSink(kafka.config(client, compression="none"), topic, Stop())) as sink:
        sink.write({0: [(None, b"small")] * 3})
        with pytest.raises(SinkError, match=r"refused a record.*(?i:size).*as for the 3 records before"):
            sink.write({0: [(None, b"x" * 5000)]})


def test_a_topic_that_is_not_there_is_reported_before_anything_is_written(kafka: TestBroker) -> None:
    with pytest.raises(BrokerError, match=r"topic 'nowhere' is not on Kafka .* 'freshet topics create'"):
        KafkaSink(kafka.config(), "nowhere", Stop())
