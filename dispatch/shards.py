"""The dispatcher's side of the parameter server: opens generations and announces rounds, shard by shard."""

from collections.abc import Mapping, Sequence
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

import numpy as np
import zmq
from numpy.typing import NDArray

from dispatch.dense import NO_MOVES, DenseMoves
from dispatch.errors import ShardRefused, ShardSilent
from dispatch.rows.index import BatchRows
from dispatch.rows.plan import RoundPlan, ShardPlan
from infra.wire import NO_I64, NO_U64, Codec, Curve, Header, Refused, connect, receive, send
from ps.protocol import (
    EARLY,
    EVICT,
    FLUSH,
    FROM_SHARD,
    TO_SHARD,
    TRAIN,
    Announce,
    AnnounceArrays,
    Count,
    Ledger,
    LedgerArrays,
    Open,
    Terms,
)

PAUSE_SECONDS = 0.005
"""between two looks at the ledgers"""


class Shards:
    """Connections of the dispatcher to every shard."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoints: Sequence[str],
        run: str,
        curve: Curve | None = None,
        timeout_seconds: float = 60.0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """settings: those that every shard must share."""
        self._endpoints = endpoints
        self._run = run
        self._settings = dict(settings or {})
        self._timeout_ms = int(timeout_seconds * 1000)
        self._requests, self._replies = Codec(*TO_SHARD), Codec(*FROM_SHARD)
        self._sockets = [context.socket(zmq.DEALER) for _ in endpoints]
        identity = f"dispatcher/{uuid4().hex}".encode()  # shards take announcements only from who opened the generation
        for socket, endpoint in zip(self._sockets, endpoints, strict=True):
            socket.set(zmq.ROUTING_ID, identity)
            socket.set(zmq.LINGER, 0)
            connect(socket, endpoint, curve)

    def open(self, generation: int, step: int, workers: int) -> None:
        """Every shard refuses older generations once this returns. Raises ShardRefused if one has other settings."""
        common: dict[str, Any] = {"run": self._run, "generation": generation, "step": step}
        terms = [Terms(shard, len(self._sockets), self._settings) for shard in range(len(self._sockets))]
        self._ask([Open(**common, workers=workers, terms=its_terms) for its_terms in terms])

    def announce_step(
        self, generation: int, step: int, plan: RoundPlan, rows: BatchRows, dense: DenseMoves = NO_MOVES
    ) -> None:
        """Tells every shard what the step will do there, round after round; rows: its batch's."""
        at: dict[str, Any] = {"run": self._run, "generation": generation, "step": step}
        for number, socket in enumerate(self._sockets):
            early, late = plan.early_shards[number], plan.shards[number]
            new_numbers, new_keys = _new_rows(rows, number, len(self._sockets))
            made = _announced(early)._replace(new_numbers=new_numbers, new_keys=new_keys)
            send(socket, self._requests, Announce(**at, phase=EARLY, pushers=list(early.pushers)), made)
            send(socket, self._requests, _late(at, TRAIN, late, dense), _announced(late))
            if (evicted := plan.evict_shards[number]).pushers:
                send(socket, self._requests, _late(at, EVICT, evicted, NO_MOVES), _announced(evicted))

    def announce_flush(self, generation: int, step: int, plan: RoundPlan, dense: DenseMoves = NO_MOVES) -> None:
        """Tells every shard what is written back."""
        at: dict[str, Any] = {"run": self._run, "generation": generation, "step": step}
        for socket, shard in zip(self._sockets, plan.shards, strict=True):
            send(socket, self._requests, _late(at, FLUSH, shard, dense), _announced(shard))

    def ledgers(self, generation: int) -> list[LedgerArrays]:
        """What each shard saw, by round and worker."""
        return [arrays for _, arrays in self._count(generation)]

    def await_applied(self, generation: int, step: int, phase: int) -> None:
        """Returns once every shard has applied a round that was announced, with every push of it.

        A worker's report and its pushes use different connections: the report may arrive before a push, and shards that
        open a generation then would refuse that push.
        """
        deadline = monotonic() + self._timeout_ms / 1000
        while True:
            applied = [(ledger.applied_step, ledger.applied_phase) for ledger, _ in self._count(generation)]
            if min(applied) >= (step, phase):
                return
            if monotonic() > deadline:
                raise ShardSilent(
                    f"shards had applied all up to rounds {applied} after {self._timeout_ms / 1000:g} s; expected "
                    f"{(step, phase)}; see whether every worker is alive"
                )
            sleep(PAUSE_SECONDS)

    def check(self) -> None:
        """Raises ShardRefused if a shard refused an announcement; announcements are not answered otherwise."""
        for socket, endpoint in zip(self._sockets, self._endpoints, strict=True):
            if socket.poll(0):
                self._answer(socket, endpoint)

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()

    def _count(self, generation: int) -> list[tuple[Ledger, LedgerArrays]]:
        return self._ask([Count(run=self._run, generation=generation, step=0)] * len(self._sockets))

    def _ask(self, requests: Sequence[Header]) -> list[tuple[Any, Any]]:
        """The answer of each shard to its request."""
        for socket, header in zip(self._sockets, requests, strict=True):
            send(socket, self._requests, header)
        answers = []
        for socket, endpoint, header in zip(self._sockets, self._endpoints, requests, strict=True):
            if not socket.poll(self._timeout_ms):
                raise ShardSilent(
                    f"shard at {endpoint} did not answer {type(header).__name__} within {self._timeout_ms / 1000:g} s; "
                    "expected an answer at once; see whether 'freshet ps' runs there and the CURVE keys match"
                )
            answers.append(self._answer(socket, endpoint))
        return answers

    def _answer(self, socket: "zmq.Socket[bytes]", endpoint: str) -> tuple[Any, Any]:
        header, arrays = receive(socket, self._replies)
        if isinstance(header, Refused):
            raise ShardRefused(f"shard at {endpoint} refused a message of the dispatcher: {header.reason}")
        return header, arrays


def _late(at: Mapping[str, Any], phase: int, shard: ShardPlan, dense: DenseMoves) -> Announce:
    whole = [] if dense.giver is None else [dense.giver]
    told: dict[str, Any] = {"dense_whole": whole, "dense_gradients": list(dense.gradients)}
    return Announce(**at, phase=phase, pushers=list(shard.pushers), **told)


def _announced(shard: ShardPlan) -> AnnounceArrays:
    return AnnounceArrays(
        settled=shard.settled, changed=shard.fresh, changed_steps=shard.fresh_steps, pushed=shard.pushed
    )


def _new_rows(rows: BatchRows, shard: int, shards: int) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    if not rows.new_keys.size:
        return NO_I64, NO_U64
    first = (shard - rows.first_new) % shards
    keys = np.ascontiguousarray(rows.new_keys[first::shards])
    return (rows.first_new + first) // shards + np.arange(keys.size), keys
