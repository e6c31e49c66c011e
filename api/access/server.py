"""What every HTTP process of ours does alike: listens, waits for its database, and serves until it is asked to stop."""

import asyncio
import contextlib
import errno
import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterator
from time import time

import structlog
import uvicorn
from starlette.types import ASGIApp

from api.access.connections import most_connections, watched_connections
from api.config import ApiConfig
from api.errors import DatabaseAway
from api.store.store import SqlStore
from infra.base.errors import ConfigError
from infra.base.process import Stop

PASS_SECONDS = 0.05
OPEN_REQUESTS_SECONDS = 5
"""how long open requests may take after a stop is requested"""
DATABASE_SECONDS = 2.0
"""between two attempts to open the database"""
HEADERS = (("X-Content-Type-Options", "nosniff"),)
"""of every answer: browsers take it for what its type says, and nothing else"""
BACKLOG = 1024
"""connections that wait to be accepted"""


def listen(what: str, host: str, port: int | None, usual_port: int, is_shared: bool = False) -> socket.socket:
    """A listening socket; bound here because uvicorn exits when a port is in use.

    Without a port it is the usual one, or any: runs side by side on one machine do not get into each other's way.
    what: the section of the settings that names host and port; is_shared: others may listen on the port beside this one
    """
    try:
        return _bound(host, usual_port if port is None else port, is_shared)
    except (OSError, OverflowError) as error:
        if port is None and isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            return _bound(host, 0, is_shared)
        raise ConfigError(
            f"the {what} process cannot listen on {host}:{usual_port if port is None else port}: {error}; expected an "
            f"address of this machine and a free port; choose another {what}.host or {what}.port, or port 0 for any"
        ) from error


def _bound(host: str, port: int, is_shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if is_shared:  # and listens once it is served: until then connections go to the others
        listener = socket.socket(family)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind((host, port))
        except BaseException:
            listener.close()
            raise
    else:
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
    # Connections inherit it. asyncio sets it only where it is told the protocol, and an answer in two packets would
    # wait 40 ms for the client's acknowledgement of the first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def address(listener: socket.socket, config: ApiConfig) -> str:
    """Where a socket listens, as in ``http://127.0.0.1:8000``."""
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


async def open_store(url: str, stop: Stop) -> SqlStore | None:
    """Waits for a database that is away; None if a stop is requested meanwhile."""
    while not stop.requested:
        try:
            return await SqlStore.open(url)
        except DatabaseAway as error:
            structlog.get_logger().warning("waiting for the database", reason=str(error))
            await asyncio.sleep(DATABASE_SECONDS)
    return None


async def check_address(host: str, store: SqlStore, token_command: str) -> None:
    """Raises ConfigError for an address that others can reach where nobody has a token."""
    if is_local(host) or any(token.is_valid(time()) for token in await store.tokens.list()):
        return
    raise ConfigError(
        f"this process would listen on {host} for other machines, and the database has no valid token; expected one; "
        f"make it with '{token_command} --scope read', or listen on 127.0.0.1"
    )


def is_local(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class QuietServer(uvicorn.Server):
    """A uvicorn server without signal handlers of its own: the process has a Stop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    tls: ssl.SSLContext | None,
    limits: ApiConfig,
    stop: Stop,
    on_ready: Callable[[], None],
    on_end: Callable[[], None],
) -> None:
    """Serves until ``stop``, then finishes open requests; on_end: told before that."""
    config = uvicorn.Config(
        app,
        http=watched_connections(limits.receive_seconds, limits.body_bytes, most_connections()),  # type: ignore[arg-type]
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        headers=list(HEADERS),
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
        on_end()
        server.should_exit = True
        await serving
