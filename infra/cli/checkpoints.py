"""``freshet checkpoints``: the checkpoints of a run, during the run or afterwards."""

import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from infra.base.errors import ConfigError
from infra.cli.options import RunOption, RunOrArgument, grouped
from infra.run.figures import count, size
from infra.run.folder import checkpoint_place

if TYPE_CHECKING:
    from dispatch.checkpoints.survey import CheckpointContent, CheckpointReport, FoundCheckpoint
    from infra.base.storage import Storage

WIDTH = 160
"""Width of tables if the output is not a terminal."""
CheckpointNumber = Annotated[int, typer.Argument(metavar="NUMBER", help="Of the checkpoint.", min=1)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

app = typer.Typer(help="Checkpoints: the model on disk. List, show, verify, pin and unpin them.", no_args_is_help=True)


def tell_new_name() -> None:
    """Prints a notice that the command has a new name."""
    typer.echo("'freshet cuts' is called 'freshet checkpoints' now; the old name goes with the next release", err=True)


@app.command("list")
@grouped
def list_checkpoints(where: RunOrArgument, as_json: AsJson = False) -> None:
    """List the checkpoints of a run, newest last.

    Example: freshet checkpoints list --run up-20261115-021100
    """
    from dispatch.checkpoints.survey import find_checkpoints

    found = find_checkpoints(_storage(where))
    if as_json:
        echo_json([_listed(checkpoint) for checkpoint in found])
        return
    rows = [_cells(_listed(checkpoint)) for checkpoint in found]
    print_table(("checkpoint", "step", "taken", "rows", "files", "size", "pinned"), rows)
    for checkpoint in found:
        if checkpoint.damage is not None:
            typer.echo(checkpoint.damage)


@app.command()
@grouped
def show(where: RunOrArgument, number: CheckpointNumber, as_json: AsJson = False) -> None:
    """Show one checkpoint: its files, its positions in the stream, and the number of samples trained before it.

    Example: freshet checkpoints show 7 --run up-20261115-021100
    """
    from dispatch.checkpoints.survey import describe_checkpoint

    found = describe_checkpoint(_storage(where), number)
    if as_json:
        echo_json(_content(found))
    else:
        _print_content(found)


@app.command()
@grouped
def verify(
    numbers: Annotated[
        list[str] | None, typer.Argument(metavar="[NUMBER]", help="One checkpoint; all by default.")
    ] = None,
    as_json: AsJson = False,
    *,
    where: RunOption,
) -> None:
    """Read every file of every checkpoint, or of one, and name what is damaged; exits with 1 if anything is.

    Example: freshet checkpoints verify --run up-20261115-021100
    """
    from dispatch.checkpoints.survey import verify_checkpoints
    from ps.checkpoints.manifest import manifest_numbers

    old_folders, number = _split(numbers or [])
    storage = _storage(RunOrArgument(where.run, old_folders))
    found = manifest_numbers(storage)
    if number is not None and number not in found:
        raise no_checkpoint(number, found)
    verdicts = list(verify_checkpoints(storage, found if number is None else [number]))
    if as_json:
        echo_json(verdicts)
    else:
        _print_verdicts(verdicts)
    if any(verdict.damage for verdict in verdicts):
        raise typer.Exit(1)


@app.command()
@grouped
def pin(where: RunOrArgument, number: CheckpointNumber) -> None:
    """Keep a checkpoint until it is unpinned, however many newer ones there are.

    Example: freshet checkpoints pin 7 --run up-20261115-021100
    """
    from dispatch.checkpoints.retention import pin
    from ps.checkpoints.manifest import manifest_numbers

    storage = _storage(where)
    numbers = manifest_numbers(storage)
    if number not in numbers:
        raise no_checkpoint(number, numbers)
    pin(storage, number)
    typer.echo(f"checkpoint {number} is kept until it is unpinned")


@app.command()
@grouped
def unpin(where: RunOrArgument, number: CheckpointNumber) -> None:
    """Stop keeping a pinned checkpoint: the run's next checkpoint removes it, unless it is one of the newest.

    Example: freshet checkpoints unpin 7 --run up-20261115-021100
    """
    from dispatch.checkpoints.retention import pinned_numbers, unpin

    storage = _storage(where)
    pinned = sorted(pinned_numbers(storage))
    if number not in pinned:
        raise ConfigError(f"checkpoint {number} is not pinned; expected one of {pinned}; correct the number")
    unpin(storage, number)
    typer.echo(f"checkpoint {number} is not pinned any more")


def _split(words: list[str]) -> tuple[list[Path], int | None]:
    """Splits the arguments into a run's folder, which used to come first, and the number of a checkpoint."""
    *before, last = words or [""]
    number = int(last) if re.fullmatch(r"[0-9]{1,18}", last) else None
    return [Path(word) for word in (before if number is not None else words)], number


def _storage(where: RunOption) -> "Storage":
    """The storage of a run's checkpoints, by the settings it was started with."""
    from infra.base.storage import Storage
    from infra.run.settings import read_stored

    folder = where.find()
    return Storage.at(checkpoint_place(folder, read_stored(folder).checkpoints.url))


def no_checkpoint(number: int, numbers: list[int]) -> ConfigError:
    return ConfigError(f"there is no checkpoint {number}; expected one of {numbers}; correct the number")


# ── what is printed ───────────────────────────────────────────────────────────────────────────────────────────────────
def _listed(checkpoint: "FoundCheckpoint") -> dict[str, Any]:
    manifest = checkpoint.manifest
    if manifest is None:
        return {"number": checkpoint.number, "is_pinned": checkpoint.is_pinned, "damage": checkpoint.damage}
    return {
        "number": checkpoint.number,
        "step": manifest.step,
        "at_seconds": manifest.at_seconds,
        "rows": manifest.rows,
        "files": len(checkpoint.files) + 1,
        "bytes": sum(file.nbytes for file in checkpoint.files),
        "is_pinned": checkpoint.is_pinned,
    }


def _cells(checkpoint: dict[str, Any]) -> list[str]:
    pinned = "pinned" if checkpoint["is_pinned"] else ""
    if "damage" in checkpoint:
        return [str(checkpoint["number"]), "damaged", "", "", "", "", pinned]
    numbers = (
        f"{checkpoint['number']}",
        f"{checkpoint['step']:,}",
        time_text(checkpoint["at_seconds"]),
        f"{checkpoint['rows']:,}",
        f"{checkpoint['files']}",
    )
    return [*numbers, size(checkpoint["bytes"]), pinned]


def _content(found: "CheckpointContent") -> dict[str, Any]:
    decided = found.decided
    manifest = found.checkpoint.manifest
    positions = {str(partition): at for partition, at in decided.positions.items()}
    kept = {"positions": positions, "samples": decided.samples, "dead_letters": decided.dead_letters}
    return {"manifest": manifest, "is_pinned": found.checkpoint.is_pinned, **kept, "skipped": decided.skipped}


def _print_content(found: "CheckpointContent") -> None:
    manifest = found.checkpoint.manifest
    decided = found.decided
    assert manifest is not None
    positions = ", ".join(f"{partition}: {at.offset}:{at.index}" for partition, at in sorted(decided.positions.items()))
    facts = {
        "checkpoint": f"{manifest.number}{' (pinned)' if found.checkpoint.is_pinned else ''}",
        "run": manifest.run,
        "taken": f"{time_text(manifest.at_seconds)}, after step {manifest.step:,} of generation {manifest.generation}",
        "samples": f"{decided.samples:,}",
        "rows": f"{manifest.rows:,} on {count(len(manifest.shards), 'shard')}",
        "events": f"{count(decided.dead_letters, 'dead letter')}, {decided.skipped:,} skipped",
        "positions": positions or "none",
    }
    print_table(None, list(facts.items()))
    files = [(f"shard {part.shard}", file) for part in manifest.shards for file in part.files]
    rows = [(owner, file.name, f"{file.rows:,}", size(file.nbytes), file.checksum) for owner, file in files]
    own = manifest.dispatcher
    rows.append(("dispatcher", own.name, "", size(own.nbytes), own.checksum))
    print_table(("of", "file", "rows", "size", "checksum"), rows)


def _print_verdicts(verdicts: "list[CheckpointReport]") -> None:
    for verdict in verdicts:
        state = "damaged" if verdict.damage else "whole"
        typer.echo(f"checkpoint {verdict.number}: {state}, {count(verdict.files, 'file')}, {size(verdict.nbytes)}")
        for problem in verdict.damage:
            typer.echo(f"  {problem}")
    if not verdicts:
        typer.echo("no checkpoints")


def time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")


def echo_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value)).decode())


def print_table(columns: Sequence[str] | None, rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, show_header=columns is not None)
    for column in columns or ():
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console()
    console = console if console.is_terminal else Console(width=WIDTH)
    console.print(table)
