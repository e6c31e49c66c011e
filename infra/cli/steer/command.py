"""``freshet command``: any command that the dispatcher knows, by its name."""

from typing import Annotated

import typer

from infra.base.config import check_names
from infra.cli.options import SettingsOptions, grouped
from infra.cli.steer import sockets
from infra.cli.steer.connection import ApiOptions, AsJson, CommandOptions
from infra.cli.steer.output import print_answer

Name = Annotated[str, typer.Argument(help="Of the command, as in link.", show_default=False)]
Value = Annotated[str, typer.Argument(help="What it sets, if it sets anything.", show_default=False)]
Worker = Annotated[str, typer.Option("--worker", help="The worker that it is about, if it is about one.")]


@grouped
def command(
    name: Name,
    value: Value = "",
    worker: Worker = "",
    as_json: AsJson = False,
    *,
    given: SettingsOptions,
    how: CommandOptions,
    where: ApiOptions,
) -> None:
    """Give a run any command: alpha, checkpoint, deadline, drain, link, pause, policy, shares, skip_above and others.

    Example: freshet command link 0.5 --worker worker-3
    """
    import msgspec

    from dispatch.commands.registry import read_command

    asked = read_command(name, check_names(worker) if worker else "", value)
    if (folder := where.socket_folder(how)) is not None:
        sockets.give_command(sockets.find(folder, given)[0], asked.name, asked.about, as_json, value=str(asked))
        return
    body = {"verb": asked.name, "worker": asked.about or None, "value": msgspec.to_builtins(asked.shown)}
    with where.connect() as api:
        done = api.command("POST", "/commands", how, body)
    print_answer(done["text"], done, as_json)
