"""Consumer and producer on kafka-python."""

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import (
    BrokerResponseError,
    KafkaError,
    KafkaTimeoutError,
    NoError,
    OffsetOutOfRangeError,
    RetriableError,
    UnknownTopicOrPartitionError,
)
from kafka.net.sasl import get_sasl_mechanism
from kafka.structs import OffsetAndMetadata, TopicPartition

from ingest.errors import SinkError, SourceUnavailable
from ingest.kafka.clients.base import (
    CREATE_TIME,
    FETCH_WAIT_MS,
    LARGEST_ANSWER_BYTES,
    LARGEST_RECORD_BYTES,
    LINGER_MS,
    LOG_APPEND_TIME,
    RECONNECT_MS,
    Consumer,
    Fetched,
    Producer,
    TopicSnapshot,
    refused,
)
from ingest.kafka.config import KafkaConfig, kafka_python_arguments
from ingest.streams.source import Record

CLOCKS = {0: CREATE_TIME, 1: LOG_APPEND_TIME}
POLL_RECORDS = 20_000
"""Most records that one poll returns; each costs Python some microseconds."""
BATCH_BYTES = 256 << 10
CLOSE_SECONDS = 2.0

logging.getLogger("kafka").setLevel(logging.CRITICAL)  # an outage is logged once, by the source


class KafkaPythonConsumer(Consumer):
    """kafka-python's consumer and, for the topic's identity, its admin client."""

    def __init__(self, config: KafkaConfig, topic: str) -> None:
        self._topic = topic
        self._assigned: set[TopicPartition] = set()
        shared = kafka_python_arguments(config) | {
            "reconnect_backoff_max_ms": RECONNECT_MS,
            "bootstrap_timeout_ms": round(1000 * config.request_seconds),
        }
        try:
            self._admin: Any = KafkaAdminClient(**shared)
            self._consumer: Any = KafkaConsumer(
                **shared,
                group_id=config.group or None,
                enable_auto_commit=False,
                auto_offset_reset="none",
                isolation_level="read_committed",
                check_crcs=True,
                allow_auto_create_topics=False,
                metrics_enabled=False,
                fetch_max_wait_ms=FETCH_WAIT_MS,
                fetch_max_bytes=config.fetch_bytes,
                max_partition_fetch_bytes=config.fetch_bytes // 4,
                receive_message_max_bytes=max(LARGEST_ANSWER_BYTES, config.fetch_bytes + (1 << 20)),
                max_poll_records=POLL_RECORDS,
            )
        except (KafkaError, OSError) as error:
            raise translated("connect", error) from error

    def describe(self, seconds: float) -> TopicSnapshot | None:
        try:
            (found,) = self._admin.describe_topics([self._topic])
        except KafkaError as error:
            raise translated("describe the topic", error) from error
        if found["error_code"] == UnknownTopicOrPartitionError.errno:
            return None
        if found["error_code"] != NoError.errno:
            raise translated("describe the topic", BrokerResponseError(f"error {found['error_code']}"))
        numbers = sorted(partition["partition_index"] for partition in found["partitions"])
        return TopicSnapshot(str(found["topic_id"]), tuple(numbers))

    def spans(self, partitions: Iterable[int], seconds: float) -> dict[int, tuple[int, int]]:
        wanted = [TopicPartition(self._topic, number) for number in partitions]
        try:
            firsts = self._consumer.beginning_offsets(wanted, timeout_ms=round(1000 * seconds))
            ends = self._consumer.end_offsets(wanted, timeout_ms=round(1000 * seconds))
        except KafkaError as error:
            raise translated("find the ends of partitions", error) from error
        except (KeyError, AttributeError) as error:  # raised by kafka-python if it does not know one of them yet
            raise SourceUnavailable(
                f"cannot find the ends of partitions: one is new or without a leader: {error}"
            ) from error
        return {place.partition: (firsts[place], ends[place]) for place in wanted}

    def offsets_at(self, partitions: Iterable[int], time_ms: int, seconds: float) -> dict[int, int | None]:
        wanted = {TopicPartition(self._topic, number): time_ms for number in partitions}
        try:
            found = self._consumer.offsets_for_times(wanted, timeout_ms=round(1000 * seconds))
        except KafkaError as error:
            raise translated("find the offsets of a time", error) from error
        return {
            place.partition: at.offset if at is not None and at.offset >= 0 else None for place, at in found.items()
        }

    def seek(self, partition: int, offset: int) -> None:
        place = TopicPartition(self._topic, partition)
        if place not in self._assigned:
            self._assigned.add(place)
            self._consumer.assign(sorted(self._assigned))  # keeps the positions of those that were assigned
        self._consumer.seek(place, offset)

    def poll(self, seconds: float) -> dict[int, Fetched]:
        try:
            came = self._consumer.poll(timeout_ms=round(1000 * seconds))
        except OffsetOutOfRangeError as error:
            return {place.partition: Fetched(is_out_of_range=True) for place in error.args[0]}
        except KafkaError as error:
            raise translated("fetch", error) from error
        fetched = {place.partition: Fetched(_records(records)) for place, records in came.items()}
        self.clock = next((CLOCKS.get(each.timestamp_type, "") for some in came.values() for each in some), self.clock)
        for place in self._assigned - set(self._consumer.paused()):
            fetched.setdefault(place.partition, Fetched()).position = self._position(place)
        return fetched

    def pause(self, partitions: Iterable[int], paused: bool) -> None:
        places = [TopicPartition(self._topic, number) for number in partitions]
        (self._consumer.pause if paused else self._consumer.resume)(*places)

    def commit(self, offsets: Mapping[int, int], seconds: float) -> None:
        reached = {TopicPartition(self._topic, n): OffsetAndMetadata(at, "", -1) for n, at in offsets.items()}
        with suppress(KafkaError, AssertionError):
            if seconds:
                self._consumer.commit(reached, timeout_ms=round(1000 * seconds))
            else:
                self._consumer.commit_async(reached)

    def close(self) -> None:
        with suppress(KafkaError):
            self._consumer.close(autocommit=False, timeout_ms=1000)
        with suppress(KafkaError):
            self._admin.close()

    def _position(self, place: TopicPartition) -> int | None:
        state = self._consumer._subscription.assignment[place].position  # position() may wait for the broker
        return None if state is None else int(state.offset)


class KafkaPythonProducer(Producer):
    """kafka-python's producer; it sends from its own thread."""

    def __init__(self, config: KafkaConfig, topic: str) -> None:
        self._topic = topic
        self._pending: list[Any] = []
        try:
            self._client = KafkaProducer(
                **kafka_python_arguments(config),
                bootstrap_timeout_ms=round(1000 * config.request_seconds),
                acks="all",
                enable_idempotence=True,
                compression_type=None if config.compression == "none" else config.compression,
                linger_ms=LINGER_MS,
                batch_size=BATCH_BYTES,
                max_request_size=LARGEST_RECORD_BYTES,
                delivery_timeout_ms=round(1000 * max(config.delivery_seconds, config.request_seconds + 1)),
                max_block_ms=round(1000 * config.delivery_seconds),
                reconnect_backoff_max_ms=RECONNECT_MS,
                allow_auto_create_topics=False,
                metrics_enabled=False,
            )
        except KafkaError as error:
            raise SinkError(f"cannot write to Kafka: {error}; expected a broker that answers; try again") from error

    def send(self, partition: int, key: bytes | None, payload: bytes) -> None:
        try:
            self._pending.append(self._client.send(self._topic, payload, key, partition=partition))
        except KafkaError as error:
            raise SinkError(
                f"a record of {len(payload)} bytes for topic {self._topic!r} was not taken: {error}; expected a broker "
                f"that answers and at most {LARGEST_RECORD_BYTES} bytes; leave the record out, or try again"
            ) from error

    def flush(self, seconds: float) -> bool:
        with suppress(KafkaTimeoutError):
            self._client.flush(seconds)
        return all(pending.is_done for pending in self._pending)

    def fault(self) -> str | None:
        done, self._pending = self._pending, []
        failed = next((pending for pending in done if pending.failed()), None)
        return None if failed is None else f"{type(failed.exception).__name__}: {failed.exception}"

    def close(self) -> None:
        abandon(self._client)


def abandon(client: Any) -> None:
    """Ends a kafka-python producer without waiting long: its own ``close`` may return before its thread has ended."""
    with suppress(KafkaError):
        client.close(CLOSE_SECONDS if client._accumulator.has_incomplete is False else 0)
    client._sender.force_close()


def _records(came: list[Any]) -> list[Record]:
    return [Record(record.offset, record.key, record.value or b"", record.timestamp) for record in came]


def login_mechanism(config: KafkaConfig, server: str, arguments: Mapping[str, Any]) -> Any:
    """The library's side of a SASL login, message by message."""
    return get_sasl_mechanism(config.mechanism)(host=server, **arguments)


def translated(what: str, error: Exception) -> Exception:
    """Our error for one of the library's, depending on whether a retry may help."""
    if isinstance(error, RetriableError | OSError):
        return SourceUnavailable(f"cannot {what}: Kafka does not answer ({type(error).__name__}: {error})")
    return refused(what, f"{type(error).__name__}: {error}")
