"""Crosses that were found in events, as ``freshet check`` and ``freshet init`` print them."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:  # loads numpy
    from ingest.crosses import Suggestions


def print_crosses(found: "Suggestions", console: Console) -> None:
    """Prints the suggested crosses, and the line of a schema that uses them."""
    console.print(Text(f"\ncrosses, measured on the last {found.later:,} of {found.events:,} events", style="bold"))
    if not found.crosses:
        console.print("no combination of two tables lowers logloss by more than chance would")
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("cross")
    for name in ("logloss lower by", "keys"):
        table.add_column(name, justify="right", no_wrap=True)
    for cross in found.crosses:
        table.add_row(Text(" × ".join(cross.tables)), f"{cross.gain:.5f}", f"{cross.keys:,}")
    console.print(table)
    console.print(
        f"logloss of a linear model: {found.logloss:.4f} without, {found.crossed_logloss:.4f} with all of them"
    )
    console.print(Text(found.line), soft_wrap=True)
