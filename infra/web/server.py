"""The server itself: a port, its certificate, and requests until the process is asked to stop; no routes, no tokens."""

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import structlog
import uvicorn
import uvloop
from starlette.types import ASGIApp

from infra.base.errors import ConfigError
from infra.base.process import Stop
from infra.web.config import WebConfig
from infra.web.connections import most_connections, watched_connections

PASS_SECONDS = 0.05
OPEN_REQUESTS_SECONDS = 5
"""How long open requests may take after a stop is requested."""
HEADERS = (("X-Content-Type-Options", "nosniff"),)
"""Headers of every answer: browsers must trust its declared type and not guess another."""
BACKLOG = 1024
"""Most connections that wait to be accepted."""


@dataclass(frozen=True)
class OpenPort:
    """A socket that listens, or will listen once it is served, and how it is served."""

    listener: socket.socket
    tls: ssl.SSLContext | None
    config: WebConfig

    @property
    def address(self) -> str:
        """Address of the server, such as ``http://127.0.0.1:8000``."""
        scheme = "https" if self.tls is not None else "http"
        host, port = self.listener.getsockname()[:2]
        return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@contextlib.contextmanager
def open_port(config: WebConfig, is_shared: bool = False) -> Iterator[OpenPort]:
    """Opens the port; raises ConfigError if that fails. is_shared: other processes may listen on the same port."""
    tls = tls_context(config)
    with listen(config, is_shared) as listener:
        port = OpenPort(listener, tls, config)
        structlog.get_logger().info("listening", address=port.address)
        yield port


def listen(config: WebConfig, is_shared: bool = False) -> socket.socket:
    """Returns a listening socket. It is bound here because uvicorn exits when a port is in use.

    If the settings name no port, it is the usual one, or any free one if that is taken, so that several runs on one
    machine do not conflict.
    """
    host = config.host
    wanted = config.usual_port if config.port is None else config.port
    try:
        return _bound(host, wanted, is_shared)
    except (OSError, OverflowError) as error:
        if config.port is None and isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            return _bound(host, 0, is_shared)
        section = config.section
        raise ConfigError(
            f"the {section} process cannot listen on {host}:{wanted}: {error}; expected an address of this machine and "
            f"a free port; choose another {section}.host or {section}.port, or port 0 for any"
        ) from error


def _bound(host: str, port: int, is_shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if is_shared:  # it listens only once it is served: until then connections go to the other processes
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
    # Connections inherit this option. asyncio sets it only on sockets created with an explicit protocol. Without it, an
    # answer in two packets would wait 40 ms for the client's acknowledgement of the first.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def tls_context(config: WebConfig) -> ssl.SSLContext | None:
    """Returns the TLS context; None without a certificate. Raises ConfigError if the certificate cannot be used."""
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


class QuietServer(uvicorn.Server):
    """A uvicorn server without signal handlers of its own, because the process has a Stop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run_in_loop(work: Coroutine[Any, Any, None]) -> None:
    """Runs the process's work in a new event loop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


async def serve(
    app: ASGIApp, port: OpenPort, stop: Stop, on_ready: Callable[[str], None], on_end: Callable[[], None]
) -> None:
    """Serves until ``stop`` is requested, then finishes open requests.

    on_ready: called with the actual address. on_end: called before open requests are finished.
    """
    limits = port.config
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
    config.ssl = port.tls
    server = QuietServer(config)
    serving = asyncio.create_task(server.serve(sockets=[port.listener]))
    try:
        is_announced = False
        while not (stop.requested or serving.done()):
            if server.started and not is_announced:
                on_ready(port.address)
                is_announced = True
            await asyncio.sleep(PASS_SECONDS)
    finally:
        on_end()
        server.should_exit = True
        await serving
