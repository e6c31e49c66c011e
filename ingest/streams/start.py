"""Where a run begins to read: a time or offsets, as given on the command line, turned into positions."""

from collections.abc import Mapping
from datetime import UTC, datetime

from infra.base.errors import ConfigError
from ingest.streams.position import Position
from ingest.streams.source import Source

MOST_DIGITS = 19
"""Most digits of a number of 63 bits."""


def start_positions(
    source: Source, from_time: str | None = None, from_offsets: str | None = None
) -> dict[int, Position]:
    """Where to begin in each partition; empty: at the first record of every partition."""
    if from_time is not None and from_offsets is not None:
        raise ConfigError("--from-time and --from-offsets are both given; expected one of them; leave one out")
    if from_time is not None:
        time_ms = parse_time(from_time)
        return {number: Position(source.offset_at(number, time_ms)) for number in source.partitions()}
    return _checked(source, parse_offsets(from_offsets)) if from_offsets is not None else {}


def describe_start(source: Source, start: Mapping[int, Position], is_resumed: bool) -> str:
    """The contents of a topic and where a run begins to read it; start: positions of partitions that are not read
    whole.
    """
    spans = {number: source.span(number) for number in source.partitions()}
    held = sum(end - first for first, end in spans.values())
    begins = {number: start.get(number, Position(first)).offset for number, (first, _) in spans.items()}
    left = sum(end - max(first, begins[number]) for number, (first, end) in spans.items())
    if not held:
        return "is empty"
    if is_resumed:
        return f"holds {held:,} records; reading continues where the run was interrupted, with {left:,} of them to come"
    if left == held:
        return (
            f"holds {held:,} records from before; reading begins with the oldest of them (with others: --from-time, "
            "--from-offsets, or another stream.topic)"
        )
    return f"holds {held:,} records from before; reading begins with the last {left:,} of them, as requested"


def start_arguments(from_time: str | None, from_offsets: str | None) -> tuple[str, ...]:
    """The same as arguments of the dispatcher; ConfigError if one cannot be parsed."""
    if from_time is not None:
        parse_time(from_time)
    if from_offsets is not None:
        parse_offsets(from_offsets)
    given = (("--from-time", from_time), ("--from-offsets", from_offsets))
    return tuple(part for name, value in given if value is not None for part in (name, value))


def parse_time(text: str) -> int:
    """Unix milliseconds of an ISO 8601 time, UTC if it names no zone, or of unix seconds."""
    try:
        try:
            seconds = float(text)
        except ValueError:
            moment = datetime.fromisoformat(text)
            seconds = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
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
        if not (colon and _is_number(number) and _is_number(offset)) or int(number) in offsets:
            raise ConfigError(
                f"--from-offsets {text!r} cannot be read at {part!r}; expected partition:offset, each partition once, "
                "as in 0:123,1:77; correct it"
            )
        offsets[int(number)] = int(offset)
    return offsets


def _is_number(text: str) -> bool:
    """Whether the text is a number that fits into a 64-bit offset."""
    return text.isdecimal() and len(text) <= MOST_DIGITS


def _checked(source: Source, offsets: dict[int, int]) -> dict[int, Position]:
    """Positions of all partitions: those named, checked; the others at their first record."""
    existing = source.partitions()
    if unknown := sorted(set(offsets) - set(existing)):
        raise ConfigError(f"--from-offsets names partitions {unknown}; expected some of {existing}; correct it")
    positions = {}
    for number in existing:
        first, end = source.span(number)
        at = offsets.get(number, first)
        if not first <= at <= end:
            raise ConfigError(
                f"--from-offsets {number}:{at} cannot be followed: partition {number} holds {first} to {end - 1}; "
                "expected an offset in that range, or the one after it; correct it"
            )
        positions[number] = Position(at)
    return positions
