"""Opens the source, sink and dead letters that ``stream.source`` selects: in the embedded log, on Kafka or elsewhere.

Dead letters are in the embedded log unless they are on Kafka.

Kafka's modules are imported only when needed, because its client libraries take a while to load.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from infra.base.process import Stop
from ingest.config import StreamConfig
from ingest.errors import LogBusy
from ingest.kafka.config import KafkaConfig
from ingest.letters.embedded import DeadLetterLog, read_dead_letters
from ingest.letters.letter import DeadLetter, DeadLetters
from ingest.log.embedded import LogReader, LogWriter
from ingest.schema import Schema
from ingest.streams.plugged import open_plugged_sink, open_plugged_source, try_source
from ingest.streams.position import Position
from ingest.streams.sink import Sink
from ingest.streams.source import Source
from ingest.streams.start import describe_start, start_positions


def check_source(stream: StreamConfig, kafka: KafkaConfig, schema: Schema) -> None:
    """Raises BrokerError or ConfigError for what would keep a run from reading this stream; the log may be empty."""
    if stream.source == "kafka":
        from ingest.kafka.topics import check_stream

        check_stream(kafka, stream, schema)
    elif stream.is_plugged:
        try_source(stream)


def open_source(stream: StreamConfig, kafka: KafkaConfig) -> Source:
    """The embedded log, which may still be empty, a Kafka topic, which must exist, or another package's source."""
    if stream.source == "log":
        return LogReader(stream.folder, stream.topic)
    if stream.is_plugged:
        return open_plugged_source(stream)
    from ingest.kafka.source import KafkaSource

    return KafkaSource(kafka, stream.topic)


def describe_stream(
    stream: StreamConfig,
    kafka: KafkaConfig,
    resumed_at: Mapping[int, Position] | None = None,
    from_time: str | None = None,
    from_offsets: str | None = None,
) -> str:
    """One line: which topic a run reads, its contents, and where reading begins.

    resumed_at: where a resumed run continues; None: it is a new one.
    """
    where = place_of(stream, kafka)
    with closing(open_source(stream, kafka)) as source:
        is_resumed = resumed_at is not None
        start = start_positions(source, from_time, from_offsets) if resumed_at is None else resumed_at
        return f"topic {stream.topic!r} {where} {describe_start(source, start, is_resumed)}"


def place_of(stream: StreamConfig, kafka: KafkaConfig) -> str:
    """Where the topic is, in words."""
    if stream.is_plugged:
        return f"of source {stream.source!r}"
    return f"on Kafka at {','.join(kafka.servers)}" if stream.source == "kafka" else f"in {stream.folder}"


def open_sink(stream: StreamConfig, kafka: KafkaConfig, stop: Stop) -> Sink:
    """The embedded log, created if it is missing, a Kafka topic, which must exist, or the sink of another's source."""
    if stream.is_plugged:
        return open_plugged_sink(stream)
    if stream.source == "log":
        with _one_writer(stream.folder, stream.topic, "stream.topic"):
            return LogWriter(
                folder=stream.folder,
                topic=stream.topic,
                partitions=stream.partitions,
                segment_bytes=stream.segment_bytes,
                retention_bytes=stream.retention_bytes,
                retention_cap_bytes=stream.retention_cap_bytes,
            )
    from ingest.kafka.sink import KafkaSink

    return KafkaSink(kafka, stream.topic, stop)


def open_letters(stream: StreamConfig, kafka: KafkaConfig, run: str) -> DeadLetters:
    """The dead letters of one run, for writing; the log is created if it is missing, a Kafka topic must exist."""
    origin = f"{run}/{stream.topic}"
    if stream.source != "kafka":
        with _one_writer(stream.folder, stream.dead_letter_topic, "stream.dead_letter_topic"):
            return DeadLetterLog(stream.folder, stream.dead_letter_topic, origin, stream.retention_bytes)
    from ingest.kafka.letter_topic import KafkaLetters

    return KafkaLetters(kafka, stream.dead_letter_topic, stream.topic, origin)


def read_letters(stream: StreamConfig, kafka: KafkaConfig) -> Iterator[DeadLetter]:
    """All dead letters, oldest first."""
    if stream.source != "kafka":
        return read_dead_letters(stream.folder, stream.dead_letter_topic)
    from ingest.kafka.letter_topic import read_kafka_letters

    return read_kafka_letters(kafka, stream.dead_letter_topic)


@contextmanager
def _one_writer(folder: Path, topic: str, setting: str) -> Iterator[None]:
    """Adds to an error which settings keep two writers apart."""
    try:
        yield
    except LogBusy as error:
        raise LogBusy(
            f"topic {topic!r} in {folder} cannot be written: another process, as that of a second run, writes it; "
            f"expected one writer; stop the other, or set {setting} or stream.folder to another"
        ) from error
