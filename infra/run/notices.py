"""What happens to a run's processes, for the person who started it: each event is reported once."""

from collections.abc import Iterator
from pathlib import Path

from infra.base.run_folder import dashboard_link, read_line
from infra.run.supervision.supervisor import Supervisor

API = "api"
SERVE = "serve"
TOKEN_COMMAND = "'freshet token create'"


class Notices:
    """Restarts of all processes, and the state of optional ones; each reported once."""

    def __init__(
        self, supervisor: Supervisor, token_command: str = TOKEN_COMMAND, link_file: Path | None = None
    ) -> None:
        """token_command: the command that creates a token for the API. link_file: where the API leaves a link."""
        self._supervisor = supervisor
        self._token_command = token_command
        self._link_file = link_file
        self._restarts: dict[str, int] = {}
        self._told: set[tuple[str, str]] = set()

    def new(self) -> Iterator[str]:
        """What was restarted, where the API listens, and what has failed permanently while the run continues."""
        for name, child in self._supervisor.children.items():
            if child.restarts > self._restarts.get(name, 0):
                yield f"{name} was restarted ({child.failure.removeprefix('was ')})"
            self._restarts[name] = child.restarts
            if (name, child.state) in self._told or child.spec.essential:
                continue
            self._told.add((name, child.state))
            if child.state == "failed":
                yield f"the run continues without process {name!r}, which failed: {child.last_words()}"
            elif name == API and child.state == "ready":
                yield f"API at {child.endpoint}; {self._token_command} creates a token for it"
                yield from self._link(child.endpoint)
            elif name == SERVE and child.state == "ready":
                yield f"predictions at {child.endpoint}, for tokens with --scope predict"

    def _link(self, address: str) -> Iterator[str]:
        """The sign-in link of the dashboard, which is then removed from the folder: it is for one person."""
        secret = read_line(self._link_file) if self._link_file is not None else None
        if self._link_file is not None and secret is not None:
            self._link_file.unlink(missing_ok=True)
            yield "dashboard, one sign-in within 15 minutes ('freshet dashboard' prints another link):"
            yield f"  {dashboard_link(address, secret)}"
