"""Sends files of checkpoints to servers: shards publish them as they write them, and a server keeps them until needed.

    name of the file | its content, in pieces

A subscription is a shortcut and may miss anything. The files in storage are authoritative, and readers verify checksums
whichever way a file came. Neither side ever waits for the other: what a slow subscriber has not received is dropped,
and a server keeps a bounded number of bytes.
"""

import threading
from collections.abc import Iterable, Sequence
from typing import Any

import xxhash
import zmq

from infra.base.storage import OverlaidStorage, Storage
from infra.base.wire import Curve, bind, connect
from ps.protocol import FilePart

MOST_FILE_BYTES = 64 << 20
"""Largest file that is published, in bytes; larger ones are read from storage."""
MOST_WAITING = 4
"""Files that may wait for a subscriber; later ones are dropped for it."""
MOST_PIECES = 8
"""Most pieces of a file."""
MOST_KEPT_BYTES = 256 << 20
"""Most bytes of all files that a server keeps."""


class FilePublisher:
    """A shard's PUB socket; the thread that writes a file also publishes it."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, curve: Curve | None) -> None:
        self._socket = context.socket(zmq.PUB)
        self._socket.set(zmq.SNDHWM, MOST_WAITING * (1 + MOST_PIECES))
        self._socket.set(zmq.LINGER, 0)
        self.endpoint = bind(self._socket, endpoint, curve)
        self._lock = threading.Lock()
        self._is_closed = False

    def publish(self, name: str, pieces: Sequence[Any]) -> None:
        """Sends a file to all subscribers and returns at once; the pieces must not change afterwards."""
        if sum(memoryview(piece).nbytes for piece in pieces) > MOST_FILE_BYTES:
            return
        with self._lock:  # a socket may move between threads, and only one may use it at a time
            if not self._is_closed:
                self._socket.send_multipart([name.encode(), *pieces], copy=False)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._socket.close()


class Deliveries:
    """The latest files that shards have published, for one thread of a server."""

    def __init__(self, curve: Curve | None = None, most_bytes: int = MOST_KEPT_BYTES) -> None:
        self._curve = curve
        self._most_bytes = most_bytes
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._sockets: dict[str, zmq.Socket[bytes]] = {}
        """Sockets by endpoint."""
        self._files: dict[str, bytes] = {}
        """Files by name, oldest first."""
        self._kept_bytes = 0

    @property
    def names(self) -> list[str]:
        """Names of the files that have arrived, oldest first."""
        self._receive()
        return list(self._files)

    def subscribe(self, endpoints: Iterable[str]) -> None:
        """Subscribes to exactly these shards; to be called with every answer of the dispatcher."""
        wanted = set(endpoints)
        for endpoint in [known for known in self._sockets if known not in wanted]:
            self._sockets.pop(endpoint).close()
        for endpoint in wanted.difference(self._sockets):
            self._sockets[endpoint] = self._subscribe(endpoint)
        self._receive()

    def take_file(self, name: str) -> bytes | None:
        """The content of a file, which is then forgotten; None if it has not arrived."""
        self._receive()
        content = self._files.pop(name, None)
        self._kept_bytes -= len(content or b"")
        return content

    def close(self) -> None:
        self.subscribe(())
        self._context.term()

    def _subscribe(self, endpoint: str) -> "zmq.Socket[bytes]":
        socket = self._context.socket(zmq.SUB)
        socket.set(zmq.RCVHWM, MOST_WAITING * (1 + MOST_PIECES))
        socket.set(zmq.MAXMSGSIZE, MOST_FILE_BYTES)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.SUBSCRIBE, b"")
        connect(socket, endpoint, self._curve)
        return socket

    def _receive(self) -> None:
        """Receives what has arrived; the oldest files are dropped if there are too many."""
        for socket in self._sockets.values():
            while socket.poll(0):
                name, *pieces = socket.recv_multipart()
                self._keep(name.decode(errors="replace"), b"".join(pieces))
        while self._kept_bytes > self._most_bytes:
            self._kept_bytes -= len(self._files.pop(next(iter(self._files))))

    def _keep(self, name: str, content: bytes) -> None:
        self._kept_bytes += len(content) - len(self._files.pop(name, b""))
        self._files[name] = content


class DeliveredFiles(OverlaidStorage):
    """The storage of checkpoints as a server reads it: delivered files come from memory, others from storage."""

    def __init__(self, storage: Storage, deliveries: Deliveries) -> None:
        super().__init__(storage)
        self._deliveries = deliveries

    def collect(self, parts: Iterable[FilePart]) -> int:
        """Collects these files as far as they have arrived, and drops the earlier ones; returns how many there are.

        A file that differs from what its shard has saved is dropped, and read from the storage instead.
        """
        arrived = ((part, self._deliveries.take_file(part.name)) for part in parts)
        right = {part.name: content for part, content in arrived if content is not None and _is_saved(part, content)}
        self.overlay(right)
        return len(right)


def _is_saved(part: FilePart, content: bytes) -> bool:
    return len(content) == part.nbytes and xxhash.xxh3_128_hexdigest(content) == part.checksum
