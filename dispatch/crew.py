"""The dispatcher's side of the workers: who has joined, who wants to leave, orders out and reports in.

Workers are known by name; in a generation each has a number, its rank in the dense process group. Nothing here assumes
how many there are or that they stay.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from dispatch.errors import CrewFailed
from dispatch.plan import Moves, WorkerPlan
from dispatch.protocol import (
    FLUSH,
    FROM_DISPATCHER,
    TO_DISPATCHER,
    TRAIN,
    Goodbye,
    Idle,
    Join,
    Leave,
    Order,
    Report,
    Welcome,
)
from infra.wire import Codec, Curve, Header, Refused, bind, receive_from, send
from ingest.samples import Samples

NO_SLOTS = np.empty(0, np.int32)
NO_FLOATS = np.empty(0, np.float32)


@dataclass(frozen=True)
class Member:
    """A worker that has joined."""

    name: str
    store: str
    link_gbit: float


class Crew:
    """The ROUTER socket all workers connect to."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, run: str, curve: Curve | None = None
    ) -> None:
        self._run = run
        self._incoming, self._outgoing = Codec(*TO_DISPATCHER), Codec(*FROM_DISPATCHER)
        self._socket = context.socket(zmq.ROUTER)
        self._socket.set(zmq.LINGER, 1000)
        self._socket.set(zmq.SNDHWM, 0)
        self.endpoint = bind(self._socket, endpoint, curve)
        self._joined: dict[str, Member] = {}
        self._leaving: set[str] = set()
        self.members: tuple[Member, ...] = ()
        """members of the current generation, by number"""
        self.generation = 0

    @property
    def wanted(self) -> tuple[Member, ...]:
        """Who should be in the next generation, by name, so that the order in which they came does not matter."""
        return tuple(self._joined[name] for name in sorted(self._joined) if name not in self._leaving)

    @property
    def everyone(self) -> tuple[Member, ...]:
        """Who has joined and not been dismissed, member or not."""
        return tuple(self._joined.values())

    @property
    def has_changed(self) -> bool:
        """Whether a worker has joined or asked to leave since this generation started."""
        return self.wanted != self.members

    def start_generation(self, step: int, cache_rows: int) -> None:
        """The wanted workers become members; those no longer wanted are told goodbye."""
        gone = [member for member in self.members if member not in self.wanted]
        self.members, self.generation = self.wanted, self.generation + 1
        for member in gone:
            self.dismiss(member, step, save_dense=False)
        for number, member in enumerate(self.members):
            self._send(
                member.name,
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
                **self._common(step), phase=TRAIN, samples=mine.size, batch=len(samples.labels_B), alone=plan.use.alone
            )
            bulk = (plan.use_slots, plan.use.positions, samples.dense_BN[mine].reshape(-1), samples.labels_B[mine])
            self._send(member.name, header, *_moves(plan), *bulk)

    def order_flush(self, step: int, plans: tuple[WorkerPlan, ...]) -> None:
        """Asks every member to write its owned and split rows back."""
        for member, plan in zip(self.members, plans, strict=True):
            header = Order(**self._common(step), phase=FLUSH, samples=0, batch=0, alone=0)
            self._send(member.name, header, *_moves(plan), NO_SLOTS, NO_SLOTS, NO_FLOATS, NO_FLOATS)

    def keep_alive(self, step: int) -> None:
        for member in self.members:
            self._send(member.name, Idle(**self._common(step)))

    def dismiss(self, member: Member, step: int, save_dense: bool) -> None:
        self._send(member.name, Goodbye(**self._common(step), save_dense=save_dense))
        self._joined.pop(member.name, None)
        self._leaving.discard(member.name)

    def listen(self, timeout_seconds: float) -> tuple[Report, NDArray[np.float32]] | None:
        """Waits for one message; returns it if it is a report of this generation."""
        if not self._socket.poll(int(timeout_seconds * 1000)):
            return None
        sender, header, bulk = receive_from(self._socket, self._incoming)
        if header.run != self._run:
            self._refuse(sender, header)
        elif isinstance(header, Join):
            self._joined[header.worker] = Member(header.worker, header.store, header.link_gbit)
            self._leaving.discard(header.worker)
        elif isinstance(header, Leave):
            self._leaving.add(header.worker)
        elif header.generation == self.generation:
            return header, bulk[0]
        return None

    def close(self) -> None:
        self._socket.close()

    def _refuse(self, sender: bytes, header: Header) -> None:
        reason = f"this dispatcher runs {self._run!r}, not {header.run!r}; start the worker with the same run name"
        send(self._socket, self._outgoing, Refused(**self._common(header.step), reason=reason), to=sender)

    def _send(self, name: str, header: Header, *bulk: NDArray[Any]) -> None:
        send(self._socket, self._outgoing, header, *bulk, to=name.encode())

    def _common(self, step: int) -> dict[str, Any]:
        return {"run": self._run, "generation": self.generation, "step": step}


def _moves(plan: WorkerPlan) -> tuple[NDArray[Any], ...]:
    lists: tuple[Moves, ...] = (plan.push_owned, plan.push_parts, plan.pull_full, plan.pull_values)
    return tuple(array for moves in lists for array in (moves.rows, moves.slots))


def silent(names: list[str], seconds: float) -> CrewFailed:
    return CrewFailed(
        f"no report from worker {', '.join(names)} for {seconds:g} s; expected one per step: see their logs, and raise "
        "dispatch.report_seconds if steps really take that long"
    )
