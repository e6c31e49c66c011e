"""``freshet cuts``: the cuts of a run, while it goes on or after it."""

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

if TYPE_CHECKING:
    from dispatch.cuts.survey import CutContent, CutReport, FoundCut
    from infra.base.storage import Storage

WIDTH = 160
"""of tables where the output is no terminal"""
CutNumber = Annotated[int, typer.Argument(metavar="NUMBER", help="Of the cut.", min=1)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

app = typer.Typer(help="Cuts: the model on disk. List, show, verify, pin and unpin them.", no_args_is_help=True)


@app.command("list")
@grouped
def list_cuts(where: RunOrArgument, as_json: AsJson = False) -> None:
    """List the cuts of a run, newest last.

    Example: freshet cuts list --run up-20261115-021100
    """
    from dispatch.cuts.survey import find_cuts

    found = find_cuts(_storage(where))
    if as_json:
        echo_json([_listed(cut) for cut in found])
        return
    rows = [_cells(_listed(cut)) for cut in found]
    print_table(("cut", "step", "taken", "rows", "files", "size", "pinned"), rows)
    for cut in found:
        if cut.damage is not None:
            typer.echo(cut.damage)


@app.command()
@grouped
def show(where: RunOrArgument, number: CutNumber, as_json: AsJson = False) -> None:
    """Show one cut: its files, the positions of the stream and the samples it was taken after.

    Example: freshet cuts show 7 --run up-20261115-021100
    """
    from dispatch.cuts.survey import describe_cut

    found = describe_cut(_storage(where), number)
    if as_json:
        echo_json(_content(found))
    else:
        _print_content(found)


@app.command()
@grouped
def verify(
    numbers: Annotated[list[str] | None, typer.Argument(metavar="[NUMBER]", help="One cut; all by default.")] = None,
    as_json: AsJson = False,
    *,
    where: RunOption,
) -> None:
    """Read every file of every cut, or of one, and say by name what is damaged; exits with 1 if anything is.

    Example: freshet cuts verify --run up-20261115-021100
    """
    from dispatch.cuts.survey import verify_cuts
    from ps.cuts.manifest import manifest_numbers

    old_folders, number = _split(numbers or [])
    storage = _storage(RunOrArgument(where.run, old_folders))
    found = manifest_numbers(storage)
    if number is not None and number not in found:
        raise no_cut(number, found)
    verdicts = list(verify_cuts(storage, found if number is None else [number]))
    if as_json:
        echo_json(verdicts)
    else:
        _print_verdicts(verdicts)
    if any(verdict.damage for verdict in verdicts):
        raise typer.Exit(1)


@app.command()
@grouped
def pin(where: RunOrArgument, number: CutNumber) -> None:
    """Keep a cut for good, however many newer ones there are.

    Example: freshet cuts pin 7 --run up-20261115-021100
    """
    from dispatch.cuts.retention import pin
    from ps.cuts.manifest import manifest_numbers

    storage = _storage(where)
    numbers = manifest_numbers(storage)
    if number not in numbers:
        raise no_cut(number, numbers)
    pin(storage, number)
    typer.echo(f"cut {number} is kept until it is unpinned")


@app.command()
@grouped
def unpin(where: RunOrArgument, number: CutNumber) -> None:
    """Let a cut go that was pinned: with the next cut of the run it is removed, unless it is one of the newest.

    Example: freshet cuts unpin 7 --run up-20261115-021100
    """
    from dispatch.cuts.retention import pinned_numbers, unpin

    storage = _storage(where)
    pinned = sorted(pinned_numbers(storage))
    if number not in pinned:
        raise ConfigError(f"cut {number} is not pinned; expected one of {pinned}; correct the number")
    unpin(storage, number)
    typer.echo(f"cut {number} is not pinned any more")


def _split(words: list[str]) -> tuple[list[Path], int | None]:
    """(a run's folder, which used to stand before the number of a cut; that number)."""
    *before, last = words or [""]
    number = int(last) if re.fullmatch(r"[0-9]{1,18}", last) else None
    return [Path(word) for word in (before if number is not None else words)], number


def _storage(where: RunOption) -> "Storage":
    """Where the cuts of a run are, by the settings it was started with."""
    from infra.base.storage import Storage
    from infra.run.settings import read_stored

    folder = where.find()
    return Storage.at(read_stored(folder).cuts.url or folder / "cuts")


def no_cut(number: int, numbers: list[int]) -> ConfigError:
    return ConfigError(f"there is no cut {number}; expected one of {numbers}; correct the number")


# ── what is printed ───────────────────────────────────────────────────────────────────────────────────────────────────
def _listed(cut: "FoundCut") -> dict[str, Any]:
    manifest = cut.manifest
    if manifest is None:
        return {"number": cut.number, "is_pinned": cut.is_pinned, "damage": cut.damage}
    return {
        "number": cut.number,
        "step": manifest.step,
        "at_seconds": manifest.at_seconds,
        "rows": manifest.rows,
        "files": len(cut.files) + 1,
        "bytes": sum(file.nbytes for file in cut.files),
        "is_pinned": cut.is_pinned,
    }


def _cells(cut: dict[str, Any]) -> list[str]:
    pinned = "pinned" if cut["is_pinned"] else ""
    if "damage" in cut:
        return [str(cut["number"]), "damaged", "", "", "", "", pinned]
    numbers = (
        f"{cut['number']}",
        f"{cut['step']:,}",
        time_text(cut["at_seconds"]),
        f"{cut['rows']:,}",
        f"{cut['files']}",
    )
    return [*numbers, size(cut["bytes"]), pinned]


def _content(found: "CutContent") -> dict[str, Any]:
    decided, manifest = found.decided, found.cut.manifest
    positions = {str(partition): at for partition, at in decided.positions.items()}
    kept = {"positions": positions, "samples": decided.samples, "dead_letters": decided.dead_letters}
    return {"manifest": manifest, "is_pinned": found.cut.is_pinned, **kept, "skipped": decided.skipped}


def _print_content(found: "CutContent") -> None:
    manifest, decided = found.cut.manifest, found.decided
    assert manifest is not None
    positions = ", ".join(f"{partition}: {at.offset}:{at.index}" for partition, at in sorted(decided.positions.items()))
    facts = {
        "cut": f"{manifest.number}{' (pinned)' if found.cut.is_pinned else ''}",
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


def _print_verdicts(verdicts: "list[CutReport]") -> None:
    for verdict in verdicts:
        state = "damaged" if verdict.damage else "whole"
        typer.echo(f"cut {verdict.number}: {state}, {count(verdict.files, 'file')}, {size(verdict.nbytes)}")
        for problem in verdict.damage:
            typer.echo(f"  {problem}")
    if not verdicts:
        typer.echo("no cuts")


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
