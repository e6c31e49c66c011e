"""Ends a worker that cannot abort because it is inside a call that cannot be interrupted, such as a sum over a ring.

A thread with a separate connection receives the dispatcher's Abort whatever the worker is doing. If the worker has not
answered it in time, the process exits and is restarted: it owns nothing that would be lost.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import structlog
import zmq

from dispatch.peers.crew import WATCH
from dispatch.protocol import FROM_DISPATCHER, TO_DISPATCHER, Abort, Watch
from infra.base.wire import Codec, Curve, connected, receive, send

WATCH_SECONDS = 1.0
"""Time between two messages by which a dispatcher knows the connection."""
ABORT_SECONDS = 2.0
"""How long the worker may take to answer."""


class AbortWatch:
    """Receives Abort on a separate thread; ``end`` is called if the worker does not answer one."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        watched: Watch,
        identity: bytes,
        curve: Curve | None,
        answered: Callable[[], int],
        end: Callable[[], None],
    ) -> None:
        """identity: of the worker's own connection; answered: the newest generation whose Abort it has answered."""
        self._answered = answered
        self._end = end
        self._watched = watched
        self._sends = Codec(*TO_DISPATCHER)
        self._receives = Codec(*FROM_DISPATCHER)
        self._socket = connected(context, endpoint, curve, {zmq.ROUTING_ID: identity + WATCH})
        self._is_over = False
        self._thread = threading.Thread(target=self._run, name="abort watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over = True
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        asked: tuple[int, float] | None = None
        sent_at = 0.0
        while not self._is_over:
            if time.monotonic() - sent_at > WATCH_SECONDS:
                sent_at = time.monotonic()
                send(
                    self._socket, self._sends, self._watched
                )  # a message that cannot be sent is not repeated: the next one follows soon
            if self._socket.poll(100):
                message: Any = receive(self._socket, self._receives)[0]
                if isinstance(message, Abort) and message.run == self._watched.run:
                    asked = message.generation, time.monotonic()
            if asked is not None and self._answered() >= asked[0]:
                asked = None
            if asked is not None and time.monotonic() - asked[1] > ABORT_SECONDS:
                structlog.get_logger().error("did not abort in time; exits to be restarted", generation=asked[0])
                self._end()
                return
