from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.base.errors import ConfigError
from ingest.log.embedded import LogReader, LogWriter
from ingest.streams.position import Position
from ingest.streams.start import parse_time, start_positions


@pytest.fixture
def source(tmp_path: Path) -> Iterator[LogReader]:
    """Two partitions of ten records, appended one a second from 1,000 s on, and from 1,100 s on."""
    writer = LogWriter(tmp_path, "clicks", 2)
    for number in range(10):
        writer.append(0, [(None, b"x")], time_ms=1_000_000 + 1000 * number)
        writer.append(1, [(None, b"x")], time_ms=1_100_000 + 1000 * number)
    writer.close()
    reader = LogReader(tmp_path, "clicks")
    yield reader
    reader.close()


def test_without_a_wish_a_run_begins_wherever_the_first_record_is(source: LogReader) -> None:
    assert start_positions(source) == {}


def test_a_time_is_the_first_record_not_older_in_every_partition(source: LogReader) -> None:
    assert start_positions(source, from_time="1003.5") == {0: Position(4), 1: Position(0)}
    assert start_positions(source, from_time="1105") == {0: Position(10), 1: Position(5)}


def test_a_time_may_be_written_in_iso_with_or_without_its_zone() -> None:
    assert parse_time("1970-01-01T00:16:40Z") == 1_000_000
    assert parse_time("1970-01-01T00:16:40") == 1_000_000
    assert parse_time("1970-01-01T01:16:40+01:00") == 1_000_000


def test_offsets_are_taken_and_other_partitions_begin_at_their_first_record(source: LogReader) -> None:
    assert start_positions(source, from_offsets="1:7") == {0: Position(0), 1: Position(7)}
    assert start_positions(source, from_offsets="0:10, 1:0") == {0: Position(10), 1: Position(0)}


@pytest.mark.parametrize(
    ("time", "offsets", "message"),
    [
        ("yesterday", None, r"--from-time 'yesterday' is no time; expected ISO 8601"),
        ("-5", None, r"--from-time '-5' is no time"),
        (None, "0-5", r"cannot be read at '0-5'; expected partition:offset"),
        (None, f"0:{'9' * 5000}", r"cannot be read at '0:9999"),
        (None, "0:1,0:2", r"each partition once"),
        (None, "4:0", r"names partitions \[4\]; expected some of \[0, 1\]"),
        (None, "0:11", r"partition 0 holds 0 to 9; expected"),
        ("0", "0:1", r"both given"),
    ],
)
def test_a_wrong_start_is_reported(source: LogReader, time: str | None, offsets: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        start_positions(source, time, offsets)
