"""Takes requests for the supervisor of a run, between its passes and in its thread.

The socket lies in a folder that only its owner can enter, outside of the run's folder, whose path may be longer than a
socket's may be. Its address is written to ``endpoints/agent``, which only the owner can read. What a request changes is
not kept: a run that is started again has the workers of its settings.
"""

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

import structlog
import zmq

from dispatch.control.server import Asked, ControlSocket
from infra.config import check_names
from infra.errors import ConfigError
from infra.files import writing_whole
from infra.run.agent.protocol import (
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
from infra.run.supervisor import Child, ProcessSpec, Supervisor
from infra.wire import Header

AGENT_FILE = "agent"
"""in the folder of endpoints"""
SOCKET_FOLDER = "freshet-agent-"
LONGEST_FOLDER = 60
"""characters; a longer folder for temporary files leaves too little of a socket's 107"""


class Agent:
    """The control socket of one supervisor. Use as a context manager: leaving it removes the socket."""

    def __init__(
        self,
        supervisor: Supervisor,
        run: str,
        endpoint_file: Path,
        further: Callable[[str, float], ProcessSpec],
        prefix: str,
    ) -> None:
        """further: makes a worker from its name and its link in Gbit/s; prefix: of the names that are chosen here."""
        self._supervisor, self._run, self._further, self._prefix = supervisor, run, further, prefix
        self._endpoint_file = endpoint_file
        remove_abandoned(endpoint_file)
        self._folder = Path(tempfile.mkdtemp(prefix=SOCKET_FOLDER, dir=_short_folder()))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = ControlSocket(self._context, f"ipc://{self._folder / 'socket'}", run, exchange=AGENT)
        write_private(endpoint_file, self._socket.endpoint)
        self._log = structlog.get_logger("agent")

    def __enter__(self) -> "Agent":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()
        self._context.term()
        self._endpoint_file.unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def serve(self) -> None:
        """Answers one request, if one has arrived; never waits."""
        asked = self._socket.next()
        if asked is None:
            return
        try:
            answer = self._carry_out(asked)
        except ConfigError as error:
            self._socket.refuse(asked, str(error))
            return
        self._socket.answer(asked, answer)

    def _carry_out(self, asked: Asked) -> Header:
        """Raises ConfigError if the request cannot be."""
        common: dict[str, Any] = {"run": self._run, "generation": -1, "step": -1}
        match asked.message:
            case ListProcesses():
                listed = [_listed(name, child) for name, child in self._supervisor.children.items()]
                return Processes(**common, processes=tuple(listed[:MOST_PROCESSES]))
            case StartWorker(worker=worker, link_gbit=link_gbit):
                name = check_names(worker) if worker else self._free_name()
                self._supervisor.add(self._further(name, link_gbit))
                self._log.info("worker added", name=name, link_gbit=link_gbit)
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


def _short_folder() -> str:
    usual = tempfile.gettempdir()
    return usual if len(usual) <= LONGEST_FOLDER else "/tmp"


def write_private(path: Path, text: str) -> None:
    """Writes a small file atomically that only its owner can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing_whole(path) as temporary:
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(file, "w") as private:
            private.write(text)


def remove_abandoned(endpoint_file: Path) -> None:
    """Removes the socket of a supervisor that was killed."""
    with suppress(OSError, UnicodeDecodeError):
        folder = Path(endpoint_file.read_text().removeprefix("ipc://")).parent
        if folder.name.startswith(SOCKET_FOLDER) and folder.stat().st_uid == os.getuid():
            shutil.rmtree(folder, ignore_errors=True)
        endpoint_file.unlink()
