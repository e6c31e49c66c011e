"""Reads given ranges of a topic once, including headers, through kafka-python: for inspection, not for training."""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from kafka import KafkaConsumer
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from ingest.errors import BrokerError
from ingest.kafka.config import KafkaConfig, kafka_python_arguments

POLL_MS = 500


def peek(config: KafkaConfig, topic: str, ranges: Mapping[int, tuple[int, int]]) -> Iterator[Any]:
    """Committed records (kafka-python's) of each partition's range, one partition after the other.

    A range ends before the first transaction that is under way.
    """
    wanted = {TopicPartition(topic, number): span for number, span in sorted(ranges.items()) if span[0] < span[1]}
    if not wanted:
        return
    try:
        consumer = KafkaConsumer(
            **kafka_python_arguments(config),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            metrics_enabled=False,
            allow_auto_create_topics=False,
        )
    except KafkaError as error:
        raise _failed(config, topic, error) from error
    try:
        for place, (start, end) in wanted.items():
            yield from _partition(consumer, config, place, start, end)
    except KafkaError as error:
        raise _failed(config, topic, error) from error
    finally:
        with suppress(KafkaError):
            consumer.close(autocommit=False, timeout_ms=1000)


def _partition(consumer: Any, config: KafkaConfig, place: TopicPartition, start: int, end: int) -> Iterator[Any]:
    consumer.assign([place])
    consumer.seek(place, start)
    end = min(end, int(consumer.end_offsets([place])[place]))  # what follows belongs to transactions under way
    moved_at = time.monotonic()
    position = start
    while position < end:  # markers of transactions take offsets, too, so count positions, not records
        for record in (one for records in consumer.poll(POLL_MS).values() for one in records):
            if record.offset < end:
                yield record
        moved = int(consumer.position(place) or position)
        if moved > position:
            position = moved
            moved_at = time.monotonic()
        elif time.monotonic() - moved_at > config.request_seconds:
            raise BrokerError(
                f"no records of partition {place.partition} of topic {place.topic!r} from {position} on; expected "
                f"records up to {end} within {config.request_seconds:g} s; check the broker and try again"
            )


def _failed(config: KafkaConfig, topic: str, error: KafkaError) -> BrokerError:
    return BrokerError(
        f"topic {topic!r} on Kafka at {','.join(config.servers)} cannot be read: {type(error).__name__}: {error}; "
        "expected a topic this user may read; check the broker and its access rules"
    )
