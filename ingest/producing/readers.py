"""Reads public click data as events: Criteo (tsv), Avazu (csv), MovieLens (100k tsv, pairs parquet); .gz or plain.

Files are read line by line. A malformed line of a public data set is an error with its number, not a dead letter,
because the file is not what it should be. Lines of jsonl are a user's own events: they pass through unread, and the
reader of the topic finds what is wrong with them.
"""

import csv
import gzip
import io
import os
import select
import zlib
from calendar import timegm
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import strptime
from typing import BinaryIO, TextIO

from infra.base.errors import ConfigError
from ingest.convert import Event, Value
from ingest.errors import InputError

CRITEO_START = 1_400_000_000.0
CRITEO_SECONDS = 0.0132
"""Criteo has no times: 7 days over 45.8 million lines."""
CRITEO_INTEGERS = tuple(f"I{i}" for i in range(1, 14))
CRITEO_CATEGORIES = tuple(f"C{i}" for i in range(1, 27))
GOOD_RATING = 4
STDIN = Path("-")
LINE_BYTES = 16 << 20
"""Longest line that is passed on, in bytes; schemas reject far shorter ones."""
READ_BYTES = 1 << 16
PAUSE_SECONDS = 0.1
"""How long to wait for more lines before returning control to the caller."""


def read_criteo(path: Path) -> Iterator[Event]:
    """Reads a label, 13 integers and 26 categories per line; empty fields are absent."""
    with open_text(path) as lines:
        for number, line in numbered_lines(path, lines):
            parts = line.rstrip("\r\n").split("\t")
            if len(parts) != 40:
                raise _broken(path, number, f"{len(parts)} fields", "40 fields separated by tabs")
            try:
                fields: dict[str, Value] = {n: int(v) for n, v in zip(CRITEO_INTEGERS, parts[1:14], strict=True) if v}
            except ValueError as error:
                raise _broken(path, number, str(error), "integers in fields 2 to 14") from error
            fields.update((n, v) for n, v in zip(CRITEO_CATEGORIES, parts[14:], strict=True) if v)
            yield Event(CRITEO_START + (number - 1) * CRITEO_SECONDS, _label(path, number, parts[0]), fields)


def read_avazu(path: Path) -> Iterator[Event]:
    """Reads Kaggle's csv with its header; ``hour`` (YYMMDDHH) becomes the event time and the hour of day."""
    with open_text(path) as lines:
        rows = csv.reader(line for _, line in numbered_lines(path, lines))
        header = next(rows, [])
        if not {"id", "click", "hour"} <= set(header):
            raise _broken(path, 1, f"header {','.join(header)[:80]!r}", "Kaggle's header with id, click and hour")
        names = [name for name in header if name not in ("id", "click", "hour")]
        for number, row in enumerate(rows, start=2):
            if len(row) != len(header):
                raise _broken(path, number, f"{len(row)} fields", f"{len(header)} fields separated by commas")
            named = dict(zip(header, row, strict=True))
            time = _hour(path, number, named["hour"])
            fields: dict[str, Value] = {name: named[name] for name in names if named[name]}
            fields["hour"] = int(time // 3600 % 24)
            yield Event(time, _label(path, number, named["click"]), fields)


def read_movielens(path: Path) -> Iterator[Event]:
    """Reads user, item, rating, timestamp per line, where a rating of 4 or more is a click; or the parquet of pairs,
    all clicks.
    """
    if path.suffix == ".parquet":
        yield from _read_pairs(path)
        return
    with open_text(path) as lines:
        for number, line in numbered_lines(path, lines):
            parts = line.rstrip("\r\n").split("\t")
            try:
                user, item, rating, time = parts
                yield Event(float(int(time)), int(float(rating) >= GOOD_RATING), {"user": user, "item": item})
            except ValueError as error:
                raise _broken(
                    path, number, repr(line[:80]), "user, item, rating, timestamp separated by tabs"
                ) from error


def _read_pairs(path: Path) -> Iterator[Event]:
    import pyarrow as pa  # only who reads these files waits for it
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            row = 0
            for group in file.iter_batches(columns=["userID", "movieID"]):
                for user, item in zip(*(column.to_pylist() for column in group.columns), strict=True):
                    yield Event(CRITEO_START + row, 1, {"user": user, "item": item})
                    row += 1
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(
            f"cannot replay {path}: {error}; expected a parquet file with userID and movieID; check the file"
        ) from error


READERS: Mapping[str, Callable[[Path], Iterator[Event]]] = {
    "criteo": read_criteo,
    "avazu": read_avazu,
    "movielens": read_movielens,
}


def read_dataset(name: str, path: Path) -> Iterator[Event]:
    """Events of a file of a known dataset."""
    if name not in READERS:
        raise ConfigError(f"unknown dataset {name!r}; expected one of {', '.join(READERS)}; choose one of them")
    if not path.is_file():
        raise ConfigError(f"no dataset file at {path}; expected a {name} file; give its path")
    return READERS[name](path)


def read_jsonl(path: Path) -> Iterator[bytes | None]:
    """The lines of a file, a pipe or, for ``-``, stdin, unchanged; None if there are no more yet.

    Blank lines are omitted. The reader of the topic finds those that are not events.
    """
    if path.suffix == ".gz":
        with gzip.open(path, "rb") as lines:
            yield from _lines(path, lines)
        return
    file = 0 if path == STDIN else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield from _arriving_lines(path, file)
    finally:
        if path != STDIN:
            os.close(file)


def _lines(path: Path, lines: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
    number = 0
    try:
        while line := lines.readline(LINE_BYTES + 1):
            number += 1
            check_length(path, number, line)
            if line.strip():
                yield line.rstrip(b"\r\n")
    except (OSError, EOFError, zlib.error) as error:
        raise _broken(path, number + 1, str(error), "a whole gzip file") from error


def _arriving_lines(path: Path, file: int) -> Iterator[bytes | None]:
    number = 0
    rest = b""
    wait = 0.0
    poller = select.poll()  # select() takes no descriptor above 1023
    poller.register(file, select.POLLIN)
    while True:
        if not poller.poll(1000 * wait):
            yield None  # so that earlier lines are written, and a stop is noticed, while no line arrives
            wait = PAUSE_SECONDS
            continue
        chunk = os.read(file, READ_BYTES)
        wait = 0.0
        *lines, rest = (rest + chunk).split(b"\n") if chunk else [rest, b""]
        number += len(lines)
        yield from (line.rstrip(b"\r") for line in lines if line.strip())
        check_length(path, number + 1, rest)
        if not chunk:
            return


def check_length(path: Path, number: int, line: bytes) -> None:
    """Raises InputError for a line that is too long to be passed on."""
    if len(line) > LINE_BYTES:
        raise _broken(path, number, "a line without an end", f"at most {LINE_BYTES:,} bytes a line")


def open_text(path: Path) -> TextIO:
    try:
        if path.suffix == ".gz":
            return io.TextIOWrapper(gzip.open(path, "rb"), encoding="utf-8", newline="")
        return path.open(encoding="utf-8", newline="")
    except OSError as error:
        raise InputError(f"cannot replay {path}: {error}; expected a readable file; check the path") from error


def numbered_lines(path: Path, lines: TextIO) -> Iterator[tuple[int, str]]:
    """(number, line) from 1 on; damage to the file itself is reported with the number of the line it hides."""
    number = 0
    try:
        for number, line in enumerate(lines, start=1):
            yield number, line
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise _broken(path, number + 1, str(error), "a whole text file, gzip if named .gz") from error


def _broken(path: Path, number: int, found: str, expected: str) -> InputError:
    return InputError(
        f"cannot replay {path}, line {number}: found {found}; expected {expected}; correct or remove the line"
    )


def _label(path: Path, number: int, text: str) -> int:
    if text not in ("0", "1"):
        raise _broken(path, number, f"label {text[:20]!r}", "0 or 1")
    return int(text)


def _hour(path: Path, number: int, text: str) -> float:
    try:
        return float(timegm(strptime(text, "%y%m%d%H")))
    except ValueError as error:
        raise _broken(path, number, f"hour {text[:20]!r}", "YYMMDDHH") from error
