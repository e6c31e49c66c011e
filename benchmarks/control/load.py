"""Clients that query one address repeatedly, in a separate process, so that they share no interpreter lock.

They are one thread with plain sockets: a request is a write and a read, so that they add little to the measurement.
"""

import multiprocessing
import os
import re
import selectors
import socket
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np

from infra.base.errors import FreshetError

TIMEOUT_SECONDS = 30.0
PIECE = 1 << 18
NUMBER = "NUMBER"
"""Placeholder in a path for another number in every request."""
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
HEAD_END = b"\r\n\r\n"


@dataclass(frozen=True)
class AskedRoute:
    """What is requested, how often, and by how many clients."""

    address: str
    path: str
    token: str
    seconds: float
    rate: float
    """Requests per second of all clients together; 0: each asks again at once."""
    clients: int
    body: bytes = b""
    """Body to post; none: the route is only read."""
    kind: str = "application/octet-stream"
    """Content type of the body."""


@dataclass(frozen=True)
class Latencies:
    """How requests were answered, all of them with 200. With a rate, latencies count from when requests were due."""

    requests: int
    requests_per_second: float
    p50_ms: float
    p99_ms: float
    client_ms: float
    """Processor time of the clients per request."""

    @staticmethod
    def of(seconds: Sequence[float], wall_seconds: float, busy_seconds: float) -> "Latencies":
        p50, p99 = 1000 * np.quantile(seconds, (0.5, 0.99))
        requests = len(seconds)
        return Latencies(
            requests, requests / wall_seconds, float(p50), float(p99), client_ms=1000 * busy_seconds / requests
        )


class Clients:
    """The process of the clients."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def ask(self, question: AskedRoute) -> "Future[Latencies]":
        return self._pool.submit(ask_together, question)


@contextmanager
def clients(cores: Collection[int] = ()) -> Iterator[Clients]:
    """``cores`` are those that the clients may use; none: any."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), pin, (tuple(cores),)) as pool:
        yield Clients(pool)


def pin(cores: Collection[int]) -> None:
    """Restricts this process, and those it starts, to some cores; none: all that it may use."""
    if cores:
        os.sched_setaffinity(0, cores)


def ask_together(question: AskedRoute) -> Latencies:
    """Runs all clients at the same time, each on one connection; raises FreshetError for any answer other than 200."""
    asking = _Asking(question)
    try:
        began = time.perf_counter()
        busy = time.process_time()
        asking.ask_until(began + question.seconds)
        wall = time.perf_counter() - began
        spent = time.process_time() - busy
    except OSError as error:
        raise FreshetError(f"{question.path} answered {error!r}; expected 200; see the API's log") from error
    finally:
        asking.close()
    if not asking.times:
        raise FreshetError(f"{question.path} answered nothing; expected 200; see the API's log")
    return Latencies.of(asking.times, wall, spent)


class AskingConnection:
    """One client: a request at a time."""

    def __init__(self, address: str) -> None:
        place = urlsplit(address)
        self.socket = socket.create_connection((place.hostname, place.port), timeout=TIMEOUT_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.began = 0.0
        self._received = bytearray()

    def send(self, request: bytes, began: float) -> None:
        self.began = began
        self._received.clear()
        self.socket.sendall(request)

    def receive(self) -> bytes | None:
        """The whole answer, or None if it has not arrived completely; raises ConnectionError if the connection is
        closed.
        """
        piece = self.socket.recv(PIECE)
        if not piece:
            raise ConnectionError("the API has closed the connection")
        self._received += piece
        head_end = self._received.find(HEAD_END)
        length = LENGTH.search(self._received, 0, head_end + 2) if head_end >= 0 else None
        is_whole = length is not None and len(self._received) >= head_end + len(HEAD_END) + int(length[1])
        return bytes(self._received) if is_whole else None


class _Asking:
    """All clients of one question."""

    def __init__(self, question: AskedRoute) -> None:
        self._question = question
        self._free: deque[AskingConnection] = deque(AskingConnection(question.address) for _ in range(question.clients))
        self._selector = selectors.DefaultSelector()
        for connection in self._free:
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        self._sent = 0
        self.times: list[float] = []

    def ask_until(self, until: float) -> None:
        """Sends what is due on free connections, and receives answers, until the end; waits for the last ones.

        At least one request is sent, even on a machine that is so busy that the end comes first.
        """
        pause = 1 / self._question.rate if self._question.rate else 0.0
        due = now = time.perf_counter()
        while now < until or not self._sent or len(self._free) < self._question.clients:
            while self._free and due <= now and (now < until or not self._sent):
                self._send(self._free.popleft(), due if pause else now)
                due += pause
            is_paced = self._free and now < until
            self._receive(max(0.0, min(due, until) - time.perf_counter()) if is_paced else TIMEOUT_SECONDS)
            now = time.perf_counter()

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.data.socket.close()
        self._selector.close()

    def _send(self, connection: AskingConnection, began: float) -> None:
        self._sent += 1
        asked = self._question
        path = asked.path.replace(NUMBER, str(self._sent))
        method = "POST" if asked.body else "GET"
        head = f"{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {asked.token}\r\n"
        if asked.body:
            head += f"Content-Type: {asked.kind}\r\nContent-Length: {len(asked.body)}\r\n"
        connection.send(f"{head}\r\n".encode() + asked.body, began)

    def _receive(self, wait_seconds: float) -> None:
        ready = self._selector.select(wait_seconds)
        if not ready and wait_seconds >= TIMEOUT_SECONDS:
            raise TimeoutError(f"nothing for {TIMEOUT_SECONDS:g} s")
        for key, _ in ready:
            connection: AskingConnection = key.data
            if (answer := connection.receive()) is not None:
                self.times.append(time.perf_counter() - connection.began)
                if not answer.startswith(b"HTTP/1.1 200 "):
                    raise FreshetError(
                        f"{self._question.path} answered {answer[:300]!r}; expected 200; see the API's log"
                    )
                self._free.append(connection)
