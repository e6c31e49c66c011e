"""Limits in front of the application: size and duration of a request, requests per second and at a time; no tokens.

All of them are plain ASGI: nothing is buffered, and a request is refused before the application sees it.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable
from time import monotonic

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from infra.web.client import address, header, secret_of
from infra.web.errors import Overloaded, TooLarge, TooMany, TooSlow
from infra.web.problems import answer_of, send_problem

OPEN_PATHS = ("/healthz", "/readyz")
"""Paths that monitoring asks for; they are never refused because of load."""
RATE_SECONDS = 10
"""A client may send at once as many requests as the rate allows in this time."""


class BodyLimit:
    """Refuses bodies that are too large or arrive too slowly, while they arrive."""

    def __init__(self, app: ASGIApp, most_bytes: int, receive_seconds: float) -> None:
        self._app = app
        self._most_bytes = most_bytes
        self._receive_seconds = receive_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = header(scope, b"content-length")
        if announced is None and header(scope, b"transfer-encoding") is None:
            await self._app(scope, receive, send)
        elif int(announced or 0) > self._most_bytes:  # the parser has already checked that it is a number
            await send_problem(self._too_large(), scope, receive, send)
        else:
            await self._receive(scope, receive, send)

    async def _receive(self, scope: Scope, receive: Receive, send: Send) -> None:
        received = 0
        is_complete = False
        is_answered = False
        deadline = monotonic() + self._receive_seconds

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
            await send(message)

        try:
            await self._app(scope, limited, marked)
        except (TooLarge, TooSlow) as error:
            if is_answered:
                raise
            await send_problem(error, scope, receive, send)

    def _too_large(self) -> TooLarge:
        return TooLarge(
            f"the body has more than {self._most_bytes} bytes; expected at most as many; send several requests"
        )


class Allowances:
    """Counts how many requests each client may send now: one token bucket per client, kept in memory.

    A bucket holds as many requests as a client may send in ``RATE_SECONDS`` and is refilled continuously: a client that
    has been quiet may send that many at once and then continues at the rate. There are no fixed windows, so there is no
    moment at which all clients may start again together.
    """

    def __init__(self, requests_per_second: float, clock: Callable[[], float] = monotonic) -> None:
        self.most = max(1, round(requests_per_second * RATE_SECONDS))
        """Most requests at once: the size of a bucket."""
        self._rate = requests_per_second
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}
        """By client, the requests left in its bucket and the time of that count; a full bucket need not be stored."""
        self._sweep_at = clock() + self._fill_seconds

    def spend(self, client: str) -> float:
        """Takes one request from a client's bucket and returns 0, or the seconds to wait if the bucket is empty."""
        now = self._clock()
        self._sweep(now)
        left = self._left_of(client, now)
        if left < 1:
            return (1 - left) / self._rate
        self._left[client] = left - 1, now
        return 0.0

    def __len__(self) -> int:
        """Number of clients that are remembered."""
        return len(self._left)

    @property
    def _fill_seconds(self) -> float:
        """Seconds in which an empty bucket becomes full."""
        return self.most / self._rate

    def _left_of(self, client: str, now: float) -> float:
        left, at = self._left.get(client, (self.most, now))
        return min(self.most, left + (now - at) * self._rate)

    def _sweep(self, now: float) -> None:
        """Forgets, from time to time, the clients whose buckets are full."""
        if now >= self._sweep_at:
            self._left = {client: left for client, left in self._left.items() if self._left_of(client, now) < self.most}
            self._sweep_at = now + self._fill_seconds


class RateLimit:
    """Refuses requests of a client that sends them faster than allowed.

    A client is identified by its token if that is valid, otherwise by its address.
    """

    def __init__(
        self,
        app: ASGIApp,
        requests_per_second: float,
        known: Callable[[str], str | None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """known: returns the id of the token with a secret; None unless the token is valid."""
        self._app = app
        self._rate = requests_per_second
        self._known = known
        self._allowances = Allowances(requests_per_second, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            wait_seconds = self._allowances.spend(self._client(scope))
            if wait_seconds > 0:
                await self._refuse(wait_seconds, scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _client(self, scope: Scope) -> str:
        secret = secret_of(scope)
        return (self._known(secret) if secret is not None else None) or address(scope)

    async def _refuse(self, wait_seconds: float, scope: Scope, receive: Receive, send: Send) -> None:
        reason = f"more than {self._rate:g} requests a second, after {self._allowances.most} at once"
        answer = answer_of(TooMany(f"{reason}; expected fewer; wait, then go on"))
        answer.headers["Retry-After"] = str(math.ceil(wait_seconds))
        await answer(scope, receive, send)


class ConcurrencyLimit:
    """Refuses requests while too many are being answered; event streams are counted separately.

    A client is identified by its token, valid or not, otherwise by its address. It may have as many requests under way
    as there is room left. So one client alone can take half of the room, and however many clients take all they can,
    for example with bodies that arrive slowly, the next one still finds some.
    """

    def __init__(self, app: ASGIApp, most: int, stream_paths: Iterable[str]) -> None:
        """stream_paths: endings of the paths of event streams."""
        self._app = app
        self._most = most
        self._stream_paths = tuple(stream_paths)
        self._under_way: Counter[tuple[bool, str]] = Counter()
        """Requests under way, by whether they are event streams and by client; the empty client is the sum of all."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        is_stream = scope["path"].endswith(self._stream_paths)
        everyone = (is_stream, "")
        client = (is_stream, secret_of(scope) or address(scope))
        under_way = self._under_way
        if under_way[client] >= self._most - under_way[everyone]:
            reason = f"{under_way[everyone]} requests are being answered, {under_way[client]} of them this client's"
            await send_problem(
                Overloaded(f"{reason}; expected at most {self._most}, half of them free; try again"),
                scope,
                receive,
                send,
            )
            return
        under_way[everyone] += 1
        under_way[client] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            under_way[everyone] -= 1
            under_way[client] -= 1
            if not under_way[client]:
                del under_way[client]
