"""A Kafka topic as a sink of records, on either client library.

Records carry their partition, so that events lie where the embedded log would put them. The producer is idempotent and
waits for all replicas: whatever the broker goes through between the first attempt and the acknowledgement, a record is
in the topic once. ``write`` returns when every record has been acknowledged; if the broker stays away longer than
``kafka.delivery_seconds``, or refuses a record, SinkError says so, and how many records were acknowledged before.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError

from infra.process import Stop
from ingest.errors import SinkError
from ingest.kafka.access import knock
from ingest.kafka.config import KafkaConfig, confluent_arguments, kafka_python_arguments
from ingest.kafka.topics import describe_topic, end_offsets, missing_topic
from ingest.streams.sink import Entry

STRETCH_SECONDS = 0.2
"""how long to wait for acknowledgements before looking whether a stop was requested"""
STOP_SECONDS = 5.0
"""how long a requested stop waits for acknowledgements that do not come"""
CLOSE_SECONDS = 2.0
LARGEST_BYTES = 64 << 20
"""of a record that is offered to the broker; the topic's own limit decides"""
BATCH_BYTES = 256 << 10
LINGER_MS = 5
RECONNECT_MS = 1000


class Producer(ABC):
    """What a client library must do for the sink."""

    @abstractmethod
    def send(self, partition: int, key: bytes | None, payload: bytes) -> None:
        """Hands over one record; raises SinkError if that is not possible."""

    @abstractmethod
    def flush(self, seconds: float) -> bool:
        """Whether every record handed over has been answered, after that long at most."""

    @abstractmethod
    def fault(self) -> str | None:
        """Why a record handed over since the last call was refused; None if none was."""

    @abstractmethod
    def close(self) -> None:
        """Gives up what has not been acknowledged."""


class KafkaSink:
    """A Sink."""

    def __init__(self, config: KafkaConfig, topic: str, stop: Stop) -> None:
        knock(config)
        self._config, self._topic, self._stop = config, topic, stop
        described = describe_topic(config, topic)
        if described is None:
            raise missing_topic(config, topic, "stream.topic")
        self._partitions = list(range(described.partitions))
        self._acknowledged = 0
        self._producer = _open_producer(config, topic)

    @property
    def partitions(self) -> list[int]:
        return self._partitions

    def write(self, entries: Mapping[int, Sequence[Entry]]) -> None:
        count = 0
        for partition, batch in sorted(entries.items()):
            for key, payload in batch:
                self._producer.send(partition, key, payload)
            count += len(batch)
        self._await_answers(count)
        if (fault := self._producer.fault()) is not None:
            raise SinkError(
                f"Kafka refused a record for topic {self._topic!r}: {fault}; expected an acknowledgement, as for the "
                f"{self._acknowledged} records before; others of the last {count} may be in the topic"
            )
        self._acknowledged += count

    def ends(self) -> dict[int, int]:
        return end_offsets(self._config, self._topic)

    def close(self) -> None:
        self._producer.close()

    def _await_answers(self, count: int) -> None:
        until = time.monotonic() + self._config.delivery_seconds
        while not self._producer.flush(STRETCH_SECONDS):
            if self._stop.requested:
                until = min(until, time.monotonic() + STOP_SECONDS)
            if time.monotonic() > until:
                raise SinkError(
                    f"Kafka at {','.join(self._config.servers)} has not acknowledged the last {count} records for "
                    f"topic {self._topic!r}; expected it within kafka.delivery_seconds = "
                    f"{self._config.delivery_seconds:g}, as for the {self._acknowledged} records before; some of the "
                    "last may be in the topic: look at its end ('freshet topics describe') before you produce again"
                )


class KafkaPythonProducer(Producer):
    """On kafka-python; its sender is a thread of its own."""

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
                max_request_size=LARGEST_BYTES,
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
                f"that answers and at most {LARGEST_BYTES} bytes; leave the record out, or try again"
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
    """Ends a kafka-python producer, and soon: its own ``close`` gives up before it ends its thread."""
    with suppress(KafkaError):
        client.close(CLOSE_SECONDS if client._accumulator.has_incomplete is False else 0)
    client._sender.force_close()


class ConfluentProducer(Producer):
    """On confluent-kafka (the extra ``kafka-fast``)."""

    def __init__(self, config: KafkaConfig, topic: str) -> None:
        from confluent_kafka import Producer as ConfluentClient

        self._topic, self._fault = topic, ""
        self._client: Any = ConfluentClient(
            {
                **confluent_arguments(config),
                "acks": "all",
                "enable.idempotence": True,
                "compression.type": config.compression,
                "linger.ms": LINGER_MS,
                "message.max.bytes": LARGEST_BYTES,
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
            except BufferError:  # as much is on its way as fits
                self._client.poll(STRETCH_SECONDS)

    def flush(self, seconds: float) -> bool:
        return bool(self._client.flush(seconds) == 0)

    def fault(self) -> str | None:
        fault, self._fault = self._fault, ""
        return fault or None

    def close(self) -> None:
        self._client.purge()
        self._client.flush(CLOSE_SECONDS)

    def _on_delivery(self, error: Any, _message: Any) -> None:
        if error is not None and not self._fault:
            self._fault = f"{error.name()}: {error.str()}"


def _open_producer(config: KafkaConfig, topic: str) -> Producer:
    if config.client == "kafka-python":
        return KafkaPythonProducer(config, topic)
    try:
        return ConfluentProducer(config, topic)
    except ImportError as error:
        raise SinkError(
            "kafka.client = 'confluent-kafka' cannot be used: the package is not installed; expected the extra "
            "'kafka-fast'; install it (pip install 'freshet[kafka-fast]'), or set kafka.client = kafka-python"
        ) from error
