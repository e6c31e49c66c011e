"""The API process: listens, reports its address, serves until it is asked to stop, and finishes open requests."""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Iterator

import structlog
import uvicorn

from api.app import create_app
from infra.errors import ConfigError
from infra.process import Stop

PASS_SECONDS = 0.05
USUAL_PORT = 8000
OPEN_REQUESTS_SECONDS = 5
"""how long open requests may take after a stop is requested"""


def run_api(host: str, port: int | None, stop: Stop, on_ready: Callable[[str], None]) -> None:
    """Serves until ``stop``; ``on_ready`` gets the real address, as in ``http://127.0.0.1:8000``."""
    with listen(host, port) as listener:
        structlog.get_logger().info("listening", address=address(listener))
        asyncio.run(_serve(listener, stop, on_ready))


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


class QuietServer(uvicorn.Server):
    """A uvicorn server without signal handlers of its own: the process has a Stop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(listener: socket.socket, stop: Stop, on_ready: Callable[[str], None]) -> None:
    config = uvicorn.Config(
        create_app(), log_config=None, access_log=False, timeout_graceful_shutdown=OPEN_REQUESTS_SECONDS, lifespan="off"
    )
    server = QuietServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        is_announced = False
        while not (stop.requested or serving.done()):
            if server.started and not is_announced:
                on_ready(address(listener))
                is_announced = True
            await asyncio.sleep(PASS_SECONDS)
    finally:
        server.should_exit = True
        await serving


def address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
