"""Dead letters in a topic on Kafka: the original bytes as the value, where they came from and why in the headers.

Each letter is there once for its (origin, partition, offset, index), whatever crashes. They come in the order of their
positions within a partition; so it is enough to know the last one written of each. That progress is committed as
offsets of a group of its own, in the same transaction as the letters: both are there or neither is. At its first letter
a writer

    1. takes the origin's transactional id: the broker aborts what a dead writer left unfinished and turns away one that
       only seems dead
    2. reads the progress, which by 1. cannot change any more
    3. leaves out whatever lies before it

An attempt that fails, or takes too long, may or may not have been committed: its session is dropped, and the next one
finds out by the same three steps. The broker forgets the progress of a run that wrote no letter for
``offsets.retention.minutes`` (a week unless configured): one that is resumed from an older checkpoint would write the
letters since that checkpoint again.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import structlog
from kafka import KafkaProducer
from kafka.errors import KafkaError, ProducerFencedError, RetriableError
from kafka.structs import OffsetAndMetadata, TopicPartition

from ingest.errors import BrokerError, SinkError, SinkUnavailable
from ingest.kafka.config import KafkaConfig, kafka_python_arguments
from ingest.kafka.peek import peek
from ingest.kafka.sink import abandon
from ingest.kafka.topics import admin, describe_topic, group_offsets, missing_topic, partition_spans
from ingest.letters.letter import DeadLetter, unseen
from ingest.streams.position import Position

ATTEMPT_SECONDS = 10.0
"""how long one attempt to write letters may take; the client library itself would wait without end"""
LOG_SECONDS = 10.0
TRANSACTION_LETTERS = 500
TRANSACTION_BYTES = 4 << 20
BATCH_BYTES = 256 << 10
SPARE_BYTES = 8 << 10
"""of the largest message, for headers and framing"""
Result = TypeVar("Result")


class KafkaLetters:
    """The dead-letter topic; one writer for each origin, from its first letter on. A DeadLetters."""

    def __init__(self, config: KafkaConfig, topic: str, source_topic: str, origin: str) -> None:
        self._config = config.model_copy(update={"request_seconds": min(config.request_seconds, ATTEMPT_SECONDS)})
        self._topic, self._source_topic, self._origin = topic, source_topic, origin
        self._log = structlog.get_logger()
        self._silent_since: float | None = None
        self._told_at = -LOG_SECONDS
        self._session: _Session | None = None

    def append(self, letters: Sequence[DeadLetter]) -> int:
        try:
            self._session = self._session or self._open()
            written = bounded(ATTEMPT_SECONDS, partial(self._session.write, letters))
        except (KafkaError, BrokerError, TimeoutError) as error:
            self.close()
            raise self._translated(error) from error
        self._silent_since = None
        return written

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None

    def _open(self) -> "_Session":
        return _Session(self._config, self._topic, self._source_topic, self._origin)

    def _translated(self, error: Exception) -> SinkError:
        """What to raise: that the same letters may be given again, or that a person must look."""
        if isinstance(error, ProducerFencedError):
            return SinkError(
                f"another process writes dead letters of {self._origin!r} to topic {self._topic!r}; expected one "
                "dispatcher of a run's name and topic; stop the other, or give this run another name"
            )
        if isinstance(error, KafkaError) and not isinstance(error, RetriableError):
            return SinkError(
                f"dead letters cannot be written to topic {self._topic!r}: {type(error).__name__}: {error}; expected a "
                "topic, a group and a transactional id this user may write; check the broker's access rules"
            )
        return self._unavailable(error)

    def _unavailable(self, error: Exception) -> SinkError:
        now, longest = time.monotonic(), self._config.outage_seconds
        self._silent_since = self._silent_since or now
        silent = now - self._silent_since
        if longest is not None and silent > longest:
            return SinkError(
                f"dead letters could not be written to topic {self._topic!r} for {silent:.0f} s: {error}; expected the "
                f"broker back within kafka.outage_seconds = {longest:g}; start it, then a new run"
            )
        if now - self._told_at >= LOG_SECONDS:
            self._told_at = now
            self._log.warning("dead letters wait for Kafka", silent_seconds=round(silent, 1), error=str(error))
        return SinkUnavailable(f"dead letters cannot be written to topic {self._topic!r} now: {error}; try again")


class _Session:
    """One transactional producer, from its opening until something goes wrong."""

    def __init__(self, config: KafkaConfig, topic: str, source_topic: str, origin: str) -> None:
        self._topic, self._source_topic, self._origin = topic, source_topic, origin
        self._group = f"freshet-letters/{origin}"
        self._limit = _limit(config, topic)
        self._producer: Any = KafkaProducer(
            **kafka_python_arguments(config),
            bootstrap_timeout_ms=round(1000 * ATTEMPT_SECONDS),
            transactional_id=self._group,
            compression_type=None if config.compression == "none" else config.compression,
            max_block_ms=round(1000 * ATTEMPT_SECONDS),
            max_request_size=self._limit + SPARE_BYTES,
            batch_size=min(BATCH_BYTES, self._limit),
            allow_auto_create_topics=False,
            metrics_enabled=False,
        )
        try:
            self._producer.init_transactions()  # 1
            self._last = self._read_progress(config)  # 2
        except BaseException:
            self.close()
            raise

    def write(self, letters: Sequence[DeadLetter]) -> int:
        new = unseen(letters, self._last)  # 3
        for part in _parts(new):
            self._producer.begin_transaction()
            sent = [self._send(letter) for letter in part]
            reached = {letter.partition: Position(letter.offset, letter.index) for letter in part}
            self._producer.send_offsets_to_transaction(self._as_offsets(reached), self._group)
            self._producer.commit_transaction()
            assert all(future.succeeded() for future in sent), "a transaction is committed whole"
            self._last |= reached
        return len(new)

    def close(self) -> None:
        abandon(self._producer)

    def _send(self, letter: DeadLetter) -> Any:
        value, headers = letter.payload[: self._limit], headers_of(letter, self._origin, self._limit)
        key = f"{letter.partition}:{letter.offset}:{letter.index}".encode()
        return self._producer.send(self._topic, value, key, headers, partition=0)

    def _as_offsets(self, reached: dict[int, Position]) -> dict[Any, Any]:
        return {
            TopicPartition(self._source_topic, number): OffsetAndMetadata(at.offset, str(at.index), -1)
            for number, at in reached.items()
        }

    def _read_progress(self, config: KafkaConfig) -> dict[int, Position]:
        with admin(config) as client:
            told = group_offsets(client, self._group)
        return {place.partition: Position(at.offset, int(at.metadata)) for place, at in told.items() if at.offset >= 0}


def bounded(seconds: float, work: Callable[[], Result]) -> Result:
    """What work returns or raises; TimeoutError after so many seconds, and whatever it still does is of no account."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="letters", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer from Kafka in {seconds:g} s")
    return results[0]


def _limit(config: KafkaConfig, topic: str) -> int:
    """Most bytes of an event that fit into a letter."""
    found = describe_topic(config, topic)
    if found is None:
        raise SinkError(str(missing_topic(config, topic, "stream.dead_letter_topic")))
    return max(1, int(found.configs.get("max.message.bytes", 1 << 20)) - SPARE_BYTES)


def _parts(letters: Sequence[DeadLetter]) -> Iterator[list[DeadLetter]]:
    """Letters by transaction: not too many, not too large."""
    part: list[DeadLetter] = []
    size = 0
    for letter in letters:
        if part and (len(part) == TRANSACTION_LETTERS or size + len(letter.payload) > TRANSACTION_BYTES):
            yield part
            part, size = [], 0
        part.append(letter)
        size += len(letter.payload)
    if part:
        yield part


# ── a letter as headers, and back ─────────────────────────────────────────────────────────────────────────────────────
def headers_of(letter: DeadLetter, origin: str, limit: int) -> list[tuple[str, bytes]]:
    """What the value does not say; ``size`` only where the value is not all of the event."""
    texts = {
        "partition": str(letter.partition),
        "offset": str(letter.offset),
        "index": str(letter.index),
        "reason": letter.reason,
        "origin": origin,
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }
    full = letter.size if letter.size is not None else len(letter.payload)
    if full > min(limit, len(letter.payload)):
        texts |= {"cut": "true", "size": str(full)}
    return [(name, text.encode(errors="backslashreplace")) for name, text in texts.items()]


def letter_of(record: Any) -> DeadLetter | None:
    """The letter a record holds; None if it is none of ours."""
    texts = {name: value.decode(errors="replace") for name, value in record.headers}
    try:
        return DeadLetter(
            int(texts["partition"]),
            int(texts["offset"]),
            int(texts["index"]),
            texts["reason"],
            record.value or b"",
            texts["origin"],
            int(texts["size"]) if "cut" in texts else None,
            record.timestamp,
        )
    except (KeyError, ValueError):
        return None


def read_kafka_letters(config: KafkaConfig, topic: str) -> Iterator[DeadLetter]:
    """Every dead letter that is kept, oldest first."""
    found = describe_topic(config, topic)
    if found is None:
        raise missing_topic(config, topic, "stream.dead_letter_topic")
    ranges = {span.partition: (span.first, span.end) for span in partition_spans(config, found)}
    for record in peek(config, topic, ranges):
        if (letter := letter_of(record)) is not None:
            yield letter
