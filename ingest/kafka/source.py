"""A Kafka topic as a source of records, on either client library.

Positions come from whoever reads (``assign`` and ``seek``): the group's committed offsets are written for display only.
Only committed records are seen; what a transaction leaves behind (markers, aborted records) is a gap between offsets.
Of each partition some bytes are kept ready; with more it is paused, so that a slow reader costs no memory.

A broker that does not answer is waited for: what cannot be answered now raises SourceUnavailable, which is no end of
the stream, and after ``kafka.outage_seconds``, if set, SourceError. A topic that is deleted, or deleted and created
again, stops the reader at once: its offsets mean something else now.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from ingest.errors import OffsetOutOfRange, SourceError, SourceUnavailable
from ingest.kafka.clients.base import Consumer, Fetched, Topic
from ingest.kafka.config import KafkaConfig
from ingest.streams.source import Record

Answer = TypeVar("Answer")
WAIT_SECONDS = 0.5
"""how long one read waits for records that are there, before it says that the broker does not answer"""
ANSWER_SECONDS = 2.0
"""how long the broker may take for a question about the topic, once the run is on"""
AGAIN_SECONDS = 0.2
"""pause after a question that was not answered"""
ENDS_SECONDS = 0.05
"""how old the known end of a partition may be when everything before it has been read"""
SPANS_SECONDS = 1.0
"""how old a span may be that is only looked at"""
DESCRIBE_SECONDS = 2.0
"""how often the topic is described: new partitions, or its end"""
LOG_SECONDS = 5.0
"""how often an outage is logged"""
PATIENCE_SECONDS = 1.0
"""what is silent for less is slow, and not worth a line in the log"""
CLOSE_SECONDS = 2.0


@dataclass
class Buffer:
    """Records of one partition that have come and were not read yet."""

    start: int
    """offset from which on it is complete"""
    position: int
    """offset after all that has been looked at"""
    records: list[Record] = field(default_factory=list)
    taken: int = 0
    """of the records, those read"""
    size_bytes: int = 0
    is_out_of_range: bool = False

    @property
    def is_empty(self) -> bool:
        return self.taken == len(self.records)

    def add(self, fetched: Fetched) -> None:
        self.is_out_of_range |= fetched.is_out_of_range
        new = fetched.records
        if new:
            self.records = self.records[self.taken :] + new
            self.taken = 0
            self.size_bytes += sum(len(record.payload) for record in new)
            self.position = new[-1].offset + 1
        if fetched.position is not None:
            self.position = max(self.position, fetched.position)

    def take(self, max_bytes: int) -> list[Record]:
        """The next records, about max_bytes of them, at least one."""
        end, size = self.taken, 0
        while end < len(self.records) and size < max_bytes:
            size += len(self.records[end].payload)
            end += 1
        taken = self.records[self.taken : end]
        self.taken, self.start = end, taken[-1].offset + 1
        self.size_bytes -= size
        return taken

    def drop_before(self, offset: int) -> None:
        while not self.is_empty and self.records[self.taken].offset < offset:
            self.size_bytes -= len(self.records[self.taken].payload)
            self.taken += 1
        self.start = offset


class KafkaSource:
    """A Source; one thread at a time."""

    def __init__(self, config: KafkaConfig, topic: str, consumer: Consumer | None = None) -> None:
        """Connects, and checks that the topic is there."""
        self._config, self._topic = config, topic
        self._log = structlog.get_logger("kafka")
        self._buffers: dict[int, Buffer] = {}
        self._paused: set[int] = set()
        self._spans: dict[int, tuple[int, int]] = {}
        self._spans_at = self._told_at = self._ask_again_at = -1e9
        self._silent_since: float | None = None
        self._committed: dict[int, int] = {}
        self._is_closed = False
        self._consumer, self._described = self._connect(consumer)
        self._described_at = time.monotonic()

    # ── Source ────────────────────────────────────────────────────────────────────────────────────────────────────────
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
        # Behind the last record there may be markers of transactions: offsets, but nothing to read.
        return first, buffer.start if buffer is not None and buffer.is_empty and buffer.position >= end else end

    def read(self, partition: int, offset: int, max_bytes: int = 1 << 20) -> list[Record]:
        buffer = self._buffer_at(partition, offset)
        until = time.monotonic() + WAIT_SECONDS
        while buffer.is_empty:
            if buffer.is_out_of_range:
                raise self._out_of_range(partition, offset)
            if self._is_at_end(partition, buffer):
                return []
            self._poll(max(0.0, until - time.monotonic()))
            if buffer.is_empty and time.monotonic() >= until:
                raise self._unavailable(SourceUnavailable(f"nothing came of partition {partition} from {offset} on"))
        self._answered()
        records = buffer.take(max_bytes)
        self._resume()
        return records

    def offset_at(self, partition: int, time_ms: int) -> int:
        found = self._consumer.offsets_at([partition], time_ms, self._config.request_seconds)[partition]
        return self.span(partition)[1] if found is None else found

    def commit(self, offsets: Mapping[int, int]) -> None:
        changed = {number: at for number, at in offsets.items() if self._committed.get(number) != at}
        if changed and self._config.group and self._silent_since is None:
            self._committed |= changed
            self._consumer.commit(changed, 0.0)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._committed and self._silent_since is None:
            self._consumer.commit(self._committed, CLOSE_SECONDS)
        self._consumer.close()

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _connect(self, consumer: Consumer | None) -> tuple[Consumer, Topic]:
        """The consumer and the topic it is for; SourceError says what is wrong with one of them."""
        with ExitStack() as undo:
            try:
                opened = consumer if consumer is not None else open_consumer(self._config, self._topic)
                undo.callback(opened.close)
                told = opened.describe(self._config.request_seconds)
            except SourceUnavailable as error:
                raise SourceError(
                    f"no answer from Kafka at {','.join(self._config.servers)}: {error}; expected a broker within "
                    f"{self._config.request_seconds:g} s; check kafka.servers, or FRESHET_KAFKA, and that it runs"
                ) from error
            topic = self._check_there(told)
            undo.pop_all()
            return opened, topic

    def _check_there(self, told: Topic | None) -> Topic:
        if told is None or not told.partitions:
            raise SourceError(
                f"topic {self._topic!r} is not on Kafka at {','.join(self._config.servers)}; expected it to be there "
                "before a run reads it; create it, or correct stream.topic"
            )
        return told

    def _check_same(self, told: Topic | None) -> None:
        if (
            told is None
            or told.identity != self._described.identity
            or set(self._described.partitions) - set(told.partitions)
        ):
            what = "has been deleted" if told is None else "has been deleted and created again"
            raise SourceError(
                f"topic {self._topic!r} {what} while it was being read; expected it to stay: the offsets of this run "
                "name other records now; start a new run"
            )
        self._described = told

    def _buffer_at(self, partition: int, offset: int) -> Buffer:
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
        self._buffers[partition] = Buffer(offset, offset)
        return self._buffers[partition]

    def _known_end(self, partition: int, offset: int) -> int:
        if partition not in self._spans or offset > self._spans[partition][1]:
            self._look_at_spans(partition)
        return self._spans[partition][1]

    def _is_at_end(self, partition: int, buffer: Buffer) -> bool:
        """Whether nothing lies behind the position; asks the broker only if all that was known has been read."""
        if partition in self._spans and buffer.position < self._spans[partition][1]:
            return False
        self._poll(0.0)
        if not buffer.is_empty or buffer.is_out_of_range:
            return False
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
            came = self._consumer.poll(seconds)
        except SourceUnavailable as error:
            raise self._unavailable(error) from error
        for partition, fetched in came.items():
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
        """The broker's answer; a broker that has just been silent is not asked again at once, by every partition."""
        if self._silent_since is not None and time.monotonic() < self._ask_again_at:
            raise SourceUnavailable("Kafka did not answer a moment ago")
        try:
            return question()
        except SourceUnavailable as error:
            self._ask_again_at = time.monotonic() + AGAIN_SECONDS
            raise self._unavailable(error) from error

    # ── outages ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def _answered(self) -> None:
        if self._silent_since is not None and self._told_at > 0:
            self._log.info("Kafka answers again", silent_seconds=round(time.monotonic() - self._silent_since, 1))
        self._silent_since = None

    def _unavailable(self, error: SourceUnavailable) -> SourceError:
        """What to raise: that we go on waiting, or that it took too long."""
        now, longest = time.monotonic(), self._config.outage_seconds
        if self._silent_since is None:
            self._silent_since, self._told_at = now, -1e9
        silent = now - self._silent_since
        if longest is not None and silent > longest:
            return SourceError(
                f"Kafka at {','.join(self._config.servers)} has not answered for {silent:.0f} s: {error}; expected an "
                f"answer within kafka.outage_seconds = {longest:g}; start the broker, then a new run"
            )
        if silent >= PATIENCE_SECONDS and now - self._told_at >= LOG_SECONDS:
            self._told_at = now
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


def open_consumer(config: KafkaConfig, topic: str) -> Consumer:
    """The consumer on the library that the settings name."""
    if config.client == "kafka-python":
        from ingest.kafka.clients.kafka_python import KafkaPythonConsumer

        return KafkaPythonConsumer(config, topic)
    try:
        from ingest.kafka.clients.confluent import ConfluentConsumer
    except ImportError as error:
        raise SourceError(
            "kafka.client = 'confluent-kafka' cannot be used: the package is not installed; expected the extra "
            "'kafka-fast'; install it (pip install 'freshet[kafka-fast]'), or set kafka.client = kafka-python"
        ) from error
    return ConfluentConsumer(config, topic)
