"""A Kafka topic as a source of records, with either client library.

The reader determines positions (``assign`` and ``seek``); the group's committed offsets are written for display only.
Only committed records are visible; what a transaction leaves behind (markers, aborted records) is a gap between
offsets. Some bytes of each partition are kept ready; beyond that it is paused, so that a slow reader costs no memory.

While a broker does not answer, SourceUnavailable is raised, which is not the end of the stream; after
``kafka.outage_seconds``, if set, SourceError. If the topic is deleted, or deleted and created again, the reader stops
at once, because its offsets now name other records.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import TypeVar

import structlog

from ingest.errors import OffsetOutOfRange, SourceError, SourceUnavailable
from ingest.kafka.clients.base import Consumer, TopicSnapshot
from ingest.kafka.clients.choice import open_consumer
from ingest.kafka.config import KafkaConfig
from ingest.kafka.outage import Outage
from ingest.kafka.partition_buffer import PartitionBuffer
from ingest.streams.source import Record

Answer = TypeVar("Answer")
WAIT_SECONDS = 0.5
"""How long one read waits for existing records before the broker counts as silent."""
ROUND_SECONDS = 0.05
"""How long one poll waits: kafka-python's returns early for records only, not for a transaction's marker."""
ANSWER_SECONDS = 2.0
"""How long the broker may take to answer a question about the topic while a run reads it."""
AGAIN_SECONDS = 0.2
"""Pause after an unanswered question."""
ENDS_SECONDS = 0.05
"""How old the known end of a partition may be when everything before it has been read."""
SPANS_SECONDS = 1.0
"""How old a span may be for display and for the lag."""
DESCRIBE_SECONDS = 2.0
"""How often the topic is described, to notice new partitions or its deletion."""
LOG_SECONDS = 5.0
"""How often an outage is logged."""
PATIENCE_SECONDS = 1.0
"""A shorter silence is not logged."""
CLOSE_SECONDS = 2.0


class KafkaSource:
    """A topic to read from. Implements Source; for one thread at a time."""

    def __init__(self, config: KafkaConfig, topic: str, consumer: Consumer | None = None) -> None:
        """Connects, and checks that the topic exists."""
        self._config = config
        self._topic = topic
        self._log = structlog.get_logger("kafka")
        self._buffers: dict[int, PartitionBuffer] = {}
        self._paused: set[int] = set()
        self._spans: dict[int, tuple[int, int]] = {}
        self._spans_at = self._ask_again_at = -1e9
        self._outage = Outage(config.outage_seconds, LOG_SECONDS, PATIENCE_SECONDS)
        self._committed: dict[int, int] = {}
        self._is_closed = False
        self._consumer, self._described = _connect(config, topic, consumer)
        self._described_at = time.monotonic()

    # ── Source ────────────────────────────────────────────────────────────────────────────────────────────────────────
    @property
    def clock(self) -> str:
        return self._consumer.clock

    def partitions(self) -> list[int]:
        if time.monotonic() - self._described_at >= DESCRIBE_SECONDS:
            self._check_same(self._ask(lambda: self._consumer.describe(ANSWER_SECONDS)))
            self._answered()
            self._described_at = time.monotonic()
        return list(self._described.partitions)

    def span(self, partition: int) -> tuple[int, int]:
        if partition not in self._spans or time.monotonic() - self._spans_at >= SPANS_SECONDS:
            self._look_at_spans(partition)
        first, end = self._spans[partition]
        buffer = self._buffers.get(partition)
        # After the last record there may be markers of transactions: offsets, but nothing to read.
        return first, buffer.start if buffer is not None and buffer.is_empty and buffer.position >= end else end

    def read(self, partition: int, offset: int, max_bytes: int = 1 << 20) -> list[Record]:
        buffer = self._buffer_at(partition, offset)
        until = time.monotonic() + WAIT_SECONDS
        while not self._is_answered(partition, buffer):
            if time.monotonic() >= until:
                raise self._unavailable(SourceUnavailable(f"no records of partition {partition} from {offset} on"))
            self._poll(min(ROUND_SECONDS, max(0.0, until - time.monotonic())))
        if buffer.is_empty:
            if buffer.is_out_of_range:
                raise self._out_of_range(partition, offset)
            return []
        self._answered()
        records = buffer.take_records(max_bytes)
        self._resume()
        return records

    def offset_at(self, partition: int, time_ms: int) -> int:
        found = self._consumer.offsets_at([partition], time_ms, self._config.request_seconds)[partition]
        return self.span(partition)[1] if found is None else found

    def commit(self, offsets: Mapping[int, int]) -> None:
        changed = {number: at for number, at in offsets.items() if self._committed.get(number) != at}
        if changed and self._config.group and not self._outage.is_on:
            self._committed |= changed
            self._consumer.commit(changed, 0.0)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._committed and not self._outage.is_on:
            self._consumer.commit(self._committed, CLOSE_SECONDS)
        self._consumer.close()

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _check_same(self, found: TopicSnapshot | None) -> None:
        if (
            found is None
            or found.identity != self._described.identity
            or set(self._described.partitions) - set(found.partitions)
        ):
            what = "has been deleted" if found is None else "has been deleted and created again"
            raise SourceError(
                f"topic {self._topic!r} {what} while it was being read; expected it to stay: the offsets of this run "
                "name other records now; start a new run"
            )
        self._described = found

    def _buffer_at(self, partition: int, offset: int) -> PartitionBuffer:
        """The partition's buffer, from that offset on."""
        buffer = self._buffers.get(partition)
        if buffer is not None and buffer.start <= offset <= buffer.position and not buffer.is_out_of_range:
            buffer.drop_before(offset)
            return buffer
        if offset > self._known_end(partition, offset):
            raise self._out_of_range(partition, offset)
        self._consumer.pause([partition] if partition in self._paused else [], False)
        self._paused.discard(partition)
        self._consumer.seek(partition, offset)
        self._buffers[partition] = PartitionBuffer(offset, offset)
        return self._buffers[partition]

    def _known_end(self, partition: int, offset: int) -> int:
        if partition not in self._spans or offset > self._spans[partition][1]:
            self._look_at_spans(partition)
        return self._spans[partition][1]

    def _is_answered(self, partition: int, buffer: PartitionBuffer) -> bool:
        """Whether records can be read, or there will be none: the offset is out of range, or the partition ends there.

        Asks the broker for the end only when everything known has been read.
        """
        if buffer.has_news:
            return True
        if partition in self._spans and buffer.position < self._spans[partition][1]:
            return False
        self._poll(0.0)
        if buffer.has_news:
            return True
        if partition not in self._spans or time.monotonic() - self._spans_at >= ENDS_SECONDS:
            self._look_at_spans(partition)
            self._answered()
        return buffer.position >= self._spans[partition][1]

    def _look_at_spans(self, partition: int) -> None:
        wanted = sorted({*self._buffers, *self._spans, partition})
        self._spans = self._ask(lambda: self._consumer.spans(wanted, ANSWER_SECONDS))
        self._spans_at = time.monotonic()

    def _poll(self, seconds: float) -> None:
        try:
            arrived = self._consumer.poll(seconds)
        except SourceUnavailable as error:
            raise self._unavailable(error) from error
        for partition, fetched in arrived.items():
            buffer = self._buffers[partition]
            buffer.add(fetched)
            if buffer.size_bytes >= self._config.buffer_bytes and partition not in self._paused:
                self._pause([partition])

    def _pause(self, partitions: Iterable[int]) -> None:
        self._consumer.pause(partitions, True)
        self._paused.update(partitions)

    def _resume(self) -> None:
        low = [number for number in self._paused if self._buffers[number].size_bytes <= self._config.buffer_bytes // 2]
        if low:
            self._consumer.pause(low, False)
            self._paused.difference_update(low)

    def _ask(self, question: Callable[[], Answer]) -> Answer:
        """The broker's answer; if the broker was silent a moment ago, it is not asked again by every partition."""
        if self._outage.is_on and time.monotonic() < self._ask_again_at:
            raise SourceUnavailable("Kafka did not answer a moment ago")
        try:
            return question()
        except SourceUnavailable as error:
            self._ask_again_at = time.monotonic() + AGAIN_SECONDS
            raise self._unavailable(error) from error

    # ── outages ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def _answered(self) -> None:
        if (silent := self._outage.end()) is not None:
            self._log.info("Kafka answers again", silent_seconds=round(silent, 1))

    def _unavailable(self, error: SourceUnavailable) -> SourceError:
        """The error to raise: the given one while the broker may come back, SourceError once that took too long."""
        self._outage.go_on()
        silent = self._outage.silent_seconds
        if self._outage.is_too_long:
            return SourceError(
                f"Kafka at {','.join(self._config.servers)} has not answered for {silent:.0f} s: {error}; expected an "
                f"answer within kafka.outage_seconds = {self._outage.longest_seconds:g}; start the broker, then a new "
                "run"
            )
        if self._outage.is_log_due():
            self._log.warning("Kafka does not answer; waiting", silent_seconds=round(silent, 1), error=str(error))
        return error

    def _out_of_range(self, partition: int, offset: int) -> OffsetOutOfRange:
        self._look_at_spans(partition)
        first, end = self._spans[partition]
        return OffsetOutOfRange(
            f"record {offset} of partition {partition} of topic {self._topic!r} cannot be read: it holds {first} to "
            f"{end - 1}; expected an offset in that range; give the topic more retention, or set "
            "stream.on_out_of_range"
        )


def _connect(config: KafkaConfig, name: str, given: Consumer | None) -> tuple[Consumer, TopicSnapshot]:
    """The consumer, and the topic as it is now; SourceError says what is wrong with one of them."""
    with ExitStack() as undo:
        try:
            consumer = given if given is not None else open_consumer(config, name)
            undo.callback(consumer.close)
            found = consumer.describe(config.request_seconds)
        except SourceUnavailable as error:
            raise SourceError(
                f"no answer from Kafka at {','.join(config.servers)}: {error}; expected a broker within "
                f"{config.request_seconds:g} s; check kafka.servers, or FRESHET_KAFKA, and that it runs"
            ) from error
        if found is None or not found.partitions:
            raise SourceError(
                f"topic {name!r} is not on Kafka at {','.join(config.servers)}; expected it to exist before a run "
                "reads it; create it, or correct stream.topic"
            )
        undo.pop_all()
        return consumer, found
