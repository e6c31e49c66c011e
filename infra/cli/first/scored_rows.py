"""Writes predictions as CSV, Parquet or JSON lines; the file has its name only once it is complete."""

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TextIO

import msgspec
import numpy as np

from infra.base.errors import ConfigError
from infra.cli.first.scorers import NO_LABEL, Scored

STDOUT = Path("-")
NAMES = ("row", "probability", "label", "problem")
SUFFIXES = (".csv", ".parquet", ".jsonl")


class RowWriter(Protocol):
    """Writes predictions in one format."""

    def write(self, first: int, scored: Scored) -> None:
        """Writes some rows; first: the number of the first one, from 0."""


@contextmanager
def open_rows(path: Path) -> Iterator[RowWriter]:
    """A writer for a file, by its suffix; raises ConfigError for others."""
    if path == STDOUT:
        yield CsvRows(sys.stdout)
        return
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path} has the suffix {path.suffix!r}; expected one of {', '.join(SUFFIXES)}; correct -o")
    part = path.with_name(f"{path.name}.part")
    try:
        if path.suffix == ".parquet":
            with parquet_rows(part) as writer:
                yield writer
        else:
            with part.open("w", encoding="utf-8", newline="") as file:
                yield CsvRows(file) if path.suffix == ".csv" else JsonRows(file)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


class CsvRows:
    """Rows with a header; what is absent is empty."""

    def __init__(self, file: TextIO) -> None:
        self._writer = csv.writer(file, lineterminator="\n")
        self._writer.writerow(NAMES)

    def write(self, first: int, scored: Scored) -> None:
        rows = zip(*columns(first, scored).values(), strict=True)
        self._writer.writerows([["" if value is None else value for value in row] for row in rows])


class JsonRows:
    """One object a line; what is absent is left out."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, first: int, scored: Scored) -> None:
        for row in zip(*columns(first, scored).values(), strict=True):
            named = {name: value for name, value in zip(NAMES, row, strict=True) if value is not None}
            self._file.write(msgspec.json.encode(named).decode() + "\n")


@contextmanager
def parquet_rows(path: Path) -> Iterator[RowWriter]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = (pa.int64(), pa.float64(), pa.int8(), pa.string())
    schema = pa.schema(list(zip(NAMES, types, strict=True)))
    with pq.ParquetWriter(path, schema) as file:
        yield ParquetRows(file, schema)


class ParquetRows:
    """Row groups; what is absent is null."""

    def __init__(self, file: Any, schema: Any) -> None:
        self._file = file
        self._schema = schema

    def write(self, first: int, scored: Scored) -> None:
        import pyarrow as pa

        self._file.write_table(pa.table(columns(first, scored), schema=self._schema))


def columns(first: int, scored: Scored) -> dict[str, list[Any]]:
    """The rows by column; None for what is absent."""
    count = len(scored.problems)
    return {
        "row": list(range(first, first + count)),
        "probability": [None if np.isnan(each) else each for each in scored.probabilities_B.tolist()],
        "label": [None if each == NO_LABEL else each for each in scored.labels_B.tolist()],
        "problem": [each or None for each in scored.problems],
    }
