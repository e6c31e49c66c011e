"""The worker process: joins the dispatcher, executes its orders, leaves when it is dismissed.

Meet every shard → Join → Admitted → Ready → (Welcome → Order → Report → Order → …)* → Goodbye, and Saved if the Goodbye
asked for the dense weights. A second Welcome is the next generation: an empty cache and, where workers sum dense
gradients in a ring, a new process group with rank 0's dense weights. A shard or a dispatcher with other settings
refuses the worker before it can do harm.

After a Welcome to a ring, and before anything else of that generation, the worker exchanges Posts with the other
members through the dispatcher, to form the process group. A request to stop makes the worker ask to leave and go on
with its orders until the dispatcher, having flushed everyone, says goodbye: nothing it trained is lost.

A crash after any line costs the steps since the last checkpoint: a worker owns nothing that survives.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import structlog
import torch
import zmq

from dispatch.protocol import (
    FROM_DISPATCHER,
    TO_DISPATCHER,
    Admitted,
    GaveUp,
    Goodbye,
    Join,
    Leave,
    Order,
    Post,
    Posted,
    Ready,
    Saved,
    Welcome,
)
from dispatch.tally import PhaseSeconds
from infra.faults import reach
from infra.link import Link, SocketOptions
from infra.process import Stop
from infra.telemetry import Meter
from infra.wire import NO_ARRAYS, Arrays, Codec, Curve, Header, Refused, receive, send
from ps.client import ShardClient
from ps.errors import Unreachable
from trainer.arithmetic import arithmetic_of
from trainer.config import DENSE_FILE
from trainer.dense import save_dense
from trainer.errors import DispatcherLost, PeersLost, Rejected
from trainer.job import WorkerJob
from trainer.reduce import Rendezvous, address_facing, nccl_device
from trainer.worker import Worker

POLL_MILLISECONDS = 100
"""how late a request to stop may be seen"""
LINGER_MILLISECONDS = 1000
"""how long a last message may keep an ending worker"""
UNWELCOMED_SECONDS = 1.0
"""how long a worker that asked to leave before it was welcomed waits for a Welcome on its way"""


def run_worker(job: WorkerJob, stop: Stop, on_ready: Callable[[], None], meter: Meter | None = None) -> None:
    """Works for one dispatcher from Join to Goodbye."""
    log = structlog.get_logger().bind(worker=job.name)
    if job.trainer.threads:
        torch.set_num_threads(job.trainer.threads)
    with ExitStack() as resources:  # ends in reverse: process group, sockets, link, context
        context = resources.enter_context(zmq.Context())
        resources.enter_context(closing(job.link))
        client = resources.enter_context(closing(connect_shards(context, job)))
        dispatcher = Dispatcher(context, job.dispatcher_endpoint, job.name, job.run, job.link, job.curve)
        resources.enter_context(closing(dispatcher))
        worker = resources.enter_context(closing(Worker(job, client, rendezvous_of(job, dispatcher))))
        resources.enter_context(giving_up(dispatcher))
        reach("start")
        client.meet(job.name, job.agreement.shards, goes_on=lambda: not stop.requested)
        offered = nccl_device(worker.device), arithmetic_of(worker.device)
        dispatcher.join(job.agreement.workers, job.link.gbit_per_second, *offered)
        on_ready()
        shards = len(job.shard_endpoints)
        log.info("joined", dispatcher=job.dispatcher_endpoint, device=str(worker.device), shards=shards)
        for message, arrays in dispatcher.messages(stop, job.trainer.silence_seconds):
            match message:
                case Welcome():
                    worker.begin(message)
                    log.info("began", generation=message.generation, number=message.worker, members=message.names)
                case Order():
                    reach("order_received", message.step)
                    report, logits = worker.execute(message, arrays, dispatcher.upcoming)
                    dispatcher.tell(report, logits)
                    reach("after_report", message.step)
                    observe(meter, report.seconds)
                case Goodbye(save_dense=True):
                    at: dict[str, Any] = {"run": job.run, "generation": message.generation, "step": message.step}
                    save_dense(job.folder / DENSE_FILE, worker.newest_dense(), {**at, "model": job.model.name})
                    dispatcher.tell(Saved(**at))
        log.info("left", reason=stop.reason)


def connect_shards(context: "zmq.Context[zmq.Socket[bytes]]", job: WorkerJob) -> ShardClient:
    timeout = job.trainer.pull_timeout_seconds
    return ShardClient(context, job.shard_endpoints, job.rows, job.run, job.link, job.curve, timeout)


def rendezvous_of(job: WorkerJob, board: "Dispatcher") -> Rendezvous:
    host = address_facing(host_of(job.dispatcher_endpoint))
    timeout = timedelta(seconds=job.trainer.reduce_timeout_seconds)
    return Rendezvous(board, host, timeout, may_sum=job.curve is None or job.trainer.unencrypted_reduce)


@contextmanager
def giving_up(dispatcher: "Dispatcher") -> Iterator[None]:
    """Tells the dispatcher of an end that others caused."""
    try:
        yield
    except (PeersLost, Unreachable):
        dispatcher.give_up()
        raise


class Dispatcher:
    """A worker's connection to the dispatcher, which is also the board on which workers tell each other addresses."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoint: str,
        name: str,
        run: str,
        link: Link | None = None,
        curve: Curve | None = None,
    ) -> None:
        self._endpoint, self._name, self._run = endpoint, name, run
        self._generation, self._step, self._number = 0, 0, 0
        self._kept: deque[tuple[Header, Any]] = deque()
        """messages that arrived while the worker waited for posts"""
        self._sends, self._receives = Codec(*TO_DISPATCHER), Codec(*FROM_DISPATCHER)
        options: SocketOptions = {zmq.ROUTING_ID: f"{name}/{uuid4().hex}".encode(), zmq.LINGER: LINGER_MILLISECONDS}
        self._socket = (link or Link()).connect(context, endpoint, curve, options)

    def join(
        self, settings: Mapping[str, str], link_gbit: float | None, device: str = "", arithmetic: str = ""
    ) -> None:
        """Offers this worker; Welcome answers when a generation with it starts. device: its own for NCCL, if any."""
        offered: dict[str, Any] = {"settings": dict(settings), "link_gbit": link_gbit or 0.0, "device": device}
        self.tell(Join(**self._common(), worker=self._name, arithmetic=arithmetic, **offered))

    def give_up(self) -> None:
        """Says that this worker waited for others in vain, if it is a member; those it waited for are to blame."""
        if self._generation:
            self.tell(GaveUp(**self._common(), worker=self._number))

    def tell(self, header: Header, arrays: Arrays = NO_ARRAYS) -> None:
        """Sends one message."""
        send(self._socket, self._sends, header, arrays)

    def messages(self, stop: Stop, silence_seconds: float) -> Iterator[tuple[Header, Any]]:
        """What the dispatcher sends, up to and including Goodbye; asks to leave once when a stop is requested.

        A worker that was never welcomed holds no rows, and the dispatcher may be gone, so it leaves by itself. It first
        waits for a Welcome that may be on its way, because the others of that generation would wait for it.
        """
        heard, asked = time.monotonic(), False
        while True:
            if stop.requested and not asked:
                self.tell(Leave(**self._common(), worker=self._name))
                heard, asked = time.monotonic(), True
            if not self._kept and not self._socket.poll(POLL_MILLISECONDS):
                silent = time.monotonic() - heard
                if asked and self._generation == 0 and silent > UNWELCOMED_SECONDS:
                    return
                self._check_silence(silent, silence_seconds)
                continue
            message, arrays = self._kept.popleft() if self._kept else receive(self._socket, self._receives)
            if isinstance(message, Admitted):
                self.tell(Ready(**self._common()))
            elif self._accepts(message):
                yield message, arrays
            if isinstance(message, Goodbye):
                return
            heard = time.monotonic()

    def upcoming(self) -> tuple[Order, Any] | None:
        """The next order if it has arrived; ``messages`` brings it, too."""
        while self._socket.poll(0):
            self._kept.append(receive(self._socket, self._receives))
        for message, arrays in self._kept:
            if isinstance(message, Order):
                return (message, arrays) if message.generation == self._generation else None
        return None

    def post(self, key: str, value: bytes) -> None:
        """Posts something to the other members of the generation."""
        self.tell(Post(**self._common(), worker=self._number, key=key, value=value))

    def next_post(self, timeout_seconds: float) -> tuple[str, bytes] | None:
        """Waits for a post of this generation; keeps every other message for later."""
        deadline = time.monotonic() + timeout_seconds
        while self._socket.poll(max(0, math.ceil((deadline - time.monotonic()) * 1000))):
            message, arrays = receive(self._socket, self._receives)
            if not isinstance(message, Posted):
                self._kept.append((message, arrays))
            elif (message.run, message.generation) == (self._run, self._generation):
                return message.key, message.value
        return None

    def close(self) -> None:
        self._socket.close()

    def _accepts(self, message: Header) -> bool:
        """Whether a message is for this worker in its generation; notes the message's generation and step if so."""
        if isinstance(message, Refused):
            raise Rejected(f"the dispatcher at {self._endpoint} refused worker {self._name!r}: {message.reason}")
        current = message.run == self._run and message.generation >= self._generation
        if current and (isinstance(message, Welcome) or message.generation == self._generation):
            self._generation, self._step = message.generation, message.step
            self._number = message.worker if isinstance(message, Welcome) else self._number
            return not isinstance(message, Posted)
        return isinstance(message, Goodbye) and current

    def _check_silence(self, silent: float, limit: float) -> None:
        if silent > limit:
            raise DispatcherLost(
                f"no word from the dispatcher at {self._endpoint} in {silent:.0f} s; expected one within {limit:g} s; "
                "see whether it runs, or raise trainer.silence_seconds"
            )

    def _common(self) -> dict[str, Any]:
        return {"run": self._run, "generation": self._generation, "step": self._step}


def host_of(endpoint: str) -> str:
    """The host of tcp://HOST:PORT; other transports stay on this machine."""
    parts = urlsplit(endpoint)
    return parts.hostname or "127.0.0.1" if parts.scheme == "tcp" else "127.0.0.1"


def observe(meter: Meter | None, seconds: PhaseSeconds) -> None:
    """Adds the phases that a round had to the process's metrics."""
    if meter is not None:
        for phase, spent in seconds.by_phase().items():
            if spent:
                meter.observe("worker_phase", spent, phase=phase)
