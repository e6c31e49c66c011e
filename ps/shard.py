"""One shard: takes messages, changes rows, gives replies. It knows no sockets.

A round goes through these steps, and their order is the guarantee:

1. its announcement creates new rows;
2. every announced push is in, and every earlier round has been applied;
3. owned rows are written, value and state;
4. parts are kept;
5. rows whose parts are complete are settled: summed in worker order, applied once;
6. rows made up to date get the step that last changed them;
7. dense weights are replaced by those of one worker, or changed once by the sum of all gradients, in worker order;
8. pulls that waited for the round are answered.

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
from infra.wire import I64, NO_ARRAYS, NO_I64, Arrays, Header, Refused, cut_reason
from ps.buffers import ReplyBuffer, ReplyBuffers
from ps.config import HELD_BYTES, DenseRule, RowConfig
from ps.dense.range import DenseRange
from ps.errors import OutOfOrder, PsError
from ps.ledger import LedgerLines
from ps.optimizers import rule_of
from ps.parts import Parts
from ps.protocol import (
    ONLY_SHARD,
    TRAIN,
    WHOLE,
    Announce,
    AnnounceArrays,
    Count,
    Done,
    Ledger,
    Meet,
    Open,
    Peek,
    PeekArrays,
    Pull,
    PullArrays,
    Push,
    PushArrays,
    Rows,
    RowsArrays,
    Terms,
)
from ps.rounds import Gathering, Received, Rounds
from ps.store import Store


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
            refusal = self.refuse(message, error)
            if not (isinstance(error, Fenced) and isinstance(message.header, Push)):
                yield refusal

    def refuse(self, message: Received, error: FreshetError) -> Reply:
        """Counts a message as refused; returns the answer."""
        kind = Refusals.UNREADABLE if message.header is None else type(message.header).__name__
        self.refused.add(kind, message.sender, str(error))
        return self._refusal(message, error)

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
            case Push():
                self._push(message)
                yield from self._advance()
            case Pull():
                if self._rounds.pull(message):
                    yield self._answer_pull(message)
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
        if isinstance(header, Announce | Push | Pull):
            self._check_open(header)

    def _check_open(self, header: Announce | Push | Pull) -> None:
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
        if isinstance(header, Push | Pull) and not 0 <= header.worker < self._workers:
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
            self.parts.drop()
        yield Reply(message.sender, self._header(Done, message))

    # ── rounds ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _announce(self, message: Received) -> Iterator[Reply]:
        header: Announce = message.header
        arrays: AnnounceArrays = message.arrays
        self._check_pushers(header, len(arrays.pushed))
        self._rounds.check_next(header)
        new = int((arrays.new_numbers >= len(self.store)).sum())
        self.store.check(arrays.settled, new)
        self.store.check(arrays.changed, new)
        self.store.create(arrays.new_numbers, arrays.new_keys)
        for early in self._rounds.announce(message):
            try:
                self._push(early)
            except (PsError, WireError) as error:
                yield self.refuse(early, error)

    def _check_pushers(self, header: Announce, fingerprints: int) -> None:
        pushers, dense = header.pushers, header.dense_pushers
        is_known = len(set(pushers)) == len(pushers) and all(0 <= worker < self._workers for worker in pushers)
        if not is_known or fingerprints != len(pushers):
            raise OutOfOrder(
                f"a round was announced with pushers {pushers} and {fingerprints} fingerprints; expected different "
                f"numbers below {self._workers} and a fingerprint of each; the dispatcher must announce members of the "
                "generation"
            )
        is_one = header.dense_form != WHOLE or len(dense) == 1
        if not set(dense) <= set(pushers) or bool(dense) != bool(header.dense_form) or not is_one:
            raise OutOfOrder(
                f"a round was announced in which {dense} of pushers {pushers} bring dense weights in form "
                f"{header.dense_form}; expected some of the pushers, one if it is everything; the dispatcher must "
                "announce what it orders"
            )

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
        self.dense.check(message.header.dense, arrays.dense.size)
        self._rounds.push(message)

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
            self._lines.count(at, worker, **moved, dense_pushed=arrays.dense.size)
        self.parts.settle(announced.settled)
        self.store.stamp(announced.changed, announced.changed_steps)
        if gathering.dense:
            brought = [gathering.pushes[worker].arrays.dense for worker in sorted(gathering.dense)]
            self.dense.change(gathering.announced.header.dense_form, brought)

    def _refuse_waiting(self, error: FreshetError) -> Iterator[Reply]:
        for pull in self._rounds.drop():
            yield self.refuse(pull, error)

    # ── replies ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def _answer_pull(self, message: Received) -> Reply:
        arrays: PullArrays = message.arrays
        reply = self._rows(message, arrays, NO_I64)
        pulled = len(arrays.full_numbers) + len(arrays.value_numbers)
        moved = {"pulled": pulled, "dense_pulled": reply.arrays[-1].size}
        self._lines.count((message.header.step, TRAIN), message.header.worker, **moved)
        return reply

    def _answer_peek(self, message: Received) -> Reply:
        arrays: PeekArrays = message.arrays
        return self._rows(message, PullArrays(full_numbers=arrays.numbers), self.store.steps(arrays.numbers))

    def _answer_count(self, message: Received) -> Reply:
        step, phase = self._rounds.applied or (-1, TRAIN)
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
        dense = self.dense.read(message.header.dense)
        buffer = self._buffers.take(end + dense.size)
        full, values, dense_copy = np.split(buffer.array[: end + dense.size], [middle, end])
        dense_copy[:] = dense
        self.store.rows.gather(wanted.full_numbers, full.reshape(-1, shape.total))
        self.store.rows.gather(wanted.value_numbers, values.reshape(-1, shape.value))
        header = self._header(Rows, message, held_seconds=perf_counter() - message.at_seconds)
        arrays = RowsArrays(full=full, values=values, steps=steps, dense=dense_copy)
        return Reply(message.sender, header, arrays, buffer)

    def _header(self, kind: type[Header], message: Received, **fields: Any) -> Header:
        return kind(run=self._run, generation=message.header.generation, step=message.header.step, **fields)

    def _refusal(self, message: Received, error: FreshetError) -> Reply:
        step = message.header.step if isinstance(message.header, Header) else -1
        reason = cut_reason(f"{type(error).__name__}: {error}")
        return Reply(message.sender, Refused(run=self._run, generation=self.generation, step=step, reason=reason))
