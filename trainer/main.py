"""The worker process: joins the dispatcher, executes its orders, leaves when told to.

Join → (Welcome → Order → Report → Order → …)* → Goodbye. A second Welcome is the next generation: an empty cache, a new
process group, dense weights from rank 0. A request to stop makes the worker ask to leave and go on with its orders
until the dispatcher, having flushed everyone, says goodbye: nothing it trained is lost.

A crash after any line costs the steps since the last checkpoint: a worker owns nothing that survives.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import structlog
import torch
import zmq

from dispatch.protocol import FROM_DISPATCHER, TO_DISPATCHER, Goodbye, Join, Leave, Order, Welcome
from dispatch.tally import PhaseSeconds
from infra.link import Link
from infra.process import Stop
from infra.telemetry import Meter
from infra.wire import Bulk, Codec, Curve, Header, Refused, connect, receive, send
from ps.client import ShardClient
from ps.config import RowConfig
from trainer.config import ModelConfig, TrainerConfig
from trainer.dense import save_dense
from trainer.errors import DispatcherLost, Rejected
from trainer.reduce import Store, address_facing
from trainer.worker import Worker

POLL_MILLISECONDS = 100
"""how late a request to stop may be seen"""
LINGER_MILLISECONDS = 1000
"""how long a last message may keep an ending worker"""
UNWELCOMED_SECONDS = 1.0
"""how long a worker that asked to leave before it was welcomed waits for a Welcome on its way"""
DENSE_FILE = "dense.safetensors"


def run_worker(
    name: str,
    dispatcher_endpoint: str,
    shard_endpoints: Sequence[str],
    rows: RowConfig,
    model: ModelConfig,
    trainer: TrainerConfig,
    fields: int,
    dense: int,
    run: str,
    seed: int,
    folder: Path,
    stop: Stop,
    on_ready: Callable[[], None],
    link: Link | None = None,
    curve: Curve | None = None,
    meter: Meter | None = None,
) -> None:
    """Works for one dispatcher from Join to Goodbye."""
    log = structlog.get_logger().bind(worker=name)
    if trainer.threads:
        torch.set_num_threads(trainer.threads)
    with ExitStack() as resources:
        context = resources.enter_context(zmq.Context())
        client = ShardClient(
            context, shard_endpoints, rows.shape(), rows.float_dtype, run, link, curve, trainer.pull_timeout_seconds
        )
        resources.callback(client.close)
        store = Store(address_facing(host_of(dispatcher_endpoint)), trainer.reduce_timeout_seconds)
        worker = Worker(rows, model, trainer, fields, dense, seed, client, store, link)
        resources.enter_context(closing(worker))
        dispatcher = resources.enter_context(closing(Dispatcher(context, dispatcher_endpoint, name, run, curve)))
        dispatcher.join(store.address, link.gbit_per_second if link is not None else None)
        on_ready()
        log.info("joined", dispatcher=dispatcher_endpoint, device=str(worker.device), shards=len(shard_endpoints))
        for message, bulk in dispatcher.messages(stop, trainer.silence_seconds):
            match message:
                case Welcome():
                    worker.begin(message)
                    log.info("began", generation=message.generation, number=message.worker, workers=message.workers)
                case Order():
                    report, logits = worker.execute(message, bulk)
                    dispatcher.tell(report, logits)
                    observe(meter, report.seconds)
                case Goodbye(save_dense=True):
                    about = {"run": run, "generation": message.generation, "step": message.step, "model": model.name}
                    save_dense(folder / DENSE_FILE, worker.dense, about)
        log.info("left", reason=stop.reason)


class Dispatcher:
    """A worker's connection to the dispatcher."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, name: str, run: str, curve: Curve | None
    ) -> None:
        self._endpoint, self._name, self._run = endpoint, name, run
        self._generation, self._step = 0, 0
        self._sends, self._receives = Codec(*TO_DISPATCHER), Codec(*FROM_DISPATCHER)
        self._socket = context.socket(zmq.DEALER)
        self._socket.set(zmq.ROUTING_ID, f"{name}/{uuid4().hex}".encode())
        self._socket.set(zmq.LINGER, LINGER_MILLISECONDS)
        connect(self._socket, endpoint, curve)

    def join(self, store: str, link_gbit: float | None) -> None:
        """Offers this worker; Welcome answers when a generation with it starts."""
        self.tell(Join(**self._common(), worker=self._name, store=store, link_gbit=link_gbit or 0.0))

    def tell(self, header: Header, *bulk: Any) -> None:
        """Sends one message."""
        send(self._socket, self._sends, header, *bulk)

    def messages(self, stop: Stop, silence_seconds: float) -> Iterator[tuple[Header, Bulk]]:
        """What the dispatcher sends, up to and including Goodbye; asks to leave once when a stop is requested.

        A worker that no generation has welcomed holds nothing, and the dispatcher may be gone: it goes by itself, but
        not before a Welcome that was already on its way would have come, since the others would wait for it.
        """
        heard, asked = time.monotonic(), False
        while True:
            if stop.requested and not asked:
                self.tell(Leave(**self._common(), worker=self._name))
                heard, asked = time.monotonic(), True
            if not self._socket.poll(POLL_MILLISECONDS):
                silent = time.monotonic() - heard
                if asked and self._generation == 0 and silent > UNWELCOMED_SECONDS:
                    return
                self._check_silence(silent, silence_seconds)
                continue
            message, bulk = receive(self._socket, self._receives)
            if self._accepts(message):
                yield message, bulk
            if isinstance(message, Goodbye):
                return
            heard = time.monotonic()

    def close(self) -> None:
        self._socket.close()

    def _accepts(self, message: Header) -> bool:
        """Takes note of the round; an order of a generation that has ended is passed over."""
        if isinstance(message, Refused):
            raise Rejected(f"the dispatcher at {self._endpoint} refused worker {self._name!r}: {message.reason}")
        current = message.run == self._run and message.generation >= self._generation
        if current and (isinstance(message, Welcome) or message.generation == self._generation):
            self._generation, self._step = message.generation, message.step
            return True
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
