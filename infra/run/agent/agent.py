"""Handles requests for the supervisor of a run, between its passes and in its thread.

The address of its socket is written to ``endpoints/agent``. Changes by requests are not stored: after a restart, a run
has the workers of its settings.
"""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

import structlog

from dispatch.commands.protocol import check_given
from dispatch.commands.server import Asked
from dispatch.commands.supervision import (
    AGENT,
    MOST_PROCESSES,
    ListedProcess,
    ListProcesses,
    Processes,
    StartWorker,
    StopWorker,
    WorkerEnding,
    WorkerStarted,
)
from dispatch.errors import CommandRefused
from infra.base.config import check_names
from infra.base.errors import ConfigError
from infra.base.link_gbit import LinkGbit
from infra.base.wire import Header
from infra.run.agent.sockets import PrivateSocket
from infra.run.supervision.child import Child, ProcessSpec
from infra.run.supervision.supervisor import Supervisor

AGENT_FILE = "agent"
"""Name of the file in the folder of endpoints."""


class Agent:
    """The control socket of one supervisor. Use as a context manager: leaving it removes the socket."""

    def __init__(
        self,
        supervisor: Supervisor,
        run: str,
        endpoint_file: Path,
        further: Callable[[str, LinkGbit], ProcessSpec],
        prefix: str,
        stopped_at: float = 0.0,
    ) -> None:
        """further: makes a worker from its name and its link; prefix: of the names that are chosen here;
        stopped_at: when the resumed run was stopped, in seconds since 1970; 0: it was not.
        """
        self._supervisor = supervisor
        self._run = run
        self._further = further
        self._prefix = prefix
        self._stopped_at = stopped_at
        self._started: dict[str, str] = {}
        """Workers that were added, by the id of the command."""
        self._private = PrivateSocket(endpoint_file, run, AGENT)
        self._socket = self._private.control
        self._log = structlog.get_logger("agent")

    def __enter__(self) -> "Agent":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._private.__exit__(kind, error, traceback)

    def serve(self) -> None:
        """Answers one request, if one has arrived; never waits."""
        asked = self._socket.next()
        if asked is None:
            return
        try:
            answer = self._carry_out(asked)
        except (ConfigError, CommandRefused) as error:
            self._socket.refuse(asked, str(error))
            return
        self._socket.answer(asked, answer)

    def _carry_out(self, asked: Asked) -> Header:
        """Raises ConfigError or CommandRefused if the request cannot be carried out."""
        common: dict[str, Any] = {"run": self._run, "generation": -1, "step": -1}
        match asked.message:
            case ListProcesses():
                listed = [_listed(name, child) for name, child in self._supervisor.children.items()]
                return Processes(**common, processes=tuple(listed[:MOST_PROCESSES]))
            case StartWorker(id=command) if command in self._started:
                return WorkerStarted(**common, worker=self._started[command])
            case StartWorker(worker=worker, link_gbit=link_gbit, uplink_gbit=uplink_gbit, id=command):
                check_given(asked.message.given_seconds, self._stopped_at)
                name = check_names(worker) if worker else self._free_name()
                link = LinkGbit.of(link_gbit, uplink_gbit)
                self._supervisor.add(self._further(name, link))
                self._log.info("worker added", name=name, link_gbit=link.down, uplink_gbit=link.up)
                if command:
                    self._started[command] = name
                return WorkerStarted(**common, worker=name)
            case StopWorker(worker=worker):
                self._end(worker)
                return WorkerEnding(**common, worker=worker)
        raise AssertionError(asked.message)

    def _end(self, name: str) -> None:
        child = self._supervisor.children.get(name)
        if child is not None and not child.spec.may_finish:
            raise ConfigError(
                f"process {name!r} cannot be stopped alone; expected a worker; stop the whole run instead"
            )
        self._supervisor.end(name)

    def _free_name(self) -> str:
        return next(name for number in count() if (name := f"{self._prefix}{number}") not in self._supervisor.children)


def _listed(name: str, child: Child) -> ListedProcess:
    return ListedProcess(
        name=name, state=child.state, pid=child.pid or 0, restarts=child.restarts, seconds=child.seconds
    )
