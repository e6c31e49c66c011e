"""Limits, with real sockets: large bodies, many requests, slow and silent clients; others are still served."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from infra.web import connections
from tests.api.dispatcher import PretendDispatcher
from tests.api.serving import Served, new_token, serving, until

MOST = 20
"""connections"""


PATIENT_SECONDS = 3600.0
"""longer than any test: nothing is refused for time"""


@contextmanager
def serving_limited(folder: Path, **settings: Any) -> Iterator[Served]:
    """A server with few connections and small bodies."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(connections, "MOST_CONNECTIONS", MOST)
        with serving(folder, f"sqlite:///{folder / 'freshet.db'}", body_bytes=4096, **settings) as served:
            yield served


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving_limited(tmp_path_factory.mktemp("runs"), receive_seconds=PATIENT_SECONDS) as served:
        yield served


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Waits for requests so briefly that it may give up any of them: for those that never come whole."""
    with serving_limited(tmp_path_factory.mktemp("runs"), receive_seconds=0.3) as served:
        yield served


def head(api: Served, text: str) -> bytes:
    return f"{text} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.token}\r\n".encode()


CLOSE = b"Connection: close\r\n"
"""after the answer: no longer than that is waited for"""


def raw(api: Served, *parts: bytes) -> bytes:
    """Sends, and returns what is answered until the connection is closed."""
    with socket.create_connection(("127.0.0.1", api.port), timeout=30) as connection:
        for part in parts:
            connection.sendall(part)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_body_that_is_announced_too_large_is_not_waited_for(limited: Served) -> None:
    answer = raw(limited, head(limited, "POST /v1/samples"), CLOSE, b"Content-Length: 1000000000\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"application/problem+json" in answer


def test_a_body_that_grows_too_large_is_cut_off(limited: Served) -> None:
    chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
    announced = CLOSE, b"Transfer-Encoding: chunked\r\n\r\n"
    answer = raw(limited, head(limited, "POST /v1/samples"), *announced, chunk * 5)
    assert answer.startswith(b"HTTP/1.1 413")


def test_a_client_that_goes_on_sending_a_body_that_is_too_large_is_not_cut_off(limited: Served) -> None:
    pieces = [b"x" * 4096] * connections.DROPPED_BODIES
    length = b"Content-Length: %d\r\n\r\n" % sum(map(len, pieces))
    with socket.create_connection(("127.0.0.1", limited.port), timeout=30) as connection:
        connection.sendall(head(limited, "POST /v1/samples") + length)
        assert connection.recv(65536).startswith(b"HTTP/1.1 413")
        for piece in pieces:
            connection.sendall(piece)
        connection.sendall(head(limited, "GET /v1/runs") + CLOSE + b"\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200"), "the connection goes on"


def test_a_client_that_sends_all_of_a_body_that_is_too_large_first_gets_its_answer(limited: Served) -> None:
    body = b"x" * 4096 * connections.DROPPED_BODIES
    answer = raw(limited, head(limited, "POST /v1/samples"), CLOSE, b"Content-Length: %d\r\n\r\n" % len(body), body)
    assert answer.startswith(b"HTTP/1.1 413")


def test_a_body_that_does_not_arrive_is_given_up(impatient: Served) -> None:
    answer = raw(impatient, head(impatient, "POST /v1/samples") + b"Content-Length: 100\r\n\r\nx")
    assert answer.startswith(b"HTTP/1.1 408")


def expect_problem(answer: bytes, status: int) -> None:
    """The whole of an answer from in front of the application."""
    told, _, body = answer.partition(b"\r\n\r\n")
    assert told.startswith(f"HTTP/1.1 {status} ".encode()), answer
    assert b"content-type: application/problem+json" in told
    assert b"x-content-type-options: nosniff" in told.lower()
    assert b"connection: close" in told
    assert (len(json.loads(body)["detail"]) > 10, json.loads(body)["status"]) == (True, status)


def test_a_head_that_does_not_arrive_is_given_up(impatient: Served) -> None:
    expect_problem(raw(impatient, b"GET /healthz HTTP/1.1\r\nHost:"), 408)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\xfc\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\n\r\n",
        b"POST /v1/samples HTTP/1.1\r\nHost: x\r\nContent-Length: one\r\n\r\n",
    ],
)
def test_what_is_not_http_is_answered_as_a_problem(limited: Served, request_bytes: bytes) -> None:
    expect_problem(raw(limited, request_bytes), 400)


def test_a_body_whose_chunks_are_not_chunks_is_answered_as_a_problem(limited: Served) -> None:
    parts = head(limited, "POST /v1/samples"), b"Transfer-Encoding: chunked\r\n\r\n", b"nonsense\r\n"
    expect_problem(raw(limited, *parts), 400)


def test_a_silent_connection_is_closed(impatient: Served) -> None:
    assert raw(impatient) == b""


def test_idle_connections_lock_nobody_out(limited: Served) -> None:
    with ExitStack() as opened:
        for _ in range(4 * MOST):
            opened.enter_context(socket.create_connection(("127.0.0.1", limited.port)))
        assert limited.ask("GET", "/healthz", token=None).status == 200


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
def test_a_head_that_is_too_long_is_refused(limited: Served, end: bytes) -> None:
    filler = b"x" * connections.HEAD_BYTES
    expect_problem(raw(limited, b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + filler + end), 431)


@pytest.mark.parametrize(
    "refused", [b"nonsense\r\n\r\n", b"GET /healthz HTTP/1.1\r\nX: " + b"x" * connections.HEAD_BYTES]
)
def test_a_client_that_goes_on_sending_after_a_refusal_is_not_cut_off(limited: Served, refused: bytes) -> None:
    with socket.create_connection(("127.0.0.1", limited.port), timeout=30) as connection:
        connection.sendall(refused)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
        for _ in range(connections.DROPPED_BODIES):
            connection.sendall(b"x" * 4096)
        expect_problem(answer, 400 if refused.startswith(b"nonsense") else 431)


def test_a_client_that_never_stops_sending_after_a_refusal_is_cut_off(limited: Served) -> None:
    with socket.create_connection(("127.0.0.1", limited.port), timeout=30) as connection:
        connection.sendall(b"nonsense\r\n\r\n")
        with pytest.raises(ConnectionError):
            any(connection.send(b"x" * 4096) == 0 for _ in count())


def test_a_head_as_long_as_may_be_is_served(limited: Served) -> None:
    parts = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: ", b"\r\n\r\n"
    filler = b"x" * (connections.HEAD_BYTES - sum(map(len, parts)))
    assert raw(limited, filler.join(parts)).startswith(b"HTTP/1.1 200")


RARE = 1e-4
"""requests a second: one may come, and the next after hours, so no machine is slow enough to be served twice"""


def test_more_requests_than_allowed_are_refused_and_health_is_not(tmp_path: Path) -> None:
    """The first request of a token is its address's: nobody knows yet that the token is valid."""
    with serving_limited(tmp_path, requests_per_second=RARE) as api:
        assert api.get("/v1/runs").status == 200
        assert [api.ask("GET", "/v1/runs", token=unknown).status for unknown in (None, "fr_unknown")] == [429, 429]
        assert api.get("/v1/runs").status == 200
        refused = api.get("/v1/runs")
        assert refused.status == 429
        assert refused.headers["Content-Type"] == "application/problem+json"
        assert 1 <= int(refused.headers["Retry-After"]) <= 1 / RARE
        assert api.ask("GET", "/healthz", token=None).status == 200


def test_a_stream_of_events_ends_with_the_process(tmp_path: Path) -> None:
    with PretendDispatcher(tmp_path / "r"), ExitStack() as later:
        with serving(tmp_path, f"sqlite:///{tmp_path / 'freshet.db'}") as served:
            until(lambda: served.get("/v1/runs/r").json.get("is_live"))
            connection = later.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=30))
            connection.sendall(head(served, "GET /v1/runs/r/events") + b"\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        rest = b"".join(iter(lambda: connection.recv(65536), b""))
        assert rest.endswith(b"0\r\n\r\n")


def is_refused(api: Served, token: str) -> bool:
    return api.ask("GET", "/v1/runs", token=token).status == 503


def test_slow_bodies_of_two_tokens_leave_room_for_a_third(tmp_path: Path) -> None:
    with serving(tmp_path, f"sqlite:///{tmp_path / 'freshet.db'}", concurrency=4) as api, ExitStack() as opened:
        others = [new_token(api.database, ("read", "ingest")) for _ in range(2)]
        for token, most in ((api.token, 2), (others[0], 1)):
            for _ in range(most):
                slow = opened.enter_context(socket.create_connection(("127.0.0.1", api.port), timeout=30))
                slow.sendall(head(replace(api, token=token), "POST /v1/samples") + b"Content-Length: 100\r\n\r\n[")
            until(partial(is_refused, api, token))
        assert api.ask("GET", "/v1/runs", token=others[1]).status == 200


def test_a_body_that_nobody_reads_loses_no_answer_and_no_connection(limited: Served) -> None:
    refused = b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 4096\r\n\r\n"
    with (
        socket.create_connection(("127.0.0.1", limited.port), timeout=30) as connection,
        connection.makefile("rb") as answers,
    ):
        for _ in range(2):
            connection.sendall(refused)
            head_lines = list(iter(answers.readline, b"\r\n"))
            assert head_lines[0].startswith(b"HTTP/1.1 401")
            length = next(int(line.split(b":")[1]) for line in head_lines if line.startswith(b"content-length"))
            assert json.loads(answers.read(length))["status"] == 401
            connection.sendall(b"x" * 4096)


def test_requests_that_come_at_once_are_answered_in_turn(limited: Served) -> None:
    one = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = raw(limited, one * 3 + b"nonsense\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200") == 3


@pytest.mark.parametrize(
    ("more", "status"),
    [
        (b"Host: y\r\n", 400),
        (b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", 400),
        (b"Content-Length: 1\r\nContent-Length: 2\r\n", 400),
        (b"Connection: upgrade\r\nUpgrade: websocket\r\n", 200),
    ],
)
def test_heads_that_mean_two_things_are_refused(limited: Served, more: bytes, status: int) -> None:
    answer = raw(limited, b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + more + b"\r\n")
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"connection: close" in answer
