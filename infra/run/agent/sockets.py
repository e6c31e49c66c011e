"""A control socket that only the owner of a folder can reach; its address is in a file that only the owner can read.

A supervisor creates the folder of all private sockets of its run: its own, and those of the dispatcher, which finds
them in the same place after a restart.
"""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import zmq

from dispatch.commands.protocol import Exchange
from dispatch.commands.server import ControlSocket
from infra.base.files import socket_folder
from infra.base.process import write_whole

SOCKET = "agent"
IPC = "ipc://"


class PrivateSocket:
    """One such socket. Use as a context manager: leaving it removes the socket and the file."""

    def __init__(self, endpoint_file: Path, run: str | None, exchange: Exchange) -> None:
        """run: the one that requests must name; None: any."""
        with ExitStack() as resources:
            folder = resources.enter_context(socket_folder())
            context: zmq.Context[zmq.Socket[bytes]] = resources.enter_context(zmq.Context())
            self.control = ControlSocket(context, f"{IPC}{folder / SOCKET}", run, exchange=exchange)
            resources.callback(self.control.close)
            endpoint_file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(endpoint_file, self.control.endpoint, is_private=True)
            resources.callback(endpoint_file.unlink, missing_ok=True)
            self._resources = resources.pop_all()

    def __enter__(self) -> "PrivateSocket":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._resources.close()


def sockets_of(endpoint_file: Path) -> Path | None:
    """The folder of the socket whose address is in this file; None if there is none."""
    try:
        folder = Path(endpoint_file.read_text().strip().removeprefix(IPC)).parent
    except FileNotFoundError:
        return None
    return folder if folder.is_dir() else None
