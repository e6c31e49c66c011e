"""Dead letters in a topic on Kafka: the original bytes as the value, their place and reason in the headers.

Each letter is written once for its (origin, partition, offset, index), whatever crashes. Letters come in the order of
their positions within a partition, so it is enough to know the last one written of each. That progress is committed as
offsets of a separate group, in the same transaction as the letters: both are written or neither is. At its first letter
a writer

    1. takes over the origin's transactional id: the broker aborts what a dead writer left unfinished, and refuses a
       writer that only seemed dead
    2. reads the progress, which after 1. cannot change any more
    3. omits letters up to it

An attempt that fails, or takes too long, may or may not have been committed: its session is dropped, and the next one
finds out with the same three steps. The broker forgets the progress of a run that wrote no letter for
``offsets.retention.minutes`` (a week unless configured): if it is resumed from an older checkpoint, it writes the
letters since that checkpoint again.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import structlog

from ingest.errors import (
    BrokerError,
    SinkError,
    SinkUnavailable,
    TransactionFailed,
    TransactionFenced,
    TransactionRefused,
)
from ingest.kafka.clients.admin import GroupOffset
from ingest.kafka.clients.peek import peek
from ingest.kafka.clients.transactions import SPARE_BYTES, Message, TransactionalProducer
from ingest.kafka.config import KafkaConfig
from ingest.kafka.outage import Outage
from ingest.kafka.topics import connect, describe_topic, missing_topic, partition_spans
from ingest.letters.letter import DeadLetter, unseen
from ingest.streams.position import Position

ATTEMPT_SECONDS = 10.0
"""How long one attempt to write letters may take; the client library itself would wait forever."""
LOG_SECONDS = 10.0
TRANSACTION_LETTERS = 500
TRANSACTION_BYTES = 4 << 20
Result = TypeVar("Result")


class KafkaLetters:
    """The dead-letter topic; one writer for each origin, from its first letter on. Implements DeadLetters."""

    def __init__(self, config: KafkaConfig, topic: str, source_topic: str, origin: str) -> None:
        self._config = config.model_copy(update={"request_seconds": min(config.request_seconds, ATTEMPT_SECONDS)})
        self._topic = topic
        self._source_topic = source_topic
        self._origin = origin
        self._log = structlog.get_logger()
        self._outage = Outage(config.outage_seconds, LOG_SECONDS)
        self._session: _Session | None = None

    def append(self, letters: Sequence[DeadLetter]) -> int:
        try:
            self._session = self._session or self._open()
            written = bounded(ATTEMPT_SECONDS, partial(self._session.write, letters))
        except (TransactionFailed, BrokerError, TimeoutError) as error:
            self.close()
            raise self._translated(error) from error
        self._outage.end()
        return written

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = None

    def _open(self) -> "_Session":
        return _Session(self._config, self._topic, self._source_topic, self._origin)

    def _translated(self, error: Exception) -> SinkError:
        """SinkUnavailable if the same letters may be tried again, SinkError if a person must look."""
        if isinstance(error, TransactionFenced):
            return SinkError(
                f"another process writes dead letters of {self._origin!r} to topic {self._topic!r}; expected one "
                "dispatcher of a run's name and topic; stop the other, or give this run another name"
            )
        if isinstance(error, TransactionRefused):
            return SinkError(
                f"dead letters cannot be written to topic {self._topic!r}: {error}; expected a "
                "topic, a group and a transactional id this user may write; check the broker's access rules"
            )
        return self._unavailable(error)

    def _unavailable(self, error: Exception) -> SinkError:
        self._outage.go_on()
        silent = self._outage.silent_seconds
        if self._outage.is_too_long:
            return SinkError(
                f"dead letters could not be written to topic {self._topic!r} for {silent:.0f} s: {error}; expected the "
                f"broker back within kafka.outage_seconds = {self._outage.longest_seconds:g}; start it, then a new run"
            )
        if self._outage.is_log_due():
            self._log.warning("dead letters wait for Kafka", silent_seconds=round(silent, 1), error=str(error))
        return SinkUnavailable(f"dead letters cannot be written to topic {self._topic!r} now: {error}; try again")


class _Session:
    """One transactional producer, from its opening until something goes wrong."""

    def __init__(self, config: KafkaConfig, topic: str, source_topic: str, origin: str) -> None:
        self._source_topic = source_topic
        self._origin = origin
        self._limit = _limit(config, topic)
        group = f"freshet-letters/{origin}"
        self._producer = TransactionalProducer(config, topic, group, self._limit, ATTEMPT_SECONDS)  # 1
        try:
            self._last = _read_progress(config, group)  # 2
        except BaseException:
            self.close()
            raise

    def write(self, letters: Sequence[DeadLetter]) -> int:
        new = unseen(letters, self._last)  # 3
        for part in _parts(new):
            reached = {letter.partition: Position(letter.offset, letter.index) for letter in part}
            offsets = {(self._source_topic, n): GroupOffset(at.offset, str(at.index)) for n, at in reached.items()}
            self._producer.commit([self._message(letter) for letter in part], offsets)
            self._last |= reached
        return len(new)

    def close(self) -> None:
        self._producer.close()

    def _message(self, letter: DeadLetter) -> Message:
        key = f"{letter.partition}:{letter.offset}:{letter.index}".encode()
        return Message(key, letter.payload[: self._limit], headers_of(letter, self._origin, self._limit))


def _read_progress(config: KafkaConfig, group: str) -> dict[int, Position]:
    """The position of the last letter written, by partition."""
    with connect(config) as admin:
        committed = admin.committed(group)
    return {n: Position(at.offset, int(at.metadata)) for (_, n), at in committed.items() if at.offset >= 0}


def bounded(seconds: float, work: Callable[[], Result]) -> Result:
    """What work returns or raises; TimeoutError after that many seconds, and its thread is abandoned."""
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
    """Splits letters into groups of one transaction each: not too many, not too large."""
    part: list[DeadLetter] = []
    size = 0
    for letter in letters:
        if part and (len(part) == TRANSACTION_LETTERS or size + len(letter.payload) > TRANSACTION_BYTES):
            yield part
            part = []
            size = 0
        part.append(letter)
        size += len(letter.payload)
    if part:
        yield part


# ── a letter as headers, and back ─────────────────────────────────────────────────────────────────────────────────────
def headers_of(letter: DeadLetter, origin: str, limit: int) -> list[tuple[str, bytes]]:
    """Everything but the event itself; ``cut`` and ``size`` only if the value is not the whole event."""
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
    """The letter of a record; None if the record is not a letter."""
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
    """All dead letters, oldest first."""
    found = describe_topic(config, topic)
    if found is None:
        raise missing_topic(config, topic, "stream.dead_letter_topic")
    ranges = {span.partition: (span.first, span.end) for span in partition_spans(config, found)}
    for record in peek(config, topic, ranges):
        if (letter := letter_of(record)) is not None:
            yield letter
