"""Which source the settings name, and where a run begins to read it."""

from datetime import UTC, datetime

from infra.errors import ConfigError
from ingest.config import StreamConfig
from ingest.kafka.config import KafkaConfig
from ingest.log.embedded import LogReader
from ingest.schema import Schema
from ingest.streams.position import Position
from ingest.streams.source import Source


def open_source(stream: StreamConfig, kafka: KafkaConfig) -> Source:
    """The embedded log, which may still be empty, or a Kafka topic, which must be there."""
    if stream.source == "log":
        return LogReader(stream.folder, stream.topic)
    from ingest.kafka.source import KafkaSource  # its client library takes a while to load

    return KafkaSource(kafka, stream.topic)


def check_source(stream: StreamConfig, kafka: KafkaConfig, schema: Schema) -> None:
    """Raises, in one line, for whatever would keep a run from reading this stream; the embedded log may be empty."""
    if stream.source == "kafka":
        from ingest.kafka.topics import check_stream

        check_stream(kafka, stream, schema)


def start_positions(
    source: Source, from_time: str | None = None, from_offsets: str | None = None
) -> dict[int, Position]:
    """Where to begin in each partition; none: wherever the first record is."""
    if from_time is not None and from_offsets is not None:
        raise ConfigError("--from-time and --from-offsets are both given; expected one of them; leave one out")
    if from_time is not None:
        time_ms = parse_time(from_time)
        return {number: Position(source.offset_at(number, time_ms)) for number in source.partitions()}
    return _checked(source, parse_offsets(from_offsets)) if from_offsets is not None else {}


def start_arguments(from_time: str | None, from_offsets: str | None) -> tuple[str, ...]:
    """The same wish as arguments of the dispatcher; ConfigError if it cannot be one."""
    if from_time is not None:
        parse_time(from_time)
    if from_offsets is not None:
        parse_offsets(from_offsets)
    given = (("--from-time", from_time), ("--from-offsets", from_offsets))
    return tuple(part for name, value in given if value is not None for part in (name, value))


def parse_time(text: str) -> int:
    """Unix milliseconds of an ISO 8601 time, UTC where it names no zone, or of unix seconds."""
    try:
        try:
            seconds = float(text)
        except ValueError:
            told = datetime.fromisoformat(text)
            seconds = (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()
        if not 0 <= seconds < 1e11:
            raise ValueError(text)
    except ValueError as error:
        raise ConfigError(
            f"--from-time {text!r} is no time; expected ISO 8601, as in 2026-11-15T04:30:00Z, or unix seconds; correct "
            "it"
        ) from error
    return round(1000 * seconds)


def parse_offsets(text: str) -> dict[int, int]:
    """0:123,1:77 as partition → offset."""
    offsets: dict[int, int] = {}
    for part in text.split(","):
        number, colon, offset = part.strip().partition(":")
        if not (colon and number.isdecimal() and offset.isdecimal()) or int(number) in offsets:
            raise ConfigError(
                f"--from-offsets {text!r} cannot be read at {part!r}; expected partition:offset, each partition once, "
                "as in 0:123,1:77; correct it"
            )
        offsets[int(number)] = int(offset)
    return offsets


def _checked(source: Source, offsets: dict[int, int]) -> dict[int, Position]:
    """Positions of all partitions: those named, checked; the others at their first record."""
    there = source.partitions()
    if unknown := sorted(set(offsets) - set(there)):
        raise ConfigError(f"--from-offsets names partitions {unknown}; expected some of {there}; correct it")
    positions = {}
    for number in there:
        first, end = source.span(number)
        at = offsets.get(number, first)
        if not first <= at <= end:
            raise ConfigError(
                f"--from-offsets {number}:{at} cannot be followed: partition {number} holds {first} to {end - 1}; "
                "expected an offset in that range, or the one after it; correct it"
            )
        positions[number] = Position(at)
    return positions
