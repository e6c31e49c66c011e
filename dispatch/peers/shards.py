"""The dispatcher's side of the parameter server: opens generations, announces rounds and checkpoints."""

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
import zmq
from numpy.typing import NDArray

from dispatch.dense import NO_MOVES, DenseMoves
from dispatch.errors import ShardDisagrees, ShardRefused, ShardSilent
from dispatch.placement.rows.index import BatchRows
from dispatch.placement.rows.plan import RoundPlan, ShardPlan
from dispatch.placement.rows.pruning import PruneRound
from infra.base.faults import reach
from infra.base.wire import NO_ARRAYS, NO_I64, NO_U64, Arrays, Codec, Curve, Header, Refused, connected, receive, send
from ps.errors import Disagreement
from ps.phases import EARLY, EVICT, TRAIN
from ps.protocol import (
    FROM_SHARD,
    GO_ON,
    TO_SHARD,
    Announce,
    AnnounceArrays,
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointSaved,
    ChunksCounted,
    Count,
    CountChunks,
    Digest,
    Digested,
    Ledger,
    LedgerArrays,
    Open,
    Opened,
    Prune,
    Pruned,
    Round,
    Terms,
)

WAIT_MILLISECONDS = 100
"""How long to wait for an answer before checking whether everyone is still there."""


class OpenedRows(NamedTuple):
    """What shards hold when a generation begins."""

    rows: list[int]
    """Rows of each shard."""
    masks_R: NDArray[np.uint8]
    """Masks of all rows, by row number, if the shards went back to a checkpoint and rows can be pruned."""


class PrunedRows(NamedTuple):
    """What a round of pruning did on all shards."""

    rows: NDArray[np.int64]
    """Rows of which a chunk was pruned or came back."""
    masks: NDArray[np.uint8]
    """Their masks now."""
    pruned: int
    """Chunks pruned."""
    brought_back: int


class Shards:
    """The dispatcher's connections to every shard of a generation."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoints: Sequence[str],
        run: str,
        curve: Curve | None = None,
        timeout_seconds: float = 60.0,
        settings: Mapping[str, str] | None = None,
        while_waiting: Callable[[], None] | None = None,
    ) -> None:
        """settings: those that every shard must share; while_waiting: called now and then, may raise."""
        self._endpoints = endpoints
        self._run = run
        self._settings = dict(settings or {})
        self._timeout_seconds = timeout_seconds
        self._while_waiting = while_waiting
        self._requests = Codec(*TO_SHARD)
        self._replies = Codec(*FROM_SHARD)
        self._checkpoints: list[tuple[int, CheckpointSaved | CheckpointFailed]] = []
        identity = f"dispatcher/{uuid4().hex}".encode()  # shards take announcements only from who opened the generation
        self._sockets = [connected(context, endpoint, curve, {zmq.ROUTING_ID: identity}) for endpoint in endpoints]

    def open(self, generation: int, step: int, workers: int, restore: int = GO_ON) -> OpenedRows:
        """Every shard refuses older generations once this returns, and holds the model of the checkpoint to go back to.

        Raises ShardRefused if one has other settings, or cannot go back.
        """
        common: dict[str, Any] = {"run": self._run, "generation": generation, "step": step}
        terms = [Terms(shard, len(self._sockets), self._settings) for shard in range(len(self._sockets))]
        opens = [Open(**common, workers=workers, terms=its_terms, restore=restore) for its_terms in terms]
        answers = self._answers_to(opens, Opened)
        masks_R = np.empty(sum(arrays.masks.size for _, arrays in answers), np.uint8)
        for shard, (_, arrays) in enumerate(answers):
            if arrays.masks.size:
                masks_R[shard :: len(answers)] = arrays.masks
        return OpenedRows([header.rows for header, _ in answers], masks_R)

    def announce_step(
        self,
        generation: int,
        step: int,
        plan: RoundPlan,
        rows: BatchRows,
        dense: DenseMoves = NO_MOVES,
        forgotten: NDArray[np.int64] = NO_I64,
        bare: NDArray[np.int64] = NO_I64,
    ) -> None:
        """Announces to every shard what the step will do there, round after round.

        rows: of its batch; forgotten: rows whose keys are forgotten before; bare: new rows that get no chunks.
        """
        at: dict[str, Any] = {"run": self._run, "generation": generation, "step": step}
        for number in range(len(self._sockets)):
            early = plan.early_shards[number]
            late = plan.shards[number]
            made = _with_keys(_announced(early), rows, forgotten, number, len(self._sockets))
            if bare.size:
                made = made._replace(bare=bare[bare % len(self._sockets) == number] // len(self._sockets))
            self._send(number, Announce(**at, phase=EARLY, pushers=list(early.pushers)), made)
            self._send(number, _late(at, TRAIN, late, dense), _announced(late))
            if (evicted := plan.evict_shards[number]).pushers:
                self._send(number, _late(at, EVICT, evicted, NO_MOVES), _announced(evicted))
            reach("announced_one_shard", step)

    def announce_flush(
        self, generation: int, at: Round, plan: RoundPlan, dense: DenseMoves = NO_MOVES, checkpoint: int = 0
    ) -> None:
        """Announces to every shard what is written back; checkpoint: the one to take after that, 0 for none."""
        fields: dict[str, Any] = {"run": self._run, "generation": generation, "step": at[0], "checkpoint": checkpoint}
        for number, shard in enumerate(plan.shards):
            self._send(number, _late(fields, at[1], shard, dense), _announced(shard))

    def commit(self, generation: int, step: int, checkpoint: int) -> None:
        """Notifies every shard that a checkpoint exists."""
        for number in range(len(self._sockets)):
            self._send(
                number, CheckpointCommitted(run=self._run, generation=generation, step=step, checkpoint=checkpoint)
            )

    def count_chunks(
        self, generation: int, step: int, weighs_columns: bool
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """How many chunks there are by (whether they are live, chunk number, bin of the utility), flat.

        Then, if they are asked for, the weights of embedding columns.
        """
        asked = CountChunks(run=self._run, generation=generation, step=step, weighs_columns=weighs_columns)
        answers = self._answers_to([asked] * len(self._sockets), ChunksCounted)
        counts: NDArray[np.int64] = np.sum([arrays.counts for _, arrays in answers], axis=0)
        weights: NDArray[np.float64] = np.sum([arrays.columns for _, arrays in answers], axis=0)
        return counts, weights

    def prune(self, generation: int, step: int, done: PruneRound) -> PrunedRows:
        """Has every shard prune chunks and bring others back."""
        at: dict[str, Any] = {"run": self._run, "generation": generation, "step": step}
        asked = Prune(
            **at,
            evict_below=list(done.evict_below),
            bring_from=list(done.bring_from),
            halvings=done.halvings,
            columns=done.columns,
        )
        shards = len(self._sockets)
        answers = self._answers_to([asked] * shards, Pruned)
        rows = [arrays.numbers * shards + shard for shard, (_, arrays) in enumerate(answers)]
        return PrunedRows(
            rows=np.concatenate(rows),
            masks=np.concatenate([arrays.masks for _, arrays in answers]),
            pruned=sum(header.pruned for header, _ in answers),
            brought_back=sum(header.brought_back for header, _ in answers),
        )

    def digest(self, generation: int) -> str:
        """32 hex digits of key, value, state and last step of every row: equal for equal models."""
        asked = Digest(run=self._run, generation=generation, step=0)
        answers = [header.digest for header, _ in self._answers_to([asked] * len(self._sockets), Digested)]
        halves = ((int(each[:16], 16), int(each[16:], 16)) for each in answers)
        low, high = (sum(half) % (1 << 64) for half in zip(*halves, strict=True))
        return f"{low:016x}{high:016x}"

    def ledgers(self, generation: int) -> list[LedgerArrays]:
        """What each shard counted, by round and worker."""
        return [arrays for _, arrays in self._count(generation)]

    def have_applied(self, generation: int, step: int, phase: int) -> bool:
        """Whether every shard has applied an announced round, with every push of it.

        A worker's report and its pushes use different connections: the report may arrive before a push, and shards that
        open a generation then would refuse that push. Behind a slow link it may be minutes ahead of it.
        """
        applied = [(ledger.applied_step, ledger.applied_phase) for ledger, _ in self._count(generation)]
        return min(applied) >= (step, phase)

    def check(self) -> list[tuple[int, CheckpointSaved | CheckpointFailed]]:
        """The shards' messages about checkpoints since the last call, each with the shard's number.

        Raises ShardRefused if a shard refused an announcement; announcements are not answered otherwise.
        """
        for number, socket in enumerate(self._sockets):
            while socket.poll(0):
                self._receive(number)
        messages, self._checkpoints = self._checkpoints, []
        return messages

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()

    def _count(self, generation: int) -> list[tuple[Ledger, LedgerArrays]]:
        return self._answers_to([Count(run=self._run, generation=generation, step=0)] * len(self._sockets), Ledger)

    def _answers_to(self, requests: Sequence[Header], kind: type[Header]) -> list[tuple[Any, Any]]:
        """The answer of each shard to its request."""
        for number, header in enumerate(requests):
            self._send(number, header)
        return [self._answer(number, header, kind) for number, header in enumerate(requests)]

    def _send(self, number: int, header: Header, arrays: Arrays = NO_ARRAYS) -> None:
        """Raises ShardSilent if the message cannot be sent: the next generation connects again."""
        if not send(self._sockets[number], self._requests, header, arrays):
            raise ShardSilent(
                f"shard at {self._endpoints[number]} takes no {type(header).__name__}: the connection was refused, or "
                "too many messages wait for it; expected a shard there that answers; see whether 'freshet ps' runs "
                "there and the CURVE keys match"
            )

    def _answer(self, number: int, asked: Header, kind: type[Header]) -> tuple[Any, Any]:
        deadline = monotonic() + self._timeout_seconds
        while True:
            if self._sockets[number].poll(WAIT_MILLISECONDS):
                header, arrays = self._receive(number)
                if isinstance(header, kind):
                    return header, arrays
            elif self._while_waiting is not None:
                self._while_waiting()
            if monotonic() > deadline:
                raise ShardSilent(
                    f"shard at {self._endpoints[number]} did not answer {type(asked).__name__} within "
                    f"{self._timeout_seconds:g} s; expected an answer at once; see whether 'freshet ps' runs there and "
                    "the CURVE keys match"
                )

    def _receive(self, number: int) -> tuple[Any, Any]:
        """The next message of a shard; messages about a checkpoint are also kept."""
        header, arrays = receive(self._sockets[number], self._replies)
        if isinstance(header, Refused):
            endpoint = self._endpoints[number]
            reason = f"shard at {endpoint} refused a message of the dispatcher: {header.reason}"
            kind = ShardDisagrees if header.what == Disagreement.__name__ else ShardRefused
            raise kind(reason, header.what)
        if isinstance(header, CheckpointSaved | CheckpointFailed):
            self._checkpoints.append((number, header))
        return header, arrays


def _late(at: Mapping[str, Any], phase: int, shard: ShardPlan, dense: DenseMoves) -> Announce:
    whole = [] if dense.giver is None else [dense.giver]
    moves: dict[str, Any] = {"dense_whole": whole, "dense_gradients": list(dense.gradients)}
    return Announce(**at, phase=phase, pushers=list(shard.pushers), **moves)


def _announced(shard: ShardPlan) -> AnnounceArrays:
    return AnnounceArrays(
        settled=shard.settled, changed=shard.fresh, changed_steps=shard.fresh_steps, pushed=shard.pushed
    )


def _with_keys(
    announced: AnnounceArrays, rows: BatchRows, forgotten: NDArray[np.int64], shard: int, shards: int
) -> AnnounceArrays:
    """The same, with the keys that a shard forgets and gets."""
    new_numbers, new_keys = _new_rows(rows, shard, shards)
    announced = announced._replace(new_numbers=new_numbers, new_keys=new_keys)
    if not forgotten.size and not rows.reused.size:
        return announced
    is_its = rows.reused % shards == shard
    return announced._replace(
        forgotten=forgotten[forgotten % shards == shard] // shards,
        reused=rows.reused[is_its] // shards,
        reused_keys=rows.reused_keys[is_its],
    )


def _new_rows(rows: BatchRows, shard: int, shards: int) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    if not rows.new_keys.size:
        return NO_I64, NO_U64
    first = (shard - rows.first_new) % shards
    keys = np.ascontiguousarray(rows.new_keys[first::shards])
    return (rows.first_new + first) // shards + np.arange(keys.size), keys
