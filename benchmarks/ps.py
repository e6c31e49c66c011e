"""Pulls and pushes of rows compared with raw TCP in the same run.

A shard and a plain TCP server, each in a separate process, hold equal rows. In turn, for the same random rows: the
client pulls them from the shard, from the TCP server that gathers them, and as many bytes from the TCP server without
gathering; then it pushes rows to either. Medians, because a shared machine has outliers on one side only.
"""

import socket
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from benchmarks.processes import own_process
from infra.base.process import Stop
from infra.base.wire import NO_I64, Codec, connected, receive, send
from ps.client import Pulled, ShardClient
from ps.config import PsConfig, RowConfig
from ps.fingerprints import fingerprint
from ps.main import ShardJob, run_shard
from ps.phases import TRAIN
from ps.protocol import FROM_SHARD, TO_SHARD, Announce, AnnounceArrays, Open
from ps.store import Store

RUN = "bench"
SEED = 1
GATHER = 0
SEND = 1
WRITE = 2
"""Requests to the raw server: rows gathered, as many bytes, rows written."""


WARM = 5
"""First repeats, not counted, in which connections open, and buffers and caches fill."""


@dataclass(frozen=True)
class PsResult:
    """Medians of one operation on one shape of rows, in milliseconds."""

    operation: str
    rows: int
    dim: int
    bytes: int
    freshet_ms: float
    tcp_ms: float
    """Plain TCP doing the same work: gathering what it sends, writing what it receives."""
    tcp_bytes_ms: float | None
    """Plain TCP sending as many bytes without gathering them."""
    ratio: float
    """Time of Freshet divided by that of TCP."""
    fast_ratio: float
    """The same for the fastest quarter of the repeats, which a busy machine disturbs less."""
    repeat: int


def run_ps(
    repeat: int = 50, rows: int = 3000, dims: tuple[int, ...] = (512, 16), table: int = 100_000
) -> list[PsResult]:
    """One pull and one push result for each width of row."""
    return [result for dim in dims for result in _run_dim(repeat, rows, dim, table)]


def _run_dim(repeat: int, rows: int, dim: int, table: int) -> list[PsResult]:
    config = RowConfig(dim=dim, wide=False, optimizer="sgd")
    picks = [np.sort(np.random.default_rng(i).choice(table, rows, replace=False)) for i in range(repeat + WARM)]
    with ExitStack() as resources:
        shard = resources.enter_context(_shard_side(config, table, picks))
        tcp = resources.enter_context(_tcp_side(config, table))
        return [_pull_result(shard, tcp, picks, dim), _push_result(shard, tcp, picks, dim)]


def _pull_result(shard: "_ShardSide", tcp: "_TcpSide", picks: list[NDArray[np.int64]], dim: int) -> PsResult:
    times: list[tuple[float, ...]] = []
    for numbers in picks:
        pulled, ours = _timed(shard.pull, numbers)
        gathered, theirs = _timed(tcp.pull, GATHER, numbers)
        assert np.array_equal(np.concatenate(pulled), gathered), "the two servers hold different rows"
        del pulled  # as a worker would, once the rows are in its cache
        times.append((ours, theirs, _timed(tcp.pull, SEND, numbers)[1]))
    return _result("pull", len(picks[0]), dim, times[WARM:])


def _push_result(shard: "_ShardSide", tcp: "_TcpSide", picks: list[NDArray[np.int64]], dim: int) -> PsResult:
    times: list[tuple[float, ...]] = []
    for step, numbers in enumerate(picks, start=1):
        values = np.random.default_rng(step).random((len(numbers), dim), np.float32)
        _, ours = _timed(shard.push, step, numbers, values)
        _, theirs = _timed(tcp.push, numbers, values)
        times.append((ours, theirs))
    return _result("push", len(picks[0]), dim, times[WARM:])


def _result(operation: str, rows: int, dim: int, times: list[tuple[float, ...]]) -> PsResult:
    ours, theirs, *plain = (statistics.median(column) for column in zip(*times, strict=True))
    fast_ours, fast_theirs = np.quantile([pair[:2] for pair in times], 0.25, axis=0).tolist()
    return PsResult(
        operation=operation,
        rows=rows,
        dim=dim,
        bytes=rows * dim * 4,
        freshet_ms=ours,
        tcp_ms=theirs,
        tcp_bytes_ms=plain[0] if plain else None,
        ratio=ours / theirs,
        fast_ratio=fast_ours / fast_theirs,
        repeat=len(times),
    )


def _timed(act: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    start = time.perf_counter()
    result = act(*arguments)
    return result, (time.perf_counter() - start) * 1000


# ── the shard ─────────────────────────────────────────────────────────────────────────────────────────────────────────
class _ShardSide:
    """A client of the shard; round 0 is for pulls, the rounds after it expect one push each."""

    def __init__(self, client: ShardClient) -> None:
        self._client = client
        self._none = np.empty(0, np.int64)

    def pull(self, numbers: NDArray[np.int64]) -> list[NDArray[Any]]:
        self._client.ask(0, TRAIN, self._none, numbers)
        return [pulled.values_KW for pulled in self._client.answers(0) if isinstance(pulled, Pulled)]

    def push(self, step: int, numbers: NDArray[np.int64], values: NDArray[Any]) -> None:
        """Returns when the push has been applied, which the pull of one row shows."""
        self._client.push(step, TRAIN, numbers, values, self._none, values[:0])
        self._client.ask(step, TRAIN, numbers[:1], self._none)
        list(self._client.answers(step))


@contextmanager
def _shard_side(config: RowConfig, table: int, picks: list[NDArray[np.int64]]) -> Iterator[_ShardSide]:
    with ExitStack() as resources:
        endpoint = resources.enter_context(own_process(_serve_shard, config))
        context = resources.enter_context(zmq.Context())
        announcer = resources.enter_context(connected(context, endpoint, options={zmq.SNDHWM: 0}))
        _announce(announcer, table, picks)
        client = ShardClient(context, [endpoint], config, RUN)
        resources.callback(client.close)
        client.open(0, 0)
        yield _ShardSide(client)


def _announce(announcer: "zmq.Socket[bytes]", table: int, picks: list[NDArray[np.int64]]) -> None:
    codec = Codec(*TO_SHARD)
    send(announcer, codec, Open(run=RUN, generation=0, step=0, workers=1))
    receive(announcer, Codec(*FROM_SHARD))
    created = AnnounceArrays(new_numbers=np.arange(table), new_keys=np.arange(table, dtype=np.uint64))
    send(announcer, codec, Announce(run=RUN, generation=0, step=0, phase=TRAIN, pushers=[]), created)
    for step, numbers in enumerate(picks, start=1):
        header = Announce(run=RUN, generation=0, step=step, phase=TRAIN, pushers=[0])
        pushed = np.array([fingerprint(numbers, NO_I64)], np.uint64)
        send(announcer, codec, header, AnnounceArrays(pushed=pushed))


def _serve_shard(config: RowConfig, stop: Stop, ready: Connection) -> None:
    job = ShardJob(number=0, config=PsConfig(shards=1), rows=config, run=RUN, seed=SEED, endpoint="tcp://127.0.0.1:*")
    run_shard(job, stop, ready.send)


# ── raw TCP ───────────────────────────────────────────────────────────────────────────────────────────────────────────
class _TcpSide:
    """A client of the raw server. A request is (what, rows) as two int64, the row numbers, then any rows to write."""

    def __init__(self, connection: socket.socket, dim: int) -> None:
        self._connection = connection
        self._dim = dim
        self._buffer = np.empty(0, np.float32)

    def pull(self, what: int, numbers: NDArray[np.int64]) -> NDArray[Any]:
        if self._buffer.size < len(numbers) * self._dim:
            self._buffer = np.empty(len(numbers) * self._dim, np.float32)
        self._connection.sendall(np.concatenate([np.array([what, len(numbers)]), numbers]).data)
        _receive_all(self._connection, self._buffer)
        return self._buffer.reshape(-1, self._dim)

    def push(self, numbers: NDArray[np.int64], values: NDArray[Any]) -> None:
        self._connection.sendall(np.concatenate([np.array([WRITE, len(numbers)]), numbers]).data)
        self._connection.sendall(values.reshape(-1).data)
        _receive_all(self._connection, np.empty(1, np.int64))


@contextmanager
def _tcp_side(config: RowConfig, table: int) -> Iterator[_TcpSide]:
    with ExitStack() as resources:
        endpoint = resources.enter_context(own_process(_serve_tcp, config, table))
        connection = resources.enter_context(socket.create_connection(("127.0.0.1", int(endpoint))))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield _TcpSide(connection, config.dim)


def _serve_tcp(config: RowConfig, table: int, _stop: Stop, ready: Connection) -> None:
    store = Store(config, SEED, PsConfig().chunk_rows)
    store.create(np.arange(table), np.arange(table, dtype=np.uint64))
    with socket.create_server(("127.0.0.1", 0)) as server:
        ready.send(str(server.getsockname()[1]))
        connection, _ = server.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            head = np.empty(2, np.int64)
            buffer = np.empty((0, config.dim), np.float32)
            while _receive_all(connection, head):
                what, rows = head.tolist()
                numbers = np.empty(rows, np.int64)
                _receive_all(connection, numbers)
                if len(buffer) != rows:
                    buffer = np.empty((rows, config.dim), np.float32)
                _answer_tcp(connection, store, what, numbers, buffer)


def _answer_tcp(
    connection: socket.socket, store: Store, what: int, numbers: NDArray[np.int64], buffer_KW: NDArray[Any]
) -> None:
    if what == WRITE:
        _receive_all(connection, buffer_KW.reshape(-1))
        store.write(numbers, buffer_KW)
        connection.sendall(np.zeros(1, np.int64).data)
        return
    if what == GATHER:
        store.gather(numbers, buffer_KW)
    connection.sendall(buffer_KW.reshape(-1).data)


def _receive_all(connection: socket.socket, target: NDArray[Any]) -> bool:
    """Fills the array; False if the other end closed the connection first."""
    view = target.data.cast("B")
    while view:
        received = connection.recv_into(view)
        if not received:
            return False
        view = view[received:]
    return True
