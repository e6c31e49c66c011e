"""Workers and shards of a run without their work: they speak the protocol, and report when real ones would be done.

One process with two sockets for each of them. Orders and announcements are decoded as real ones are. A worker takes a
fixed time for a step, and time for each of its samples; a shard serves one row after the other, whoever asks for it.
Rows and weights do not exist, so nothing is learnt.
"""

import heapq
import select
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np
import zmq

from dispatch.peers.crew import WATCH
from dispatch.protocol import (
    FROM_DISPATCHER,
    TO_DISPATCHER,
    Abort,
    Admitted,
    Goodbye,
    Join,
    Order,
    Ready,
    Report,
    ReportArrays,
    Saved,
    Watch,
    Welcome,
)
from dispatch.tally import NO_SECONDS
from infra.base.errors import FreshetError
from infra.base.wire import NO_ARRAYS, Arrays, Codec, Header, Refused, bind, send
from ps.protocol import (
    FROM_SHARD,
    TO_SHARD,
    Announce,
    CheckpointSaved,
    Count,
    Digest,
    Digested,
    Ledger,
    LedgerArrays,
    Open,
    Opened,
    OpenedArrays,
    Serve,
    Terms,
)

OF_NONE = -1
OFFER_SECONDS = 1.0
"""Time between two offers of a shard, and between two messages of a worker's second connection."""
WAIT_SECONDS = 0.2
NO_MOVES = LedgerArrays(*(np.empty(0, np.int64) for _ in LedgerArrays._fields))


@dataclass(frozen=True)
class ServiceTimes:
    """How long simulated processes take."""

    step_seconds: float
    """Of a worker, for each step."""
    sample_seconds: float
    """Of a worker, for each sample."""
    row_seconds: float
    """Of a shard, for each row pulled or pushed."""


@dataclass(frozen=True)
class CrowdJob:
    """Who is there, and what they must agree on with the dispatcher."""

    run: str
    endpoint: str
    """Of the dispatcher."""
    links_gbit: tuple[float, ...]
    """Speed of each worker's link."""
    shards: int
    worker_settings: Mapping[str, str]
    shard_settings: Mapping[str, str]
    times: ServiceTimes
    row_bytes: int


@dataclass
class SentByDispatcher:
    """What the dispatcher sent."""

    step: int = 0
    """The newest step of which an order arrived."""
    orders: Counter[int] = field(default_factory=Counter)
    """Number of orders by step, and then bytes to workers and to shards."""
    order_bytes: Counter[int] = field(default_factory=Counter)
    announce_bytes: Counter[int] = field(default_factory=Counter)


@dataclass
class SimulatedWorker:
    """One worker; its number in the generation is told by the Welcome."""

    name: str
    socket: "zmq.Socket[bytes]"
    watch: "zmq.Socket[bytes]"
    offer: Join
    number: int = -1
    free_at: float = 0.0
    """When it has done all orders so far."""


@dataclass
class SimulatedShard:
    """One shard: the rows that it would hold, and when it would have served all requests so far."""

    number: int
    socket: "zmq.Socket[bytes]"
    offers: "zmq.Socket[bytes]"
    offer: Serve
    rows: int = 0
    applied: tuple[int, int] = (0, 0)
    free_at: float = 0.0


@dataclass(order=True)
class DueReport:
    """A report that is sent when its worker is done."""

    at: float
    step: int
    worker: SimulatedWorker = field(compare=False)
    report: Report = field(compare=False)
    arrays: ReportArrays = field(compare=False)


class Crowd:
    """All of them."""

    def __init__(self, job: CrowdJob, resources: ExitStack) -> None:
        self._job = job
        self._context = resources.enter_context(zmq.Context())
        self._context.set(zmq.MAX_SOCKETS, 8192)
        self._poller = resources.enter_context(select.epoll())
        self._resources = resources
        self._to_dispatcher = Codec(*TO_DISPATCHER)
        self._from_dispatcher = Codec(*FROM_DISPATCHER)
        self._to_shard = Codec(*TO_SHARD)
        self._from_shard = Codec(*FROM_SHARD)
        self._due: list[DueReport] = []
        self._at: dict[int, tuple[zmq.Socket[bytes], Any]] = {}
        """Socket and owner by descriptor."""
        self.sent = SentByDispatcher()
        self.is_over = False
        self.shards = [self._shard(number) for number in range(job.shards)]
        self.workers = [self._worker(number, link) for number, link in enumerate(job.links_gbit)]

    def run(self) -> Iterator[None]:
        """Works until the dispatcher dismisses everyone; yields now and then, so that others may look around."""
        offered = 0.0
        while not self.is_over:
            if monotonic() - offered > OFFER_SECONDS:
                offered = monotonic()
                self._offer()
                for socket, owner in self._at.values():  # whatever an edge of a descriptor did not tell
                    self._drain(socket, owner)
            yield
            for descriptor, _ in self._poller.poll(self._patience()):
                self._drain(*self._at[descriptor])
            self._report_due()

    # ── who is there ──────────────────────────────────────────────────────────────────────────────────────────────────
    def _worker(self, number: int, link_gbit: float) -> SimulatedWorker:
        name = f"worker-{number}"
        socket, watch = (self._connected(f"{name}-of-crowd".encode() + suffix) for suffix in (b"", WATCH))
        join = Join(
            run=self._job.run,
            generation=OF_NONE,
            step=0,
            worker=name,
            settings=dict(self._job.worker_settings),
            link_gbit=link_gbit,
        )
        worker = SimulatedWorker(name, socket, watch, join)
        self._register(socket, worker)
        self._send(worker, join)
        return worker

    def _shard(self, number: int) -> SimulatedShard:
        socket = self._resources.enter_context(self._context.socket(zmq.ROUTER))
        socket.set(zmq.LINGER, 0)
        endpoint = bind(socket, "tcp://127.0.0.1:*")
        terms = Terms(number, self._job.shards, dict(self._job.shard_settings))
        offer = Serve(run=self._job.run, generation=OF_NONE, step=0, endpoint=endpoint, terms=terms)
        shard = SimulatedShard(number, socket, self._connected(f"shard-{number}-of-crowd".encode()), offer)
        self._register(socket, shard)
        return shard

    def _connected(self, identity: bytes) -> "zmq.Socket[bytes]":
        socket = self._resources.enter_context(self._context.socket(zmq.DEALER))
        socket.set(zmq.ROUTING_ID, identity)
        socket.set(zmq.LINGER, 0)
        socket.connect(self._job.endpoint)
        return socket

    def _register(self, socket: "zmq.Socket[bytes]", owner: Any) -> None:
        descriptor = int(socket.get(zmq.FD))
        self._at[descriptor] = (socket, owner)
        self._poller.register(descriptor, select.EPOLLIN)

    def _offer(self) -> None:
        for shard in self.shards:
            send(shard.offers, self._to_dispatcher, shard.offer)
        for worker in self.workers:
            message = Watch(run=self._job.run, generation=OF_NONE, step=0, worker=worker.name)
            send(worker.watch, self._to_dispatcher, message)

    # ── what they do ──────────────────────────────────────────────────────────────────────────────────────────────────
    def _patience(self) -> float:
        """Seconds until the next report is due."""
        return max(0.0, min(WAIT_SECONDS, self._due[0].at - monotonic())) if self._due else WAIT_SECONDS

    def _drain(self, socket: "zmq.Socket[bytes]", owner: Any) -> None:
        while int(socket.get(zmq.EVENTS)) & zmq.POLLIN:
            if isinstance(owner, SimulatedWorker):
                self._handle(owner)
            else:
                self._serve(owner)

    def _handle(self, worker: SimulatedWorker) -> None:
        frames = worker.socket.recv_multipart(copy=False)
        message, arrays = self._from_dispatcher.decode(frames)
        match message:
            case Admitted() | Abort():
                self._send(worker, Ready(run=self._job.run, generation=message.generation, step=0))
            case Welcome():
                worker.number = message.worker
            case Order():
                self.sent.step = max(self.sent.step, message.step)
                self.sent.orders[message.step] += 1
                self.sent.order_bytes[message.step] += sum(map(len, frames))
                self._work(worker, message, arrays)
            case Goodbye():
                if message.save_dense:
                    at = {"generation": message.generation, "step": message.step}
                    self._send(worker, Saved(run=self._job.run, **at))
                self.is_over = self.is_over or not message.save_dense or len(self.workers) == 1
            case Refused():
                raise FreshetError(f"{worker.name} was refused: {message.reason}")

    def _work(self, worker: SimulatedWorker, order: Order, arrays: Any) -> None:
        """Reckons when the worker will have done an order, and has it reported then."""
        times = self._job.times
        now = monotonic()
        pulled = arrays.full_rows.size + arrays.value_rows.size
        pushed = arrays.owned_rows.size + arrays.part_rows.size
        moved = np.concatenate((arrays.full_rows, arrays.value_rows, arrays.owned_rows, arrays.part_rows))
        rows_S = np.bincount(moved % self._job.shards, minlength=self._job.shards)
        served = now
        for shard, rows in zip(self.shards, rows_S.tolist(), strict=True):
            shard.free_at = max(now, shard.free_at) + rows * times.row_seconds
            served = max(served, shard.free_at)
        begins = max(served, worker.free_at)
        worker.free_at = begins + times.step_seconds + order.samples * times.sample_seconds
        report = Report(
            run=self._job.run,
            generation=order.generation,
            step=order.step,
            phase=order.phase,
            worker=worker.number,
            seconds=NO_SECONDS,
            pulled_bytes=self._job.row_bytes * pulled,
            pushed_bytes=self._job.row_bytes * pushed,
        )
        logits = ReportArrays(np.zeros(order.samples, np.float32))
        heapq.heappush(self._due, DueReport(worker.free_at, order.step, worker, report, logits))

    def _report_due(self) -> None:
        while self._due and self._due[0].at <= monotonic():
            due = heapq.heappop(self._due)
            self._send(due.worker, due.report, due.arrays)
            self._drain(due.worker.socket, due.worker)  # sending may have taken its edge

    def _send(self, worker: SimulatedWorker, header: Header, arrays: Arrays = NO_ARRAYS) -> None:
        send(worker.socket, self._to_dispatcher, header, arrays)

    def _serve(self, shard: SimulatedShard) -> None:
        sender, *frames = shard.socket.recv_multipart(copy=False)
        message, arrays = self._to_shard.decode(frames)
        at: dict[str, Any] = {"run": message.run, "generation": message.generation, "step": message.step}
        match message:
            case Open():
                self._answer(shard, sender.bytes, Opened(**at, rows=shard.rows), OpenedArrays())
            case Announce():
                self.sent.announce_bytes[message.step] += sum(map(len, frames))
                shard.rows += arrays.new_numbers.size
                shard.applied = (message.step, message.phase)
                if message.checkpoint:
                    saved = CheckpointSaved(**at, checkpoint=message.checkpoint, parts=[], rows=shard.rows)
                    self._answer(shard, sender.bytes, saved)
            case Count():
                step, phase = shard.applied
                ledger = Ledger(**at, rows=shard.rows, applied_step=step, applied_phase=phase)
                self._answer(shard, sender.bytes, ledger, NO_MOVES)
            case Digest():
                self._answer(shard, sender.bytes, Digested(**at, rows=shard.rows, digest="0" * 32))

    def _answer(self, shard: SimulatedShard, to: bytes, header: Header, arrays: Arrays = NO_ARRAYS) -> None:
        send(shard.socket, self._from_shard, header, arrays, to=to)
