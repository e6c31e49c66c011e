"""``freshet agent``: supervises workers for a dispatcher on another machine, or runs requested over the API."""

import socket
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from infra.base.config import check_endpoint, check_names
from infra.base.errors import ConfigError
from infra.base.link_gbit import LinkGbit
from infra.base.process import Stop, stop_on_signals
from infra.cli.options import SettingsOptions, grouped
from infra.cli.steer.workers import Link, Uplink, check_uplink


@grouped
def agent(
    dispatcher: Annotated[str, typer.Option(help="Endpoint of the dispatcher.", show_default=False)] = "",
    count: Annotated[int, typer.Option("--workers", help="Workers to start with.", min=1, max=128)] = 1,
    prefix: Annotated[
        str, typer.Option(help="Prefix of their names; by default this machine's name.", show_default=False)
    ] = "",
    link: Link = None,
    uplink: Uplink = None,
    folder: Annotated[Path | None, typer.Option(help="Folder of the agent; a new one by default.")] = None,
    runs: Annotated[Path | None, typer.Option(help="Start runs in this folder on request, instead of workers.")] = None,
    *,
    given: SettingsOptions,
) -> None:
    """Supervise workers on this machine for a dispatcher that runs on another; or, with --runs, whole runs.

    Workers that fail are restarted. 'freshet workers add --run' with the agent's folder starts further workers, which
    stop when the agent ends. The agent ends when all workers have left.

    With --runs it keeps running until it is stopped, and starts the runs that 'freshet runs create' requests from
    'freshet api --runs'; --config and --set then apply to all of them.

    Example: freshet agent --config freshet.toml --dispatcher tcp://10.0.0.4:5500 --workers 2
    """
    stop = stop_on_signals()
    check_uplink(link, uplink)
    if runs is not None:
        if dispatcher or prefix or folder is not None or link is not None:
            raise ConfigError("--runs is given with options of workers; expected one or the other; leave those out")
        _start_runs(runs, given, stop)
        return
    from infra.base.telemetry import configure_logging
    from infra.run.agent.remote import AgentJob, run_agent
    from infra.run.cluster import with_threads
    from infra.run.folder import claim

    own = folder or Path("runs") / f"agent-{datetime.now():%Y%m%d-%H%M%S}"
    settings = with_threads(given.load().model_copy(update={"folder": own}))
    names = check_names(prefix or f"{socket.gethostname().split('.')[0]}-")
    where = _checked(dispatcher or settings.dispatch.endpoint)
    job = AgentJob(settings, where, names, [LinkGbit.of(link or 0.0, uplink)] * count)
    with claim(settings.folder):
        configure_logging("agent", settings.run, path=settings.folder / "supervisor.log")
        console = Console()
        console.print(Text.assemble("agent folder ", (str(settings.folder), "bold"), " (logs, settings)"))
        outcome = run_agent(job, stop, lambda line: console.print(Text(line), soft_wrap=True))
    console.print(Text(f"ended: {outcome.reason}"))


def _checked(dispatcher: str) -> str:
    """Returns the endpoint; raises ConfigError if nobody can connect to it."""
    if check_endpoint(dispatcher).endswith(":*"):
        raise ConfigError(
            f"no dispatcher can be reached at {dispatcher!r}; expected tcp://HOST:PORT; give it with --dispatcher, or "
            "set dispatch.endpoint"
        )
    return dispatcher


def _start_runs(folder: Path, given: SettingsOptions, stop: Stop) -> None:
    from infra.base.telemetry import configure_logging
    from infra.run.agent.starting import keep_runs

    given.load()  # the settings common to all runs must be valid on their own
    folder.mkdir(parents=True, exist_ok=True)
    configure_logging("agent", "runs", path=folder / "agent.log")
    console = Console()
    console.print(Text.assemble("starts runs in ", (str(folder), "bold"), "; 'freshet api --runs' serves them"))
    keep_runs(folder, given.config, given.chosen(), stop, lambda line: console.print(Text(line), soft_wrap=True))
