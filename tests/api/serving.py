"""The API as a real server in this process, on a database of its own."""

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from queue import Queue
from typing import Any

from prometheus_client import CollectorRegistry

from api.config import ApiConfig
from api.job import ApiJob
from api.main import run_api
from api.store.store import SqlStore
from infra.base.process import Stop
from infra.base.telemetry import Meter
from infra.web.store.rows import SCOPES, Scope

WAIT_SECONDS = 100.0


@dataclass(frozen=True)
class Answered:
    """A response."""

    status: int
    headers: Message = field(repr=False)
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Served:
    """A running API, and a token for it."""

    address: str
    token: str
    database: str

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def ask(self, method: str, path: str, body: Any = None, token: str | None = "", **headers: str) -> Answered:
        """token: None for none, empty for that of the fixture"""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            sent["Authorization"] = f"Bearer {token or self.token}"
        if body is not None:
            sent.setdefault("Content-Type", "application/json")
        written = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}{path}", data=written, method=method, headers=sent)
        try:
            with urllib.request.urlopen(request, timeout=WAIT_SECONDS) as answer:
                return Answered(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answered(error.code, error.headers, error.read())

    def get(self, path: str, **headers: str) -> Answered:
        return self.ask("GET", path, **headers)


@contextmanager
def serving(runs: Path, database: str, **settings: Any) -> Iterator[Served]:
    """Serves the runs in a folder until the end of the context."""
    config = ApiConfig(port=0, **settings)
    stop, ready = Stop(), Queue[str]()
    token = new_token(database, SCOPES)
    job = ApiJob(config, runs, database)
    thread = threading.Thread(target=run_api, args=(job, stop, ready.put, Meter(CollectorRegistry())))
    thread.start()
    try:
        yield Served(ready.get(timeout=WAIT_SECONDS), token, database)
    finally:
        stop.request("test over")
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()


def new_token(database: str, scopes: Sequence[Scope], expires_at: float | None = None, is_revoked: bool = False) -> str:
    """The secret of a new token."""

    async def make() -> str:
        store = await SqlStore.open(database)
        try:
            token, secret = await store.tokens.create("ann", scopes, expires_at)
            if is_revoked:
                await store.tokens.revoke(token.id)
            return secret
        finally:
            await store.close()

    return asyncio.run(make())


def until(condition: Callable[[], Any]) -> Any:
    """Waits for something to be true, and returns it."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return found
