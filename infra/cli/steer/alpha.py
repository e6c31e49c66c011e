"""``freshet alpha``: how much of a decision is solved exactly."""

from typing import Annotated, Any

import typer

from infra.base.errors import ConfigError
from infra.cli.options import grouped
from infra.cli.steer.connection import ApiOptions, AsJson, CommandOptions
from infra.cli.steer.output import print_answer

app = typer.Typer(help="Show alpha, the share of exact assignment, and set it.")


@app.callback(invoke_without_command=True)
@grouped
def alpha(context: typer.Context, as_json: AsJson = False, *, where: ApiOptions) -> None:
    """'freshet alpha' without a sub-command means 'freshet alpha get'."""
    if context.invoked_subcommand is None:
        _show(as_json, where)
    elif as_json or where != ApiOptions():
        name = context.invoked_subcommand
        raise ConfigError(f"options are given before {name!r}; expected them after it; write 'freshet alpha {name} …'")


@app.command("get")
@grouped
def get(as_json: AsJson = False, *, where: ApiOptions) -> None:
    """Show alpha, who sets it, and the reason for its value.

    Example: freshet alpha get
    """
    _show(as_json, where)


@app.command("set")
@grouped
def set_alpha(
    value: Annotated[float, typer.Argument(help="From 0 to 1.", min=0, max=1)],
    as_json: AsJson = False,
    *,
    how: CommandOptions,
    where: ApiOptions,
) -> None:
    """Set alpha for the next decisions, until 'freshet alpha auto' releases it.

    Example: freshet alpha set 0.25 --reason "the GPU is shared today"
    """
    _set(value, as_json, how, where)


@app.command("auto")
@grouped
def auto(as_json: AsJson = False, *, how: CommandOptions, where: ApiOptions) -> None:
    """Let the dispatcher decide alpha again.

    Example: freshet alpha auto
    """
    _set("auto", as_json, how, where)


def _show(as_json: bool, where: ApiOptions) -> None:
    with where.connect() as api:
        read = api.client.get(api.of_run("/alpha"))
    print_answer(_described(read), read, as_json)


def _set(value: float | str, as_json: bool, how: CommandOptions, where: ApiOptions) -> None:
    with where.connect() as api:
        done = api.command("PUT", "/alpha", how, {"value": value})
    print_answer(done["text"], done, as_json)


def _described(read: dict[str, Any]) -> str:
    value = "not known yet" if read["value"] is None else f"{read['value']:g}"
    backend = f", on {read['backend']}" if read["backend"] else ""
    return f"alpha is {value} ({read['mode']}{backend})" + (f": {read['reason']}" if read["reason"] else "")
