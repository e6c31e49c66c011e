"""The dispatcher's side of the workers: who has joined, who wants to leave, orders out and reports in.

Workers are known by name; in a generation each has a number, its rank in the dense process group. Their number may
change from one generation to the next.

A message that cannot be read or does not belong here is refused, counted and otherwise without effect, unless a member
of the generation sent it: then the run stops, since a member that sends such a message cannot be trusted to have
trained.
"""

from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from dispatch.errors import BadReport, CrewFailed
from dispatch.protocol import (
    FROM_DISPATCHER,
    MOST_SAMPLES,
    TO_DISPATCHER,
    Goodbye,
    Idle,
    Join,
    Leave,
    Order,
    OrderArrays,
    Report,
    Saved,
    Welcome,
)
from dispatch.rows.plan import WorkerPlan
from infra.errors import WireError
from infra.telemetry import Refusals
from infra.wire import HEADER_BYTES, NO_ARRAYS, Arrays, Codec, Curve, Header, Refused, bind, cut_reason, send
from ingest.samples import Samples
from ps.protocol import FLUSH, MOST_WORKERS, TRAIN

FRAME_BYTES = 4 * MOST_SAMPLES + HEADER_BYTES
"""of the largest message: a logit of each sample; the connection of a peer that sends more is cut"""
MESSAGES_A_TURN = 1024
"""taken at once; a sender of more must not keep the dispatcher from everything else"""
WAIT_SECONDS = 1.0
"""how long to listen before everyone is kept alive again"""


Reported = tuple[Report, NDArray[np.float32]]
"""a report and its logits"""


@dataclass(frozen=True)
class Member:
    """A worker that has joined."""

    name: str
    identity: bytes
    """routing id of its socket: a process of its own, whatever its name"""
    store: str
    link_gbit: float


class Crew:
    """The ROUTER socket all workers connect to."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        run: str,
        curve: Curve | None = None,
        refused: Refusals | None = None,
    ) -> None:
        self._run = run
        self._incoming, self._outgoing = Codec(*TO_DISPATCHER), Codec(*FROM_DISPATCHER)
        self._socket = context.socket(zmq.ROUTER)
        self._socket.set(zmq.LINGER, 1000)
        self._socket.set(zmq.SNDHWM, 0)
        self._socket.set(zmq.MAXMSGSIZE, FRAME_BYTES)
        self.endpoint = bind(self._socket, endpoint, curve)
        self._joined: dict[str, Member] = {}
        self._leaving: set[str] = set()
        self.members: tuple[Member, ...] = ()
        """members of the current generation, by number"""
        self.generation = 0
        self._saved = False
        self.refused = refused or Refusals()
        """messages that could not be read or had no place in this run"""

    @property
    def wanted(self) -> tuple[Member, ...]:
        """Who should be in the next generation: those who stay, in their order, then newcomers by name.

        The first of them has the dense weights, and gives them to the others. So, should every member leave at once,
        they stay for one more generation to hand over to the newcomers, if there are any.
        """
        staying = [m for m in self.members if self._joined.get(m.name) == m and m.name not in self._leaving]
        names = {member.name for member in self.members} | self._leaving
        newcomers = [self._joined[name] for name in sorted(self._joined, key=by_number) if name not in names]
        return (*(staying or (self.members if newcomers else ())), *newcomers)

    @property
    def everyone(self) -> tuple[Member, ...]:
        """Who has joined and not been dismissed, member or not."""
        return tuple(self._joined.values())

    @property
    def has_changed(self) -> bool:
        """Whether a worker has joined or asked to leave since this generation started."""
        return self.wanted != self.members

    def start_generation(self, step: int, cache_rows: int) -> None:
        """The wanted workers become members; members that are no longer wanted are dismissed."""
        gone = [member for member in self.members if member not in self.wanted]
        self.members, self.generation = self.wanted, self.generation + 1
        for member in gone:
            self.dismiss(member, step, save_dense=False)
        for number, member in enumerate(self.members):
            self._send(
                member,
                Welcome(
                    **self._common(step),
                    worker=number,
                    workers=len(self.members),
                    store=self.members[0].store,
                    cache_rows=cache_rows,
                ),
            )

    def order(self, step: int, plans: tuple[WorkerPlan, ...], samples: Samples) -> None:
        """Sends every member its part of a training step."""
        for member, plan in zip(self.members, plans, strict=True):
            assert plan.use is not None
            mine = plan.use.samples
            header = Order(
                **self._common(step),
                phase=TRAIN,
                samples=mine.size,
                batch=len(samples.labels_B),
                alone=plan.use.alone,
                replicated=plan.replicated,
            )
            arrays = _moves(plan)._replace(
                used_slots=plan.use_slots,
                positions=plan.use.positions,
                dense=samples.dense_BN[mine].reshape(-1),
                labels=samples.labels_B[mine],
            )
            self._send(member, header, arrays)

    def order_flush(self, step: int, plans: tuple[WorkerPlan, ...]) -> None:
        """Asks every member to write its owned and split rows back."""
        for member, plan in zip(self.members, plans, strict=True):
            header = Order(**self._common(step), phase=FLUSH, samples=0, batch=0, alone=0)
            self._send(member, header, _moves(plan))

    def keep_alive(self, step: int) -> None:
        """Sends everyone a sign of life, also those who wait for their first generation."""
        for member in self.everyone:
            self._send(member, Idle(**self._common(step)))

    def dismiss(self, member: Member, step: int, save_dense: bool) -> None:
        self._send(member, Goodbye(**self._common(step), save_dense=save_dense))
        self._joined.pop(member.name, None)
        self._leaving.discard(member.name)

    def dismiss_all(self, step: int, patience_seconds: float) -> bool:
        """Dismisses everyone; returns whether the dense weights, which are the same on all members, were saved.

        The first member goes first and saves them. The others go when it has confirmed that, or has not for so many
        seconds: a worker that ends closes its connections to its peers, which must not happen while one still works.
        """
        for first in self.members[:1]:
            self.dismiss(first, step, save_dense=True)
        deadline = monotonic() + patience_seconds
        while self.members and not self._saved and (left := deadline - monotonic()) > 0:
            self.listen(min(left, WAIT_SECONDS))
            self.keep_alive(step)
        for member in self.everyone:
            self.dismiss(member, step, save_dense=False)
        return self._saved or not self.members

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
        send(self._socket, self._outgoing, Refused(**self._common(0), reason=cut_reason(reason)), to=sender)

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
        elif isinstance(header, Leave):
            self._leave(sender)
        elif isinstance(header, Saved):
            self._saved = self._saved or self._is_member(sender, header, 0)
        elif self._is_member(sender, header, header.worker):
            return header, arrays.logits
        else:
            self._reject(sender, Report.__name__, _misplaced(header, len(self.members), self.generation))
        return None

    def _join(self, sender: bytes, join: Join) -> None:
        known = self._joined.get(join.worker)
        if known is not None and known.identity != sender:
            reason = f"a worker named {join.worker!r} has joined already; give this one another --name"
            self.refuse(sender, Join.__name__, reason)
        elif known is None and len(self._joined) >= MOST_WORKERS:
            reason = f"{MOST_WORKERS} workers have joined, the most there can be; start it when another has left"
            self.refuse(sender, Join.__name__, reason)
        else:
            self._joined[join.worker] = Member(join.worker, sender, join.store, join.link_gbit)

    def _leave(self, sender: bytes) -> None:
        """A member leaves at the next generation, one who still waits for its first at once."""
        for member in self.everyone:
            if member.identity == sender and member in self.members:
                self._leaving.add(member.name)
            elif member.identity == sender:
                del self._joined[member.name]

    def _is_member(self, sender: bytes, message: Header, number: int) -> bool:
        """Whether a message of this generation comes from the member of that number."""
        is_current = message.generation == self.generation and 0 <= number < len(self.members)
        return is_current and self.members[number].identity == sender

    def _reject(self, sender: bytes, kind: str, reason: str) -> None:
        """Refuses a message; raises BadReport if a member of the generation sent it."""
        self.refuse(sender, kind, reason)
        for member in self.members:
            if member.identity == sender:
                raise BadReport(
                    f"worker {member.name} sent a message that cannot be used: {reason}; "
                    "the run stops, because what this worker trained cannot be trusted; see its log"
                )

    def _send(self, member: Member, header: Header, arrays: Arrays = NO_ARRAYS) -> None:
        send(self._socket, self._outgoing, header, arrays, to=member.identity)

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


def _misplaced(report: Report, members: int, generation: int) -> str:
    return (
        f"a report of step {report.step} names worker number {report.worker} of generation {report.generation}; "
        f"expected the sender's own number, below {members}, and generation {generation}; its sender must join again"
    )


def silent(names: list[str], seconds: float) -> CrewFailed:
    return CrewFailed(
        f"no report from worker {', '.join(names)} for {seconds:g} s; expected one per step; see their logs, and raise "
        "dispatch.report_seconds if steps really take that long"
    )


def by_number(name: str) -> tuple[str, int, str]:
    """Order of names: worker-2 comes before worker-10, as their links and bounds are listed."""
    stem = name.rstrip("0123456789")
    return stem, len(name[len(stem) :].lstrip("0")), name
