"""One shard: takes messages, changes rows, gives replies. It knows no sockets.

A round goes through these steps, and their order is the guarantee:

1. its announcement creates new rows;
2. every announced push is in, and every earlier round has been applied;
3. owned rows are written, value and state;
4. parts are kept;
5. rows whose parts are complete are settled: summed in worker order, applied once;
6. rows made up to date get the step that last changed them;
7. pulls that waited for the round are answered.

Dense weights have turns of their own (ps/dense/lane.py).

A message that cannot be carried out changes nothing and is answered with Refused: each is checked as a whole before any
state is touched. A round that cannot be applied breaks the generation: everything but the next Open is refused, because
rows may be half changed. Any other error is a fault of this process and ends it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from infra.errors import Fenced, FreshetError, WireError
from infra.telemetry import Refusals
from infra.wire import I64, NO_ARRAYS, NO_F32, NO_I64, Arrays, Header, Refused, cut_reason
from ps.buffers import ReplyBuffer, ReplyBuffers
from ps.config import HELD_BYTES, DenseRule, RowConfig
from ps.dense.lane import DenseLane
from ps.dense.range import DenseRange
from ps.errors import OutOfOrder, PsError
from ps.ledger import LedgerLines
from ps.optimizers import rule_of
from ps.parts import Parts
from ps.protocol import (
    EARLY,
    FLUSH,
    NO_DENSE,
    ONLY_SHARD,
    TRAIN,
    WHOLE,
    Announce,
    AnnounceArrays,
    Count,
    DenseArrays,
    DensePiece,
    Done,
    Ledger,
    Meet,
    Open,
    Opened,
    Peek,
    PeekArrays,
    Pull,
    PullArrays,
    PullDense,
    Push,
    PushArrays,
    PushDense,
    Rows,
    RowsArrays,
    Terms,
)
from ps.rounds import Gathering, Received, Rounds
from ps.store import Store

FromWorker = Push | Pull | PushDense | PullDense


@dataclass(frozen=True)
class Reply:
    """A message to send, and the buffer to give back when it is sent."""

    to: bytes
    header: Header
    arrays: Arrays = NO_ARRAYS
    buffer: ReplyBuffer | None = None


class Shard:
    """Rows, pending parts and the barrier of one shard of one run."""

    def __init__(
        self,
        rows: RowConfig,
        run: str,
        seed: int,
        chunk_rows: int,
        held_bytes: int = HELD_BYTES,
        refused: Refusals | None = None,
        terms: Terms = ONLY_SHARD,
        dense: DenseRule | None = None,
    ) -> None:
        self.store = Store(rows, seed, chunk_rows)
        self.parts = Parts(self.store, rule_of(rows))
        self.dense = DenseRange(dense or DenseRule(), rows.float_dtype)
        self.refused = refused or Refusals()
        """messages not carried out"""
        self.generation = -1
        self._run = run
        self._terms = terms
        self._workers = 0
        self._opener = b""
        """who opened the generation"""
        self._held_bytes = held_bytes
        self._rounds = Rounds(held_bytes)
        self._lane = DenseLane(self.dense, held_bytes)
        self._broken: PsError | None = None
        self._lines = LedgerLines()
        self._buffers = ReplyBuffers(rows.float_dtype)

    def receive(self, message: Received) -> Iterator[Reply]:
        """Carries out one message and yields every reply it makes possible; must be read to the end."""
        try:
            self._check_fence(message.header)
            if isinstance(message.header, Announce):
                self._check_opener(message.sender)
            yield from self._carry_out(message)
        except (PsError, WireError) as error:
            yield self.refuse(message, error)

    def refuse(self, message: Received, error: FreshetError) -> Reply:
        """Counts a message as refused; returns the answer."""
        kind = Refusals.UNREADABLE if message.header is None else type(message.header).__name__
        self.refused.add(kind, message.sender, str(error))
        step = message.header.step if isinstance(message.header, Header) else -1
        generation = message.header.generation if isinstance(message.header, Header) else -1
        reason = cut_reason(f"{type(error).__name__}: {error}")
        told: dict[str, Any] = {"generation": generation, "step": step, "current": self.generation, "reason": reason}
        return Reply(message.sender, Refused(run=self._run, **told))

    def _carry_out(self, message: Received) -> Iterator[Reply]:
        match message.header:
            case Open():
                self._terms.check(message.header.terms, "the dispatcher")
                yield from self._open(message)
            case Meet():
                self._terms.check(message.header.terms, f"worker {message.header.worker!r}")
                yield Reply(message.sender, self._header(Done, message))
            case Announce():
                yield from self._announce(message)
                yield from self._advance()
                yield from self._answer_dense()
            case Push():
                self._push(message)
                yield from self._advance()
            case Pull():
                if self._rounds.pull(message):
                    yield self._answer_pull(message)
            case PushDense():
                if self._push_dense(message):
                    yield from self._answer_dense()
            case PullDense():
                self._lane.pull(message)
                yield from self._answer_dense()
            case Peek():
                yield self._answer_peek(message)
            case Count():
                yield self._answer_count(message)

    # ── generations ───────────────────────────────────────────────────────────────────────────────────────────────────
    def _check_fence(self, header: Header) -> None:
        is_old = header.generation < self.generation and not isinstance(header, Meet)  # of no generation yet
        if header.run != self._run or is_old:
            raise Fenced(
                f"{type(header).__name__} of run {header.run!r} generation {header.generation} reached a shard of run "
                f"{self._run!r} generation {self.generation}; expected the same; its sender must join again"
            )
        if isinstance(header, Announce | FromWorker):
            self._check_open(header)

    def _check_open(self, header: Announce | FromWorker) -> None:
        if header.generation > self.generation:
            raise OutOfOrder(
                f"{type(header).__name__} of generation {header.generation} came while generation {self.generation} is "
                "open; expected the open one; the dispatcher must open a generation on every shard first"
            )
        if self._broken is not None:
            raise OutOfOrder(
                f"generation {self.generation} is broken on this shard: {self._broken}; expected a later one; the "
                "dispatcher must open it"
            )
        if isinstance(header, FromWorker) and not 0 <= header.worker < self._workers:
            raise OutOfOrder(
                f"worker {header.worker} is not one of the {self._workers} workers of this generation; "
                f"expected 0 to {self._workers - 1}; it must join again"
            )

    def _check_opener(self, sender: bytes) -> None:
        """Only who opened the generation says what its rounds do."""
        if sender != self._opener:
            raise OutOfOrder(
                f"a round of generation {self.generation} was announced by {sender!r}; expected {self._opener!r}, "
                "which opened the generation; a dispatcher must open a generation of its own first"
            )

    def _open(self, message: Received) -> Iterator[Reply]:
        header: Open = message.header
        if header.generation > self.generation:
            self.generation, self._workers, self._broken = header.generation, header.workers, None
            self._opener = message.sender
            yield from self._refuse_waiting(Fenced(f"generation {header.generation} has begun; join again"))
            self._rounds = Rounds(self._held_bytes)
            self._lane = DenseLane(self.dense, self._held_bytes)
            self.parts.drop()
        yield Reply(message.sender, self._header(Opened, message, rows=len(self.store)))

    # ── rounds ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _announce(self, message: Received) -> Iterator[Reply]:
        header: Announce = message.header
        arrays: AnnounceArrays = message.arrays
        check_announced(header, len(arrays.pushed), self._workers)
        self._rounds.check_next(header)
        new = int((arrays.new_numbers >= len(self.store)).sum())
        self.store.check(arrays.settled, new)
        self.store.check(arrays.changed, new)
        self.store.create(arrays.new_numbers, arrays.new_keys)
        for held in (*self._rounds.announce(message), *self._lane.announce(header)):
            try:
                self._push(held) if isinstance(held.header, Push) else self._push_dense(held)
            except (PsError, WireError) as error:
                yield self.refuse(held, error)

    def _push(self, message: Received) -> None:
        arrays: PushArrays = message.arrays
        shape, owned, parts = self.store.shape, len(arrays.owned_numbers), len(arrays.part_numbers)
        if owned * shape.total != len(arrays.owned_rows) or parts * shape.value != len(arrays.part_gradients):
            raise WireError(
                f"a push of {owned} owned rows and {parts} parts brought {len(arrays.owned_rows)} and "
                f"{len(arrays.part_gradients)} floats; expected {shape.total} and {shape.value} each; "
                "give worker and shard the same settings"
            )
        # A worker pushes what it has pulled, so its rows are known even if the round is not announced yet.
        self.store.check(arrays.owned_numbers)
        self.store.check(arrays.part_numbers)
        self._rounds.push(message)

    def _push_dense(self, message: Received) -> bool:
        """Returns whether it was taken; else it is held until its turn is announced."""
        header: PushDense = message.header
        is_taken = self._lane.push(message)
        if is_taken:
            self._lines.count((header.step, header.phase), header.worker, dense_pushed=message.arrays.floats.size)
        return is_taken

    def _advance(self) -> Iterator[Reply]:
        """Applies every round that is complete, in order."""
        while gathering := self._rounds.next_complete():
            try:
                self._apply(gathering)
            except PsError as error:
                self._broken = error
                assert gathering.announced is not None
                for message in (gathering.announced, *gathering.pulls):
                    yield self.refuse(message, error)
                yield from self._refuse_waiting(error)
                return
            for pull in gathering.pulls:
                try:
                    yield self._answer_pull(pull)
                except PsError as error:
                    yield self.refuse(pull, error)

    def _apply(self, gathering: Gathering) -> None:
        assert gathering.announced is not None
        announced: AnnounceArrays = gathering.announced.arrays
        shape = self.store.shape
        for worker in sorted(gathering.pushes):
            push = gathering.pushes[worker]
            arrays: PushArrays = push.arrays
            self.store.write(arrays.owned_numbers, arrays.owned_rows.reshape(-1, shape.total))
            self.parts.add(worker, arrays.part_numbers, arrays.part_gradients.reshape(-1, shape.value))
            moved = {"owned": len(arrays.owned_numbers), "parts": len(arrays.part_numbers)}
            at = (push.header.step, push.header.phase)
            self._lines.count(at, worker, **moved)
        self.parts.settle(announced.settled)
        self.store.stamp(announced.changed, announced.changed_steps)

    def _refuse_waiting(self, error: FreshetError) -> Iterator[Reply]:
        for pull in (*self._rounds.drop(), *self._lane.drop()):
            yield self.refuse(pull, error)

    # ── replies ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def _answer_pull(self, message: Received) -> Reply:
        arrays: PullArrays = message.arrays
        header: Pull = message.header
        reply = self._rows(message, arrays, NO_I64)
        pulled = len(arrays.full_numbers) + len(arrays.value_numbers)
        self._lines.count((header.step, header.phase), header.worker, pulled=pulled)
        return reply

    def _answer_dense(self) -> Iterator[Reply]:
        """Sends every piece of the dense weights that someone waits for and that is up to date."""
        for message, piece in self._lane.answers():
            header: PullDense = message.header
            floats = self.dense.read(header.form, piece)
            buffer = self._buffers.take(floats.size)
            buffer.array[: floats.size] = floats
            is_last = header.form == WHOLE or piece == self.dense.pieces - 1
            pushed_bytes, pushed_seconds = self._lane.travelled(header.worker) if is_last else (0, 0.0)
            told = self._header(
                DensePiece,
                message,
                form=header.form,
                piece=piece,
                is_last=is_last,
                pushed_bytes=pushed_bytes,
                pushed_seconds=pushed_seconds,
            )
            self._lines.count((header.step, TRAIN), header.worker, dense_pulled=floats.size)
            yield Reply(message.sender, told, DenseArrays(floats=buffer.array[: floats.size]), buffer)

    def _answer_peek(self, message: Received) -> Reply:
        arrays: PeekArrays = message.arrays
        return self._rows(message, PullArrays(full_numbers=arrays.numbers), self.store.steps(arrays.numbers))

    def _answer_count(self, message: Received) -> Reply:
        applied, unsettled = self._rounds.applied or (-1, TRAIN), self._lane.unsettled
        # a round is applied when the dense weights of the steps up to it are, too
        step, phase = min(applied, (unsettled[0] - 1, FLUSH)) if unsettled else applied
        header = self._header(Ledger, message, rows=len(self.store), applied_step=step, applied_phase=phase)
        return Reply(message.sender, header, self._lines.columns())

    def _rows(self, message: Received, wanted: PullArrays, steps: I64) -> Reply:
        """Gathers into one buffer of the pool; checks first, because a buffer that is taken must be sent."""
        self.store.check(wanted.full_numbers)
        self.store.check(wanted.value_numbers)
        if len(wanted.full_numbers) + len(wanted.value_numbers) > len(self.store):
            raise OutOfOrder(
                f"{len(wanted.full_numbers)} rows with state and {len(wanted.value_numbers)} without were asked for at "
                f"once, of {len(self.store)} that there are; expected each row at most once; ask for different rows"
            )
        shape = self.store.shape
        middle = len(wanted.full_numbers) * shape.total
        end = middle + len(wanted.value_numbers) * shape.value
        form = message.header.dense if isinstance(message.header, Peek) else NO_DENSE
        dense = self.dense.read(form) if form else NO_F32
        buffer = self._buffers.take(end + dense.size)
        full, values, dense_copy = np.split(buffer.array[: end + dense.size], [middle, end])
        dense_copy[:] = dense
        self.store.rows.gather(wanted.full_numbers, full.reshape(-1, shape.total))
        self.store.rows.gather(wanted.value_numbers, values.reshape(-1, shape.value))
        held_seconds = perf_counter() - message.at_seconds
        phase = message.header.phase if isinstance(message.header, Pull) else TRAIN
        header = self._header(Rows, message, phase=phase, held_seconds=held_seconds)
        arrays = RowsArrays(full=full, values=values, steps=steps, dense=dense_copy)
        return Reply(message.sender, header, arrays, buffer)

    def _header(self, kind: type[Header], message: Received, **fields: Any) -> Header:
        return kind(run=self._run, generation=message.header.generation, step=message.header.step, **fields)


def check_announced(header: Announce, fingerprints: int, workers: int) -> None:
    """Raises OutOfOrder for a round that no members of the generation could carry out."""
    pushers, whole, gradients = header.pushers, header.dense_whole, header.dense_gradients
    is_known = all(worker < workers for worker in (*pushers, *whole, *gradients))
    is_once = len(set(pushers)) == len(pushers) == fingerprints and len(set(gradients)) == len(gradients)
    if not is_known or not is_once:
        raise OutOfOrder(
            f"a round was announced with pushers {pushers}, {fingerprints} fingerprints, and dense weights of "
            f"{whole} and {gradients}; expected different numbers below {workers} and a fingerprint of "
            "each pusher; the dispatcher must announce members of the generation"
        )
    if header.phase == EARLY and (gradients or whole):
        raise OutOfOrder(
            f"dense weights of {whole} and {gradients} were announced for an early round; expected them "
            "with the step itself; the dispatcher must announce what it orders"
        )
