"""The one socket that everyone connects to: workers, their second connections, and shards.

ZeroMQ itself exchanges heartbeats with every peer, and its threads answer whatever the peer is doing; one that does not
answer is disconnected, and messages to it are known not to arrive.
"""

import errno
from typing import Any

import zmq

from dispatch.protocol import FROM_DISPATCHER, MOST_SAMPLES, TO_DISPATCHER
from infra.base.errors import WireError
from infra.base.telemetry import Refusals
from infra.base.wire import (
    HEADER_BYTES,
    NO_ARRAYS,
    Arrays,
    Codec,
    Curve,
    Header,
    Refused,
    bind,
    send,
    truncate_reason,
)

FRAME_BYTES = 4 * MOST_SAMPLES + HEADER_BYTES
"""Bytes of the largest message: a logit of each sample; the connection of a peer that sends more is closed."""

Incoming = tuple[bytes, Header | None, Any, int]
"""Sender, header, arrays, bytes; no header: the message could not be read, and the arrays are the reason."""


class PeerSocket:
    """A ROUTER that knows whether a peer can be reached."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        run: str,
        curve: Curve | None,
        refused: Refusals,
        silence_seconds: float,
    ) -> None:
        self._run = run
        self._refused = refused
        self._incoming = Codec(*TO_DISPATCHER)
        self._outgoing = Codec(*FROM_DISPATCHER)
        self._socket = context.socket(zmq.ROUTER)
        self._socket.set(zmq.LINGER, 1000)
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.set(zmq.ROUTER_MANDATORY, 1)
        self._socket.set(zmq.HEARTBEAT_IVL, max(1, int(silence_seconds * 250)))
        self._socket.set(zmq.HEARTBEAT_TIMEOUT, max(1, int(silence_seconds * 750)))
        self._socket.set(zmq.MAXMSGSIZE, FRAME_BYTES)
        self.endpoint = bind(self._socket, endpoint, curve)

    def receive(self, timeout_ms: int) -> Incoming | None:
        """The next message, or None if none comes in time."""
        if not self._socket.poll(timeout_ms):
            return None
        frame, *frames = self._socket.recv_multipart(copy=False)
        try:
            header, arrays = self._incoming.decode(frames)
        except WireError as error:
            return frame.bytes, None, str(error), 0
        return frame.bytes, header, arrays, sum(map(len, frames))

    def transmit(self, to: bytes, header: Header, arrays: Arrays = NO_ARRAYS) -> int:
        """Returns how many bytes were sent; 0: that peer cannot be reached."""
        try:
            return send(self._socket, self._outgoing, header, arrays, to=to)
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            return 0

    def reaches(self, peer: bytes | None, sign: Header) -> bool:
        """Whether a peer can be reached, found out by sending it a sign of life."""
        return peer is not None and self.transmit(peer, sign) > 0

    def refuse(self, sender: bytes, kind: str, reason: str, generation: int, current: int) -> None:
        """Counts a message of a generation as refused and answers it."""
        self._refused.add(kind, sender, reason)
        fields: dict[str, Any] = {"generation": generation, "step": 0, "current": current, "what": kind}
        self.transmit(sender, Refused(run=self._run, **fields, reason=truncate_reason(reason)))

    def close(self) -> None:
        self._socket.close()
