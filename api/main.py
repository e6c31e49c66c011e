"""The API process: listens, reports its address, serves until it is asked to stop, and finishes open requests."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor

import structlog
import uvloop

from api.access.auditing import AuditQueue, auditing
from api.access.server import address, check_address, listen, open_store, serve, tls_context
from api.access.tokens import TokenCache
from api.app import create_app, guarded
from api.errors import DatabaseAway
from api.job import ApiJob, token_command
from api.parts import ApiParts
from api.runs.followed import FollowedRuns, keep_going
from api.runs.samples import SampleSinks
from api.store.retention import Retention
from api.store.store import SqlStore
from infra.base.process import Stop
from infra.base.telemetry import Meter

USUAL_PORT = 8000
PRUNE_SECONDS = 600.0
GAUGE_SECONDS = 1.0
THREADS = 32
"""that ask dispatchers and supervisors, and write events"""


def run_api(job: ApiJob, stop: Stop, on_ready: Callable[[str], None], meter: Meter) -> None:
    """Serves until ``stop``; ``on_ready`` gets the real address, as in ``http://127.0.0.1:8000``."""
    tls = tls_context(job.config)
    with listen("api", job.config.host, job.config.port, USUAL_PORT) as listener:
        where = address(listener, job.config)
        structlog.get_logger().info("listening", address=where)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(job, listener, tls, stop, lambda: on_ready(where), meter))


# ── within the event loop ─────────────────────────────────────────────────────────────────────────────────────────────
async def _run(
    job: ApiJob,
    listener: socket.socket,
    tls: ssl.SSLContext | None,
    stop: Stop,
    on_ready: Callable[[], None],
    meter: Meter,
) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    store = await open_store(job.database, stop)
    if store is None:
        return
    try:
        await check_address(job.config.host, store, token_command(job.folder))
        async with auditing(store.audit) as audit, working(job, store, audit, meter) as parts:
            app = guarded(create_app(parts), parts)
            await serve(app, listener, tls, job.config, stop, on_ready, parts.closing.set)
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def working(job: ApiJob, store: SqlStore, audit: AuditQueue, meter: Meter) -> AsyncIterator[ApiParts]:
    """The parts of the application, and the tasks that keep them up to date."""
    runs = FollowedRuns(job.runs, store)
    samples = SampleSinks(job.kafka_secrets)
    parts = ApiParts(
        job.config, store, runs, TokenCache(store), audit, samples, meter, token_command=token_command(job.folder)
    )
    runs.find_runs()
    work = (runs.keep_looking, samples.tidy, lambda: _prune(store), lambda: _measure(parts))
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
    """Keeps gauges of every run up to date."""
    while True:
        for name in parts.runs.names:
            run = parts.runs.get(name)
            parts.meter.gauge("api_projection_lag_versions", run.projection_lag, run=name)
            parts.meter.gauge("api_pending_commands", run.outbox.pending, run=name)
        await asyncio.sleep(GAUGE_SECONDS)
