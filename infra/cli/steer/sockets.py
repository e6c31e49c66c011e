"""Commands for a run on this machine, over the sockets of its dispatcher and supervisor, without a token."""

import getpass
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from infra.base.errors import FreshetError, ProcessFailed
from infra.base.link_gbit import LinkGbit
from infra.cli.options import SettingsOptions
from infra.cli.steer.output import print_answer
from infra.run.folder import as_path
from infra.run.settings import STORED, Settings, read_stored

if TYPE_CHECKING:
    from dispatch.commands.protocol import Members
    from dispatch.commands.supervision import ListedProcess
    from infra.run.agent.running import RunningRun

AGENT_TIMEOUT_SECONDS = 10.0


class NoAgent(FreshetError):
    """Nobody can start a worker here; the message is the command that does."""


def find(folder: Path, given: SettingsOptions) -> tuple["RunningRun", Settings]:
    """The live run in this folder; for processes started by hand, the settings are those given."""
    from infra.run.agent.running import find_running

    settings = read_stored(folder) if (folder / STORED).exists() else given.load()
    return find_running(folder, settings), settings


def by_hand(running: "RunningRun", settings: Settings, config: Path | None, name: str, link: LinkGbit) -> str:
    """The command to run by hand if nobody can start a worker."""
    settings_option = f" --config {config}" if config is not None else ""
    settings_option = f" --run {as_path(running.folder)}" if (running.folder / STORED).exists() else settings_option
    where = running.dispatcher() or settings.dispatch.endpoint
    speed = "".join(f" {option}" for option in link.options)
    command = f"freshet worker{settings_option} --name {name or 'NAME'} --dispatcher {where}{speed}"
    return f"nobody supervises run {running.run!r} in {running.folder}; expected to start the worker by hand: {command}"


def ask_agent(running: "RunningRun", request: Any) -> Any:
    from dispatch.commands.client import ask
    from dispatch.commands.supervision import AGENT

    endpoint = running.agent()
    assert endpoint is not None
    return ask(endpoint, request, AGENT, timeout_seconds=AGENT_TIMEOUT_SECONDS)


def processes(running: "RunningRun") -> Sequence["ListedProcess"]:
    """The processes of the agent; none if there is no agent."""
    from dispatch.commands.supervision import ListProcesses

    if running.agent() is None:
        return ()
    found: Sequence[ListedProcess] = ask_agent(
        running, ListProcesses(run=running.run, generation=-1, step=-1)
    ).processes
    return found


def members(running: "RunningRun", is_needed: bool) -> "Members | None":
    """The members that the dispatcher reports; None, with a line on stderr, if it does not answer and is not needed."""
    from dispatch.commands.client import ask_members
    from dispatch.errors import NoAnswer

    try:
        return ask_members(running.control(), running.run, running.curve)
    except (NoAnswer, ProcessFailed) as error:
        if is_needed:
            raise
        typer.echo(f"freshet: {error}", err=True)
        return None


def give_command(running: "RunningRun", verb: str, worker: str, as_json: bool, value: str = "") -> None:
    """Gives the dispatcher a command, and prints its answer."""
    from dispatch.commands.client import command

    endpoint = running.control()
    answer = command(endpoint, running.run, verb, worker, value, actor=getpass.getuser(), curve=running.curve)
    print_answer(answer.text, {"id": answer.id, "step": answer.step, "text": answer.text}, as_json)
