"""Rows of CSV and Parquet files, and lines of plain JSON objects, as events in JSON.

Every row becomes one record, so nothing is lost: a row that cannot be an event is passed on as far as it was read, and
the reader of the topic finds what is wrong with it. Only a file that cannot be read at all is an error here. A value
that is empty (CSV), null or NaN is absent.
"""

import csv
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from infra.base.errors import ConfigError
from ingest.codec.nesting import is_too_deep
from ingest.codec.unknown import nearest_field
from ingest.errors import InputError
from ingest.producing.readers import numbered_lines, open_text, read_jsonl
from ingest.schema import FileColumns

CSV = (".csv", ".tsv")
PARQUET = ".parquet"
DELIMITERS = ",\t;|"
BATCH_ROWS = 8192
LARGEST_FIELD = 16 << 20
"""Bytes of the largest field of a CSV file."""
UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6}
TRUE = ("1", "1.0", "true", "yes")
FALSE = ("0", "0.0", "false", "no")

Row = Mapping[str, Any]

_encoder = msgspec.json.Encoder()


def is_table(path: Path) -> bool:
    """Whether a file has columns by its name: CSV or Parquet."""
    return kind_of(path) in (*CSV, PARQUET)


def kind_of(path: Path) -> str:
    """The suffix of a file without that of its compression."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    return plain.suffix.lower()


def read_events(path: Path, columns: FileColumns | None) -> Iterator[bytes | None]:
    """The events of a file in JSON; None if there are no more yet, which a pipe may have.

    columns: of the schema; None: lines of JSON are events, and a table has the usual names.
    """
    if is_table(path):
        chosen = columns or FileColumns(time="event_time" if "event_time" in columns_of(path) else "")
        check_columns(path, chosen)
        rows = read_rows(path)
        return (row if isinstance(row, bytes) else event_of(row, number, chosen) for number, row in enumerate(rows))
    return read_jsonl(path) if columns is None else lines_as_events(read_jsonl(path), columns)


def lines_as_events(lines: Iterable[bytes | None], columns: FileColumns) -> Iterator[bytes | None]:
    """Lines of JSON objects as events; a line that is an event already, or no object, is passed on unchanged."""
    number = 0
    for line in lines:
        if line is None:
            yield None
            continue
        row = plain_object(line)
        yield line if row is None else event_of(row, number, columns)
        number += 1


def plain_object(line: bytes) -> dict[str, Any] | None:
    """The values of a line of JSON; None if it is an event, or not an object."""
    if is_too_deep(line):
        return None
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, ValueError):
        return None
    return value if isinstance(value, dict) and not isinstance(value.get("fields"), dict) else None


def event_of(row: Row, number: int, columns: FileColumns) -> bytes:
    """The event of a row in JSON; without label or time if the row has none."""
    event: dict[str, Any] = {}
    if (label := label_of(row.get(columns.label))) is not None:
        event["label"] = label
    time = float(number) if not columns.time else time_of(row.get(columns.time), columns.time_unit)
    if time is not None:
        event["event_time"] = time
    event["fields"] = {
        name: plain_value(value) for name, value in row.items() if name not in (columns.label, columns.time)
    }
    return _encoder.encode(event)


def label_of(value: Any) -> Any:
    """1 or 0 for what means a click or none; None if absent; anything else unchanged, for the reader to reject."""
    if value is None or (isinstance(value, float) and math.isnan(value)) or value == "":
        return None
    text = str(value).strip().lower()
    return 1 if text in TRUE else 0 if text in FALSE else plain_value(value)


def time_of(value: Any, unit: str) -> Any:
    """Seconds since 1970; None if absent; a text that is no time unchanged, for the reader to reject."""
    if isinstance(value, datetime):
        return (value if value.tzinfo is not None else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp()
    if isinstance(value, str):
        return text_time(value.strip(), unit)
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool) and math.isfinite(value):
        return float(value) / UNITS[unit]
    return None


def text_time(text: str, unit: str) -> float | str | None:
    if not text:
        return None
    try:
        return float(text) / UNITS[unit]
    except ValueError:
        pass
    try:
        return float(time_of(datetime.fromisoformat(text), unit))
    except ValueError:
        return text


def plain_value(value: Any) -> Any:
    """A value that JSON has; other kinds become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list | tuple):
        return [plain_value(member) for member in value]
    if isinstance(value, dict):
        return {str(name): plain_value(member) for name, member in value.items()}
    return value.isoformat() if isinstance(value, date) else str(value)


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
def read_rows(path: Path) -> Iterator[Row | bytes]:
    """The rows of a CSV or Parquet file; a row of CSV that does not fit its header as the text of its line."""
    return _parquet_rows(path) if kind_of(path) == PARQUET else _csv_rows(path)


def columns_of(path: Path) -> list[str]:
    """The names of the columns of a CSV or Parquet file."""
    if kind_of(path) != PARQUET:
        with open_text(path) as lines:
            return _header(path, next((line for _, line in numbered_lines(path, lines)), ""))[0]
    import pyarrow as pa  # only who reads these files waits for it
    import pyarrow.parquet as pq

    try:
        return list(pq.read_schema(path).names)
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error


def check_columns(path: Path, columns: FileColumns) -> None:
    """Raises ConfigError if the file has no column of the time; one without labels may still be predicted."""
    there = columns_of(path)
    if columns.time and columns.time not in there:
        raise no_column(path, columns.time, there, "--time or time in [file] of the schema")


def no_column(path: Path, name: str, there: list[str], option: str) -> ConfigError:
    """The error of a column that a file does not have."""
    near = nearest_field(name, there)
    meant = f" (perhaps {near!r})" if near else ""
    return ConfigError(f"{path} has no column {name!r}{meant}; expected one of {', '.join(there)}; correct {option}")


def _csv_rows(path: Path) -> Iterator[Row | bytes]:
    csv.field_size_limit(LARGEST_FIELD)
    with open_text(path) as file:
        lines = (line for _, line in numbered_lines(path, file))
        header, delimiter = _header(path, next(lines, ""))
        rows = csv.reader(lines, delimiter=delimiter)
        try:
            for values in rows:
                if len(values) == len(header):
                    yield {name: value for name, value in zip(header, values, strict=True) if value}
                elif values:
                    yield delimiter.join(values).encode()
        except csv.Error as error:
            raise InputError(
                f"cannot read {path}, line {rows.line_num + 1}: {error}; expected CSV; correct the line"
            ) from error


def _header(path: Path, line: str) -> tuple[list[str], str]:
    """The names of the columns, and what separates them."""
    line = line.removeprefix("\ufeff")
    delimiter = max(DELIMITERS, key=line.count)
    names = next(csv.reader([line], delimiter=delimiter), [])
    if not any(names):
        raise InputError(f"{path} is empty; expected a first line with the names of its columns; give another file")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"{path} has the columns {twice} twice; expected each name once; rename them")
    return names, delimiter


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=BATCH_ROWS):
                yield from _whole_microseconds(batch).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(path, error) from error


def _whole_microseconds(batch: Any) -> Any:
    """The batch with times that Python has: it knows no nanoseconds."""
    import pyarrow as pa

    for place, field in enumerate(batch.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            column = batch.column(place).cast(pa.timestamp("us", field.type.tz), safe=False)
            batch = batch.set_column(place, field.name, column)
    return batch


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(f"cannot read {path}: {error}; expected a Parquet file; check the file")
