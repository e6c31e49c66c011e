"""``freshet token``: who may use the control plane. Works directly on its database, whether the API runs or not."""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from infra.base.errors import ConfigError
from infra.cli.options import RunOptions, SettingsOptions, grouped
from infra.cli.steer.connection import API, find_address, listening
from infra.run.folder import RUNS

if TYPE_CHECKING:
    from infra.web.store.access import AccessStore
    from infra.web.store.rows import StoredToken

UsedT = TypeVar("UsedT")
UNIT_SECONDS = {"m": 60, "h": 3600, "d": 86400, "y": 365 * 86400}
SERVER = "serve"
WIDTH = 160
"""Width of tables if the output is not a terminal."""
Url = Annotated[
    str, typer.Option("--database", metavar="URL", help="The database of the API; by default that of the settings.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

app = typer.Typer(help="Tokens of the API: create, list and revoke them.", no_args_is_help=True)


@app.command()
@grouped
def create(
    name: Annotated[str, typer.Option(help="Whose token it is, or what it is for.")],
    scope: Annotated[list[str], typer.Option(help="read, control, predict or ingest; may be repeated.")],
    expires: Annotated[
        str | None, typer.Option(help="Lifetime, as in 12h, 30d or 1y; unlimited by default.", show_default=False)
    ] = None,
    database: Url = "",
    as_json: AsJson = False,
    *,
    given: RunOptions,
) -> None:
    """Create a token and print its secret, which is shown only once.

    Example: freshet token create --name ann --scope read --scope control --expires 30d
    """
    expires_at = None if expires is None else time.time() + parse_seconds(expires)
    scopes: Any = scope  # checked by the store
    token, secret = with_store(
        database or database_of(given), lambda store: store.tokens.create(name, scopes, expires_at)
    )
    if as_json:
        _echo_json({**_listed(token), "secret": secret})
        return
    typer.echo(secret)
    typer.echo(
        f"token {token.id} for {token.name}: {', '.join(token.scopes)}; keep its secret, it is not shown again",
        err=True,
    )


@app.command("list")
@grouped
def list_tokens(database: Url = "", as_json: AsJson = False, *, given: RunOptions) -> None:
    """List all tokens, without their secrets.

    Example: freshet token list
    """
    found = with_store(database or database_of(given), lambda store: store.tokens.list())
    if as_json:
        _echo_json([_listed(token) for token in found])
        return
    console = Console()
    table = Table("id", "name", "scopes", "created", "expires", "revoked")
    for token in found:
        times = (_when(at) for at in (token.created_at, token.expires_at, token.revoked_at))
        table.add_row(token.id, token.name, " ".join(token.scopes), *times)
    console.print(table, width=None if console.is_terminal else WIDTH)


@app.command()
@grouped
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the token.")],
    database: Url = "",
    as_json: AsJson = False,
    *,
    given: RunOptions,
) -> None:
    """Revoke a token: it is refused as soon as the API looks it up again.

    Example: freshet token revoke 3f2a9c01b7d4
    """
    found = with_store(database or database_of(given), lambda store: store.tokens.revoke(token_id))
    if found is None:
        raise ConfigError(f"there is no token {token_id}; expected an id that 'freshet token list' shows; correct it")
    if as_json:
        _echo_json(_listed(found))
    else:
        typer.echo(f"token {found.id} for {found.name} is revoked")


@grouped
def dashboard(
    scope: Annotated[
        list[str] | None, typer.Option(help="What the session may do; may be repeated.", show_default="all but ingest")
    ] = None,
    *,
    given: RunOptions,
) -> None:
    """Print a link that signs in to the dashboard of the API, once, within 15 minutes.

    Example: freshet dashboard --scope read
    """
    from infra.base.run_folder import dashboard_link
    from infra.web.store.tokens import LINK_SCOPES

    scopes: Any = scope or LINK_SCOPES  # checked by the store
    address = find_address(given.folder or RUNS)
    secret = with_store(database_of(given), lambda store: store.tokens.create_link(scopes))
    typer.echo(dashboard_link(address, secret))


def parse_seconds(text: str) -> float:
    """Parses a duration, as in 30d, into seconds; raises ConfigError."""
    found = re.fullmatch(r"([1-9]\d{0,8})([mhdy])", text)
    if found is None:
        raise ConfigError(f"{text!r} is no duration; expected a number and m, h, d or y, as in 30d; correct --expires")
    return int(found[1]) * UNIT_SECONDS[found[2]]


def database_of(given: RunOptions) -> str:
    """The database given by the settings, or that of the API or server of the run, or the default."""
    from infra.base.run_folder import is_run
    from infra.web.store.place import database_url

    folder = given.folder
    is_stored = folder is not None and is_run(folder)
    settings = given.load() if is_stored or folder is None else SettingsOptions.load(given)
    is_set = not is_stored and (settings.api.database or settings.api.runs) is not None
    found = None if is_set else served_database(folder or RUNS)
    runs = settings.api.runs or folder or settings.folder.absolute().parent
    return found or database_url(settings.api.database, runs)


def served_database(folder: Path) -> str | None:
    """The database of the API, or else of the prediction server, that listens for the runs in a folder; None if none
    does.

    Raises ConfigError if several listen, with different databases.
    """
    from infra.web.store.place import read_database

    for process in (API, SERVER):
        places = listening(folder, process)
        found = {place: url for place in places if (url := read_database(place, process)) is not None}
        if len(set(found.values())) == 1:
            return next(iter(found.values()))
        if found:
            there = ", ".join(f"{places[place]} ({place})" for place in found)
            raise ConfigError(
                f"several servers with databases of their own listen for the runs in {folder}: {there}; expected one; "
                "name its folder with --run"
            )
    return None


def with_store(url: str, use: "Callable[[AccessStore], Awaitable[UsedT]]") -> UsedT:
    """Migrates the database if necessary, and makes one query."""
    from infra.web.store.access import AccessStore

    async def ask() -> UsedT:
        store = await AccessStore.open(url)
        try:
            return await use(store)
        finally:
            await store.close()

    return asyncio.run(ask())


def _listed(token: "StoredToken") -> dict[str, Any]:
    return {**vars(token), "scopes": list(token.scopes)}


def _when(at: float | None) -> str:
    return "" if at is None else f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M}"


def _echo_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value)).decode())
