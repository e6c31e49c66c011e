"""Stand-ins for the other end of a shard: real sockets, driven by hand."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from infra.base.agreement import Agreement
from infra.base.process import Stop
from infra.base.wire import NO_ARRAYS, NO_I64, Arrays, Codec, Curve, Header, connect, receive, send
from ps.client import ShardClient
from ps.config import PsConfig, RowConfig
from ps.fingerprints import fingerprint_reference
from ps.main import ShardJob, run_shard
from ps.phases import TRAIN
from ps.protocol import FROM_SHARD, TO_SHARD, Announce, AnnounceArrays, Count, Ledger, Open, Opened, PushArrays, Terms

RUN = "test"
SEED = 7
PATIENCE_MILLISECONDS = 30_000
NO_ROWS = np.empty(0, np.int64)


Moved = tuple[Sequence[int], Sequence[int]]
"""rows that one worker pushes: owned ones, and parts"""


def fingerprints(*pushes: Moved) -> NDArray[np.uint64]:
    """Of each worker's push, as an announcement carries them."""
    return np.array([fingerprint_reference(*map(list, moved)) for moved in pushes], np.uint64)


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def owned(numbers: NDArray[np.int64], rows: NDArray[Any]) -> PushArrays:
    """A push of owned rows alone."""
    return PushArrays(owned_numbers=numbers, owned_rows=rows, part_numbers=NO_I64, part_gradients=rows[:0])


def parts(numbers: NDArray[np.int64], gradients: NDArray[Any]) -> PushArrays:
    """A push of parts alone."""
    return PushArrays(owned_numbers=NO_I64, owned_rows=gradients[:0], part_numbers=numbers, part_gradients=gradients)


def shard_job(number: int, rows: RowConfig, config: PsConfig, **options: Any) -> ShardJob:
    return ShardJob(
        number=number, config=config, rows=rows, run=RUN, seed=SEED, endpoint="tcp://127.0.0.1:*", **options
    )


@contextmanager
def running_shards(
    rows: RowConfig,
    shards: int = 1,
    chunk_rows: int = 4,
    curve: Curve | None = None,
    settings: dict[str, str] | None = None,
    dispatcher: str = "",
    storage: str = "",
) -> Iterator[list[str]]:
    """Real shards in threads, which offer themselves to a dispatcher; yields their endpoints."""
    stop = Stop()
    ready: list[threading.Event] = [threading.Event() for _ in range(shards)]
    endpoints = [""] * shards

    def serve(shard: int) -> None:
        def on_ready(endpoint: str) -> None:
            endpoints[shard] = endpoint
            ready[shard].set()

        config, agreement = PsConfig(shards=shards, chunk_rows=chunk_rows), Agreement(shards=settings or {})
        told: dict[str, Any] = {"dispatcher_endpoint": dispatcher, "agreement": agreement, "storage": storage}
        run_shard(shard_job(shard, rows, config, curve=curve, **told), stop, on_ready)

    threads = [threading.Thread(target=serve, args=(shard,)) for shard in range(shards)]
    for thread in threads:
        thread.start()
    try:
        assert all(event.wait(60) for event in ready)
        yield endpoints
    finally:
        stop.request("test over")
        for thread in threads:
            thread.join()


class Peer:
    """One DEALER socket to one shard."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, dtype: str, curve: Curve | None
    ) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 0)
        connect(self.socket, endpoint, curve)
        self._requests = Codec(*TO_SHARD, float_dtype=dtype)
        self._replies = Codec(*FROM_SHARD, float_dtype=dtype)

    def send(self, kind: type[Header], arrays: Arrays = NO_ARRAYS, **fields: Any) -> None:
        common: dict[str, Any] = {"run": RUN, "generation": 1, "step": 0}
        send(self.socket, self._requests, kind(**common | fields), arrays)

    def receive(self) -> tuple[Any, Any]:
        assert self.socket.poll(PATIENCE_MILLISECONDS), "no answer"
        return receive(self.socket, self._replies)

    def ask(self, kind: type[Header], arrays: Arrays = NO_ARRAYS, **fields: Any) -> tuple[Any, Any]:
        self.send(kind, arrays, **fields)
        return self.receive()

    def ledger(self, generation: int = 1) -> tuple[Ledger, list[list[int]]]:
        """The shard's row count and ledger lines; also proves that it has carried out all this peer sent before."""
        header, columns = self.ask(Count, generation=generation)
        assert isinstance(header, Ledger)
        return header, np.stack(columns, axis=1).tolist()


class Announcer:
    """Announces rounds to every shard, as a dispatcher would, from rows named by hand."""

    def __init__(self, peers: Sequence[Peer]) -> None:
        self.peers = peers

    def open(self, generation: int, workers: int) -> None:
        for shard, peer in enumerate(self.peers):
            terms = Terms(shard, len(self.peers), {})
            assert isinstance(peer.ask(Open, generation=generation, workers=workers, terms=terms)[0], Opened)

    def announce(
        self,
        step: int,
        phase: int = TRAIN,
        pushes: Mapping[int, Moved] | None = None,
        new: dict[int, int] | None = None,
        settle: Sequence[int] = (),
        changed: dict[int, int] | None = None,
        generation: int = 1,
        **dense: Any,
    ) -> None:
        """``pushes`` worker → rows; ``new`` row → key; ``changed`` row → step. Waits until every shard has it.

        dense: fields of Announce.
        """
        for shard, peer in enumerate(self.peers):
            created, updated = (
                {row // len(self.peers): x for row, x in (named or {}).items() if row % len(self.peers) == shard}
                for named in (new, changed)
            )
            arrays = AnnounceArrays(
                new_numbers=ints(*created),
                new_keys=np.array(list(created.values()), np.uint64),
                settled=ints(*(row // len(self.peers) for row in settle if row % len(self.peers) == shard)),
                changed=ints(*updated),
                changed_steps=ints(*updated.values()),
            )
            brought = {worker: self._brought(moved, shard) for worker, moved in (pushes or {}).items()}
            here = [worker for worker, moved in brought.items() if any(moved) or not any((pushes or {})[worker])]
            arrays = arrays._replace(pushed=fingerprints(*(brought[worker] for worker in here)))
            peer.send(Announce, arrays, step=step, phase=phase, pushers=here, generation=generation, **dense)
            peer.ledger(generation)

    def _brought(self, moved: Moved, shard: int) -> Moved:
        """A worker's rows on one shard, as numbers of that shard."""
        shards = len(self.peers)
        owned, parts = ([int(row) // shards for row in rows if row % shards == shard] for rows in moved)
        return owned, parts


class ShardStage:
    """Shards with an announcer, and as many clients as a test asks for."""

    def __init__(self, rows: RowConfig, endpoints: list[str], curve: Curve | None) -> None:
        self.rows = rows
        self.endpoints = endpoints
        self.curve = curve
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._clients: list[ShardClient] = []
        self._peers: list[Peer] = []
        self.announcer = Announcer([self.peer(shard) for shard in range(len(endpoints))])

    def peer(self, shard: int = 0) -> Peer:
        self._peers.append(Peer(self.context, self.endpoints[shard], self.rows.float_dtype, self.curve))
        return self._peers[-1]

    def client(self, worker: int, generation: int = 1, **options: Any) -> ShardClient:
        client = ShardClient(self.context, self.endpoints, self.rows, RUN, curve=self.curve, **options)
        client.open(generation, worker)
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()
        for peer in self._peers:
            peer.socket.close()
        self.context.term()


@contextmanager
def stage(
    rows: RowConfig,
    shards: int = 1,
    workers: int = 2,
    curve: tuple[Curve | None, Curve | None] = (None, None),
    storage: str = "",
) -> Iterator[ShardStage]:
    """Running shards on which generation 1 is open. ``curve``: keys of the shards and of everyone else."""
    with running_shards(rows, shards, curve=curve[0], storage=storage) as endpoints:
        staged = ShardStage(rows, endpoints, curve[1])
        try:
            staged.announcer.open(1, workers)
            yield staged
        finally:
            staged.close()
