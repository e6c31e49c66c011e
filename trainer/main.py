"""The worker process: joins the dispatcher, executes its orders, leaves when it is released.

Join → Admitted → Ready → (Welcome → Order → Report → Order → …)* → Goodbye, and Saved if the Goodbye requested the
dense weights. A Welcome names the shards. A second one begins the next generation: an empty cache and, if workers sum
dense gradients in a ring, a new process group with rank 0's dense weights. A dispatcher with other settings refuses the
worker before it can do harm.

If a process is lost, the dispatcher sends Abort: the worker drops its order, whatever it is waiting for, answers Ready
and waits for the next Welcome. A worker that waited for others in vain reports this and also waits. A worker that is
stuck ends itself (trainer/watch.py).

After a Welcome to a ring, and before anything else of that generation, the worker exchanges Posts with the other
members through the dispatcher, to form the process group. When it is asked to stop, the worker asks to leave and
continues with its orders until the dispatcher has flushed everyone and says goodbye: nothing that it trained is lost.

A crash after any line costs the steps since the last checkpoint: a worker owns nothing that survives.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import structlog
import torch
import zmq

from dispatch.protocol import Abort, Admitted, Goodbye, Order, Probe, Saved, Watch, Welcome
from dispatch.tally import PhaseSeconds
from infra.base.errors import Fenced
from infra.base.faults import reach
from infra.base.process import START_ANEW, NameClaim, Stop
from infra.base.telemetry import Meter
from infra.base.trace import span
from ps.client import ShardClient
from ps.errors import Unreachable
from trainer.arithmetic import arithmetic_of
from trainer.config import DENSE_FILE
from trainer.dense import save_dense
from trainer.dispatcher import Dispatcher
from trainer.errors import Interrupted, PeersLost
from trainer.job import WorkerJob
from trainer.reduce import Rendezvous, address_facing, nccl_device
from trainer.watch import AbortWatch
from trainer.worker import Worker


def run_worker(job: WorkerJob, stop: Stop, on_ready: Callable[[], None], meter: Meter | None = None) -> None:
    """Works for one dispatcher from Join to Goodbye; ``on_ready`` is called when it has joined, or is admitted."""
    log = structlog.get_logger().bind(worker=job.name)
    if job.trainer.threads:
        torch.set_num_threads(job.trainer.threads)
    with ExitStack() as resources:  # closes in reverse: process group, sockets, link, context
        context = resources.enter_context(zmq.Context())
        resources.enter_context(closing(job.link))
        client = resources.enter_context(closing(shard_client(context, job)))
        identity = f"{job.name}/{uuid4().hex}".encode()
        dispatcher = Dispatcher(
            context=context,
            endpoint=job.dispatcher_endpoint,
            name=job.name,
            run=job.run,
            identity=identity,
            link=job.link,
            curve=job.curve,
            claim=NameClaim(job.is_supervised),
        )
        resources.enter_context(closing(dispatcher))
        client.interrupt = dispatcher.check_interrupt
        if job.ends_itself:
            resources.enter_context(closing(watch(context, job, identity, dispatcher)))
        worker = resources.enter_context(closing(Worker(job, client, rendezvous_of(job, dispatcher))))
        reach("start")
        dispatcher.join(
            settings=job.agreement.workers,
            link_gbit=job.link.gbit_per_second,
            uplink_gbit=job.link.uplink_gbit,
            device=nccl_device(worker.device),
            arithmetic=arithmetic_of(worker.device),
        )
        if is_ready := not job.waits_until_admitted:
            on_ready()
        log.info("joined", dispatcher=job.dispatcher_endpoint, device=str(worker.device))
        for message, arrays in dispatcher.messages(stop, job.trainer.silence_seconds):
            if not is_ready and isinstance(message, Admitted):
                on_ready()
                is_ready = True
            with interruptible(dispatcher):
                match message:
                    case Abort() | Admitted():
                        worker.close()  # others may be waiting for it in a sum
                    case Welcome():
                        worker.begin(message)
                        log.info("began", generation=message.generation, number=message.worker, members=message.names)
                    case Order():
                        obey(worker, dispatcher, message, arrays, meter)
                    case Probe():
                        dispatcher.send(worker.time_link(message))
                    case Goodbye(save_dense=True):
                        at: dict[str, Any] = {"run": job.run, "generation": message.generation, "step": message.step}
                        save_dense(job.folder / DENSE_FILE, worker.newest_dense(), {**at, "model": job.model.name})
                        dispatcher.send(Saved(**at))
        log.info("left", reason=stop.reason)


def obey(worker: Worker, dispatcher: Dispatcher, order: Order, arrays: Any, meter: Meter | None) -> None:
    """Carries out one order and reports it."""
    reach("order_received", order.step)
    with span("step", order.step):
        report, logits = worker.execute(order, arrays, dispatcher.upcoming)
        dispatcher.send(report, logits)
    reach("after_report", order.step)
    observe(meter, report.seconds)


def shard_client(context: "zmq.Context[zmq.Socket[bytes]]", job: WorkerJob) -> ShardClient:
    """A client that is connected to nobody yet: each Welcome names the shards."""
    timeout = job.trainer.pull_timeout_seconds
    return ShardClient(context, (), job.rows, job.run, job.link, job.curve, timeout)


def watch(
    context: "zmq.Context[zmq.Socket[bytes]]", job: WorkerJob, identity: bytes, dispatcher: Dispatcher
) -> AbortWatch:
    watched = Watch(run=job.run, generation=-1, step=0, worker=job.name)
    return AbortWatch(
        context=context,
        endpoint=job.dispatcher_endpoint,
        watched=watched,
        identity=identity,
        curve=job.curve,
        answered=lambda: dispatcher.aborted,
        end=lambda: os._exit(START_ANEW),
    )


def rendezvous_of(job: WorkerJob, board: Dispatcher) -> Rendezvous:
    host = address_facing(host_of(job.dispatcher_endpoint))
    timeout = timedelta(seconds=job.trainer.reduce_timeout_seconds)
    return Rendezvous(board, host, timeout, may_sum=job.curve is None or job.trainer.unencrypted_reduce)


@contextmanager
def interruptible(dispatcher: Dispatcher) -> Iterator[None]:
    """Inside, a generation may end early: what is left of it is ignored."""
    log = structlog.get_logger()
    try:
        yield
    except (Interrupted, Fenced) as error:
        log.info("interrupted", reason=str(error))
        dispatcher.pass_over()
    except (PeersLost, Unreachable) as error:
        log.warning("waited in vain", reason=str(error))
        dispatcher.pass_over()
        dispatcher.give_up()


def host_of(endpoint: str) -> str:
    """The host of tcp://HOST:PORT; other transports stay on this machine."""
    parts = urlsplit(endpoint)
    return parts.hostname or "127.0.0.1" if parts.scheme == "tcp" else "127.0.0.1"


def observe(meter: Meter | None, seconds: PhaseSeconds) -> None:
    """Adds the phases of a round to the metrics of the process."""
    if meter is not None:
        for phase, spent in seconds.by_phase().items():
            if spent:
                meter.observe("worker_phase", spent, phase=phase)
