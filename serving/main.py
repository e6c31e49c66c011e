"""The serving process: listens, follows the checkpoints of a run, and answers until it is asked to stop.

Open requests are completed after SIGTERM. Several processes may listen on one port; each has its own copies of the
model. The only state worth keeping is which snapshot is served, and that is recorded beside the checkpoints: a process
that is restarted loads the newest good checkpoint, or the pinned one, and reports it if that is older than before.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

import numpy as np
import torch

from infra.base.kernels import compile_ahead
from infra.base.process import Stop
from infra.base.storage import Storage
from infra.base.telemetry import Meter
from infra.web.parts import WebParts, opened_store, web_parts
from infra.web.server import OpenPort, listen, open_port, run_in_loop, serve
from infra.web.store.access import AccessStore
from infra.web.tokens import token_command
from ingest.codec.decoder import Decoder
from ingest.codec.structure import count_items
from ingest.codec.unpacking import warm_up as warm_up_unpacking
from ingest.streams.position import Position
from ingest.streams.source import Record
from ps.checkpoints.publication import Deliveries
from ps.packed import Packing
from serving.app import served_app
from serving.copies import Copies
from serving.engine import Engine
from serving.follow import Follower, News, PolledNews
from serving.job import ServingJob
from serving.labels.served import ServedLabels
from serving.news import DispatcherNews
from serving.parts import ServingParts
from serving.rows.index import warm_up_index
from serving.scoring import QuestionScorer

FIRST_SECONDS = 30.0
"""How long a server looks for a snapshot before it listens; other servers on its port answer meanwhile."""


def run_serving(job: ServingJob, stop: Stop, on_ready: Callable[[str], None], meter: Meter) -> None:
    """Serves until ``stop`` is set; calls ``on_ready`` with the actual address."""
    torch.set_num_threads(job.config.threads)
    with open_shared_port(job) as port:
        if compile_ahead(lambda: warm_up(job), ("ingest.codec", "serving"), lambda: stop.requested):
            run_in_loop(_run(job, port, stop, on_ready, meter))


def open_shared_port(job: ServingJob) -> AbstractContextManager[OpenPort]:
    """Opens a port that others may join; a process that does not share its port first makes sure that it is free.

    Otherwise two runs on one machine would answer each other's requests.
    """
    web = job.web
    if not job.shares_port:
        with listen(web) as alone:
            web = replace(web, port=alone.getsockname()[1])
    return open_port(web, is_shared=True)


def warm_up(job: ServingJob) -> None:
    """Compiles kernels before the first request; needed once on a machine."""
    decoder = Decoder(job.schema, needs_label=False)
    table = job.spec.empty_table()
    decoder.decode([Record(0, None, b'{"fields": {}}', 0)], Position(0))
    count_items(b"[]", 1)
    warm_up_unpacking()
    warm_up_index()
    table.look_up(np.zeros((1, 1), np.uint64))
    Packing(job.spec.rows).warm_up_reading(with_state=False)


# ── inside the event loop ─────────────────────────────────────────────────────────────────────────────────────────────
async def _run(job: ServingJob, port: OpenPort, stop: Stop, on_ready: Callable[[str], None], meter: Meter) -> None:
    with following(job, meter) as working:  # the model is loaded while the database is opened
        async with opened_store(AccessStore, job.database, stop) as store:
            if store is None:
                return
            async with web_parts(port.config, store, token_command(job.folder), meter) as web:
                parts = working(web)
                await asyncio.to_thread(parts.follower.wait_turn, FIRST_SECONDS)
                await serve(served_app(parts), port, stop, on_ready, on_end=lambda: None)


@contextmanager
def following(job: ServingJob, meter: Meter) -> Iterator[Callable[[WebParts], ServingParts]]:
    """Follows the checkpoints; yields a function that makes the parts of the application, once there is a database."""
    storage = Storage.at(job.storage)
    copies = Copies(job.spec)
    engine = Engine(copies, job.config.batch_samples, meter)
    deliveries = Deliveries(job.curve)
    news = news_of(job, copies, meter)
    follower = Follower(storage, copies, news, meter, deliveries, job.name)
    decoder = Decoder(job.schema, needs_label=False)
    labels = open_labels(job, meter)

    def working(web: WebParts) -> ServingParts:
        return ServingParts(
            config=job.config,
            web=web,
            storage=storage,
            decoder=decoder,
            copies=copies,
            engine=engine,
            follower=follower,
            labels=labels,
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
    """Logs predictions and joins their labels; None if the settings name no folder for that."""
    if job.config.log_predictions is None or job.open_source is None:
        return None
    labels = ServedLabels(
        job.config.log_predictions,
        job.config.label_seconds,
        job.open_source,
        meter,
        negative_weight=1 / job.schema.negatives_kept,
        main_label=next(iter(job.schema.labels), ""),
    )
    labels.start()
    return labels


def news_of(job: ServingJob, copies: Copies, meter: Meter) -> News:
    """Notifications from the run's dispatcher, if its endpoint can be found; the copies answer its questions."""
    if job.folder is None and job.dispatcher() is None:
        return PolledNews()
    return DispatcherNews(job.dispatcher, job.spec.run, job.curve, job.name, QuestionScorer(copies, meter))
