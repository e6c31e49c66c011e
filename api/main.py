"""The API process: listens, reports its address, serves until it is asked to stop, and completes open requests."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor

import structlog

from api.app import served_app
from api.job import ApiJob
from api.parts import ApiParts
from api.runs.followed import FollowedRuns, keep_going, keep_reading
from api.runs.samples import SampleSinks
from api.runs.slices import SliceNames
from api.store.retention import Retention
from api.store.store import SqlStore
from infra.base.process import Stop, write_whole
from infra.base.telemetry import Meter
from infra.web.errors import DatabaseAway
from infra.web.parts import WebParts, opened_store, web_parts
from infra.web.server import OpenPort, open_port, run_in_loop, serve
from infra.web.store.tokens import LINK_SCOPES
from infra.web.tokens import token_command

PRUNE_SECONDS = 600.0
GAUGE_SECONDS = 1.0
THREADS = 32
"""Number of threads that call dispatchers and supervisors, and write events."""


def run_api(job: ApiJob, stop: Stop, on_ready: Callable[[str], None], meter: Meter) -> None:
    """Serves until ``stop`` is set; calls ``on_ready`` with the actual address, as in ``http://127.0.0.1:8000``."""
    with open_port(job.config.web) as port:
        run_in_loop(_run(job, port, stop, on_ready, meter))


# ── inside the event loop ─────────────────────────────────────────────────────────────────────────────────────────────
async def _run(job: ApiJob, port: OpenPort, stop: Stop, on_ready: Callable[[str], None], meter: Meter) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    async with opened_store(SqlStore, job.database, stop) as store:
        if store is None:
            return
        async with (
            web_parts(port.config, store, token_command(job.folder), meter) as web,
            working(job, store, web) as parts,
        ):
            if job.link_file is not None:
                write_whole(job.link_file, await store.tokens.create_link(LINK_SCOPES), is_private=True)
            await serve(served_app(parts), port, stop, on_ready, parts.closing.set)


@contextlib.asynccontextmanager
async def working(job: ApiJob, store: SqlStore, web: WebParts) -> AsyncIterator[ApiParts]:
    """Yields the parts of the application while background tasks keep them up to date."""
    runs = FollowedRuns(job.runs, store)
    samples = SampleSinks(job.kafka_secrets)
    slices = SliceNames(job.kafka_secrets)
    parts = ApiParts(web, store, runs, samples, slices, plugins=job.config.plugins)
    runs.find_runs()
    work = (
        runs.keep_looking,
        samples.tidy,
        lambda: keep_reading(runs),
        lambda: _prune(store),
        lambda: _measure(parts),
    )
    tasks = [asyncio.create_task(keep_going(each)) for each in work]
    try:
        yield parts
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await runs.close()
        samples.close()


async def _prune(store: SqlStore) -> None:
    while True:
        try:
            await store.prune(Retention())
        except DatabaseAway as error:
            structlog.get_logger().warning("the database is not tidied up now", reason=str(error))
        await asyncio.sleep(PRUNE_SECONDS)


async def _measure(parts: ApiParts) -> None:
    """Updates the gauges of every run once a second."""
    while True:
        for name in parts.runs.names:
            run = parts.runs.get(name)
            parts.web.meter.gauge("api_projection_lag_frames", run.projection_lag, run=name)
            parts.web.meter.gauge("api_pending_commands", run.outbox.pending, run=name)
        await asyncio.sleep(GAUGE_SECONDS)
