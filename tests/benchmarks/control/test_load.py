"""Clients of the API's benchmark, and how windows of a run are counted."""

import socket
import struct
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from benchmarks.control.api import steps_per_second
from benchmarks.control.load import AskedRoute, ask_together
from infra.base.errors import FreshetError


class TokenDoor(BaseHTTPRequestHandler):
    """200 to those with the token."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        is_known = self.headers["Authorization"] == "Bearer secret"
        self.send_response(200 if is_known else 401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        pass


class QuietServer(ThreadingHTTPServer):
    """Says nothing of clients that go away, as those do that have measured for long enough."""

    daemon_threads = False  # its end waits for them

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with QuietServer(("127.0.0.1", 0), TokenDoor) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_every_request_is_timed_and_no_more_are_sent_than_asked_for(address: str) -> None:
    latencies = ask_together(AskedRoute(address, "/", "secret", 0.19, 50.0, 2))
    assert 1 <= latencies.requests <= 10
    assert 0 < latencies.p50_ms <= latencies.p99_ms


def test_a_client_that_goes_away_is_not_told_to_people(capfd: pytest.CaptureFixture[str]) -> None:
    with QuietServer(("127.0.0.1", 0), TokenDoor) as server:
        with socket.create_connection(("127.0.0.1", server.server_port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\n")
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no farewell
        server.handle_request()
    assert capfd.readouterr().err == ""


def test_one_request_is_sent_however_late_it_is(address: str) -> None:
    assert ask_together(AskedRoute(address, "/", "secret", 0.0, 50.0, 2)).requests == 1


def test_an_answer_that_is_no_200_spoils_the_measurement(address: str) -> None:
    with pytest.raises(FreshetError, match="401"):
        ask_together(AskedRoute(address, "/", "other", 0.2, 0.0, 2))


def test_steps_are_counted_by_window() -> None:
    assert steps_per_second([0.5, 1.0, 1.5, 2.0, 3.5], [(0.0, 2.0), (2.0, 4.0)]) == [1.5, 1.0]


def test_a_window_without_a_step_is_no_measurement() -> None:
    with pytest.raises(FreshetError, match="a window has no step"):
        steps_per_second([0.5], [(0.0, 1.0), (1.0, 2.0)])
