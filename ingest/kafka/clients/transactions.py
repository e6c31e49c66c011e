"""A transactional producer on kafka-python: records and the offsets of a group are committed together or not at all."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from kafka import KafkaProducer
from kafka.errors import KafkaError, ProducerFencedError, RetriableError
from kafka.structs import OffsetAndMetadata, TopicPartition

from ingest.errors import TransactionFailed, TransactionFenced, TransactionRefused
from ingest.kafka.clients.admin import GroupOffset
from ingest.kafka.clients.kafka_python import abandon
from ingest.kafka.config import KafkaConfig, kafka_python_arguments

BATCH_BYTES = 256 << 10
BACKOFF_MS = 10
"""Pause before a request is repeated: a broker that is still ending a transaction refuses the next one for a moment."""
NO_OFFSETS: Mapping[tuple[str, int], GroupOffset] = {}
SPARE_BYTES = 8 << 10
"""Bytes of a request for headers and framing in addition to the value."""


class Message(NamedTuple):
    """A record to write."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


class TransactionalProducer:
    """Writes to the first partition of one topic; its id is also the group whose offsets it commits."""

    def __init__(self, config: KafkaConfig, topic: str, group: str, largest_bytes: int, wait_seconds: float) -> None:
        """Takes over the id: the broker aborts what an earlier producer left unfinished, and then refuses that one."""
        self._topic = topic
        self._group = group
        wait_ms = round(1000 * wait_seconds)
        with _translated():
            self._client: Any = KafkaProducer(
                **kafka_python_arguments(config),
                bootstrap_timeout_ms=wait_ms,
                transactional_id=group,
                compression_type=None if config.compression == "none" else config.compression,
                max_block_ms=wait_ms,
                retry_backoff_ms=BACKOFF_MS,
                max_request_size=largest_bytes + SPARE_BYTES,
                batch_size=min(BATCH_BYTES, largest_bytes),
                allow_auto_create_topics=False,
                metrics_enabled=False,
            )
            try:
                self._client.init_transactions()
            except BaseException:
                self.close()
                raise

    def commit(self, messages: Sequence[Message], offsets: Mapping[tuple[str, int], GroupOffset] = NO_OFFSETS) -> int:
        """Commits the messages, and the group's offsets by topic and partition, in one transaction; returns the offset
        of the last message.
        """
        reached = {
            TopicPartition(*place): OffsetAndMetadata(at.offset, at.metadata, -1) for place, at in offsets.items()
        }
        with _translated():
            self._client.begin_transaction()
            sent = [self._client.send(self._topic, m.value, m.key, m.headers, partition=0) for m in messages]
            if reached:
                self._client.send_offsets_to_transaction(reached, self._group)
            self._client.commit_transaction()
        assert all(future.succeeded() for future in sent), "a transaction is committed whole"
        return int(sent[-1].value.offset)

    def close(self) -> None:
        abandon(self._client)


@contextmanager
def _translated() -> Iterator[None]:
    """Translates the library's errors: another producer took over the id, waiting may help, or
    waiting will not help.
    """
    try:
        yield
    except RetriableError as error:
        raise TransactionFailed(str(error)) from error
    except KafkaError as error:
        # The library may find out while it sends, and then raises another error that holds the first.
        if any(isinstance(each, ProducerFencedError) for each in (error, *error.args)):
            raise TransactionFenced(str(error)) from error
        raise TransactionRefused(f"{type(error).__name__}: {error}") from error
