"""``freshet check``: compares events with a schema before they are trained."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from infra.base.process import check_output, write_whole
from infra.cli.crosses import print_crosses
from infra.cli.options import SettingsOptions, grouped
from infra.cli.stream import Kafka

if TYPE_CHECKING:
    from ingest.survey import FieldFindings, Findings

Form = Literal["jsonl", "criteo", "avazu", "movielens"]
WIDTH = 120
"""Width of the tables if the output is not a terminal."""
EVENTS = 10_000
CROSSED_EVENTS = 100_000
"""Events examined by default, and if crosses are searched for."""


@grouped
def check(
    where: Annotated[
        str | None, typer.Argument(help="File, - for stdin, folder of the log, or topic.", show_default=False)
    ] = None,
    schema: Annotated[
        str | None, typer.Option(help="Short for --set stream.schema_name=….", show_default=False)
    ] = None,
    dataset: Annotated[Form, typer.Option(help="Format of the file.")] = "jsonl",
    limit: Annotated[
        int | None,
        typer.Option(
            help="Number of events to examine, approximately; 10000 by default, 100000 to suggest crosses.",
            min=1,
            show_default=False,
        ),
    ] = None,
    suggest_crosses: Annotated[
        bool, typer.Option("--suggest-crosses", help="Search for crosses that predict later events better.")
    ] = False,
    kafka: Kafka = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the findings here; - for stdout.", show_default=False)
    ] = None,
    *,
    given: SettingsOptions,
) -> None:
    """Show the contents of events, field by field, and how a run would treat them; nothing is trained.

    Of a topic (stream.topic by default), the oldest and the newest records are examined. Exits with 0 if every event
    would be trained and every field of the schema occurs in some event, otherwise with 1.

    Example: freshet check clicks.jsonl --schema mine.toml

    Example: freshet check clicks.jsonl --schema mine.toml --suggest-crosses
    """
    settings = given.load({} if dataset == "jsonl" else {"stream": {"schema_name": dataset}}, kafka)
    is_named = schema is not None or "schema_name" in settings.stream.model_fields_set
    stream = settings.stream if schema is None else settings.stream.model_copy(update={"schema_name": schema})
    is_stdout = json_file == Path("-")
    if not is_stdout:
        check_output(json_file)
    from ingest.check import check_events

    limit = limit or (CROSSED_EVENTS if suggest_crosses else EVENTS)
    found = check_events(where, dataset, stream, settings.kafka, limit, suggest_crosses)
    text = msgspec.json.format(msgspec.json.encode(found)).decode() + "\n"
    if is_stdout:
        typer.echo(text, nl=False)
    else:
        print_findings(found)
        if found.faults and where is not None and Path(where).is_file() and not is_named:
            print_hint(where, found)
        if json_file is not None:
            write_whole(json_file, text)
    raise typer.Exit(1 if found.faults else 0)


def print_hint(file: str, found: "Findings") -> None:
    """Says that no schema was named, and how to get one."""
    words = shlex.join(["freshet", "init", file])
    text = f"no schema was named, so this is the built-in {found.schema}; one for this file: {words}, then --schema"
    Console().print(Text(text), soft_wrap=True)


def print_findings(found: "Findings", console: Console | None = None) -> None:
    """Prints tables of the fields, and a line for everything that is wrong."""
    console = console or Console(width=None if Console().is_terminal else WIDTH)
    if found.records:
        title = f"{found.good:,} good events, {found.rejected:,} dead letters, in {found.records:,} records"
        console.print(Text(f"schema {found.schema}: {title}", style="bold"))
    if found.fields:
        console.print(_table("field", found.fields))
    if found.unknown:
        console.print(_table("not in the schema", found.unknown))
    for reason in found.rejects:
        console.print(Text(f"dead letter, for example: {reason}"), soft_wrap=True)
    for fault in found.faults:
        console.print(Text(f"wrong: {fault}", style="bold red"), soft_wrap=True)
    if not found.faults:
        console.print(Text("every event fits, and every field is there", style="green"))
    if found.suggested is not None:
        print_crosses(found.suggested, console)


def _table(title: str, fields: "tuple[FieldFindings, ...]") -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column(title)
    for name in ("present", "distinct", "lowest", "highest"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("kinds")
    table.add_column("examples", overflow="fold")
    for found in fields:
        table.add_row(*_cells(found), style="" if found.share else "red")
    return table


def _cells(found: "FieldFindings") -> list[Any]:
    kinds = ", ".join(found.kinds)
    bounds = ["" if bound is None else f"{bound:g}" for bound in (found.lowest, found.highest)]
    name = found.name if found.nearest is None else f"{found.name} (meant for {found.nearest}?)"
    examples = Text(", ".join(found.examples))
    return [Text(name), f"{100 * found.share:.1f}%", f"{found.distinct:,}", *bounds, kinds, examples]
