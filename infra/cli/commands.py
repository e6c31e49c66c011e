"""Commands for the settings of a run, and for the keys of connections that leave this machine."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from infra.base.config import check_names
from infra.base.errors import ConfigError
from infra.base.telemetry import describe
from infra.base.wire import write_curve
from infra.cli.options import SettingsOptions, grouped
from infra.run.reference import describe_fields, settings_page


@grouped
def settings(
    defaults: Annotated[bool, typer.Option("--defaults", help="Show every setting with its meaning, as TOML.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The same as a page in Markdown.")] = False,
    *,
    given: SettingsOptions,
) -> None:
    """Show the effective settings, or all defaults with their meaning.

    Example: freshet settings --defaults > freshet.toml
    """
    if markdown:
        typer.echo(settings_page())
    elif defaults:
        typer.echo(describe_fields())
    else:
        effective = describe(given.load().model_dump(mode="json"))
        typer.echo(msgspec.json.format(msgspec.json.encode(effective)).decode())


def keys(
    folder: Annotated[Path, typer.Argument(help="Folder to write them to.")],
    workers: Annotated[
        list[str] | None, typer.Option("--worker", help="Name of a worker. Repeatable.", callback=check_names)
    ] = None,
) -> None:
    """Create CURVE keys for connections that leave this machine: one pair for servers, one for each worker.

    Example: freshet keys secrets --worker edge-0 --worker edge-1
    """
    names = ("server", *(workers or ()))
    _check_key_folder(folder, names)
    write_curve(folder, names)
    typer.echo(
        f"keys written to {folder}; set curve_folder to it, and give each worker its own .secret and server.public"
    )


def _check_key_folder(folder: Path, names: Sequence[str]) -> None:
    """Raises ConfigError for names given twice, keys that exist already, or a folder that others can read."""
    if len(set(names)) != len(names):
        raise ConfigError(
            f"keys for {list(names)} cannot be made; expected every name once, and not 'server', which is "
            "always made; rename or leave out one"
        )
    if not folder.exists():
        return
    mode = folder.stat().st_mode & 0o777
    if mode & 0o077:
        raise ConfigError(
            f"key folder {folder} has mode {mode:o}; expected one that only its owner can use; chmod 700 it, or name a "
            "new folder"
        )
    for name in names:
        if (folder / f"{name}.secret").exists():
            raise ConfigError(
                f"{folder / name}.secret exists; expected a folder without keys of {name!r}; move them away first"
            )
