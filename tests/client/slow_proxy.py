"""A TCP proxy that holds back the answers on its first connections."""

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress


class SlowProxy:
    """Passes everything on to a port; the answers of connection n wait ``delays[n]`` seconds. Use as a context."""

    def __init__(self, port: int, delays: Sequence[float]) -> None:
        self._target = port
        self._delays = delays
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.connections = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> "SlowProxy":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                delay = self._delays[self.connections] if self.connections < len(self._delays) else 0.0
                self.connections += 1
                server = socket.create_connection(("127.0.0.1", self._target))
                threading.Thread(target=_pass_on, args=(client, server, 0.0), daemon=True).start()
                threading.Thread(target=_pass_on, args=(server, client, delay), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket, delay: float) -> None:
    with suppress(OSError), source, sink:
        while part := source.recv(65536):
            time.sleep(delay)
            sink.sendall(part)
