"""Limits in front of the application: size and duration of a request, requests a second, requests at a time.

All of them are plain ASGI: nothing is buffered, and what is refused is refused before the application sees it.
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from time import monotonic

from limits import RateLimitItem, RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors import BadRequest, Overloaded, TooLarge, TooMany, TooSlow
from api.problems import send_problem

OPEN_PATHS = ("/healthz", "/readyz")
"""asked by whoever watches the process: never refused for load"""
RATE_SECONDS = 10
"""over which a rate is averaged"""


class BodyLimit:
    """Refuses bodies that are too large or arrive too slowly, while they arrive."""

    def __init__(self, app: ASGIApp, most_bytes: int, receive_seconds: float) -> None:
        self._app, self._most_bytes, self._receive_seconds = app, most_bytes, receive_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = header(scope, b"content-length") or "0"
        if not announced.isascii() or not announced.isdigit():
            await send_problem(BadRequest("content-length is not a number"), scope, receive, send, closes=True)
        elif int(announced[:20]) > self._most_bytes:
            await send_problem(self._too_large(), scope, receive, send, closes=True)
        else:
            await self._receive(scope, receive, send)

    async def _receive(self, scope: Scope, receive: Receive, send: Send) -> None:
        received, is_complete, is_answered, deadline = 0, False, False, monotonic() + self._receive_seconds

        async def limited() -> Message:
            nonlocal received, is_complete
            if is_complete:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, deadline - monotonic()))
            except TimeoutError as error:
                raise TooSlow(
                    f"the body did not arrive within {self._receive_seconds:g} s; expected it sooner; send less at once"
                ) from error
            received += len(message.get("body", b""))
            is_complete = not message.get("more_body", False)
            if received > self._most_bytes:
                raise self._too_large()
            return message

        async def marked(message: Message) -> None:
            nonlocal is_answered
            if message["type"] == "http.response.start":
                is_answered = True
                if not is_complete and has_body(scope):  # what is still to come must not be taken for a next request
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        try:
            await self._app(scope, limited, marked)
        except (TooLarge, TooSlow) as error:
            if is_answered:
                raise
            await send_problem(error, scope, receive, send, closes=True)

    def _too_large(self) -> TooLarge:
        return TooLarge(
            f"the body has more than {self._most_bytes} bytes; expected at most as many; send several requests"
        )


class RateLimit:
    """Refuses more requests a second of one client than are allowed.

    A client is its token where that is valid, else its address. Counts are kept in memory.
    """

    def __init__(self, app: ASGIApp, requests_per_second: float, is_known: Callable[[str], bool]) -> None:
        """is_known: whether this is the secret of a valid token"""
        self._app, self._is_known = app, is_known
        self._rate: RateLimitItem = RateLimitItemPerSecond(
            max(1, round(requests_per_second * RATE_SECONDS)), RATE_SECONDS
        )
        self._limiter = FixedWindowRateLimiter(MemoryStorage())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            client = self._client(scope)
            if not self._limiter.hit(self._rate, client):
                await self._refuse(client, scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _client(self, scope: Scope) -> str:
        secret = bearer(scope)
        if secret is not None and self._is_known(secret):
            return hashlib.sha256(secret.encode()).hexdigest()
        return address(scope)

    async def _refuse(self, client: str, scope: Scope, receive: Receive, send: Send) -> None:
        error = TooMany(f"more than {self._rate.amount} requests in {RATE_SECONDS} s; expected fewer; wait, then go on")

        async def with_delay(message: Message) -> None:
            if message["type"] == "http.response.start":
                wait = max(1, round(self._limiter.get_window_stats(self._rate, client).reset_time - _now()))
                message["headers"] = [*message["headers"], (b"retry-after", str(wait).encode())]
            await send(message)

        await send_problem(error, scope, receive, with_delay, closes=has_body(scope))


class ConcurrencyLimit:
    """Refuses requests while too many are being answered; event streams are counted apart from all others.

    One token, or one address without a token, has half of the room at most: a client whose bodies arrive slowly holds
    it for seconds, and others are served meanwhile.
    """

    def __init__(self, app: ASGIApp, most: int, stream_paths: Iterable[str]) -> None:
        """stream_paths: how the paths of event streams end"""
        self._app, self._most, self._stream_paths = app, most, tuple(stream_paths)
        self._most_of_one = max(1, most // 2)
        self._under_way: Counter[tuple[bool, str]] = Counter()
        """by whether it is an event stream, and client; that of nobody is the sum"""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        is_stream = scope["path"].endswith(self._stream_paths)
        counted = (is_stream, ""), (is_stream, bearer(scope) or address(scope))
        for key, most in zip(counted, (self._most, self._most_of_one), strict=True):
            if self._under_way[key] >= most:
                error = Overloaded(f"{most} requests are being answered; expected fewer at a time; try again")
                await send_problem(error, scope, receive, send, closes=has_body(scope))
                return
        self._under_way.update(counted)
        try:
            await self._app(scope, receive, send)
        finally:
            self._under_way.subtract(counted)
            if not self._under_way[counted[1]]:
                del self._under_way[counted[1]]


def address(scope: Scope) -> str:
    """Of the client."""
    return str((scope.get("client") or ("unknown",))[0])


def header(scope: Scope, name: bytes) -> str | None:
    """The first header of this name, in lower case."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def bearer(scope: Scope) -> str | None:
    """The token that a request carries."""
    kind, _, secret = (header(scope, b"authorization") or "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" and secret.strip() else None


def has_body(scope: Scope) -> bool:
    return header(scope, b"content-length") not in (None, "0") or header(scope, b"transfer-encoding") is not None


def _now() -> float:
    from time import time

    return time()
