"""How commands reach a run: over its API, or over the sockets of its processes on this machine.

The API is the first of these that is given: --api, the API of the run in a folder given by --run, FRESHET_API_URL, or
the API that serves ``runs``. A process of the API writes its address to ``endpoints/api`` in its folder. Tokens are
never looked up: they must be given.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.base.config import check_names
from infra.base.errors import ConfigError
from infra.cli.options import RUN, RunOrFolder, command_for, not_one
from infra.run.folder import RUNS, is_path, named_folder
from infra.run.settings import API_URL, CA_FILE, TOKEN, check_environment

if TYPE_CHECKING:
    from infra.cli.steer.client import ApiClient

API = "api"
PROBE_SECONDS = 1.0
"""How long an address that was found in a folder may take to accept a connection."""
OVER = ("stopped", "ended", "silent")
"""States of runs that a command probably does not mean if there is another run."""

AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


@dataclass(frozen=True)
class CommandOptions:
    """How a command is given over the API."""

    reason: Annotated[str, typer.Option("--reason", help="Why, for the record.")] = ""
    wait: Annotated[float, typer.Option("--wait", help="Seconds to wait until it is carried out.", min=0)] = 60.0
    cursor: Annotated[
        int | None,
        typer.Option(
            "--if-cursor",
            help="Refuse if the run was changed after this cursor, as 'freshet runs show' prints it.",
            min=0,
            show_default=False,
        ),
    ] = None
    old_cursor: Annotated[int | None, typer.Option("--if-version", min=0, hidden=True)] = None

    @property
    def needs_api(self) -> bool:
        """Whether an option is given that only the API supports."""
        return bool(self.reason) or self.expected is not None

    @cached_property
    def expected(self) -> int | None:
        """The cursor that the command is based on, with a notice for the older spelling; None: any."""
        if self.old_cursor is None:
            return self.cursor
        if self.cursor is not None:
            raise ConfigError(
                f"--if-cursor {self.cursor} and --if-version {self.old_cursor} are both given; expected one, and they "
                "mean the same; leave out --if-version"
            )
        typer.echo("freshet: --if-version is now --if-cursor; the old name works for one more release", err=True)
        return self.old_cursor


@dataclass(frozen=True)
class ApiOptions(RunOrFolder):
    """Which API, which token, and which run."""

    api: Annotated[
        str, typer.Option("--api", metavar="URL", help=f"Address of the API; or {API_URL}. By default the API of runs.")
    ] = ""
    token: Annotated[
        str, typer.Option("--token", help=f"Secret of a token; {TOKEN} is safer, because nobody sees it.")
    ] = ""
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="File with that secret.", show_default=False)
    ] = None
    ca_file: Annotated[
        Path | None,
        typer.Option("--ca-file", help=f"Certificate authority (PEM) of the API; or {CA_FILE}.", show_default=False),
    ] = None

    @contextmanager
    def connect(self) -> Iterator["ApiConnection"]:
        from infra.cli.steer.client import ApiClient

        named = self.named or os.environ.get(RUN, "")
        if self.api and is_path(named):
            raise ConfigError(f"--api {self.api} and --run {named} are both given; expected one; leave one out")
        check_environment(os.environ)
        given = self.api or ("" if is_path(named) else os.environ.get(API_URL, ""))
        folder = named_folder(named) if named and not given else None
        address = given or find_address(folder or RUNS)  # before the token, of which a run without an API has no use
        token = self._secret()
        authority = self.ca_file or (Path(found) if (found := os.environ.get(CA_FILE)) else None)
        with ApiClient(address, token, authority) as client:
            yield ApiConnection(client, _name_at_api(named, folder))

    def socket_folder(self, how: CommandOptions) -> Path | None:
        """The folder of the run if it is reached over its sockets, which needs no token; None: over the API.

        Sockets are used if --run is a path, or if no option of an API is given.
        """
        is_local = is_path(self.named)
        of_api = [("--api", self.api), ("--token", self.token), ("--token-file", self.token_file)]
        given = [option for option, value in [*of_api, ("--reason or --if-cursor", how.needs_api)] if value]
        if is_local and given:
            raise ConfigError(
                f"{', '.join(given)} need the API, and --run {self.named}, a folder, goes around it; expected one or "
                "the other; give the name of the run instead, or leave those out"
            )
        if given or (not is_local and any(os.environ.get(name) for name in (TOKEN, API_URL))):
            return None
        try:
            return self.find()
        except ConfigError as error:
            raise ConfigError(f"{error}; a run elsewhere is reached with --api and a token") from error

    def _secret(self) -> str:
        """The secret of the token; raises ConfigError if there is none."""
        from infra.cli.steer.client import check_token

        if self.token and self.token_file is not None:
            raise ConfigError("--token and --token-file are both given; expected one of them; leave one out")
        if self.token_file is None:
            return check_token(self.token or os.environ.get(TOKEN, ""))
        try:
            return check_token(self.token_file.read_text(encoding="ascii").strip())
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"no token can be read from {self.token_file}: {error}; expected a file with a secret alone; correct "
                "--token-file"
            ) from error


def _name_at_api(named: str, folder: Path | None) -> str:
    """The name of the given run; empty if none was given, or a folder of several."""
    from api.runs.places import find_runs
    from infra.base.run_folder import is_run

    if folder is not None:
        return next(iter(find_runs(folder)), "") if is_run(folder) else ""
    return check_names(named) if named else ""


class ApiConnection:
    """A connection to an API, and the run that is meant."""

    def __init__(self, client: "ApiClient", named: str) -> None:
        self.client = client
        self.named = named

    @cached_property
    def run(self) -> str:
        """The named run, or the only one; raises ConfigError, which lists the runs, if there is no such run."""
        if self.named:
            return self.named
        runs = {run["name"]: run["state"] for run in self.client.items("/v1/runs")}
        candidates = [name for name, state in runs.items() if state not in OVER] or list(runs)
        if len(candidates) == 1:
            return str(candidates[0])
        raise not_one(candidates, f"at {self.client.address}")

    def of_run(self, path: str = "") -> str:
        return f"/v1/runs/{self.run}{path}"

    def command(
        self, method: str, path: str, how: CommandOptions, body: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Has a command for the run carried out, and returns its result."""
        why = {"reason": how.reason} if method != "DELETE" else {}
        given = None if method == "DELETE" else {**(body or {}), **why}
        command = self.client.change(method, self.of_run(path), given, how.expected)
        return self.client.await_answer(command, how.wait)


def find_address(folder: Path) -> str:
    """The address of the API for a folder; raises ConfigError if there is none, or several."""
    found = listening(folder, API)
    if len(set(found.values())) == 1:
        return next(iter(found.values()))
    if found:
        there = ", ".join(f"{address} ({place})" for place, address in found.items())
        raise ConfigError(
            f"several APIs listen for the runs in {folder}: {there}; expected one; name a run, as in "
            f"'{command_for(next(iter(found)).name)}', or give --api"
        )
    raise ConfigError(
        f"no API listens for the runs in {folder}; expected 'freshet up', or 'freshet api --runs {folder}', to run; "
        f"start one, or give --api or {API_URL}"
    )


def listening(folder: Path, process: str) -> dict[Path, str]:
    """Addresses at which processes of this name listen for the runs in a folder, by the folder where they were found.

    The folder's own process comes first, then one for all runs next to it, then those of the runs in it.
    """
    from infra.base.run_folder import is_run, read_endpoint

    own = folder.parent if is_run(folder) else folder
    others = [] if is_run(folder) else sorted(path.parent for path in folder.glob("*/endpoints"))
    for places in ((folder,), (own,), others):
        written = {place: address for place in places if (address := read_endpoint(place, process))}
        if found := {place: address for place, address in written.items() if _listens(address)}:
            return found
    return {}


def _listens(address: str) -> bool:
    """Whether a process listens there: an API that has ended leaves its address behind."""
    import httpx2

    try:
        url = httpx2.URL(address)
        with socket.create_connection((url.host, url.port or 443), PROBE_SECONDS):
            return True
    except (OSError, httpx2.InvalidURL):
        return False
