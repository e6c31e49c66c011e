"""The dispatcher's side of everyone who works for a run: sends orders, receives reports, and detects losses.

Workers are known by name; in a generation each has a number, its rank in the dense process group. Their membership is
in ``dispatch/peers/roster.py``; shards, which offer themselves here too, are in ``dispatch/peers/providers.py``.

A member that cannot be reached any more is lost: what was sent to it before may not have arrived. Only then may a newer
process take over its name: whoever offers itself under the name of a process that can be reached is refused. The
process that ended or stopped is named, and not those that wait for it.

A message that cannot be read or does not belong here is refused, counted and otherwise without effect, unless a member
of the generation sent it: then the dispatcher ends, since what such a member trained cannot be trusted. Messages of an
older generation are refused, and never held against their sender.
"""

from collections.abc import Collection, Mapping, Sequence
from time import monotonic
from typing import Any

import structlog
import zmq

from dispatch.errors import BadReport
from dispatch.peers.losses import Losses, lost
from dispatch.peers.orders import Orders
from dispatch.peers.providers import Providers
from dispatch.peers.roster import Member, Roster, displaced
from dispatch.peers.wiring import PeerSocket
from dispatch.progress.underway import Reported, RoundsUnderway
from dispatch.protocol import (
    REMOVED,
    UNCONFIRMED,
    Abort,
    Admitted,
    GaveUp,
    Goodbye,
    Idle,
    Join,
    Leave,
    Post,
    Posted,
    Probe,
    Probed,
    Ready,
    Report,
    Saved,
    Watch,
    Welcome,
)
from infra.base.telemetry import Refusals
from infra.base.wire import NO_ARRAYS, Arrays, Curve, Header
from ps.protocol import DISPLACED, TAKEN, Heard, Serve

MembersMessage = Report | Post | GaveUp | Probed
"""What only members of the generation send."""
MESSAGES_A_TURN = 1024
"""Most messages handled at once; a sender of more must not keep the dispatcher from everything else."""
OF_NONE = -1
"""Generation of a message that belongs to none."""
WATCH = b"/watch"
"""Suffix of the routing id of a worker's second connection."""


class Crew:
    """Everyone who works for a run."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        run: str,
        roster: Roster | None = None,
        providers: Providers | None = None,
        curve: Curve | None = None,
        refused: Refusals | None = None,
        silence_seconds: float = 30.0,
    ) -> None:
        self._run = run
        self.silence_seconds = silence_seconds
        self.roster = roster or Roster({}, may_sum=True)
        self.providers = providers or Providers(0, {})
        self.refused = refused or Refusals()
        """Messages that could not be read or did not belong to this run."""
        self.socket = PeerSocket(context, endpoint, run, curve, self.refused, silence_seconds)
        self.endpoint = self.socket.endpoint
        self.generation = 0
        self._heard = monotonic()
        """When all messages had been read that were there."""
        self.losses = Losses()
        self.has_saved = False
        """Whether the dense weights are on disk."""
        self.probed: list[Probed] = []
        """Answers to probes that nobody has looked at yet."""

    def start_generation(
        self, generation: int, step: int, terms: Mapping[str, Any], keeps: Sequence[bool] | None = None
    ) -> None:
        """Makes the wanted workers members; releases members that are no longer wanted.

        terms: the contents of the Welcome besides number and names; keeps: whether each keeps its cache, by number.
        """
        gone = self.roster.advance()
        self.generation = generation
        self.losses.clear()
        self.probed.clear()
        for member in gone:
            self.dismiss(member, step, save_dense=False)
        names = tuple(member.name for member in self.roster.members)
        for number, member in enumerate(self.roster.members):
            is_kept = keeps is not None and keeps[number]
            self._send(member, Welcome(**self.at(step), worker=number, names=names, keeps_cache=is_kept, **terms))

    def abort(self, step: int) -> None:
        """Ends the generation early: everyone drops what it is doing and confirms."""
        for member in self.roster.start_over():
            for connection in (member.identity, member.identity + WATCH):
                self.socket.transmit(connection, Abort(**self.at(step)))
        self.providers.release()
        self.losses.clear()

    def remove(self, name: str) -> None:
        """Fences a worker off at once; if it is a member, it is lost."""
        member = self.roster.remove(name)
        if member is not None:
            self.refuse(member.identity, REMOVED, f"worker {name!r} was removed from the run")
            if member in self.roster.members:
                self.losses.add_for_good(name)

    def order(self, orders: Orders) -> dict[int, int]:
        """Sends the orders, by number of the member; returns the bytes of each."""
        return {number: self._send(self.roster.members[number], *order) for number, order in orders.items()}

    def probe(self, names: Collection[str], step: int, nbytes: int) -> None:
        """Asks these members to measure their links."""
        for member in self.roster.members:
            if member.name in names:
                self._send(member, Probe(**self.at(step), link_bytes=nbytes))

    def keep_alive(self, step: int) -> None:
        """Sends everyone a sign of life, including those who wait for their first generation; drops
        those who are gone.
        """
        for candidate in self.roster.drop_unconfirmed(self._heard):
            reason = f"worker {candidate.name!r} joined and did not confirm it; start it again"
            self.refuse(candidate.identity, UNCONFIRMED, reason)
            structlog.get_logger().warning("worker dropped: it joined and then was silent", worker=candidate.name)
        for member in self.roster.everyone:
            if not self._send(member, Idle(**self.at(step))) and member not in self.roster.members:
                self.roster.drop(member)
                structlog.get_logger().warning("worker dropped: it went before it was needed", worker=member.name)
        for provider in self.providers.everyone:
            if not self.socket.transmit(provider.identity, Heard(**self.at(step))):
                self.providers.drop(provider)

    def check(self, underway: RoundsUnderway | None = None) -> None:
        """Raises CrewFailed if a process is lost. It names the cause, not those who waited.

        underway: the rounds whose reports are awaited; if there are none, any member may be waited for.
        """
        if replaced := self.providers.replaced:
            raise lost(replaced, self.silence_seconds)
        if self.losses.are_certain:
            members = self.roster.members
            awaited = underway.awaited if underway else []
            names = [members[number].name for number in awaited or range(len(members))]
            raise self.losses.cause(names, self.silence_seconds)

    def dismiss(self, member: Member, step: int, save_dense: bool) -> None:
        self._send(member, Goodbye(**self.at(step), save_dense=save_dense))
        self.roster.drop(member)

    def listen(self, timeout_seconds: float) -> Reported | None:
        """Waits for a message; handles those that have arrived up to the next report of this generation, and returns
        it.

        Refused messages do not delay reports, however many there are.
        """
        timeout_ms = int(timeout_seconds * 1000)
        for _ in range(MESSAGES_A_TURN):
            if (incoming := self.socket.receive(timeout_ms)) is None:
                self._heard = monotonic()
                return None
            if reported := self._handle(*incoming):
                return reported
            timeout_ms = 0
        return None

    def refuse(self, sender: bytes, kind: str, reason: str, generation: int = OF_NONE) -> None:
        """Counts a message as refused and answers it; generation: the message's own."""
        current = self.generation if self.roster.members else self.generation + 1  # the generation has ended
        self.socket.refuse(sender, kind, reason, generation, current)

    def at(self, step: int) -> dict[str, Any]:
        """The fields that every message of this generation has."""
        return {"run": self._run, "generation": self.generation, "step": step}

    def close(self) -> None:
        self.socket.close()

    def _handle(self, sender: bytes, header: Header | None, arrays: Any, message_bytes: int) -> Reported | None:
        """Carries out or refuses the next message; returns it if it is a report of this generation."""
        if header is None:
            self._reject(sender, Refusals.UNREADABLE, str(arrays))
        elif header.run != self._run:
            reason = f"this dispatcher runs {self._run!r}, not {header.run!r}; use the same run name"
            self._reject(sender, type(header).__name__, reason)
        elif isinstance(header, MembersMessage):
            if self._is_member(sender, header, header.worker):
                return self._handle_member(header, arrays, message_bytes)
            reason = _misplaced(header, len(self.roster.members), self.generation)
            self._reject(sender, type(header).__name__, reason, header.generation)
        else:
            self._greet(sender, header)
        return None

    def _greet(self, sender: bytes, header: Header) -> None:
        """Handles a message that is not about a round."""
        match header:
            case Join() if self.socket.reaches(self.roster.holder(sender, header), Idle(**self.at(0))):
                self.refuse(sender, TAKEN, taken(f"worker {header.worker!r}", "--name"))
            case Serve() if self.socket.reaches(self.providers.holder(sender, header), Heard(**self.at(0))):
                self.refuse(sender, TAKEN, taken(f"shard {header.terms.shard}", "--shard"))
            case Join():
                # a known worker has merely received nothing for a while: Admitted would end its generation
                answer = Idle if self.roster.has_confirmed(sender) else Admitted
                self._answer(sender, header, self.roster.admit(sender, header), answer)
                self._tell_displaced()
            case Serve():
                self._answer(sender, header, self.providers.admit(sender, header), Heard)
            case Ready():
                self.roster.confirm(sender)
            case Leave():
                self.roster.leave(sender, has_trained=header.generation > 0)
            case Saved():
                self.has_saved = self.has_saved or self._is_member(sender, header, 0)
            case Watch():
                pass  # its only purpose is to make the connection known

    def _handle_member(self, message: MembersMessage, arrays: Any, message_bytes: int) -> Reported | None:
        """Handles a message of a member: returns a report, forwards a post to every other member."""
        self.losses.hear(message.worker)
        if isinstance(message, Report):
            return Reported(message, arrays.logits, message_bytes, arrays.more_logits)
        if isinstance(message, Probed):
            self.probed.append(message)
            return None
        sender = self.roster.members[message.worker]
        at = self.at(message.step)
        if isinstance(message, GaveUp):
            self.losses.give_up(sender.name)
            return None
        for member in self.roster.members:
            if member is not sender:
                self._send(member, Posted(**at, key=message.key, value=message.value))
        return None

    def _answer(self, sender: bytes, offer: Header, reason: str | None, answer: type[Header]) -> None:
        if reason is not None:
            is_removed = isinstance(offer, Join) and self.roster.is_removed(offer.worker)
            is_displaced = sender in self.roster.replaced or self.providers.is_replaced(sender)
            kind = REMOVED if is_removed else DISPLACED if is_displaced else type(offer).__name__
            self.refuse(sender, kind, reason)
        else:
            self.socket.transmit(sender, answer(**self.at(0)))

    def _tell_displaced(self) -> None:
        """Notifies processes that a newer one has replaced; if one was a member, it is lost."""
        while self.roster.displaced:
            member = self.roster.displaced.pop()
            self.refuse(member.identity, DISPLACED, displaced(member.name))
            if member in self.roster.members:
                self.losses.add_for_good(member.name)

    def _is_member(self, sender: bytes, message: Header, number: int) -> bool:
        """Whether a message of this generation comes from the member with that number."""
        is_current = message.generation == self.generation and 0 <= number < len(self.roster.members)
        return is_current and self.roster.members[number].identity == sender

    def _reject(self, sender: bytes, kind: str, reason: str, generation: int = OF_NONE) -> None:
        """Refuses a message; raises BadReport if a member sent it, unless it belongs to an ended generation."""
        self.refuse(sender, kind, reason, generation)
        is_old = OF_NONE < generation < self.generation
        for member in self.roster.members:
            if member.identity == sender and not is_old:
                raise BadReport(
                    f"worker {member.name} sent a message that cannot be used: {reason}; "
                    "the dispatcher ends, because what this worker trained cannot be trusted; see its log"
                )

    def _send(self, member: Member, header: Header, arrays: Arrays = NO_ARRAYS) -> int:
        """Returns how many bytes were sent, 0 if the worker cannot be reached; notes a member that cannot."""
        sent = self.socket.transmit(member.identity, header, arrays)
        if not sent and member in self.roster.members:
            self.losses.add(member.name)
        return sent


def taken(who: str, option: str) -> str:
    """The reason for a process whose place is held by another one that can be reached."""
    return f"another process is {who}, and is alive; expected one of each; correct {option}, or end the other first"


def _misplaced(message: MembersMessage, members: int, generation: int) -> str:
    return (
        f"a {type(message).__name__} of step {message.step} names worker number {message.worker} of generation "
        f"{message.generation}; "
        f"expected the sender's own number, below {members}, and generation {generation}; its sender must join again"
    )
