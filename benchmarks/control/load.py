"""Clients that ask one address over and over, in a process of their own, so that they share no interpreter lock."""

import http.client
import multiprocessing
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import numpy as np

from infra.errors import FreshetError

TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class AskedRoute:
    """What is asked, how often, and by how many."""

    address: str
    path: str
    token: str
    seconds: float
    rate: float
    """requests a second, all clients together; 0: each asks again at once"""
    clients: int
    body: bytes = b""
    """what is posted; none: the route is only read"""
    kind: str = "application/octet-stream"
    """of the body"""


@dataclass(frozen=True)
class Latencies:
    """How requests were answered; every answer was a 200."""

    requests: int
    requests_per_second: float
    p50_ms: float
    p99_ms: float

    @staticmethod
    def of(seconds: Sequence[float], wall_seconds: float) -> "Latencies":
        p50, p99 = 1000 * np.quantile(seconds, (0.5, 0.99))
        return Latencies(len(seconds), len(seconds) / wall_seconds, float(p50), float(p99))


class Clients:
    """The process that asks."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def ask(self, question: AskedRoute) -> "Future[Latencies]":
        return self._pool.submit(ask_together, question)


@contextmanager
def clients() -> Iterator[Clients]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield Clients(pool)


def ask_together(question: AskedRoute) -> Latencies:
    """All clients at a time, each on one connection; raises FreshetError if a request is not answered with a 200."""
    times: list[float] = []
    faults: list[str] = []
    asking = [threading.Thread(target=_ask, args=(question, k, times, faults)) for k in range(question.clients)]
    began = time.perf_counter()
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    if faults or not times:
        raise FreshetError(f"{question.path} answered {faults[:1] or 'nothing'}; expected 200; see the API's log")
    return Latencies.of(times, time.perf_counter() - began)


def _ask(question: AskedRoute, client: int, times: list[float], faults: list[str]) -> None:
    pause = question.clients / question.rate if question.rate else 0.0
    connection = http.client.HTTPConnection(urlsplit(question.address).netloc, timeout=TIMEOUT_SECONDS)
    headers = {"Authorization": f"Bearer {question.token}"}
    if question.body:
        headers["Content-Type"] = question.kind
    now = time.perf_counter()
    due, until = now + pause * client / question.clients, now + question.seconds
    try:
        while not faults and max(due, time.perf_counter()) < until:
            time.sleep(max(0.0, due - time.perf_counter()))
            due += pause
            began = time.perf_counter()
            connection.request("POST" if question.body else "GET", question.path, question.body or None, headers)
            answer = connection.getresponse()
            body = answer.read()
            times.append(time.perf_counter() - began)
            if answer.status != http.client.OK:
                faults.append(f"{answer.status} {body[:200]!r}")
    except (OSError, http.client.HTTPException) as error:
        faults.append(repr(error))
    finally:
        connection.close()
