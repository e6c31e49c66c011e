"""``freshet runs``: lists, starts, stops and pauses runs."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from infra.base.config import check_names
from infra.base.errors import ConfigError
from infra.cli.options import grouped
from infra.cli.steer.connection import ApiOptions, AsJson, CommandOptions
from infra.cli.steer.output import print_answer, print_json, show_table

if TYPE_CHECKING:
    from infra.cli.steer.client import ApiClient

NOT_YET = (404, 503)
"""Status codes of the API for a run that has no folder yet."""
app = typer.Typer(help="List runs; start, stop and pause them.", no_args_is_help=True)


@app.command("list")
@grouped
def list_runs(as_json: AsJson = False, *, where: ApiOptions) -> None:
    """List all runs that the API knows, including those that have ended.

    Example: freshet runs list
    """
    with where.connect() as api:
        found = api.client.items("/v1/runs")
    if as_json:
        print_json(found)
    else:
        rows = [(run["name"], run["state"], run["step"], run["samples"], run["cursor"]) for run in found]
        show_table(("run", "state", "step", "samples", "cursor"), rows)


@app.command("show")
@grouped
def show(as_json: AsJson = False, *, where: ApiOptions) -> None:
    """Show the state and progress of a run; with --json the whole status that its dispatcher published last.

    Example: freshet runs show --run clicks --json
    """
    with where.connect() as api:
        found = api.client.get(api.of_run())
    if as_json:
        print_json(found)
    else:
        names = ("name", "state", "step", "samples", "cursor", "folder", "topic")
        show_table(("", ""), [(name, found[name]) for name in names])


@app.command("create")
@grouped
def create(
    name: Annotated[str, typer.Option(help="Name of the run.", callback=check_names)],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="One setting of the run. Repeatable.", show_default=False)
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait until the run exists.", min=0)] = 60.0,
    as_json: AsJson = False,
    *,
    where: ApiOptions,
) -> None:
    """Start a run on the machine of the API, through an agent that starts runs.

    Example: freshet runs create --name clicks --set dispatch.workers=2
    """
    settings = dict(_parsed(override) for override in overrides or ())
    with where.connect() as api:
        api.client.change("POST", "/v1/runs", {"name": name, "settings": settings})
        found = _await(api.client, name, wait)
    print_answer(f"run {name} is there; 'freshet status --run {name}' shows it", found, as_json)


@app.command("stop")
@grouped
def stop(as_json: AsJson = False, *, how: CommandOptions, where: ApiOptions) -> None:
    """Stop a run cleanly: it takes a checkpoint, and can be resumed later.

    Example: freshet runs stop --run clicks --reason "maintenance"
    """
    give_command("stop", as_json, how, where)


@app.command("pause")
@grouped
def pause_run(as_json: AsJson = False, *, how: CommandOptions, where: ApiOptions) -> None:
    """Pause a run: steps under way are completed, and events wait in their topic.

    Example: freshet runs pause --run clicks
    """
    give_command("pause", as_json, how, where)


@app.command("resume")
@grouped
def resume_run(as_json: AsJson = False, *, how: CommandOptions, where: ApiOptions) -> None:
    """Resume a paused run.

    Example: freshet runs resume --run clicks
    """
    give_command("resume", as_json, how, where)


def give_command(verb: str, as_json: bool, how: CommandOptions, where: ApiOptions) -> None:
    """Gives a run a command without a value, and prints the result."""
    with where.connect() as api:
        done = api.command("POST", f"/{verb}", how)
    print_answer(done["text"], done, as_json)


def _parsed(override: str) -> tuple[str, str]:
    name, equals, value = override.partition("=")
    if not equals or not name:
        raise ConfigError(
            f"--set {override!r} is not a setting; expected section.name=value, as in stream.batch=1024; correct it"
        )
    return name, value


def _await(client: "ApiClient", name: str, wait_seconds: float) -> object:
    """Waits until the API has found the run, and returns it."""
    from infra.cli.steer.client import POLL_SECONDS, ApiRefused, pause

    until = time.monotonic() + wait_seconds
    while True:
        try:
            return client.get(f"/v1/runs/{name}")
        except ApiRefused as refused:
            if refused.status not in NOT_YET:
                raise
        if time.monotonic() >= until:
            raise ApiRefused(
                f"run {name!r} is being started and is not there after {wait_seconds:g} seconds; expected its folder; "
                f"see the agent's log",
                202,
            )
        pause(POLL_SECONDS)
