"""Sends requests to a running process over its control socket, with a limit on the time for an answer."""

import threading
import uuid
from time import monotonic
from typing import Any

import zmq

from dispatch.commands.protocol import CONTROL, Command, CommandAnswered, Exchange, ListMembers, Members
from dispatch.errors import CommandOutdated, CommandRefused, NoAnswer, OutOfReach
from infra.base.errors import ConfigError
from infra.base.wire import HEADER_BYTES, Codec, Curve, Header, Refused, connected, receive, send

TIMEOUT_SECONDS = 15.0
"""How long to wait for an answer: a dispatcher that decides or writes a checkpoint may take seconds to read it."""
LOOK_SECONDS = 0.2
"""How often a waiting client checks whether its answer is still needed."""
AGAIN_SECONDS = 0.5
"""Time after which a command is sent again: the dispatcher may have been restarted before it read the first one."""


def command(
    endpoint: str,
    run: str,
    verb: str,
    worker: str = "",
    value: str = "",
    *,
    key: str = "",
    actor: str = "",
    curve: Curve | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> CommandAnswered:
    """Has the dispatcher carry out a command, once.

    key: id of the command; by default a new one. actor: who gives it, for the record. Raises CommandRefused with the
    dispatcher's reason, or NoAnswer.
    """
    asked = Command(
        run=run,
        generation=-1,
        step=-1,
        id=key or uuid.uuid4().hex,
        verb=verb,
        worker=worker,
        value=value,
        actor=actor,
    )
    return carry_out(endpoint, asked, curve, timeout_seconds)


def carry_out(
    endpoint: str, asked: Command, curve: Curve | None = None, timeout_seconds: float = TIMEOUT_SECONDS
) -> CommandAnswered:
    """Has a command carried out and returns its answer; raises CommandOutdated, CommandRefused or NoAnswer."""
    answer = give(endpoint, asked, curve, timeout_seconds)
    if answer.outcome == "outdated":
        raise CommandOutdated(answer.text, answer.cursor)
    if answer.outcome == "refused":
        raise CommandRefused(answer.text)
    return answer


def give(
    endpoint: str, asked: Command, curve: Curve | None = None, timeout_seconds: float = TIMEOUT_SECONDS
) -> CommandAnswered:
    """Sends a command until it is answered, and returns the answer, whatever its outcome.

    Raises NoAnswer, or CommandRefused if the receiver could not read the command.
    """
    answer: CommandAnswered = ask(endpoint, asked, CONTROL, curve, timeout_seconds, AGAIN_SECONDS)
    return answer


def ask_members(
    endpoint: str, run: str, curve: Curve | None = None, timeout_seconds: float = TIMEOUT_SECONDS
) -> Members:
    """Returns the members of the run; raises NoAnswer."""
    question = ListMembers(run=run, generation=-1, step=-1)
    answer: Members = ask(endpoint, question, CONTROL, curve, timeout_seconds, AGAIN_SECONDS)
    return answer


def ask(
    endpoint: str,
    message: Header,
    exchange: Exchange,
    curve: Curve | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    again_seconds: float = TIMEOUT_SECONDS,
) -> Any:
    """Sends a request, repeats it every ``again_seconds``, and returns its answer.

    Raises CommandRefused or NoAnswer; OutOfReach, at once, if the endpoint cannot be reached from here.
    """
    return request(endpoint, message, exchange, curve, timeout_seconds, again_seconds)[0]


def request(
    endpoint: str,
    message: Header,
    exchange: Exchange,
    curve: Curve | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
    again_seconds: float = TIMEOUT_SECONDS,
    most_bytes: int = HEADER_BYTES,
    given_up: threading.Event | None = None,
) -> tuple[Any, Any]:
    """Does the same as ``ask`` and also returns the arrays of the answer.

    most_bytes: size of the largest array. given_up: an event that the caller sets when it no longer needs an answer;
    NoAnswer is raised then.
    """
    outgoing = Codec(*exchange.requests)
    incoming = Codec(*exchange.answers)
    deadline = monotonic() + timeout_seconds
    with zmq.Context() as context, _connected(context, endpoint, curve, most_bytes) as socket:
        while (left := deadline - monotonic()) > 0 and not _is_set(given_up):
            is_sent = send(socket, outgoing, message)
            if _arrives(socket, min(left, again_seconds if is_sent else LOOK_SECONDS), given_up):
                answer, arrays = receive(socket, incoming)
                if isinstance(answer, Refused):
                    raise CommandRefused(answer.reason)
                return answer, arrays
    keys = "" if curve else ", asked without keys (a process that has curve_folder answers nobody then)"
    raise NoAnswer(
        f"nobody answers at {endpoint} within {timeout_seconds:g} seconds{keys}; expected a process of run "
        f"{message.run!r} there; see its log, give the settings that it was started with, and try again"
    )


def _connected(
    context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, curve: Curve | None, most_bytes: int
) -> "zmq.Socket[bytes]":
    try:
        return connected(context, endpoint, curve, {zmq.MAXMSGSIZE: most_bytes})
    except ConfigError as error:
        raise OutOfReach(str(error)) from error


def _arrives(socket: "zmq.Socket[bytes]", seconds: float, given_up: threading.Event | None) -> bool:
    """Waits for a message for at most so many seconds, and only while its answer is needed."""
    until = monotonic() + seconds
    while (left := until - monotonic()) > 0 and not _is_set(given_up):
        if socket.poll(int(1000 * (left if given_up is None else min(left, LOOK_SECONDS)))):
            return True
    return False


def _is_set(given_up: threading.Event | None) -> bool:
    return given_up is not None and given_up.is_set()
