"""A control socket that only the owner of a folder can reach.

It lies in a folder that only its owner can enter, outside of the run's folder, whose path may be longer than a socket's
may be. Its address is written to a file that only the owner can read.
"""

import os
import shutil
import socket
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import zmq

from dispatch.control.protocol import Exchange
from dispatch.control.server import ControlSocket
from infra.files import writing_whole

SOCKET_FOLDER, SOCKET = "freshet-agent-", "socket"
STARTING_SECONDS = 60.0
"""how old a folder without a socket may be before it counts as left behind"""
LONGEST_FOLDER = 60
"""characters; a longer folder for temporary files leaves too little of a socket's 107"""


class PrivateSocket:
    """One such socket. Use as a context manager: leaving it removes the socket and the file."""

    def __init__(self, endpoint_file: Path, run: str | None, exchange: Exchange) -> None:
        """run: the one that requests must be about; None: any"""
        self._endpoint_file = endpoint_file
        remove_abandoned(Path(_short_folder()))
        self._folder = Path(tempfile.mkdtemp(prefix=SOCKET_FOLDER, dir=_short_folder()))
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.control = ControlSocket(self._context, f"ipc://{self._folder / SOCKET}", run, exchange=exchange)
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


def remove_abandoned(folder: Path) -> None:
    """Removes what supervisors of this user left there that were killed: the sockets that nobody listens to."""
    for found in folder.glob(f"{SOCKET_FOLDER}*"):
        with suppress(OSError):  # somebody else removes it, too
            status = found.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and _is_abandoned(found):
                shutil.rmtree(found, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.setblocking(False)  # one that is stopped, or has much to do, is there
        try:
            caller.connect(str(folder / SOCKET))
        except FileNotFoundError:
            return folder.stat().st_mtime < time.time() - STARTING_SECONDS
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False
