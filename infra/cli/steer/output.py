"""The output of commands: a line, a table, or JSON."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 160
"""Width of tables if the output is not a terminal."""


def print_answer(text: str, found: Any, as_json: bool) -> None:
    """Prints a line for people, or the whole answer as JSON."""
    if as_json:
        print_json(found)
    else:
        typer.echo(text)


def print_json(found: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode())


def show_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    table = Table(*columns, box=None, pad_edge=False, header_style="dim")
    console = Console()
    for row in rows:
        table.add_row(*(Text("" if value is None else str(value)) for value in row))
    console.print(table, width=None if console.is_terminal else WIDTH)


def when(at: float | None) -> str:
    return "" if at is None else f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}"
