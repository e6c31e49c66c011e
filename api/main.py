"""The API process: listens, reports its address, serves until it is asked to stop, and finishes open requests."""

import asyncio
import contextlib
import errno
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import time

import structlog
import uvicorn
import uvloop

from api.access.connections import most_connections, watched_connections
from api.access.tokens import TokenCache
from api.app import create_app, guarded
from api.config import ApiConfig
from api.errors import DatabaseAway
from api.job import ApiJob
from api.parts import ApiParts
from api.runs.followed import FollowedRuns, keep_going
from api.runs.samples import SampleSinks
from api.store.retention import Retention
from api.store.store import SqlStore
from infra.errors import ConfigError
from infra.process import Stop
from infra.telemetry import Meter

PASS_SECONDS = 0.05
USUAL_PORT = 8000
OPEN_REQUESTS_SECONDS = 5
"""how long open requests may take after a stop is requested"""
DATABASE_SECONDS = 2.0
"""between two attempts to open the database"""
PRUNE_SECONDS = 600.0
GAUGE_SECONDS = 1.0
THREADS = 32
"""that ask dispatchers and supervisors, and write events"""


def run_api(job: ApiJob, stop: Stop, on_ready: Callable[[str], None], meter: Meter) -> None:
    """Serves until ``stop``; ``on_ready`` gets the real address, as in ``http://127.0.0.1:8000``."""
    tls = tls_context(job.config)
    with listen(job.config.host, job.config.port) as listener:
        where = address(listener, job.config)
        structlog.get_logger().info("listening", address=where)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(job, listener, tls, stop, lambda: on_ready(where), meter))


def listen(host: str, port: int | None) -> socket.socket:
    """A listening socket; bound here because uvicorn exits when a port is in use.

    Without a port it is the usual one, or any: runs side by side on one machine do not get into each other's way.
    """
    try:
        return _bound(host, USUAL_PORT if port is None else port)
    except (OSError, OverflowError) as error:
        if port is None and isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            return _bound(host, 0)
        raise ConfigError(
            f"the API cannot listen on {host}:{USUAL_PORT if port is None else port}: {error}; expected an address of "
            "this machine and a free port; choose another api.host or api.port, or port 0 for any"
        ) from error


def _bound(host: str, port: int) -> socket.socket:
    return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024)


def address(listener: socket.socket, config: ApiConfig) -> str:
    scheme = "https" if config.tls_certificate is not None else "http"
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def tls_context(config: ApiConfig) -> ssl.SSLContext | None:
    """None without a certificate; raises ConfigError if it cannot be used."""
    if config.tls_certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(config.tls_certificate, config.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"HTTPS cannot be served with certificate {config.tls_certificate} and key {config.tls_key}: {error}; "
            "expected PEM files that belong together; correct api.tls_certificate and api.tls_key"
        ) from error
    return context


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
        await check_address(job.config.host, store)
        async with working(job, store, meter) as parts:
            await _serve(parts, listener, tls, stop, on_ready)
    finally:
        await store.close()


async def open_store(url: str, stop: Stop) -> SqlStore | None:
    """Waits for a database that is away; None if a stop is requested meanwhile."""
    while not stop.requested:
        try:
            return await SqlStore.open(url)
        except DatabaseAway as error:
            structlog.get_logger().warning("waiting for the database", reason=str(error))
            await asyncio.sleep(DATABASE_SECONDS)
    return None


async def check_address(host: str, store: SqlStore) -> None:
    """Raises ConfigError for an address that others can reach where nobody has a token."""
    if is_local(host) or any(token.is_valid(time()) for token in await store.tokens.list()):
        return
    raise ConfigError(
        f"the API would listen on {host} for other machines, and the database has no valid token; expected one; make "
        "it with 'freshet token create', or set api.host to 127.0.0.1"
    )


def is_local(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextlib.asynccontextmanager
async def working(job: ApiJob, store: SqlStore, meter: Meter) -> AsyncIterator[ApiParts]:
    """The parts of the application, and the tasks that keep them up to date."""
    runs, samples = FollowedRuns(job.runs, store), SampleSinks(job.kafka_secrets)
    parts = ApiParts(job.config, store, runs, TokenCache(store), samples, meter)
    runs.look()
    work = (runs.follow, samples.tidy, lambda: _prune(store), lambda: _measure(parts))
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


class QuietServer(uvicorn.Server):
    """A uvicorn server without signal handlers of its own: the process has a Stop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(
    parts: ApiParts, listener: socket.socket, tls: ssl.SSLContext | None, stop: Stop, on_ready: Callable[[], None]
) -> None:
    limits = parts.config
    config = uvicorn.Config(
        guarded(create_app(parts), parts),
        http=watched_connections(limits.receive_seconds, limits.body_bytes, most_connections()),  # type: ignore[arg-type]
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=OPEN_REQUESTS_SECONDS,
        lifespan="off",
    )
    config.load()
    config.ssl = tls
    server = QuietServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        is_announced = False
        while not (stop.requested or serving.done()):
            if server.started and not is_announced:
                on_ready()
                is_announced = True
            await asyncio.sleep(PASS_SECONDS)
    finally:
        parts.closing.set()
        server.should_exit = True
        await serving
