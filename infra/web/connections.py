"""Watches connections more strictly than uvicorn: requests must arrive in time, idle ones are bounded; no tokens.

uvicorn's own limit counts idle connections like busy ones, so a few hundred silent clients would lock all others out;
and it waits for the head of a first request for ever. Here a connection without a whole request head is closed after
some seconds, and if there are too many connections, the one that has been idle longest is closed. Input that is not
HTTP never reaches the application; it is answered here, as problem+json like everything else.

A request may be answered before its body has arrived, for example one without a token or one that is too large. The
rest of the body is then read and dropped, within limits of size and time: closing at once would reset the connection,
and a client that reads the answer only after it has sent everything would lose it.
"""

import asyncio
import resource
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from infra.web.errors import BadRequest, HeadTooLarge, HttpError, TooSlow
from infra.web.problems import answer_of

MOST_CONNECTIONS = 1024
HEAD_BYTES = 32 * 1024
"""Largest size of the request line and headers together."""
VERSIONS = ("1.0", "1.1")
DROPPED_BODIES = 16
"""How much of an unread body is dropped, in bodies of the largest accepted size."""


def most_connections() -> int:
    """Returns how many connections leave half of the process's open files for everything else."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MOST_CONNECTIONS, max(16, files // 2))


class JoinedWrites:
    """A transport that sends the head of an answer together with the first part of its body: one packet and one
    wake-up.

    uvicorn writes them one after the other. A write that is not followed by another at once is sent at the end of this
    iteration of the event loop.
    """

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, awaits_body: Callable[[], bool]
    ) -> None:
        """awaits_body: returns whether part of a request is still to come; the connection is not closed before that."""
        self._transport = transport
        self._loop = loop
        self._awaits_body = awaits_body
        self._held = b""

    def write(self, data: bytes) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held + data)
        elif data:
            self._held = data
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        if self._held:
            held, self._held = self._held, b""
            self._transport.write(held)

    def close(self) -> None:
        """Closes the connection once the whole request has arrived: unread data would reset it and lose the answer."""
        self.flush()
        if not self._awaits_body():
            self._transport.close()
        elif self._transport.can_write_eof():
            self._transport.write_eof()

    def close_at_once(self) -> None:
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class WatchedConnection(HttpToolsProtocol):
    """One connection of a client."""

    def __init__(self, *args: Any, receive_seconds: float, body_bytes: int, most: int, **kwargs: Any) -> None:
        """body_bytes: size of the largest body. most: most connections."""
        super().__init__(*args, **kwargs)
        self._receive_seconds = receive_seconds
        self._body_bytes = body_bytes
        self._most = most
        self._head_timer: asyncio.TimerHandle | None = None
        self._is_between = True
        """Whether no part of a request has arrived since the one before was complete."""
        self._head_bytes: int | None = None
        """Size so far of a head that is not complete; None if no head is being read."""
        self._dropped_bytes = 0
        """Dropped bytes of the body of a request that has already been answered."""
        self._refusal: HttpError | None = None
        """The error to answer the current head with; None if the head is accepted."""
        self._is_refused = False
        """Whether further input is dropped, because the request was answered here."""

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    # ── the connection ────────────────────────────────────────────────────────────────────────────────────────────────
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(JoinedWrites(transport, self.loop, self._awaits_body))  # type: ignore[arg-type]
        idle = self.app_state.setdefault("idle_connections", {})
        self._idle: dict[WatchedConnection, None] = idle
        self._become_idle()
        if len(self.connections) > self._most:
            next(iter(idle)).drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._become_busy()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self._drop_body(len(data))
            return
        # A head that begins in the same packet as the end of another request is not counted there: that part is short.
        before = 0 if self._is_between else self._head_bytes
        super().data_received(data)
        if self._head_bytes is not None and before is not None and not self.transport.is_closing():
            self._head_bytes = before + len(data)
            if self._head_bytes > HEAD_BYTES:
                self._refuse(too_long_head())
        if not self.is_idle:
            self._become_busy()

    def on_response_complete(self) -> None:
        self._become_idle()
        super().on_response_complete()
        if not self.is_idle:  # the next request had already arrived
            self._become_busy()

    def drop(self) -> None:
        """Closes the connection without an answer."""
        self._become_busy()
        self.transport.abort()

    def _become_idle(self) -> None:
        self._idle[self] = None
        self._stop_timer()
        self._head_timer = self.loop.call_later(self._receive_seconds, self._give_up)

    def _become_busy(self) -> None:
        self._idle.pop(self, None)
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    # ── what the parser finds ─────────────────────────────────────────────────────────────────────────────────────────
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_between = False
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        """Checks the head; raises the error that ``send_400_response`` then answers with."""
        self._head_bytes = None
        self._dropped_bytes = 0
        self._refusal = head_error(self.parser.get_http_version(), self.url, self.headers)
        if self._refusal is not None:
            raise self._refusal
        super().on_headers_complete()
        if self.expect_100_continue:  # a client answered without "100 Continue" may send the body or not
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        if self.cycle.response_complete:
            self._drop_body(len(body))
            return
        super().on_body(body)

    def _awaits_body(self) -> bool:
        """Whether part of the newest request's body is still to come."""
        return not self._is_between and self.cycle is not None and self.cycle.more_body

    def _drop_body(self, size: int) -> None:
        """Drops a part of a body whose request has been answered, within limits of size and time."""
        if not self._dropped_bytes:
            self._stop_timer()
            self._head_timer = self.loop.call_later(self._receive_seconds, self.drop)
        self._dropped_bytes += size
        if self._dropped_bytes > DROPPED_BODIES * self._body_bytes:
            self.drop()

    def on_message_complete(self) -> None:
        self._is_between = True
        super().on_message_complete()
        if self.cycle.response_complete and not self.cycle.keep_alive:
            self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Called when the client asks for another protocol: the request is answered as it is, and is the last one."""
        if self.cycle is not None:
            self.cycle.keep_alive = False

    # ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _give_up(self) -> None:
        """Ends a connection that took too long: an incomplete head is answered, silence is not."""
        if self._head_bytes is None or self.transport.is_closing():
            self.drop()
            return
        self._refuse(
            TooSlow(f"the head did not arrive within {self._receive_seconds:g} s; expected it sooner; send it at once")
        )

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn when the input cannot be read, or when its head is refused."""
        self._refuse(self._refusal or BadRequest("this is not HTTP; expected HTTP/1.1; correct the client"))

    def _refuse(self, error: HttpError) -> None:
        """Answers in place of the application, and closes; requests that arrived completely are answered first."""
        self._become_busy()
        if not self.is_idle and not self.cycle.more_body:
            self.cycle.keep_alive = False
            self.transport.pause_reading()
            return
        if self.transport.is_closing() or self.pipeline or (not self.is_idle and self.cycle.response_started):
            self.drop()
            return
        if not self.is_idle:  # the application may be reading a body that is now meaningless
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        answer = answer_of(error)
        of_all = self.server_state.default_headers
        headers = b"".join(b"%b: %b\r\n" % pair for pair in (*of_all, *answer.raw_headers, (b"connection", b"close")))
        self.transport.write(STATUS_LINE[error.status] + headers + b"\r\n" + bytes(answer.body))
        if not self.transport.can_write_eof():
            self.transport.close_at_once()  # type: ignore[attr-defined]
            return
        # Our side of the connection ends here; further input is dropped as if it were the rest of a body.
        self._is_refused = True
        self._dropped_bytes = 0
        self.transport.flush()  # type: ignore[attr-defined]
        self.transport.write_eof()
        self._idle[self] = None
        self._head_timer = self.loop.call_later(self._receive_seconds, self.drop)


def head_error(version: str, url: bytes, headers: list[tuple[bytes, bytes]]) -> HttpError | None:
    """Returns what is wrong with the head of a request apart from its syntax, which the parser checks; or None."""
    if len(url) + sum(len(name) + len(value) for name, value in headers) > HEAD_BYTES:
        return too_long_head()
    hosts = sum(name == b"host" for name, _ in headers)
    if hosts > 1 or (hosts == 0 and version == "1.1"):
        return BadRequest(f"the head names {hosts} hosts; expected one; correct the client")
    if version not in VERSIONS:
        return BadRequest(f"this is HTTP/{version}; expected HTTP/1.1; correct the client")
    return None


def too_long_head() -> HeadTooLarge:
    return HeadTooLarge(f"the head has more than {HEAD_BYTES} bytes; expected fewer; send less")


def watched_connections(receive_seconds: float, body_bytes: int, most: int) -> Callable[..., WatchedConnection]:
    """Returns the factory from which uvicorn makes a protocol for each connection."""
    return partial(WatchedConnection, receive_seconds=receive_seconds, body_bytes=body_bytes, most=most)
