"""The dispatcher's side of the workers: orders out and reports in, and a sign when one is lost.

Workers are known by name; in a generation each has a number, its rank in the dense process group. Who they are is in
``dispatch/roster.py``.

ZeroMQ itself asks every worker for signs of life, and its threads answer whatever the worker is doing; one that does
not answer is disconnected. A member that cannot be reached any more is lost: what was sent to it before may not have
arrived. So the worker that ended or stopped is named, and not those that wait for it.

A message that cannot be read or does not belong here is refused, counted and otherwise without effect, unless a member
of the generation sent it: then the run stops, since a member that sends such a message cannot be trusted to have
trained.
"""

import errno
from collections.abc import Mapping
from time import monotonic
from typing import Any

import structlog
import zmq

from dispatch.dense import NO_MOVES, DenseMoves
from dispatch.errors import BadReport, CrewFailed
from dispatch.progress.underway import Reported
from dispatch.protocol import (
    FROM_DISPATCHER,
    MOST_SAMPLES,
    TO_DISPATCHER,
    Admitted,
    Early,
    GaveUp,
    Goodbye,
    Idle,
    Join,
    Leave,
    Order,
    OrderArrays,
    Post,
    Posted,
    Ready,
    Report,
    Saved,
    Welcome,
)
from dispatch.roster import Member, Roster
from dispatch.rows.plan import WorkerPlan
from infra.errors import WireError
from infra.telemetry import Refusals
from infra.wire import HEADER_BYTES, NO_ARRAYS, Arrays, Codec, Curve, Header, Refused, bind, cut_reason, send
from ingest.samples import Samples
from ps.protocol import FLUSH, TRAIN

FRAME_BYTES = 4 * MOST_SAMPLES + HEADER_BYTES
"""of the largest message: a logit of each sample; the connection of a peer that sends more is cut"""
MESSAGES_A_TURN = 1024
"""taken at once; a sender of more must not keep the dispatcher from everything else"""
WAIT_SECONDS = 1.0
"""how long to listen before everyone is kept alive again"""
LOST_SECONDS = 2.0
"""how long a member may be out of reach before that is an error: until then its own end may tell more"""


class Crew:
    """The ROUTER socket all workers connect to."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        run: str,
        curve: Curve | None = None,
        refused: Refusals | None = None,
        silence_seconds: float = 30.0,
        settings: Mapping[str, str] | None = None,
        may_sum: bool = True,
    ) -> None:
        """settings and may_sum: as the roster takes them."""
        self._run = run
        self.silence_seconds = silence_seconds
        self.roster = Roster(settings or {}, may_sum)
        self._incoming, self._outgoing = Codec(*TO_DISPATCHER), Codec(*FROM_DISPATCHER)
        self._socket = context.socket(zmq.ROUTER)
        self._socket.set(zmq.LINGER, 1000)
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.set(zmq.ROUTER_MANDATORY, 1)
        self._socket.set(zmq.HEARTBEAT_IVL, max(1, int(silence_seconds * 250)))
        self._socket.set(zmq.HEARTBEAT_TIMEOUT, max(1, int(silence_seconds * 750)))
        self._socket.set(zmq.MAXMSGSIZE, FRAME_BYTES)
        self.endpoint = bind(self._socket, endpoint, curve)
        self.generation = 0
        self._heard: set[int] = set()
        """numbers of the members that have sent anything in this generation"""
        self._lost: dict[str, float] = {}
        """members out of reach, and since when"""
        self._gave_up: set[str] = set()
        """members that ended because they waited for others in vain"""
        self._saved = False
        self.refused = refused or Refusals()
        """messages that could not be read or had no place in this run"""

    def start_generation(self, step: int, cache_rows: int, uses_hub: bool = False, takes_dense: bool = False) -> None:
        """The wanted workers become members; members that are no longer wanted are dismissed.

        What follows the step is said to the members in their Welcome.
        """
        gone = self.roster.advance()
        self.generation, self._heard = self.generation + 1, set()
        for member in gone:
            self.dismiss(member, step, save_dense=False)
        names = tuple(member.name for member in self.roster.members)
        for number, member in enumerate(self.roster.members):
            welcome = Welcome(
                **self._common(step),
                worker=number,
                names=names,
                cache_rows=cache_rows,
                uses_hub=uses_hub,
                takes_dense=takes_dense,
            )
            self._send(member, welcome)

    def order(
        self, step: int, plans: tuple[WorkerPlan, ...], samples: Samples, dense: DenseMoves = NO_MOVES
    ) -> tuple[int, ...]:
        """Sends every member its part of a training step; returns the bytes of each one's order."""
        sent = []
        for number, (member, plan) in enumerate(zip(self.roster.members, plans, strict=True)):
            assert plan.use is not None
            mine = plan.use.samples
            header = Order(
                **self._common(step),
                phase=TRAIN,
                samples=mine.size,
                batch=len(samples.labels_B),
                alone=plan.use.alone,
                replicated=plan.replicated,
                early=_early(plan),
                gives_dense=number == dense.giver,
                dense_pull=dense.pulled_by(number),
                owes_gradient=number in dense.gradients,
            )
            arrays = _moves(plan)._replace(
                used_slots=plan.use_slots,
                positions=plan.use.positions,
                dense=samples.dense_BN[mine].reshape(-1),
                labels=samples.labels_B[mine],
            )
            sent.append(self._send(member, header, arrays))
        return tuple(sent)

    def order_flush(self, step: int, plans: tuple[WorkerPlan, ...], dense: DenseMoves = NO_MOVES) -> tuple[int, ...]:
        """Asks every member to write its owned and split rows back, and what it has of the dense weights.

        Returns the bytes of each one's order.
        """
        sent = []
        for number, (member, plan) in enumerate(zip(self.roster.members, plans, strict=True)):
            sizes: dict[str, Any] = {"samples": 0, "batch": 0, "alone": 0, "gives_dense": number == dense.giver}
            sent.append(self._send(member, Order(**self._common(step), phase=FLUSH, **sizes), _moves(plan)))
        return tuple(sent)

    def keep_alive(self, step: int) -> None:
        """Sends everyone a sign of life, also those who wait for their first generation; drops those who are gone."""
        for candidate in self.roster.drop_unconfirmed():
            reason = f"worker {candidate.name!r} joined and did not confirm it; start it again"
            self.refuse(candidate.identity, Join.__name__, reason)
            structlog.get_logger().warning("worker dropped: it joined and then was silent", worker=candidate.name)
        for member in self.roster.everyone:
            if not self._send(member, Idle(**self._common(step))) and member not in self.roster.members:
                self.roster.drop(member)
                structlog.get_logger().warning("worker dropped: it went before it was needed", worker=member.name)

    def check(self) -> None:
        """Raises CrewFailed if a member has been out of reach for a while. It names the cause, not those who waited."""
        if any(monotonic() - since > LOST_SECONDS for since in self._lost.values()):
            if causes := [name for name in self._lost if name not in self._gave_up]:
                raise lost(causes, self.silence_seconds)
            names = [member.name for member in self.roster.members]
            raise waited_for([name for name in names if name not in self._gave_up], sorted(self._gave_up))

    def blamed(self, missing: list[int]) -> list[str]:
        """Names of the members to blame for missing reports: those that were never heard in this generation, if any.

        The others may be waiting for these.
        """
        return [self.roster.members[number].name for number in sorted(set(missing) - self._heard) or missing]

    def dismiss(self, member: Member, step: int, save_dense: bool) -> None:
        self._send(member, Goodbye(**self._common(step), save_dense=save_dense))
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
            if not self._socket.poll(timeout_ms):
                return None
            if reported := self._take():
                return reported
            timeout_ms = 0
        return None

    def refuse(self, sender: bytes, kind: str, reason: str) -> None:
        """Counts a message as refused and answers it."""
        self.refused.add(kind, sender, reason)
        self._transmit(sender, Refused(**self._common(0), reason=cut_reason(reason)))

    def close(self) -> None:
        self._socket.close()

    def _take(self) -> Reported | None:
        """Carries out or refuses the next message; returns it if it is a report of this generation."""
        frame, *frames = self._socket.recv_multipart(copy=False)
        sender = frame.bytes
        try:
            header, arrays = self._incoming.decode(frames)
        except WireError as error:
            self._reject(sender, Refusals.UNREADABLE, str(error))
            return None
        if header.run != self._run:
            reason = f"this dispatcher runs {self._run!r}, not {header.run!r}; use the same run name"
            self._reject(sender, type(header).__name__, reason)
        elif isinstance(header, Join):
            self._join(sender, header)
        elif isinstance(header, Ready):
            self.roster.confirm(sender)
        elif isinstance(header, Leave):
            self.roster.leave(sender)
        elif isinstance(header, Saved):
            self._saved = self._saved or self._is_member(sender, header, 0)
        elif self._is_member(sender, header, header.worker):
            return self._hear(header, arrays, sum(map(len, frames)))
        else:
            reason = _misplaced(header, len(self.roster.members), self.generation)
            self._reject(sender, type(header).__name__, reason)
        return None

    def _hear(self, message: Report | Post | GaveUp, arrays: Any, message_bytes: int) -> Reported | None:
        """Takes a message of a member: returns a report, passes a post on to every other member."""
        self._heard.add(message.worker)
        if isinstance(message, Report):
            return Reported(message, arrays.logits, message_bytes)
        sender, common = self.roster.members[message.worker], self._common(message.step)
        if isinstance(message, GaveUp):
            self._gave_up.add(sender.name)
            return None
        for member in self.roster.members:
            if member is not sender:
                self._send(member, Posted(**common, key=message.key, value=message.value))
        return None

    def _join(self, sender: bytes, join: Join) -> None:
        if (reason := self.roster.admit(sender, join)) is not None:
            self.refuse(sender, Join.__name__, reason)
        else:
            self._transmit(sender, Admitted(**self._common(0)))

    def _is_member(self, sender: bytes, message: Header, number: int) -> bool:
        """Whether a message of this generation comes from the member of that number."""
        is_current = message.generation == self.generation and 0 <= number < len(self.roster.members)
        return is_current and self.roster.members[number].identity == sender

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
        sent = self._transmit(member.identity, header, arrays)
        if not sent and member in self.roster.members:
            self._lost.setdefault(member.name, monotonic())
        return sent

    def _transmit(self, to: bytes, header: Header, arrays: Arrays = NO_ARRAYS) -> int:
        """Returns how many bytes were sent; 0: there is no connection to that socket."""
        try:
            return send(self._socket, self._outgoing, header, arrays, to=to)
        except zmq.ZMQError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            return 0

    def _common(self, step: int) -> dict[str, Any]:
        return {"run": self._run, "generation": self.generation, "step": step}


def _moves(plan: WorkerPlan) -> OrderArrays:
    """The rows that a plan moves, and no sample."""
    return OrderArrays(
        owned_rows=plan.push_owned.rows,
        owned_slots=plan.push_owned.slots,
        part_rows=plan.push_parts.rows,
        part_slots=plan.push_parts.slots,
        full_rows=plan.pull_full.rows,
        full_slots=plan.pull_full.slots,
        value_rows=plan.pull_values.rows,
        value_slots=plan.pull_values.slots,
    )


def _early(plan: WorkerPlan) -> Early:
    return Early(
        owned=plan.push_owned.early,
        parts=plan.push_parts.early,
        full=plan.pull_full.early,
        values=plan.pull_values.early,
        evicted_owned=plan.push_owned.evicted,
        evicted_parts=plan.push_parts.evicted,
    )


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
        f"lost worker {', '.join(names)}: it ended, or gave no sign of life for {seconds:g} s; expected it to stay "
        "until it is dismissed; see its log and whether its machine can be reached, or raise dispatch.silence_seconds"
    )


def waited_for(names: list[str], waiting: list[str]) -> CrewFailed:
    return CrewFailed(
        f"worker {', '.join(waiting)} waited in vain for worker {', '.join(names) or 'unknown'}; expected every worker "
        "of the generation to take part; see its log and whether it runs, or raise the time limits of [trainer]"
    )
