"""The commands that change the workers of a run, and pause and resume it.

They use the sockets of a run on this machine, without a token, or its API: ``ApiOptions.socket_folder`` decides.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.base.config import check_names
from infra.base.errors import ConfigError
from infra.base.link_gbit import LinkGbit
from infra.cli.options import SettingsOptions, grouped
from infra.cli.steer import sockets
from infra.cli.steer.connection import ApiOptions, AsJson, CommandOptions
from infra.cli.steer.output import print_answer, print_json, show_table

if TYPE_CHECKING:
    from dispatch.commands.protocol import ListedMember

app = typer.Typer(help="Add workers to a live run, remove them, list them.", no_args_is_help=True)

Worker = Annotated[str, typer.Argument(help="Name of the worker.", callback=check_names, show_default=False)]
Link = Annotated[
    float | None, typer.Option("--link", help="Speed of its link in Gbit/s.", min=0.001, max=10_000, show_default=False)
]


Uplink = Annotated[
    float | None,
    typer.Option(
        "--uplink",
        help="Speed of what it sends in Gbit/s; by default that of its link.",
        min=0.001,
        max=10_000,
        show_default=False,
    ),
]


@app.command("add")
@grouped
def add(
    name: Annotated[str, typer.Option(help="Name of the worker; by default the next free one.")] = "",
    link: Link = None,
    uplink: Uplink = None,
    as_json: AsJson = False,
    *,
    given: SettingsOptions,
    how: CommandOptions,
    where: ApiOptions,
) -> None:
    """Start another worker on the machine of a run that 'freshet up', 'demo' or 'agent' supervises.

    It joins at the next step. After a restart, a run has the workers of its settings, without those added here. If no
    supervisor runs, the command to run by hand is printed.

    Example: freshet workers add --link 0.5
    """
    if name:
        check_names(name)
    check_uplink(link, uplink)
    if (folder := where.socket_folder(how)) is not None:
        _add_over_sockets(folder, name, LinkGbit.of(link or 0.0, uplink), as_json, given)
        return
    body = {"name": name or None, "link_gbit": link, "uplink_gbit": uplink}
    with where.connect() as api:
        done = api.command("POST", "/workers", how, {key: value for key, value in body.items() if value is not None})
    print_answer(done["text"], done, as_json)


def check_uplink(link: float | None, uplink: float | None) -> None:
    """Raises ConfigError if the speed of the uplink is given alone."""
    if uplink is not None and link is None:
        raise ConfigError(f"--uplink {uplink:g} is given without --link; expected both; give the downlink's speed, too")


@app.command("drain")
@grouped
def drain(
    name: Worker,
    as_json: AsJson = False,
    *,
    given: SettingsOptions,
    how: CommandOptions,
    where: ApiOptions,
) -> None:
    """Let a worker leave cleanly: after a checkpoint, at a step boundary, so that no work is lost.

    Example: freshet workers drain worker-3
    """
    if (folder := where.socket_folder(how)) is not None:
        sockets.give_command(sockets.find(folder, given)[0], "drain", name, as_json)
    else:
        _over_api("POST", f"/workers/{name}/drain", as_json, how, where)


@app.command("remove")
@grouped
def remove(
    name: Worker,
    as_json: AsJson = False,
    *,
    given: SettingsOptions,
    how: CommandOptions,
    where: ApiOptions,
) -> None:
    """Exclude a worker at once, whatever it is doing: the others recover, and its process is stopped.

    Example: freshet workers remove worker-3
    """
    folder = where.socket_folder(how)
    if folder is None:
        if how.reason:
            raise ConfigError("--reason is not kept of a worker that is removed; expected none; leave it out")
        _over_api("DELETE", f"/workers/{name}", as_json, how, where)
        return
    from dispatch.commands.supervision import StopWorker

    running, _ = sockets.find(folder, given)
    sockets.give_command(running, "remove", name, as_json)
    if any(process.name == name for process in sockets.processes(running)):
        sockets.ask_agent(running, StopWorker(run=running.run, generation=-1, step=-1, worker=name))


@app.command("list")
@grouped
def list_workers(as_json: AsJson = False, *, given: SettingsOptions, where: ApiOptions) -> None:
    """Show the workers of a run, and the supervised processes.

    If the run is reached over its sockets and the dispatcher does not answer, for example during a restart, only the
    processes are shown.

    Example: freshet workers list
    """
    if (folder := where.socket_folder(CommandOptions())) is not None:
        _list_over_sockets(folder, as_json, given)
        return
    with where.connect() as api:
        found = api.client.items(api.of_run("/workers"))
    if as_json:
        print_json(found)
        return
    rows = [
        (w["name"], w["state"], w["process"], _speeds(w, ""), _speeds(w, "measured"), _share(w["share"])) for w in found
    ]
    show_table(("worker", "state", "process", "Gbit/s", "measured", "share"), rows)


@grouped
def pause(
    as_json: AsJson = False,
    *,
    given: SettingsOptions,
    how: CommandOptions,
    where: ApiOptions,
) -> None:
    """Pause a run: steps under way are completed, no new batch is begun, and events wait in their topic.

    Example: freshet pause --run runs/up-20261115-021100
    """
    if (folder := where.socket_folder(how)) is not None:
        sockets.give_command(sockets.find(folder, given)[0], "pause", "", as_json)
    else:
        _over_api("POST", "/pause", as_json, how, where)


@grouped
def resume(
    as_json: AsJson = False,
    *,
    given: SettingsOptions,
    how: CommandOptions,
    where: ApiOptions,
) -> None:
    """Resume a paused run.

    Example: freshet resume --run runs/up-20261115-021100
    """
    if (folder := where.socket_folder(how)) is not None:
        sockets.give_command(sockets.find(folder, given)[0], "resume", "", as_json)
    else:
        _over_api("POST", "/resume", as_json, how, where)


# ── over the API ──────────────────────────────────────────────────────────────────────────────────────────────────────
def _over_api(method: str, path: str, as_json: bool, how: CommandOptions, where: ApiOptions) -> None:
    with where.connect() as api:
        done = api.command(method, path, how)
    print_answer(done["text"], done, as_json)


def _speeds(worker: dict[str, Any], kind: str) -> str:
    """Speed of a worker's link, configured or measured; both directions if they differ."""
    names = ("measured_gbit", "measured_uplink_gbit") if kind else ("link_gbit", "uplink_gbit")
    known = list(dict.fromkeys(f"{worker[name]:.3g}" for name in names if worker[name] is not None))
    return " / ".join(known) or "–"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


# ── over sockets ──────────────────────────────────────────────────────────────────────────────────────────────────────
def _add_over_sockets(folder: Path, name: str, link: LinkGbit, as_json: bool, given: SettingsOptions) -> None:
    from dispatch.commands.supervision import StartWorker

    running, settings = sockets.find(folder, given)
    if running.agent() is None:
        raise sockets.NoAgent(sockets.by_hand(running, settings, given.config, name, link))
    common: dict[str, Any] = {"run": running.run, "generation": -1, "step": -1}
    request = StartWorker(**common, worker=name, link_gbit=link.down, uplink_gbit=link.own_uplink)
    started = sockets.ask_agent(running, request)
    print_answer(f"worker {started.worker} is being started", {"worker": started.worker}, as_json)


def _link(member: "ListedMember") -> str:
    speeds = [member.link_gbit, *([member.uplink_gbit] if member.uplink_gbit else [])]
    return " / ".join(f"{speed:g}" for speed in speeds) if member.link_gbit else "–"


def _list_over_sockets(folder: Path, as_json: bool, given: SettingsOptions) -> None:
    running, _ = sockets.find(folder, given)
    processes = sockets.processes(running)
    needed = not processes
    members = sockets.members(running, is_needed=needed) if running.has_dispatcher or needed else None
    if as_json:
        members_json = None if members is None else {"is_paused": members.is_paused, "members": members.members}
        print_json({"dispatcher": members_json, "processes": processes})
        return
    if members is not None:
        rows = [(m.name, m.state, m.number if m.number >= 0 else "", _link(m)) for m in members.members]
        show_table(("worker", "state", "number", "Gbit/s"), rows)
    if processes:
        listed = [(p.name, p.state, p.pid or "", p.restarts, f"{p.seconds:.0f} s") for p in processes]
        show_table(("process", "state", "pid", "restarts", "since"), listed)
