"""The serving process: listens, follows the checkpoints of a run, and answers until it is asked to stop.

Open requests are finished after SIGTERM. Several processes may listen on one port; each has its own copies of the
model. Nothing here is worth keeping but what is served, which is on record beside the checkpoints: a process that is
started again loads the newest good checkpoint, or the pinned one, and says so if that is older.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import structlog
import torch
import uvloop

from api.access.auditing import AuditQueue, auditing
from api.access.server import address, check_address, listen, open_store, serve, tls_context
from api.access.tokens import TokenCache
from api.job import token_command
from api.store.store import SqlStore
from infra.base.kernels import compile_ahead
from infra.base.process import Stop
from infra.base.storage import Storage
from infra.base.telemetry import Meter
from ingest.codec.decoder import Decoder
from ingest.codec.structure import count_items
from ingest.streams.position import Position
from ingest.streams.source import Record
from ps.checkpoints.publication import Deliveries
from serving.app import create_app, guarded
from serving.copies import Copies
from serving.engine import Engine
from serving.follow import Follower, News, PolledNews
from serving.job import ServingJob
from serving.labels.served import ServedLabels
from serving.news import DispatcherNews
from serving.parts import ServingParts
from serving.rows.index import warm_up_index
from serving.scoring import QuestionScorer

USUAL_PORT = 8100
FIRST_SECONDS = 30.0
"""how long a server looks for a version before it listens: others on its port answer meanwhile"""


def run_serving(job: ServingJob, stop: Stop, on_ready: Callable[[str], None], meter: Meter) -> None:
    """Serves until ``stop``; ``on_ready`` gets the real address."""
    tls = tls_context(job.limits)
    torch.set_num_threads(job.config.threads)
    with open_port(job) as listener:
        where = address(listener, job.limits)
        structlog.get_logger().info("listening", address=where)
        if not compile_ahead(lambda: warm_up(job), ("ingest.codec", "serving"), lambda: stop.requested):
            return
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(job, listener, tls, stop, lambda: on_ready(where), meter))


def open_port(job: ServingJob) -> socket.socket:
    """A listening socket that others may join; one that is not to share its port makes sure that nobody else is there.

    Without that two runs on one machine would answer each other's requests.
    """
    host = job.config.host
    port = job.config.port
    if not job.shares_port:
        with listen("serving", host, port, USUAL_PORT) as alone:
            port = alone.getsockname()[1]
    return listen("serving", host, port, USUAL_PORT, is_shared=True)


def warm_up(job: ServingJob) -> None:
    """Compiles kernels before anyone asks; a machine has to do so once."""
    decoder = Decoder(job.schema, needs_label=False)
    table = job.spec.empty_table()
    decoder.decode([Record(0, None, b'{"fields": {}}', 0)], Position(0))
    count_items(b"[]", 1)
    warm_up_index()
    table.look_up(np.zeros((1, 1), np.uint64))


# ── within the event loop ─────────────────────────────────────────────────────────────────────────────────────────────
async def _run(
    job: ServingJob,
    listener: socket.socket,
    tls: ssl.SSLContext | None,
    stop: Stop,
    on_ready: Callable[[], None],
    meter: Meter,
) -> None:
    with following(job, meter) as working:  # while the database is opened, the model is loaded
        store = await open_store(job.database, stop)
        if store is None:
            return
        try:
            await check_address(job.config.host, store, token_command(job.folder))
            async with auditing(store.audit) as audit:
                parts = working(store, audit)
                await asyncio.to_thread(parts.follower.wait_turn, FIRST_SECONDS)
                app = guarded(create_app(parts), parts)
                await serve(app, listener, tls, job.limits, stop, on_ready, lambda: None)
        finally:
            await store.close()


@contextmanager
def following(job: ServingJob, meter: Meter) -> Iterator[Callable[[SqlStore, AuditQueue], ServingParts]]:
    """Follows the checkpoints; yields what makes the parts of the application, once there is a database."""
    storage = Storage.at(job.storage)
    copies = Copies(job.spec)
    engine = Engine(copies, job.config.batch_samples, meter)
    deliveries = Deliveries(job.curve)
    news = news_of(job, copies, meter)
    follower = Follower(storage, copies, news, meter, deliveries, job.name)
    decoder = Decoder(job.schema, needs_label=False)

    labels = open_labels(job, meter)

    def working(store: SqlStore, audit: AuditQueue) -> ServingParts:
        return ServingParts(
            config=job.config,
            limits=job.limits,
            store=store,
            tokens=TokenCache(store),
            audit=audit,
            storage=storage,
            decoder=decoder,
            copies=copies,
            engine=engine,
            follower=follower,
            meter=meter,
            labels=labels,
            token_command=token_command(job.folder),
        )

    follower.start()
    try:
        yield working
    finally:
        follower.close()
        deliveries.close()
        engine.close()
        if labels is not None:
            labels.close()


def open_labels(job: ServingJob, meter: Meter) -> ServedLabels | None:
    """Logs predictions and joins their labels; None where the settings name no folder for that."""
    if job.config.log_predictions is None or job.open_source is None:
        return None
    labels = ServedLabels(job.config.log_predictions, job.config.label_seconds, job.open_source, meter)
    labels.start()
    return labels


def news_of(job: ServingJob, copies: Copies, meter: Meter) -> News:
    """From the dispatcher of the run, if it is known where to look for it; its questions are answered by the copies."""
    if job.folder is None and job.dispatcher() is None:
        return PolledNews()
    return DispatcherNews(job.dispatcher, job.spec.run, job.curve, job.name, QuestionScorer(copies, meter))
