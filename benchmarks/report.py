"""Results of a benchmark, as a table on the terminal and as JSON in a file."""

from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from infra.base.process import write_whole

SIDE_BY_SIDE = 4
"""Results that fit into columns of one table."""


def report(results: Sequence[Any], output: Path | None) -> None:
    """Prints results as a table and writes them as JSON: a few side by side, many one below the other."""
    rows = [_flat(result) for result in results]
    table = Table(show_header=len(rows) > SIDE_BY_SIDE)
    if len(rows) > SIDE_BY_SIDE:
        for name in rows[0]:
            table.add_column(name.replace("_", " "), justify="left" if name == "name" else "right")
        for row in rows:
            table.add_row(*(Text(_text(value)) for value in row.values()))
    else:
        for name in rows[0]:
            table.add_row(name, *(Text(_text(row[name])) for row in rows))
    Console().print(table)
    write_json(results, output)


def write_json(results: Sequence[Any], output: Path | None) -> None:
    if output is not None:
        write_whole(output, msgspec.json.format(msgspec.json.encode(list(results))).decode() + "\n")


def _flat(result: Any) -> dict[str, Any]:
    fields = asdict(result) if is_dataclass(result) and not isinstance(result, type) else msgspec.structs.asdict(result)
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        inner = msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else value
        if isinstance(inner, dict):
            flat.update({f"{name}.{key}": item for key, item in inner.items()})
        else:
            flat[name] = inner
    return flat


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
