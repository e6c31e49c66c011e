"""Asks a running process over its control socket, with a limit on how long an answer may take."""

import uuid
from contextlib import closing
from time import monotonic
from typing import Any

import zmq

from dispatch.control.protocol import CONTROL, Accepted, Command, Exchange, Members, Verb
from dispatch.errors import CommandRefused, NoAnswer
from infra.wire import HEADER_BYTES, Codec, Curve, Header, Refused, connect, receive, send

TIMEOUT_SECONDS = 15.0
"""a dispatcher that decides or writes a cut may take some seconds to look at its control socket"""
AGAIN_SECONDS = 2.0
"""after which a command is sent again: the dispatcher may have been restarted with the first one unread"""


def command(
    endpoint: str,
    run: str,
    verb: Verb,
    worker: str = "",
    *,
    key: str = "",
    curve: Curve | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Accepted | Members:
    """Has the dispatcher carry out a command, once; key: the command's id, a new one by default.

    Raises CommandRefused with the dispatcher's reason, or NoAnswer.
    """
    asked = Command(run=run, generation=-1, step=-1, id=key or uuid.uuid4().hex, verb=verb, worker=worker)
    answer: Accepted | Members = ask(endpoint, asked, CONTROL, curve, timeout_seconds, AGAIN_SECONDS)
    return answer


def ask(
    endpoint: str,
    message: Header,
    exchange: Exchange,
    curve: Curve | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    again_seconds: float = TIMEOUT_SECONDS,
) -> Any:
    """Sends a request, again after so many seconds, and returns its answer; raises CommandRefused or NoAnswer."""
    outgoing, incoming, deadline = Codec(*exchange.requests), Codec(*exchange.answers), monotonic() + timeout_seconds
    with zmq.Context() as context, closing(context.socket(zmq.DEALER)) as socket:
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.MAXMSGSIZE, HEADER_BYTES)
        connect(socket, endpoint, curve)
        while (left := deadline - monotonic()) > 0:
            send(socket, outgoing, message)
            if socket.poll(int(1000 * min(left, again_seconds))):
                answer, _ = receive(socket, incoming)
                if isinstance(answer, Refused):
                    raise CommandRefused(answer.reason)
                return answer
    raise NoAnswer(
        f"nobody answers at {endpoint} within {timeout_seconds:g} seconds; expected a process of run {message.run!r} "
        "there; see its log, and try again"
    )
