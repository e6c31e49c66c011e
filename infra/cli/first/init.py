"""``freshet init``: writes a schema for a file of events, or a package for a model of one's own."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from infra.base.errors import ConfigError
from infra.base.process import check_output, write_whole
from infra.cli.crosses import print_crosses
from infra.cli.first.plugin import PluginKind, write_plugin
from infra.run.figures import count

if TYPE_CHECKING:
    from ingest.guess import FieldGuess, SchemaGuess

EVENTS = 20_000
"""Events that are examined unless another number is given."""
WIDTH = 120
"""Width of the table if the output is not a terminal."""
EventsFile = Annotated[Path, typer.Argument(help="JSON lines, CSV or Parquet; may end in .gz.", show_default=False)]
Label = Annotated[
    str | None, typer.Option(help="Column of the label; guessed by its name.", show_default=False, metavar="COLUMN")
]
Time = Annotated[
    str | None, typer.Option(help="Column of the time; guessed by its name.", show_default=False, metavar="COLUMN")
]
Limit = Annotated[int, typer.Option(help="Most events to examine.", min=1)]


def init(
    file: Annotated[
        Path | None, typer.Argument(help="JSON lines, CSV or Parquet; may end in .gz.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The schema to write (schema.toml), or the folder.", show_default=False),
    ] = None,
    label: Label = None,
    time: Time = None,
    limit: Limit = EVENTS,
    crosses: Annotated[
        bool, typer.Option("--crosses/--no-crosses", help="Search for combinations of fields that predict together.")
    ] = True,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing schema.")] = False,
    plugin: Annotated[
        PluginKind | None,
        typer.Option(help="Write a package with one of your own instead (folder my-KIND).", show_default=False),
    ] = None,
) -> None:
    """Write a schema for a file of events, guessed from its contents, with the reason for every field.

    Lines of JSON may be events, or plain objects; these, CSV and Parquet have a column with the label and, perhaps, one
    with the time. With --plugin there is no file: a package of a model, policy or source is written.

    Example: freshet init clicks.csv --label clicked --time ts -o schema.toml
    """
    if plugin is not None:
        _write_plugin(file, plugin, output or Path(f"my-{plugin}"))
        return
    if file is None:
        raise ConfigError("a schema is written for a file, and none is given; expected one; freshet init FILE")
    output = output or Path("schema.toml")
    if output.exists() and not force:
        raise ConfigError(f"{output} exists; expected a new file; choose another with -o, or overwrite it with --force")
    check_output(output)
    from ingest.guess import guess_schema

    guess = guess_schema(file, label, time, limit, suggests_crosses=crosses)
    write_whole(output, guess.toml)
    console = Console(width=None if Console().is_terminal else WIDTH)
    show_guess(guess, console)
    command = shlex.join(["freshet", "check", str(file), "--schema", str(output)])
    console.print(Text(f"{output} is written; read it, then: {command}"), soft_wrap=True)


def _write_plugin(file: Path | None, kind: PluginKind, folder: Path) -> None:
    if file is not None:
        raise ConfigError(
            f"{file} is given with --plugin; expected one of them: a package needs no events; leave one out"
        )
    commands = write_plugin(kind, folder)
    console = Console(highlight=False)
    console.print(Text(f"{folder} is written: a package with a {kind}; read my_{kind}.py in it, then:"), soft_wrap=True)
    for command in commands:
        console.print(Text(f"  {command}"), soft_wrap=True)


def show_guess(guess: "SchemaGuess", console: Console) -> None:
    """Prints what was guessed, and why."""
    title = f"{count(guess.labels, 'event')}, of which {guess.clicks / guess.labels:.2%} are clicks"
    console.print(Text(f"guessed from {title}", style="bold"))
    for line in _facts(guess):
        console.print(Text(line), soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("field", "use", "required"):
        table.add_column(name, no_wrap=True)
    table.add_column("because", overflow="fold")
    for each in guess.fields:
        required = "yes" if guess.is_required(each) else ""
        table.add_row(Text(each.name), _use(each), required, Text(each.why), style="dim" if _is_out(each) else "")
    console.print(table)
    if guess.crosses is not None:
        print_crosses(guess.crosses, console)


def _facts(guess: "SchemaGuess") -> list[str]:
    """What was guessed besides the fields, and what is wrong."""
    facts = []
    if (columns := guess.columns) is not None:
        time = (
            f"the time is column {columns.time!r}" if columns.time else "no column is the time: rows are a second apart"
        )
        facts.append(f"the label is column {columns.label!r}, {time}")
    if guess.partition_by is not None:
        facts.append(f"events of one {guess.partition_by!r} keep their order (partition_by)")
    if guess.broken:
        facts.append(f"{count(guess.broken, 'line')} cannot be read and would be rejected: {guess.first_broken}")
    if guess.unlabelled:
        facts.append(f"{count(guess.unlabelled, 'event')} without a label 0 or 1 would be rejected")
    return facts


def _use(guess: "FieldGuess") -> str:
    if guess.use == "list":
        return f"list of {guess.values}"
    return "number and key" if guess.has_buckets else guess.use


def _is_out(guess: "FieldGuess") -> bool:
    return guess.use == "left out"
