"""``freshet status``: the status of a run, live or once, from the API."""

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from infra.base.errors import FreshetError
from infra.cli.options import grouped
from infra.cli.steer.connection import ApiConnection, ApiOptions, AsJson
from infra.cli.steer.output import print_json

if TYPE_CHECKING:
    from dispatch.progress.status import Status
    from infra.run.display import Display

ENDED = ("stopped", "ended")


@grouped
def status(
    once: Annotated[bool, typer.Option("--once", help="Show the status once and exit.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two updates.", min=0.2, max=5)] = 1.0,
    as_json: AsJson = False,
    *,
    where: ApiOptions,
) -> None:
    """Show the status of a run: a live view until the run ends. Ctrl-C closes the view, not the run.

    With --once, or --json, the status is shown once.

    Example: freshet status --once
    """
    from infra.run.display import Display, Picture

    console = Console()
    with where.connect() as api:
        read = api.client.get(api.of_run())
        if as_json:
            print_json(read)
        elif once:
            found = status_in(read)
            console.print(Text(describe(read)) if found is None else Picture(found, hint=""))
        else:
            watch(api, read, Display(console, hint="Ctrl-C ends the display", keeps_picture=True), every)


def watch(api: ApiConnection, read: dict[str, Any], display: "Display", every_seconds: float) -> None:
    """Shows a run until it ends; waits for an API that is temporarily unavailable."""
    from infra.cli.steer.client import ApiAway, pause

    shown = ""
    with display:
        while True:
            found = status_in(read)
            line = describe(read)
            if found is not None and read["is_live"]:
                display.show(found)
                line = ""
            if line and line != shown:
                display.print_line(line)
            shown = line
            if read["state"] in ENDED and not read["is_live"]:
                return
            pause(every_seconds)
            try:
                read = api.client.get(api.of_run())
            except ApiAway as away:
                if shown != str(away):
                    display.print_line(str(away))
                shown = str(away)


def status_in(read: dict[str, Any]) -> "Status | None":
    """The status that the dispatcher published last; raises FreshetError if this version cannot read it."""
    from dispatch.progress.status import Status

    if read["status"] is None:
        return None
    try:
        return msgspec.convert(read["status"], Status)
    except msgspec.ValidationError as error:
        raise FreshetError(
            f"the status of run {read['name']!r} cannot be read: {error}; expected one of this version of Freshet; "
            "update either, or use --json"
        ) from error


def describe(read: dict[str, Any]) -> str:
    """Describes a run that currently publishes no status."""
    at = "" if read["step"] is None else f" after step {read['step']:,}"
    return f"run {read['name']} is {read['state']}{at}"
