"""The dispatcher's side of everyone who works for a run: orders out and reports in, and a sign when one is lost.

Workers are known by name; in a generation each has a number, its rank in the dense process group. Who they are is in
``dispatch/roster.py``; shards, which offer themselves here too, are in ``dispatch/providers.py``.

A member that cannot be reached any more is lost: what was sent to it before may not have arrived. So is one whose name
a newer process has taken over. The one that ended or stopped is named, and not those that wait for it.

A message that cannot be read or does not belong here is refused, counted and otherwise without effect, unless a member
of the generation sent it: then the run stops, since a member that sends such a message cannot be trusted to have
trained. What arrives of an older generation is refused, and never counted against its sender.
"""

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

import structlog
import zmq

from dispatch.errors import BadReport, CrewFailed
from dispatch.orders import Orders
from dispatch.progress.underway import Reported
from dispatch.protocol import (
    Abort,
    Admitted,
    GaveUp,
    Goodbye,
    Idle,
    Join,
    Leave,
    Post,
    Posted,
    Ready,
    Report,
    Saved,
    Watch,
    Welcome,
)
from dispatch.providers import Providers
from dispatch.roster import Member, Roster
from dispatch.wiring import PeerSocket
from infra.telemetry import Refusals
from infra.wire import NO_ARRAYS, Arrays, Curve, Header
from ps.protocol import Heard, Serve

MESSAGES_A_TURN = 1024
"""taken at once; a sender of more must not keep the dispatcher from everything else"""
WAIT_SECONDS = 1.0
"""how long to listen before everyone is kept alive again"""
LOST_SECONDS = 1.0
"""how long a member may be out of reach before that is an error: until then its own end may tell more"""
OF_NONE = -1
"""generation of a message that belongs to none"""
WATCH = b"/watch"
"""ends the routing id of a worker's second connection"""


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
        """messages that could not be read or had no place in this run"""
        self._socket = PeerSocket(context, endpoint, run, curve, self.refused, silence_seconds)
        self.endpoint = self._socket.endpoint
        self.generation = 0
        self._heard: set[int] = set()
        """numbers of the members that have sent anything in this generation"""
        self._lost: dict[str, float] = {}
        """members out of reach, and since when"""
        self._gave_up: dict[str, float] = {}
        """members that waited for others in vain, and since when"""
        self._saved = False

    def start_generation(
        self, generation: int, step: int, terms: Mapping[str, Any], keeps: Sequence[bool] | None = None
    ) -> None:
        """The wanted workers become members; members that are no longer wanted are dismissed.

        terms: what the Welcome says beside number and names; keeps: whether each keeps its cache, by number.
        """
        gone = self.roster.advance()
        self.generation, self._heard = generation, set()
        self._lost.clear()
        self._gave_up.clear()
        for member in gone:
            self.dismiss(member, step, save_dense=False)
        names = tuple(member.name for member in self.roster.members)
        for number, member in enumerate(self.roster.members):
            is_kept = keeps is not None and keeps[number]
            self._send(member, Welcome(**self.at(step), worker=number, names=names, keeps_cache=is_kept, **terms))

    def abort(self, step: int) -> None:
        """Ends the generation before its time: everyone drops what it is doing and confirms."""
        for member in self.roster.start_over():
            for connection in (member.identity, member.identity + WATCH):
                self._socket.transmit(connection, Abort(**self.at(step)))
        self._lost.clear()
        self._gave_up.clear()

    def remove(self, name: str) -> None:
        """Fences a worker off at once; if it is a member, it is lost."""
        member = self.roster.remove(name)
        if member is not None:
            self.refuse(member.identity, Join.__name__, f"worker {name!r} was removed from the run")
            if member in self.roster.members:
                self._lost[name] = monotonic() - LOST_SECONDS - 1

    def is_lost(self, member: Member) -> bool:
        return member.name in self._lost

    def order(self, orders: Orders) -> tuple[int, ...]:
        """Sends every member its order; returns the bytes of each."""
        members = self.roster.members
        return tuple(self._send(member, *order) for member, order in zip(members, orders, strict=True))

    def keep_alive(self, step: int) -> None:
        """Sends everyone a sign of life, also those who wait for their first generation; drops those who are gone."""
        for candidate in self.roster.drop_unconfirmed():
            reason = f"worker {candidate.name!r} joined and did not confirm it; start it again"
            self.refuse(candidate.identity, Join.__name__, reason)
            structlog.get_logger().warning("worker dropped: it joined and then was silent", worker=candidate.name)
        for member in self.roster.everyone:
            if not self._send(member, Idle(**self.at(step))) and member not in self.roster.members:
                self.roster.drop(member)
                structlog.get_logger().warning("worker dropped: it went before it was needed", worker=member.name)
        for provider in self.providers.everyone:
            if not self._socket.transmit(provider.identity, Heard(**self.at(step))):
                self.providers.drop(provider)

    def check(self) -> None:
        """Raises CrewFailed if someone is lost. It names the cause, not those who waited."""
        if replaced := self.providers.replaced:
            raise lost(replaced, self.silence_seconds)
        until = monotonic() - LOST_SECONDS
        if any(since < until for since in (*self._lost.values(), *self._gave_up.values())):
            if causes := [name for name in self._lost if name not in self._gave_up]:
                raise lost([f"worker {name}" for name in causes], self.silence_seconds)
            names = [member.name for member in self.roster.members]
            raise waited_for([name for name in names if name not in self._gave_up], sorted(self._gave_up))

    def blamed(self, missing: list[int]) -> list[str]:
        """Names of the members to blame for missing reports: those that were never heard in this generation, if any.

        The others may be waiting for these.
        """
        return [self.roster.members[number].name for number in sorted(set(missing) - self._heard) or missing]

    def dismiss(self, member: Member, step: int, save_dense: bool) -> None:
        self._send(member, Goodbye(**self.at(step), save_dense=save_dense))
        self.roster.drop(member)

    def dismiss_all(self, step: int, patience_seconds: float) -> bool:
        """Dismisses everyone; returns whether the dense weights were saved.

        The first member goes first and saves them, as the shards or, in a ring, all members have them. The others go
        when it has confirmed that, or has not for so many seconds: a worker that ends closes its connections to its
        peers, which must not happen while one still works.
        """
        for first in self.roster.members[:1]:
            self.dismiss(first, step, save_dense=True)
        deadline = monotonic() + patience_seconds
        while self.roster.members and not self._saved and (left := deadline - monotonic()) > 0:
            self.listen(min(left, WAIT_SECONDS))
            self.keep_alive(step)
        for member in self.roster.everyone:
            self.dismiss(member, step, save_dense=False)
        return self._saved or not self.roster.members

    def listen(self, timeout_seconds: float) -> Reported | None:
        """Waits for a message; takes those that have arrived up to the next report of this generation, and returns it.

        Reports are not kept waiting by messages that are refused, however many.
        """
        timeout_ms = int(timeout_seconds * 1000)
        for _ in range(MESSAGES_A_TURN):
            if (incoming := self._socket.receive(timeout_ms)) is None:
                return None
            if reported := self._take(*incoming):
                return reported
            timeout_ms = 0
        return None

    def refuse(self, sender: bytes, kind: str, reason: str, generation: int = OF_NONE) -> None:
        """Counts a message as refused and answers it; generation: the message's own."""
        current = self.generation if self.roster.members else self.generation + 1  # that one is over
        self._socket.refuse(sender, kind, reason, generation, current)

    def at(self, step: int) -> dict[str, Any]:
        """What every message of this generation carries."""
        return {"run": self._run, "generation": self.generation, "step": step}

    def close(self) -> None:
        self._socket.close()

    def _take(self, sender: bytes, header: Header | None, arrays: Any, message_bytes: int) -> Reported | None:
        """Carries out or refuses the next message; returns it if it is a report of this generation."""
        if header is None:
            self._reject(sender, Refusals.UNREADABLE, str(arrays))
        elif header.run != self._run:
            reason = f"this dispatcher runs {self._run!r}, not {header.run!r}; use the same run name"
            self._reject(sender, type(header).__name__, reason)
        elif isinstance(header, Report | Post | GaveUp):
            if self._is_member(sender, header, header.worker):
                return self._hear(header, arrays, message_bytes)
            self._misplace(sender, header)
        else:
            self._greet(sender, header)
        return None

    def _greet(self, sender: bytes, header: Header) -> None:
        """Takes a message that is not about a round."""
        match header:
            case Join():
                # one that is known has only heard nothing for a while: Admitted would end its generation
                answer = Idle if self.roster.has_confirmed(sender) else Admitted
                self._admit(sender, header, self.roster.admit(sender, header), answer)
                self._tell_displaced()
            case Serve():
                self._admit(sender, header, self.providers.admit(sender, header), Heard)
            case Ready():
                self.roster.confirm(sender)
            case Leave():
                self.roster.leave(sender, has_trained=header.generation > 0)
            case Saved():
                self._saved = self._saved or self._is_member(sender, header, 0)
            case Watch():
                pass  # it has made the connection known, which is all it is for

    def _hear(self, message: Report | Post | GaveUp, arrays: Any, message_bytes: int) -> Reported | None:
        """Takes a message of a member: returns a report, passes a post on to every other member."""
        self._heard.add(message.worker)
        if isinstance(message, Report):
            return Reported(message, arrays.logits, message_bytes)
        sender, at = self.roster.members[message.worker], self.at(message.step)
        if isinstance(message, GaveUp):
            self._gave_up.setdefault(sender.name, monotonic())
            return None
        for member in self.roster.members:
            if member is not sender:
                self._send(member, Posted(**at, key=message.key, value=message.value))
        return None

    def _admit(self, sender: bytes, offer: Header, reason: str | None, answer: type[Header]) -> None:
        if reason is not None:
            self.refuse(sender, type(offer).__name__, reason)
        else:
            self._socket.transmit(sender, answer(**self.at(0)))

    def _tell_displaced(self) -> None:
        """Whoever a newer process has replaced is told so; if it was a member, it is lost."""
        while self.roster.displaced:
            member = self.roster.displaced.pop()
            self.refuse(member.identity, Join.__name__, f"a newer worker named {member.name!r} has joined")
            if member in self.roster.members:
                self._lost[member.name] = monotonic() - LOST_SECONDS - 1

    def _is_member(self, sender: bytes, message: Header, number: int) -> bool:
        """Whether a message of this generation comes from the member of that number."""
        is_current = message.generation == self.generation and 0 <= number < len(self.roster.members)
        return is_current and self.roster.members[number].identity == sender

    def _misplace(self, sender: bytes, message: Report | Post | GaveUp) -> None:
        """Refuses what does not come from the member that it names; what is of an older generation proves nothing."""
        reason = _misplaced(message, len(self.roster.members), self.generation)
        if message.generation < self.generation or not self.roster.members:
            self.refuse(sender, type(message).__name__, reason, message.generation)
        else:
            self._reject(sender, type(message).__name__, reason)

    def _reject(self, sender: bytes, kind: str, reason: str) -> None:
        """Refuses a message; raises BadReport if a member of the generation sent it."""
        self.refuse(sender, kind, reason)
        for member in self.roster.members:
            if member.identity == sender:
                raise BadReport(
                    f"worker {member.name} sent a message that cannot be used: {reason}; "
                    "the run stops, because what this worker trained cannot be trusted; see its log"
                )

    def _send(self, member: Member, header: Header, arrays: Arrays = NO_ARRAYS) -> int:
        """Returns how many bytes were sent, 0 if the worker cannot be reached; notes a member that cannot."""
        sent = self._socket.transmit(member.identity, header, arrays)
        if not sent and member in self.roster.members:
            self._lost.setdefault(member.name, monotonic())
        return sent


def _misplaced(message: Report | Post | GaveUp, members: int, generation: int) -> str:
    return (
        f"a {type(message).__name__} of step {message.step} names worker number {message.worker} of generation "
        f"{message.generation}; "
        f"expected the sender's own number, below {members}, and generation {generation}; its sender must join again"
    )


def silent(names: list[str], seconds: float) -> CrewFailed:
    return CrewFailed(
        f"no report from worker {', '.join(names)} for {seconds:g} s; expected one per step; see their logs, and raise "
        "dispatch.report_seconds if steps really take that long"
    )


def lost(names: list[str], seconds: float) -> CrewFailed:
    return CrewFailed(
        f"lost {', '.join(names)}: it ended, or gave no sign of life for {seconds:g} s; expected it to stay "
        "until it is dismissed; see its log and whether its machine can be reached, or raise dispatch.silence_seconds"
    )


def waited_for(names: list[str], waiting: list[str]) -> CrewFailed:
    return CrewFailed(
        f"worker {', '.join(waiting)} waited in vain for worker {', '.join(names) or 'unknown'}; expected every worker "
        "of the generation to take part; see its log and whether it runs, or raise the time limits of [trainer]"
    )
