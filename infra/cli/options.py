"""Command line options in groups: a command takes dataclasses, and typer sees one option per field.

Every command names a run by --run; ``infra.run.folder`` decides which folder that is.

``grouped`` expands every parameter that is a dataclass, in place: options keep the order of the parameters and, within
a group, of its fields. A field is written like a parameter of a typer command, with its type, option and default.
"""

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from datetime import datetime
from functools import cached_property, wraps
from inspect import Parameter, Signature, signature
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from dispatch.journal.occupied import is_under_way
from infra.base.config import check_names
from infra.base.errors import ConfigError
from infra.base.telemetry import describe_text
from infra.run.folder import RUNS, as_path, find_folder, fitting_folders, is_path, named_folder
from infra.run.settings import PREFIX, Settings, load_settings, read_environment, read_stored

RUN = f"{PREFIX}RUN"


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer should see it: with the fields of each dataclass in place of the parameter."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}

    @wraps(command)
    def expanded(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    parameters = [
        option
        for name, parameter in signature(command).parameters.items()
        for option in (_options(groups[name]) if name in groups else [parameter.replace(kind=Parameter.KEYWORD_ONLY)])
    ]
    expanded.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {option.name: option.annotation for option in parameters}
    return expanded


def _options(group: Any) -> list[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]


@dataclass(frozen=True)
class SettingsOptions:
    """Where the settings of a command come from, besides the environment."""

    config: Annotated[Path | None, typer.Option("--config", help="Settings file (TOML).", show_default=False)] = None
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="One setting, as in stream.batch=1024. Repeatable.", show_default=False),
    ] = None

    def load(self, defaults: Mapping[str, Any] | None = None, kafka: bool = False) -> Settings:
        """The settings; ``defaults`` are what the command prefers, ``kafka`` is short for stream.source=kafka."""
        return load_settings(self.config, self.chosen(kafka), defaults)

    def chosen(self, kafka: bool = False) -> list[str]:
        return [*(self.overrides or ()), *(["stream.source=kafka"] if kafka else [])]


@dataclass(frozen=True)
class RunOption:
    """Which run a command is about."""

    run: Annotated[
        str,
        typer.Option(
            "--run", metavar="NAME|FOLDER", help="Name of the run, or its folder; the only one if there is one."
        ),
    ] = ""

    @property
    def old(self) -> Sequence[Path]:
        """Folders given in an older spelling, which the help does not show."""
        return ()

    @cached_property
    def named(self) -> str:
        """The name or folder of the run, with a notice for an older spelling; empty if none is given."""
        if not self.old:
            return self.run
        value = as_path(self.old[0])
        if self.run or len(self.old) > 1:
            given = [*([f"--run {self.run}"] if self.run else []), *map(str, self.old)]
            raise ConfigError(
                f"{' and '.join(map(describe_text, given))} name a run; expected one of them; leave out the others"
            )
        typer.echo(f"freshet: the run is named in an old way; write it as --run {shlex.quote(value)}", err=True)
        return value

    @cached_property
    def folder(self) -> Path | None:
        """The folder of the named run; None if no run is named."""
        return find_folder(self.named) if self.named else None

    def find(self, fits: Callable[[Path], bool] = is_under_way) -> Path:
        """The folder of the named run, or of the only run that fits; raises ConfigError with a list if there is not
        one.
        """
        named = self.named or os.environ.get(RUN, "")
        if named:
            return find_folder(named)
        folders = fitting_folders(fits)
        if len(folders) == 1:
            return folders[0]
        raise not_one([folder.name for folder in folders], f"in {RUNS}")


def not_one(names: Sequence[str], where: str) -> ConfigError:
    """The error of a command that names no run when there is none, or more than one."""
    there = f"there are {', '.join(names)}" if names else "there is none"
    todo = f"name one, as in '{command_for(names[-1])}'" if names else "start one with 'freshet up', or give --run"
    return ConfigError(f"no run is named, and {where} {there}; expected exactly one; {todo}")


def command_for(run: str) -> str:
    """This command line for one run, without the secret that it may contain."""
    words = ["freshet", *sys.argv[1:], "--run", run]
    return shlex.join("SECRET" if before == "--token" else word for before, word in pairwise(["", *words]))


@dataclass(frozen=True)
class RunOrFolder(RunOption):
    """The same, for commands whose option had another name."""

    old_folder: Annotated[Path | None, typer.Option("--folder", "--run-folder", hidden=True)] = None

    @property
    def old(self) -> Sequence[Path]:
        return () if self.old_folder is None else (self.old_folder,)


@dataclass(frozen=True)
class RunOrArgument(RunOption):
    """The same, for commands that took the folder as an argument."""

    old_folders: Annotated[list[Path] | None, typer.Argument(hidden=True)] = None

    @property
    def old(self) -> Sequence[Path]:
        return self.old_folders or ()


@dataclass(frozen=True)
class PlacedRun(RunOrFolder):
    """The place of a run that is started or resumed."""

    run: Annotated[
        str,
        typer.Option(
            "--run",
            metavar="NAME|FOLDER",
            help="Name of the run (a folder in runs), or its folder; a new one by default.",
        ),
    ] = ""

    @property
    def name(self) -> str:
        """The name of a new run; empty if none is given."""
        return "" if not self.named or is_path(self.named) else check_names(self.named)

    @property
    def place(self) -> Path | None:
        """The folder of the existing run with this name, or of a new one; None if no run is named."""
        if not self.named:
            return None
        return named_folder(self.named) or RUNS / self.name


def new_run(kind: str, name: str = "") -> dict[str, Any]:
    """The settings that name a new run and its folder; without a name they are made of the kind and the time."""
    name = name or f"{kind}-{datetime.now():%Y%m%d-%H%M%S}"
    return {"run": name, "folder": RUNS / name}


def placed_settings(given: SettingsOptions, where: PlacedRun, kafka: bool = False) -> list[str]:
    """The settings given on the command line; --run gives the folder, --kafka is short for stream.source=kafka."""
    chosen = given.chosen(kafka)
    folder = where.place
    if folder is None:
        return chosen
    if any(override.startswith("folder=") for override in chosen):
        raise ConfigError(f"--run {where.named} and --set folder=… are both given; expected one of them; leave one out")
    return [*chosen, f"folder={folder}"]


@dataclass(frozen=True)
class RunOptions(SettingsOptions, RunOrFolder):
    """Settings as for any command, or those that a run was started with."""

    run: Annotated[
        str,
        typer.Option("--run", metavar="NAME|FOLDER", help="Run (or its folder) whose stored settings are used."),
    ] = ""

    def load(self, defaults: Mapping[str, Any] | None = None, kafka: bool = False) -> Settings:
        if not self.named:
            return super().load(defaults, kafka)
        given = [f"--set {override}" for override in self.overrides or ()]
        given += [f"--config {self.config}"] if self.config is not None else []
        given += ["--kafka"] if kafka else []
        if given:
            raise ConfigError(
                f"--run {self.named} and {describe_text(', '.join(given))} are both given; expected the "
                "stored settings of the run or others; leave one out"
            )
        return read_stored(find_folder(self.named))

    def or_only_run(self, *settings: str, kafka: bool = False) -> "RunOptions":
        """These options; if they give neither settings nor a run, they name the only run, if there is exactly one.

        settings: sections or settings that may also be given by the environment
        """
        is_given = self.named or self.overrides or self.config or kafka or set(settings) & read_environment().keys()
        if is_given or not fitting_folders():
            return self
        return replace(self, run=as_path(self.find()))
