"""Consumer and producer on confluent-kafka (the extra ``kafka-fast``)."""

import logging
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka import Consumer as LibraryConsumer
from confluent_kafka import Producer as LibraryProducer
from confluent_kafka.admin import AdminClient, OffsetSpec

from ingest.errors import SourceUnavailable
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
from ingest.kafka.config import KafkaConfig, confluent_arguments
from ingest.streams.source import Record

CLOCKS = {TIMESTAMP_CREATE_TIME: CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME: LOG_APPEND_TIME}
POLL_RECORDS = 20_000
CLOSE_SECONDS = 5.0
PURGE_SECONDS = 2.0
FULL_SECONDS = 0.2
"""How long to wait for room when the queue of records is full."""
PERMANENT = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError._SSL,
    KafkaError._BAD_MSG,
    KafkaError._BAD_COMPRESSION,
    KafkaError._LOG_TRUNCATION,
)
"""Errors that waiting will not solve; librdkafka retries all others by itself."""
OUT_OF_RANGE = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)
UNKNOWN_TOPIC = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION)
quiet = logging.getLogger("confluent_kafka")
quiet.setLevel(logging.CRITICAL)  # an outage is logged once, by the source


def _fetching(config: KafkaConfig) -> dict[str, Any]:
    return {
        "group.id": config.group or config.client_id,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "check.crcs": True,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": FETCH_WAIT_MS,
        "fetch.error.backoff.ms": 100,
        "fetch.max.bytes": config.fetch_bytes,
        "message.max.bytes": min(1_000_000, config.fetch_bytes),  # limit of requests; must not exceed fetch.max.bytes
        "receive.message.max.bytes": max(LARGEST_ANSWER_BYTES, config.fetch_bytes + (1 << 20)),
        "max.partition.fetch.bytes": config.fetch_bytes // 4,
        "queued.max.messages.kbytes": max(64, config.buffer_bytes // 1024),
        "fetch.queue.backoff.ms": 5,  # the default, a second, is how long a full queue would pause
    }


class ConfluentConsumer(Consumer):
    """librdkafka's consumer, which fetches in its own threads, and its admin client."""

    def __init__(self, config: KafkaConfig, topic: str) -> None:
        self._topic = topic
        self._assigned: dict[int, int] = {}
        self._failed: SourceUnavailable | Exception | None = None
        shared = confluent_arguments(config) | {
            "reconnect.backoff.max.ms": RECONNECT_MS,
            "allow.auto.create.topics": False,
            "error_cb": self._on_error,
            "logger": quiet,
        }
        try:
            self._admin = AdminClient(dict(shared))
            self._consumer = LibraryConsumer({**shared, **_fetching(config)})
        except KafkaException as error:
            raise refused("connect", error.args[0].str()) from error

    def describe(self, seconds: float) -> TopicSnapshot | None:
        try:
            waits = self._admin.describe_topics(TopicCollection([self._topic]), request_timeout=seconds)
            found = waits[self._topic].result(seconds + 1)
        except KafkaException as error:
            if error.args[0].code() in UNKNOWN_TOPIC:
                return None
            raise self._translated("describe the topic", error.args[0]) from error
        except TimeoutError as error:
            raise SourceUnavailable(f"cannot describe the topic: Kafka does not answer in {seconds:g} s") from error
        return TopicSnapshot(str(found.topic_id), tuple(sorted(partition.id for partition in found.partitions)))

    def spans(self, partitions: Iterable[int], seconds: float) -> dict[int, tuple[int, int]]:
        numbers = list(partitions)
        firsts = self._list_offsets(numbers, OffsetSpec.earliest(), seconds)
        ends = self._list_offsets(numbers, OffsetSpec.latest(), seconds)
        return {number: (firsts[number], ends[number]) for number in numbers}

    def offsets_at(self, partitions: Iterable[int], time_ms: int, seconds: float) -> dict[int, int | None]:
        found = self._list_offsets(list(partitions), OffsetSpec.for_timestamp(time_ms), seconds)
        return {number: at if at >= 0 else None for number, at in found.items()}

    def seek(self, partition: int, offset: int) -> None:
        place = TopicPartition(self._topic, partition, offset)
        if partition in self._assigned:
            self._consumer.incremental_unassign([place])
        self._consumer.incremental_assign([place])
        self._assigned[partition] = offset

    def poll(self, seconds: float) -> dict[int, Fetched]:
        fetched: dict[int, Fetched] = {}
        # consume() waits for as many as it is asked for: wait for one, then take the others without waiting.
        came = self._consumer.consume(1, seconds) if seconds else []
        for message in (*came, *self._consumer.consume(POLL_RECORDS, 0)):
            self._add_message(message, fetched)
        if self._failed is not None and not fetched:
            failed, self._failed = self._failed, None
            raise failed
        return fetched

    def pause(self, partitions: Iterable[int], paused: bool) -> None:
        places = [TopicPartition(self._topic, number) for number in partitions]
        (self._consumer.pause if paused else self._consumer.resume)(places)

    def commit(self, offsets: Mapping[int, int], seconds: float) -> None:
        reached = [TopicPartition(self._topic, number, at) for number, at in offsets.items()]
        with suppress(KafkaException):
            self._consumer.commit(offsets=reached, asynchronous=not seconds)

    def close(self) -> None:
        # With a commit under way librdkafka waits most of a minute for a dead broker: on a thread that is left behind.
        closing = threading.Thread(target=self._consumer.close, name="kafka-close", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)

    def _add_message(self, message: Message, fetched: dict[int, Fetched]) -> None:
        number = message.partition()
        offset = message.offset()
        error = message.error()
        into = fetched.setdefault(number, Fetched()) if number is not None and number >= 0 else Fetched()
        if error is None:
            key = message.key()
            value = message.value()
            kind, time_ms = message.timestamp()
            self.clock = CLOCKS.get(kind, "")
            into.records.append(Record(offset, key, value or b"", time_ms))
            into.position = offset + 1
        elif error.code() == KafkaError._PARTITION_EOF:
            into.position = offset
        elif error.code() in OUT_OF_RANGE:
            into.is_out_of_range = True
        else:
            self._on_error(error)

    def _on_error(self, error: KafkaError) -> None:
        self._failed = self._translated("fetch", error)

    def _translated(self, what: str, error: KafkaError) -> Exception:
        if error.code() in PERMANENT or error.fatal():
            return refused(what, f"{error.name()}: {error.str()}")
        return SourceUnavailable(f"cannot {what}: Kafka does not answer ({error.name()}: {error.str()})")

    def _list_offsets(self, numbers: list[int], which: Any, seconds: float) -> dict[int, int]:
        asked = {TopicPartition(self._topic, number): which for number in numbers}
        try:
            waits = self._admin.list_offsets(
                asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=seconds
            )
            return {place.partition: int(wait.result(seconds + 1).offset) for place, wait in waits.items()}
        except KafkaException as error:
            raise self._translated("find the ends of partitions", error.args[0]) from error
        except TimeoutError as error:
            raise SourceUnavailable(f"cannot find the ends of partitions in {seconds:g} s") from error


class ConfluentProducer(Producer):
    """librdkafka's producer, which sends in its own threads."""

    def __init__(self, config: KafkaConfig, topic: str) -> None:
        self._topic = topic
        self._fault = ""
        self._client: Any = LibraryProducer(
            {
                **confluent_arguments(config),
                "acks": "all",
                "enable.idempotence": True,
                "compression.type": config.compression,
                "linger.ms": LINGER_MS,
                "message.max.bytes": LARGEST_RECORD_BYTES,
                "delivery.timeout.ms": round(1000 * config.delivery_seconds),
                "reconnect.backoff.max.ms": RECONNECT_MS,
                "allow.auto.create.topics": False,
                "log_level": 0,
            }
        )

    def send(self, partition: int, key: bytes | None, payload: bytes) -> None:
        while True:
            try:
                self._client.produce(self._topic, payload, key, partition, on_delivery=self._on_delivery)
                return
            except BufferError:  # the queue is full
                self._client.poll(FULL_SECONDS)

    def flush(self, seconds: float) -> bool:
        return bool(self._client.flush(seconds) == 0)

    def fault(self) -> str | None:
        fault, self._fault = self._fault, ""
        return fault or None

    def close(self) -> None:
        self._client.purge()
        self._client.flush(PURGE_SECONDS)

    def _on_delivery(self, error: Any, _message: Any) -> None:
        if error is not None and not self._fault:
            self._fault = f"{error.name()}: {error.str()}"
