"""What happens to a run's processes, for the person who started it: each event is reported once."""

from collections.abc import Iterator

from infra.run.supervision.supervisor import Supervisor

API = "api"
SERVE = "serve"
TOKEN_COMMAND = "'freshet token create'"


class Notices:
    """Restarts of all processes, and the state of optional ones; each reported once."""

    def __init__(self, supervisor: Supervisor, token_command: str = TOKEN_COMMAND) -> None:
        """token_command: the command that creates a token for the API."""
        self._supervisor = supervisor
        self._token_command = token_command
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
            elif name == SERVE and child.state == "ready":
                yield f"predictions at {child.endpoint}, for tokens with --scope predict"
