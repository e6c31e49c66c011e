"""Connections as uvicorn does not watch them: a request must arrive in time, and idle connections are bounded.

uvicorn's own limit counts idle connections like busy ones, so a few hundred clients that say nothing would lock all
others out; and it waits for the head of a first request for ever. Here a connection without a whole request head is
closed after some seconds, and where there are too many connections, the one that has been idle for longest is.
What is not HTTP at all never reaches the application; it is answered here, as problem+json like everything else.
"""

import asyncio
import re
import resource
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from api.errors import ApiError, BadRequest, HeadTooLarge, TooSlow
from api.problems import answer_of

MOST_CONNECTIONS = 1024
HEAD_BYTES = 32 * 1024
"""of the longest request line and headers together"""
HEAD_END = re.compile(rb"\n\r?\n")


def most_connections() -> int:
    """As many as leave half of the process's open files for everything else."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MOST_CONNECTIONS, max(16, files // 2))


class WatchedConnection(H11Protocol):
    """One connection of a client."""

    def __init__(self, *args: Any, receive_seconds: float, most: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._receive_seconds, self._most = receive_seconds, most
        self._head_timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        idle = self.app_state.setdefault("idle_connections", {})
        self._idle: dict[WatchedConnection, None] = idle
        self._become_idle()
        if len(self.connections) > self._most:
            next(iter(idle)).drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._become_busy()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._has_long_head(data):
            self._refuse_head()
            return
        super().data_received(data)
        if not self.is_idle:
            self._become_busy()

    def on_response_complete(self) -> None:
        self._become_idle()
        super().on_response_complete()
        if not self.is_idle:  # the next request was there already
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

    def _has_long_head(self, data: bytes) -> bool:
        """Whether the head of a request goes beyond the limit; h11 checks that only while it is incomplete."""
        pending, _ = self.conn.trailing_data
        if len(pending) + len(data) <= HEAD_BYTES or self.conn.their_state is not h11.IDLE:
            return False
        return HEAD_END.search(pending + data, 0, HEAD_BYTES) is None

    def _give_up(self) -> None:
        """A head that has begun is answered; silence is not."""
        has_begun = bool(self.conn.trailing_data[0]) and self.conn.our_state is h11.IDLE
        if not has_begun or self.transport.is_closing():
            self.drop()
            return
        self._become_busy()
        self._refuse(
            TooSlow(f"the head did not arrive within {self._receive_seconds:g} s; expected it sooner; send it at once")
        )

    def send_400_response(self, msg: str) -> None:
        """Called by uvicorn when h11 cannot read what has come; the reason is the error that it handles then."""
        error = sys.exception()
        if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == HeadTooLarge.status:
            self._refuse_head()
        else:
            self._refuse(BadRequest(f"this is not HTTP: {error or msg}; expected HTTP/1.1; correct the client"))

    def _refuse_head(self) -> None:
        self._refuse(HeadTooLarge(f"the head has more than {HEAD_BYTES} bytes; expected fewer; send less"))

    def _refuse(self, error: ApiError) -> None:
        """Answers in place of the application, and closes; an answer that has begun is cut off."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE) or self.transport.is_closing():
            self.drop()
            return
        if self.cycle is not None:  # the application may be at work on a body that makes no sense now
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        answer = answer_of(error)
        headers = [*answer.raw_headers, (b"connection", b"close")]
        for event in (h11.Response(status_code=error.status, headers=headers), h11.Data(data=bytes(answer.body))):
            self.transport.write(self.conn.send(event))
        self.transport.write(self.conn.send(h11.EndOfMessage()))
        self.transport.close()


def watched_connections(receive_seconds: float, most: int) -> Callable[..., WatchedConnection]:
    """What uvicorn makes a protocol from."""
    return partial(WatchedConnection, receive_seconds=receive_seconds, most=most)
