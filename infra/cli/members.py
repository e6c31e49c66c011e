"""The commands that change a run under way: who takes part, and whether it trains."""

import socket
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from infra.cli.options import SettingsOptions, grouped
from infra.config import check_endpoint, check_names
from infra.errors import ConfigError, FreshetError, ProcessFailed
from infra.process import stop_on_signals
from infra.run.settings import STORED, Settings, read_stored

if TYPE_CHECKING:
    from dispatch.control.protocol import Members, Verb
    from infra.run.agent.protocol import ListedProcess
    from infra.run.agent.running import RunningRun

AGENT_TIMEOUT_SECONDS = 10.0

workers = typer.Typer(help="Add workers to a run under way, take them away, list them.", no_args_is_help=True)

Folder = Annotated[Path, typer.Option("--folder", help="The run's folder.")]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
Worker = Annotated[str, typer.Option("--name", help="Name of the worker.", callback=check_names)]
Link = Annotated[
    float | None, typer.Option("--link", help="Speed of its link in Gbit/s.", min=0.001, max=1e6, show_default=False)
]


class NoAgent(FreshetError):
    """Nobody can start a worker here; the message is the command that does."""


@workers.command("add")
@grouped
def add(
    folder: Folder,
    name: Annotated[str, typer.Option(help="Name of the worker; by default the next one that is free.")] = "",
    link: Link = None,
    as_json: Json = False,
    *,
    given: SettingsOptions,
) -> None:
    """Start a further worker on the machine of a run that 'freshet up', 'demo' or 'agent' supervises.

    It joins at the next step. A run that is started again has the workers of its settings, without those added here.
    Where nobody supervises, the command to run by hand is printed.

    Example: freshet workers add --folder runs/up-20261115-021100 --link 0.5
    """
    from infra.run.agent.protocol import StartWorker

    if name:
        check_names(name)
    running, settings = _find(folder, given)
    if running.agent() is None:
        raise NoAgent(by_hand(running, settings, given.config, name, link))
    common: dict[str, Any] = {"run": running.run, "generation": -1, "step": -1}
    started = _ask_agent(running, StartWorker(**common, worker=name, link_gbit=link or 0.0))
    _print(f"worker {started.worker} is being started", {"worker": started.worker}, as_json)


@workers.command("drain")
@grouped
def drain(folder: Folder, name: Worker, as_json: Json = False, *, given: SettingsOptions) -> None:
    """Have a worker leave in an orderly way: after a cut, at a step boundary, at no cost.

    Example: freshet workers drain --folder runs/up-20261115-021100 --name worker-3
    """
    _tell(_find(folder, given)[0], "drain", name, as_json)


@workers.command("remove")
@grouped
def remove(folder: Folder, name: Worker, as_json: Json = False, *, given: SettingsOptions) -> None:
    """Exclude a worker at once, whatever it does: the others recover, and its process is stopped.

    Example: freshet workers remove --folder runs/up-20261115-021100 --name worker-3
    """
    from infra.run.agent.protocol import StopWorker

    running, _ = _find(folder, given)
    _tell(running, "remove", name, as_json)
    if any(process.name == name for process in _processes(running)):
        _ask_agent(running, StopWorker(run=running.run, generation=-1, step=-1, worker=name))


@workers.command("list")
@grouped
def list_workers(folder: Folder, as_json: Json = False, *, given: SettingsOptions) -> None:
    """Show who takes part in a run, and the processes that are supervised in this folder.

    While the dispatcher does not answer, because it is being restarted for example, the processes alone are shown.

    Example: freshet workers list --folder runs/up-20261115-021100
    """
    running, _ = _find(folder, given)
    processes = _processes(running)
    members = _members(running, is_needed=not processes) if running.has_dispatcher or not processes else None
    if as_json:
        members_json = None if members is None else {"is_paused": members.is_paused, "members": members.members}
        _print("", {"dispatcher": members_json, "processes": processes}, as_json)
        return
    if members is not None:
        rows = [(m.name, m.state, m.number if m.number >= 0 else "", m.link_gbit or "") for m in members.members]
        _show_table(("worker", "state", "number", "Gbit/s"), rows)
    if processes:
        listed = [(p.name, p.state, p.pid or "", p.restarts, f"{p.seconds:.0f} s") for p in processes]
        _show_table(("process", "state", "pid", "restarts", "since"), listed)


@grouped
def pause(folder: Folder, as_json: Json = False, *, given: SettingsOptions) -> None:
    """Pause a run: steps under way are completed, no new batch is begun, and events wait in their topic.

    Example: freshet pause --folder runs/up-20261115-021100
    """
    _tell(_find(folder, given)[0], "pause", "", as_json)


@grouped
def resume(folder: Folder, as_json: Json = False, *, given: SettingsOptions) -> None:
    """Have a run that was paused go on.

    Example: freshet resume --folder runs/up-20261115-021100
    """
    _tell(_find(folder, given)[0], "resume", "", as_json)


@grouped
def agent(
    dispatcher: Annotated[str, typer.Option(help="Endpoint of the dispatcher.", show_default=False)] = "",
    count: Annotated[int, typer.Option("--workers", help="Workers to start with.", min=1, max=128)] = 1,
    prefix: Annotated[
        str, typer.Option(help="Their names begin with it; by default this machine's name.", show_default=False)
    ] = "",
    link: Link = None,
    folder: Annotated[Path | None, typer.Option(help="A folder of its own; a new one by default.")] = None,
    *,
    given: SettingsOptions,
) -> None:
    """Supervise workers on this machine for a dispatcher that runs on another.

    Workers that fail are restarted; 'freshet workers add --folder' with the agent's folder starts further ones, which
    are gone once the agent ends. It ends when all workers have left.

    Example: freshet agent --config freshet.toml --dispatcher tcp://10.0.0.4:5500 --workers 2
    """
    stop = stop_on_signals()
    from infra.run.agent.remote import AgentJob, run_agent
    from infra.run.cluster import with_threads
    from infra.run.folder import claim
    from infra.telemetry import configure_logging

    own = folder or Path("runs") / f"agent-{datetime.now():%Y%m%d-%H%M%S}"
    settings = with_threads(given.load().model_copy(update={"folder": own}))
    names = check_names(prefix or f"{socket.gethostname().split('.')[0]}-")
    where = _checked(dispatcher or settings.dispatch.endpoint)
    job = AgentJob(settings, where, names, [link or 0.0] * count)
    with claim(settings.folder):
        configure_logging("agent", settings.run, path=settings.folder / "supervisor.log")
        console = Console()
        console.print(Text.assemble("agent folder ", (str(settings.folder), "bold"), " (logs, settings)"))
        outcome = run_agent(job, stop, lambda line: console.print(Text(line), soft_wrap=True))
    console.print(Text(f"ended: {outcome.reason}"))


# ── inside ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def _find(folder: Path, given: SettingsOptions) -> tuple["RunningRun", Settings]:
    """The run under way in this folder; of processes started by hand the settings are those given."""
    from infra.run.agent.running import find_running

    settings = read_stored(folder) if (folder / STORED).exists() else given.load()
    return find_running(folder, settings), settings


def _checked(dispatcher: str) -> str:
    """Raises ConfigError for an endpoint that nobody can connect to."""
    if check_endpoint(dispatcher).endswith(":*"):
        raise ConfigError(
            f"no dispatcher can be reached at {dispatcher!r}; expected tcp://HOST:PORT; give it with --dispatcher, or "
            "set dispatch.endpoint"
        )
    return dispatcher


def by_hand(running: "RunningRun", settings: Settings, config: Path | None, name: str, link: float | None) -> str:
    """What to run where nobody can start a worker."""
    told = f" --config {config}" if config is not None else ""
    told = f" --run-folder {running.folder}" if (running.folder / STORED).exists() else told
    where = running.dispatcher() or settings.dispatch.endpoint
    speed = f" --link {link:g}" if link is not None else ""
    command = f"freshet worker{told} --name {name or 'NAME'} --dispatcher {where}{speed}"
    return f"nobody supervises run {running.run!r} in {running.folder}; expected to start the worker by hand: {command}"


def _ask_agent(running: "RunningRun", request: Any) -> Any:
    from dispatch.control.client import ask
    from infra.run.agent.protocol import AGENT

    endpoint = running.agent()
    assert endpoint is not None
    return ask(endpoint, request, AGENT, timeout_seconds=AGENT_TIMEOUT_SECONDS)


def _processes(running: "RunningRun") -> Sequence["ListedProcess"]:
    """Those of the agent; none where there is none."""
    from infra.run.agent.protocol import ListProcesses

    if running.agent() is None:
        return ()
    found: Sequence[ListedProcess] = _ask_agent(
        running, ListProcesses(run=running.run, generation=-1, step=-1)
    ).processes
    return found


def _members(running: "RunningRun", is_needed: bool) -> "Members | None":
    """Those of the dispatcher; None, with a word on stderr, where it does not answer and is not needed."""
    from dispatch.control.client import command
    from dispatch.control.protocol import Members
    from dispatch.errors import NoAnswer

    try:
        answer = command(running.control(), running.run, "list", curve=running.curve)
    except (NoAnswer, ProcessFailed) as error:
        if is_needed:
            raise
        typer.echo(f"freshet: {error}", err=True)
        return None
    assert isinstance(answer, Members)
    return answer


def _tell(running: "RunningRun", verb: "Verb", worker: str, as_json: bool) -> None:
    """Has the dispatcher carry out a command, and prints its answer."""
    from dispatch.control.client import command
    from dispatch.control.protocol import Accepted

    answer = command(running.control(), running.run, verb, worker, curve=running.curve)
    assert isinstance(answer, Accepted)
    _print(answer.text, {"id": answer.id, "step": answer.step, "text": answer.text}, as_json)


def _print(text: str, found: Any, as_json: bool) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(found)).decode() if as_json else text)


def _show_table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    table = Table(*columns, box=None, pad_edge=False, header_style="dim")
    for row in rows:
        table.add_row(*(Text(str(value)) for value in row))
    Console().print(table)
