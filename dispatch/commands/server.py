"""A socket that receives requests between other work: except in ``wait``, nothing here blocks.

A message that cannot be read, or is meant for another run, is refused and counted, and has no other effect. Answers to
clients that have disconnected are dropped.
"""

from dataclasses import dataclass
from typing import Any

import zmq

from dispatch.commands.protocol import CONTROL, Exchange
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

MESSAGES_A_TURN = 64
"""Most messages received at once, so that a busy sender cannot keep the process from its work."""


@dataclass(frozen=True)
class Asked:
    """A request that waits for its answer."""

    sender: bytes
    message: Any
    """The message, of one of the request types of the exchange."""
    arrays: Any = NO_ARRAYS
    """Arrays of the message."""


class ControlSocket:
    """The ROUTER socket that clients of ``dispatch/commands/client.py`` connect to."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        run: str | None,
        curve: Curve | None = None,
        refused: Refusals | None = None,
        exchange: Exchange = CONTROL,
    ) -> None:
        """run: the run that requests must be about; None for any."""
        self._run = run
        self._incoming = Codec(*exchange.requests)
        self._outgoing = Codec(*exchange.answers)
        self._socket = context.socket(zmq.ROUTER)
        self._socket.set(zmq.LINGER, 1000)
        self._socket.set(zmq.MAXMSGSIZE, HEADER_BYTES)
        self.endpoint = bind(self._socket, endpoint, curve)
        self.refused = refused or Refusals()
        """Counts messages that could not be read or were meant for another run."""

    def next(self) -> Asked | None:
        """Returns the next request that has arrived; None if there is none."""
        for _ in range(MESSAGES_A_TURN):
            if not self._socket.poll(0):
                return None
            sender, *frames = self._socket.recv_multipart()
            try:
                message, arrays = self._incoming.decode(frames)
            except WireError as error:
                self._refuse(sender, Refusals.UNREADABLE, str(error))
                continue
            if self._run in (message.run, None):
                return Asked(sender, message, arrays)
            reason = f"a command to run {message.run!r} reached run {self._run!r}; expected the endpoint of that run"
            self._refuse(sender, type(message).__name__, reason)
        return None

    def wait(self, seconds: float, end: int) -> bool:
        """Waits for a request, at most this many seconds; returns whether the pipe with the descriptor ``end`` was
        closed.
        """
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(end, zmq.POLLIN)
        return end in dict(poller.poll(int(1000 * seconds)))

    def answer(self, asked: Asked, answer: Header, arrays: Arrays = NO_ARRAYS) -> None:
        send(self._socket, self._outgoing, answer, arrays, to=asked.sender)

    def refuse(self, asked: Asked, reason: str, generation: int = -1) -> None:
        """Answers that a request was not carried out; generation: the generation that refuses it."""
        self._refuse(asked.sender, type(asked.message).__name__, reason, generation)

    def close(self) -> None:
        self._socket.close()

    def _refuse(self, sender: bytes, kind: str, reason: str, generation: int = -1) -> None:
        self.refused.add(kind, sender, reason)
        refusal = Refused(
            run=self._run or "", generation=-1, step=-1, reason=truncate_reason(reason), current=generation
        )
        send(self._socket, self._outgoing, refusal, to=sender)
