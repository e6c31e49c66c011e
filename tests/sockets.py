"""Helpers for tests with bare sockets."""

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

import zmq

from infra.base.wire import ENTRY, Arrays, Codec

OTHER_MECHANISM = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"PLAIN".ljust(20, b"\0") + bytes(32)
"""The greeting of a peer that requires a password; a client without one gives up the connection for good."""


class RefusingStranger:
    """A program that has taken a port and refuses every connection, so that ZeroMQ never reconnects.

    Use as a context manager.
    """

    def __init__(self, port: int = 0) -> None:
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self.endpoint = f"tcp://127.0.0.1:{self.port}"
        self.refused = 0
        """Number of connections that were given up."""
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "RefusingStranger":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Releases the port; clients that were refused keep their connections."""
        with suppress(OSError):  # it is closed already
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # it has been closed
            while True:
                caller, _ = self._listener.accept()
                threading.Thread(target=self._refuse, args=(caller,), daemon=True).start()

    def _refuse(self, caller: socket.socket) -> None:
        with caller, suppress(OSError):
            caller.sendall(OTHER_MECHANISM)
            while caller.recv(4096):
                pass
        self.refused += 1


def receive_from(socket: "zmq.Socket[bytes]", codec: Codec) -> tuple[bytes, Any, Any]:
    """Receives one message on a ROUTER socket, with its sender's name."""
    sender, *frames = socket.recv_multipart(copy=False)
    header, arrays = codec.decode(frames)
    return sender.bytes, header, arrays


def entries_of(frames: Sequence[bytes | memoryview], arrays: type[Arrays]) -> list[tuple[int, int]]:
    """The form and the length in bytes of every array of a message."""
    table = bytes(frames[1])[: ENTRY.size * len(arrays._fields)]  # type: ignore[attr-defined]
    return list(ENTRY.iter_unpack(table))
