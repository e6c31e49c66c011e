"""Command line options in groups: a command takes dataclasses, and typer sees one option per field.

``grouped`` expands every parameter that is a dataclass, in place: options keep the order of the parameters and, within
a group, of its fields. A field is written like a parameter of a typer command, with its type, option and default.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from infra.errors import ConfigError
from infra.run.settings import Settings, load_settings, read_stored
from infra.telemetry import describe_text


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer is to see it: with the fields of each dataclass in place of the parameter."""
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
    """Where the settings of a command come from, beside the environment."""

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
class RunOptions(SettingsOptions):
    """The same, or the settings with which a run was started."""

    run_folder: Annotated[
        Path | None,
        typer.Option(
            "--run", "--run-folder", help="Folder of a run, whose stored settings are taken.", show_default=False
        ),
    ] = None

    def load(self, defaults: Mapping[str, Any] | None = None, kafka: bool = False) -> Settings:
        if self.run_folder is None:
            return super().load(defaults, kafka)
        given = [f"--set {override}" for override in self.overrides or ()]
        given += [f"--config {self.config}"] if self.config is not None else []
        given += ["--kafka"] if kafka else []
        if given:
            raise ConfigError(
                f"--run {self.run_folder} and {describe_text(', '.join(given))} are both given; expected the "
                "stored settings of the run or others; leave one out"
            )
        return read_stored(self.run_folder)
