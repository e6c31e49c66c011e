"""A control socket that only the owner of a folder can reach.

It lies in a folder that only its owner can enter, outside of the run's folder, whose path may be longer than a socket's
may be. Its address is written to a file that only the owner can read.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import zmq

from dispatch.control.protocol import Exchange
from dispatch.control.server import ControlSocket
from infra.files import writing_whole

SOCKET_FOLDER = "freshet-agent-"
LONGEST_FOLDER = 60
"""characters; a longer folder for temporary files leaves too little of a socket's 107"""


class PrivateSocket:
    """One such socket. Use as a context manager: leaving it removes the socket and the file."""

    def __init__(self, endpoint_file: Path, run: str | None, exchange: Exchange) -> None:
        """run: the one that requests must be about; None: any"""
        self._endpoint_file = endpoint_file
        remove_abandoned(endpoint_file)
        self._folder = Path(tempfile.mkdtemp(prefix=SOCKET_FOLDER, dir=_short_folder()))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.control = ControlSocket(self._context, f"ipc://{self._folder / 'socket'}", run, exchange=exchange)
        write_private(endpoint_file, self.control.endpoint)

    def __enter__(self) -> "PrivateSocket":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.control.close()
        self._context.term()
        self._endpoint_file.unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)


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
