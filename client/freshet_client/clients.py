"""The two clients: the same methods, one with and one without asyncio.

``calls`` describes every request; a client adds the address and the token, sends it, and sends it again as ``attempts``
says. Connections are kept and used again.
"""

import asyncio
import ipaddress
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import update_wrapper
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

import httpx2

from freshet_client import calls
from freshet_client.answers import Event
from freshet_client.attempts import Attempts
from freshet_client.calls import Call, Request, target
from freshet_client.errors import InvalidInput
from freshet_client.events import EventParser

Given = ParamSpec("Given")
ResultT = TypeVar("ResultT")
CONNECT_SECONDS = 5.0
FOLLOW_SECONDS = 30.0
"""How long an event stream may be silent; a server sends something every ten seconds."""


@dataclass(frozen=True)
class Address:
    """Where requests go."""

    url: str
    run: str
    server: str

    def of(self, request: Request) -> str:
        """The URL of a request."""
        is_served = request.path.startswith(calls.SERVED)
        base = self.server if is_served and self.server else self.url
        if not base:
            raise InvalidInput(f"{request.method} {request.path} needs the address of the API; expected url=")
        return base + target(request, self.run, has_server=bool(self.server))


def check_url(url: str) -> str:
    """The address without a trailing slash; raises InvalidInput."""
    try:
        found = httpx2.URL(url)
    except httpx2.InvalidURL:
        found = httpx2.URL("")
    if found.scheme not in ("http", "https") or not found.host or found.query or found.fragment or found.userinfo:
        raise InvalidInput(f"{url!r} is no address; expected http://HOST:PORT or https://HOST:PORT")
    return url.rstrip("/")


def is_loopback(url: str) -> bool:
    """Whether an address is this machine's own, to which no proxy leads."""
    host = httpx2.URL(url).host
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class CallMethod(Generic[Given, ResultT]):
    """A call, before a client makes a method of it."""

    def __init__(self, describe: Callable[Given, Call[ResultT]]) -> None:
        self._describe = describe
        self.__doc__ = describe.__doc__


class SyncMethod(CallMethod[Given, ResultT]):
    """A call as a method that waits for its result."""

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: "Client", owner: type) -> Callable[Given, ResultT]: ...
    def __get__(self, client: "Client | None", owner: type) -> Any:
        if client is None:
            return self

        def method(*arguments: Given.args, **named: Given.kwargs) -> ResultT:
            return client.carry_out(self._describe(*arguments, **named))

        return update_wrapper(method, self._describe)


class AsyncMethod(CallMethod[Given, ResultT]):
    """A call as a coroutine."""

    @overload
    def __get__(self, client: None, owner: type) -> Self: ...
    @overload
    def __get__(self, client: "AsyncClient", owner: type) -> Callable[Given, Coroutine[Any, Any, ResultT]]: ...
    def __get__(self, client: "AsyncClient | None", owner: type) -> Any:
        if client is None:
            return self

        async def method(*arguments: Given.args, **named: Given.kwargs) -> ResultT:
            return await client.carry_out(self._describe(*arguments, **named))

        return update_wrapper(method, self._describe)


class Connection:
    """What both clients are told."""

    def __init__(
        self,
        url: str = "",
        token: str = "",
        *,
        run: str = "",
        server: str = "",
        retry_seconds: float = 30.0,
        timeout_seconds: float = 10.0,
        ca_file: str | None = None,
    ) -> None:
        """url: of the API; or of a prediction server, for predictions and snapshots alone. token: its secret.

        run: the run that is meant if a call names none. server: a prediction server, asked directly; without it,
        predictions of a run are requested through the API. retry_seconds: how long a request is repeated while it is
        not answered, or answered with 429 or 503; 0: it is sent once. timeout_seconds: of one attempt. ca_file: the
        certificate authority of the servers.
        """
        if not url and not server:
            raise InvalidInput("there is no address; expected that of the API or of a prediction server")
        if not token or not (token.isascii() and token.isprintable()) or " " in token:
            raise InvalidInput("there is no usable token; expected the secret that 'freshet token create' printed")
        self.address = Address(check_url(url) if url else "", run, check_url(server) if server else "")
        self._within = retry_seconds
        self._options: dict[str, Any] = {
            "headers": {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            "timeout": httpx2.Timeout(timeout_seconds, connect=min(timeout_seconds, CONNECT_SECONDS)),
            "verify": ssl.create_default_context(cafile=ca_file),
            "trust_env": not is_loopback(url or server),
        }
        self._open()

    def _open(self) -> None:
        """Makes the pool of connections."""
        raise NotImplementedError

    def _attempts(self, request: Request) -> Attempts:
        return Attempts(request, self.address.of(request), self._within)

    def _arguments(self, request: Request) -> dict[str, Any]:
        headers = {"Idempotency-Key": request.key} if request.key else {}
        return {
            "method": request.method,
            "url": self.address.of(request),
            "content": request.body,
            "headers": headers,
        }

    def _followed(self, run: str, parser: EventParser, after: int | None) -> dict[str, Any]:
        query = () if after is None or parser.last_id else (("after", str(after)),)
        request = Request("GET", f"/v1/runs/{calls.RUN}/events", run=run, query=query)
        headers = {"Last-Event-ID": parser.last_id} if parser.last_id else {}
        timeout = httpx2.Timeout(FOLLOW_SECONDS, connect=CONNECT_SECONDS)
        return {"method": "GET", "url": self.address.of(request), "headers": headers, "timeout": timeout}


class Client(Connection):
    """Connections to a server of Freshet. Use it as a context manager, or close it; threads may share it."""

    predict = SyncMethod(calls.predict)
    send = SyncMethod(calls.send)
    label = SyncMethod(calls.label)
    runs = SyncMethod(calls.runs)
    status = SyncMethod(calls.status)
    steps = SyncMethod(calls.steps)
    quality = SyncMethod(calls.quality)
    alpha = SyncMethod(calls.alpha)
    set_alpha = SyncMethod(calls.set_alpha)
    workers = SyncMethod(calls.workers)
    add_worker = SyncMethod(calls.add_worker)
    drain_worker = SyncMethod(calls.drain_worker)
    checkpoint = SyncMethod(calls.checkpoint)
    pause = SyncMethod(calls.pause)
    resume = SyncMethod(calls.resume)
    stop = SyncMethod(calls.stop)
    snapshots = SyncMethod(calls.snapshots)
    current_snapshot = SyncMethod(calls.current_snapshot)
    pin_snapshot = SyncMethod(calls.pin_snapshot)
    unpin_snapshot = SyncMethod(calls.unpin_snapshot)
    rollback_snapshot = SyncMethod(calls.rollback_snapshot)

    def _open(self) -> None:
        self._http = httpx2.Client(**self._options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes all connections."""
        self._http.close()

    def carry_out(self, call: Call[ResultT]) -> ResultT:
        """Sends the requests of a call, one after the other, and returns its result."""
        return call.result([self._send(request) for request in call.requests])

    def follow(self, *, run: str = "", after: int | None = None) -> Iterator[Event]:
        """Events of a run as they happen, without end; a lost connection is made again, and nothing is missed.

        after: begin behind this cursor, 0 for the beginning; by default with what is new.
        """
        parser = EventParser()
        while True:
            asked = self._followed(run, parser, after)
            attempts = Attempts(Request("GET", asked["url"]), asked["url"], self._within)
            try:
                with self._http.stream(**asked) as answer:
                    if not answer.is_success:
                        pause, _ = attempts.answered(answer.status_code, answer.headers, answer.read())
                    else:
                        pause = 0.0
                        for line in answer.iter_lines():
                            if (event := parser.add(line)) is not None:
                                yield event
            except httpx2.TransportError as error:
                pause = attempts.lost(error)
            parser.begin()
            time.sleep(pause or 0.0)

    def _send(self, request: Request) -> Any:
        attempts = self._attempts(request)
        while True:
            try:
                answer = self._http.request(**self._arguments(request))
            except httpx2.TransportError as error:
                pause: float | None = attempts.lost(error)
            else:
                pause, value = attempts.answered(answer.status_code, answer.headers, answer.content)
                if pause is None:
                    return value
            time.sleep(pause or 0.0)


class AsyncClient(Connection):
    """The same for asyncio: every method is a coroutine."""

    predict = AsyncMethod(calls.predict)
    send = AsyncMethod(calls.send)
    label = AsyncMethod(calls.label)
    runs = AsyncMethod(calls.runs)
    status = AsyncMethod(calls.status)
    steps = AsyncMethod(calls.steps)
    quality = AsyncMethod(calls.quality)
    alpha = AsyncMethod(calls.alpha)
    set_alpha = AsyncMethod(calls.set_alpha)
    workers = AsyncMethod(calls.workers)
    add_worker = AsyncMethod(calls.add_worker)
    drain_worker = AsyncMethod(calls.drain_worker)
    checkpoint = AsyncMethod(calls.checkpoint)
    pause = AsyncMethod(calls.pause)
    resume = AsyncMethod(calls.resume)
    stop = AsyncMethod(calls.stop)
    snapshots = AsyncMethod(calls.snapshots)
    current_snapshot = AsyncMethod(calls.current_snapshot)
    pin_snapshot = AsyncMethod(calls.pin_snapshot)
    unpin_snapshot = AsyncMethod(calls.unpin_snapshot)
    rollback_snapshot = AsyncMethod(calls.rollback_snapshot)

    def _open(self) -> None:
        self._http = httpx2.AsyncClient(**self._options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes all connections."""
        await self._http.aclose()

    async def carry_out(self, call: Call[ResultT]) -> ResultT:
        """Sends the requests of a call, one after the other, and returns its result."""
        return call.result([await self._send(request) for request in call.requests])

    async def follow(self, *, run: str = "", after: int | None = None) -> AsyncIterator[Event]:
        """Events of a run as they happen, as ``Client.follow``."""
        parser = EventParser()
        while True:
            asked = self._followed(run, parser, after)
            attempts = Attempts(Request("GET", asked["url"]), asked["url"], self._within)
            try:
                async with self._http.stream(**asked) as answer:
                    if not answer.is_success:
                        pause, _ = attempts.answered(answer.status_code, answer.headers, await answer.aread())
                    else:
                        pause = 0.0
                        async for line in answer.aiter_lines():
                            if (event := parser.add(line)) is not None:
                                yield event
            except httpx2.TransportError as error:
                pause = attempts.lost(error)
            parser.begin()
            await asyncio.sleep(pause or 0.0)

    async def _send(self, request: Request) -> Any:
        attempts = self._attempts(request)
        while True:
            try:
                answer = await self._http.request(**self._arguments(request))
            except httpx2.TransportError as error:
                pause: float | None = attempts.lost(error)
            else:
                pause, value = attempts.answered(answer.status_code, answer.headers, answer.content)
                if pause is None:
                    return value
            await asyncio.sleep(pause or 0.0)
