"""A worker's connection to the dispatcher, through which workers also exchange addresses.

A restarted dispatcher does not know this worker: after a short silence the worker offers itself again, until it is
heard. If the dispatcher is unavailable, the worker waits for it, up to a limit.
"""

import math
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import zmq

from dispatch.protocol import (
    FROM_DISPATCHER,
    REMOVED,
    TO_DISPATCHER,
    Abort,
    Admitted,
    GaveUp,
    Goodbye,
    Join,
    Leave,
    Order,
    Post,
    Posted,
    Ready,
    Welcome,
)
from infra.base.link import Link
from infra.base.process import NameClaim, Stop, own_place
from infra.base.wire import NO_ARRAYS, Arrays, Codec, Curve, Header, Refused, SocketOptions, receive, send
from ps.protocol import TAKEN
from trainer.errors import DispatcherLost, Interrupted, Rejected, Removed, TurnedAway

POLL_MILLISECONDS = 100
"""How late a request to stop may be noticed."""
LINGER_MILLISECONDS = 1000
"""How long an ending worker waits for its last message to leave."""
UNWELCOMED_SECONDS = 1.0
"""How long a worker that asked to leave before it was welcomed waits for a Welcome that is on its way."""
QUIET_SECONDS = 2.0
"""Silence after which the worker offers itself again."""
OF_NONE = -1
"""Generation of a message that belongs to none."""


class Outgoing:
    """Messages to the dispatcher, in order: one that cannot be sent is tried again, and later ones wait for it."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self._codec = Codec(*TO_DISPATCHER)
        self._unsent: deque[tuple[Header, Arrays]] = deque()

    def add(self, header: Header, arrays: Arrays) -> None:
        self._unsent.append((header, arrays))
        self.send()

    def send(self) -> None:
        """Sends what can be sent now."""
        while self._unsent and send(self._socket, self._codec, *self._unsent[0]):
            self._unsent.popleft()


class Dispatcher:
    """Messages to and from the dispatcher."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        name: str,
        run: str,
        identity: bytes,
        link: Link | None = None,
        curve: Curve | None = None,
        claim: NameClaim | None = None,
    ) -> None:
        """identity: unique to this process; claim: its claim to its name."""
        self._claim = claim or NameClaim()
        self._endpoint = endpoint
        self._name = name
        self._run = run
        self._generation = 0
        self._step = 0
        self._number = 0
        self._over = 0
        """The newest generation whose orders are ignored."""
        self._kept: deque[tuple[Header, Any]] = deque()
        """Messages that have arrived and are not handled yet."""
        self._offer: Join | None = None
        self._heard = self._offered = time.monotonic()
        self.aborted = -1
        """The newest generation whose Abort has been answered."""
        self._receives = Codec(*FROM_DISPATCHER)
        options: SocketOptions = {zmq.ROUTING_ID: identity, zmq.LINGER: LINGER_MILLISECONDS}
        self._socket = (link or Link()).connect(context, endpoint, curve, options)
        self._outgoing = Outgoing(self._socket)

    def join(
        self,
        settings: Mapping[str, str],
        link_gbit: float | None,
        device: str = "",
        arithmetic: str = "",
        uplink_gbit: float | None = None,
    ) -> None:
        """Offers this worker; a Welcome follows when a generation with it starts. device: its own
        GPU for NCCL, if any.
        """
        links = {"link_gbit": link_gbit or 0.0, "uplink_gbit": uplink_gbit or 0.0}
        offered: dict[str, Any] = {"settings": dict(settings), "device": device, **links}
        at: dict[str, Any] = {"run": self._run, "generation": OF_NONE, "step": 0}
        self._offer = Join(**at, worker=self._name, arithmetic=arithmetic, place=own_place(), **offered)
        self.send(self._offer)

    def give_up(self) -> None:
        """Reports that this worker waited for others in vain, if it is a member; those it waited for are to blame."""
        if self._generation:
            self.send(GaveUp(**self._common(), worker=self._number))

    def pass_over(self) -> None:
        """Ignores further orders of this generation."""
        self._over = self._generation

    def send(self, header: Header, arrays: Arrays = NO_ARRAYS) -> None:
        """Sends one message, after those that could not be sent yet; never waits.

        A message that cannot be sent now is tried again whenever messages are read, until it is sent or the dispatcher
        has been silent for too long.
        """
        self._outgoing.add(header, arrays)

    def messages(self, stop: Stop, silence_seconds: float) -> Iterator[tuple[Header, Any]]:
        """The dispatcher's messages, up to and including Goodbye; asks to leave, once per generation, if it is to stop.

        Abort and Admitted end a generation; each is confirmed when the next message is requested.

        A worker that was never welcomed holds no rows, and the dispatcher may be gone, so it leaves by itself. It first
        waits for a Welcome that may be on its way, because the others of that generation would wait for it.
        """
        asked_at = math.inf
        while True:
            if stop.requested and asked_at == math.inf:
                self.send(Leave(**self._common(), worker=self._name))
                asked_at = time.monotonic()
            if not self._kept and not self._take_in(POLL_MILLISECONDS):
                if self._generation == 0 and time.monotonic() - asked_at > UNWELCOMED_SECONDS:
                    return
                self._check_silence(silence_seconds)
                continue
            message, arrays = self._kept.popleft()
            if isinstance(message, Admitted | Abort):
                yield message, arrays
                self._confirm(message)
            elif self._accepts(message):
                asked_at = math.inf if isinstance(message, Welcome) else asked_at
                yield message, arrays
            if isinstance(message, Goodbye):
                return

    def check_interrupt(self) -> None:
        """Raises Interrupted if the generation has ended, whatever the worker is waiting for."""
        self._take_in(0)
        self._offer_again()
        if any(self._interrupts(message) for message, _ in self._kept):
            while not self._interrupts(self._kept[0][0]):
                self._kept.popleft()
            raise Interrupted(f"generation {self._generation} is over")

    def upcoming(self) -> tuple[Order, Any] | None:
        """The next order if it has arrived; ``messages`` returns it as well."""
        self._take_in(0)
        for message, arrays in self._kept:
            if isinstance(message, Order):
                return (message, arrays) if message.generation == self._generation else None
        return None

    def post(self, key: str, value: bytes) -> None:
        """Posts something to the other members of the generation."""
        self.send(Post(**self._common(), worker=self._number, key=key, value=value))

    def next_post(self, timeout_seconds: float) -> tuple[str, bytes] | None:
        """Waits for a post of this generation, or for its end; keeps all other messages for later."""
        deadline = time.monotonic() + timeout_seconds
        while not any(self._interrupts(message) for message, _ in self._kept):
            if (post := self._kept_post()) is not None:
                return post.key, post.value
            if not self._take_in(max(0, math.ceil((deadline - time.monotonic()) * 1000))):
                return None
        return None

    def close(self) -> None:
        self._socket.close()

    def _take_in(self, timeout_ms: int) -> bool:
        """Receives what has arrived, waiting that long for the first message; returns whether there was one."""
        self._outgoing.send()
        found = bool(self._socket.poll(timeout_ms))
        while self._socket.poll(0):
            self._heard = time.monotonic()
            self._kept.append(receive(self._socket, self._receives))
        return found

    def _kept_post(self) -> Posted | None:
        """The first post of this generation that has arrived: it may have come together with the Welcome."""
        for place, (message, _) in enumerate(self._kept):
            if isinstance(message, Posted) and (message.run, message.generation) == (self._run, self._generation):
                del self._kept[place]
                return message
        return None

    def _confirm(self, message: Admitted | Abort) -> None:
        self.send(Ready(**self._common()))
        if isinstance(message, Abort):
            self.aborted = max(self.aborted, message.generation)

    def _interrupts(self, message: Header) -> bool:
        """Whether a message ends the generation that the worker is in."""
        is_new = isinstance(message, Welcome) and message.generation > self._generation
        is_final = isinstance(message, Refused) and _is_final(message)
        return message.run == self._run and (isinstance(message, Admitted | Abort) or is_new or is_final)

    def _accepts(self, message: Header) -> bool:
        """Whether a message is for this worker in its generation; notes the message's generation and step if so."""
        if isinstance(message, Refused):
            self._check_refusal(message)
            return False
        current = message.run == self._run and message.generation >= self._generation
        if current and (isinstance(message, Welcome) or message.generation == self._generation):
            self._generation = message.generation
            self._step = message.step
            self._number = message.worker if isinstance(message, Welcome) else self._number
            is_over = isinstance(message, Order) and message.generation <= self._over
            return not is_over and not isinstance(message, Posted)
        return isinstance(message, Goodbye) and current

    def _check_refusal(self, refused: Refused) -> None:
        """Raises Rejected if this worker has no part in the run, NameTaken if another keeps its name for long."""
        reason = f"the dispatcher at {self._endpoint} refused worker {self._name!r}: {refused.reason}"
        if refused.what == TAKEN:
            self._claim.refuse(reason)
        elif _is_final(refused):
            raise {Join.__name__: TurnedAway, REMOVED: Removed}.get(refused.what, Rejected)(reason)

    def _offer_again(self) -> None:
        """Offers the worker again after a silence, because the dispatcher may be a new one."""
        now = time.monotonic()
        if self._offer is not None and now - max(self._heard, self._offered) > QUIET_SECONDS:
            self._offered = now
            self.send(self._offer)

    def _check_silence(self, limit: float) -> None:
        self._offer_again()
        silent = time.monotonic() - self._heard
        if silent > limit:
            raise DispatcherLost(
                f"no word from the dispatcher at {self._endpoint} in {silent:.0f} s; expected one within {limit:g} s; "
                "see whether it runs, or raise trainer.silence_seconds"
            )

    def _common(self) -> dict[str, Any]:
        return {"run": self._run, "generation": self._generation, "step": self._step}


def _is_final(refused: Refused) -> bool:
    """Whether no Welcome follows. One does follow if the refused message belongs to an ended generation."""
    return refused.what != TAKEN and not 0 <= refused.generation < refused.current
