"""One shard: takes messages, changes rows, gives replies. It uses no sockets.

A round goes through these steps, and their order is the guarantee:

1. Its announcement creates the rows that get the next numbers.
2. Every announced push has arrived, and every earlier round has been applied.
3. Rows are forgotten, and free numbers get new rows: until then, earlier rounds may have written the old ones.
4. Owned rows are written, value and state.
5. Parts are kept.
6. Rows whose parts are complete are settled: summed in worker order, applied once.
7. Updated rows get the step that last changed them.
8. A checkpoint that belongs to the round begins (ps/checkpoints/taker.py).
9. Pulls that waited for the round are answered.

Dense weights have separate turns (ps/dense/lane.py).

Between rounds, and while no checkpoint is taken, chunks of rows can be counted by their utilities and pruned
(ps/pruning.py).

A message that cannot be carried out changes nothing and is answered with Refused: each is checked as a whole before any
state is touched. A round that cannot be applied breaks the generation: everything but the next Open is refused, because
rows may be half changed. Any other error is a fault of this process and ends it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infra.base.errors import Fenced, FreshetError, StorageError, WireError
from infra.base.faults import reach
from infra.base.telemetry import Refusals
from infra.base.wire import F32, I64, NO_ARRAYS, NO_F32, NO_I64, NO_U8, Arrays, Header, Refused, truncate_reason
from ps.buffers import ReplyBuffer, ReplyBuffers
from ps.checkpoints.digest import digest_store
from ps.checkpoints.restore import ModelSettings, restore
from ps.checkpoints.taker import CheckpointTaker
from ps.config import HELD_BYTES
from ps.dense.lane import DenseLane
from ps.errors import OutOfOrder, PsError
from ps.ledger import LedgerEntries
from ps.optimizers import rule_of
from ps.parts import Parts
from ps.phases import EARLY, FLUSH, LAST_FLUSH, TRAIN
from ps.protocol import (
    GO_ON,
    ONLY_SHARD,
    WHOLE,
    Announce,
    AnnounceArrays,
    CheckpointCommitted,
    ChunksCounted,
    ChunksCountedArrays,
    Coming,
    Count,
    CountChunks,
    DenseArrays,
    DensePieces,
    Digest,
    Digested,
    Ledger,
    Open,
    Opened,
    OpenedArrays,
    Peek,
    PeekArrays,
    Prune,
    Pruned,
    PrunedArrays,
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
from ps.pruned_store import PrunedStore
from ps.pruning import check_thresholds, count_chunks, prune, weigh_columns
from ps.rounds import Fence, Gathering, Received, Rounds

COMING_BYTES = 8 * 1024
"""Least bytes of an answer that is announced, so that its time can be measured."""


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
        model: ModelSettings,
        run: str,
        held_bytes: int = HELD_BYTES,
        refused: Refusals | None = None,
        terms: Terms = ONLY_SHARD,
        checkpoints: CheckpointTaker | None = None,
    ) -> None:
        self.store = model.empty_store()
        self.parts = Parts(self.store, rule_of(model.rows))
        self.dense = model.empty_dense()
        self.checkpoints = checkpoints or CheckpointTaker(None)
        self.refused = refused or Refusals()
        """Counts messages that were refused."""
        self._model = model
        self._terms = terms
        self._fence = Fence(run)
        self._held_bytes = held_bytes
        self._rounds = Rounds(held_bytes)
        self._lane = DenseLane(self.dense, held_bytes)
        self._entries = LedgerEntries()
        self._buffers = ReplyBuffers(model.rows.float_dtype)

    def receive(self, message: Received) -> Iterator[Reply]:
        """Carries out one message and yields every reply that it makes possible, except ``answer_dense``; the iterator
        must be exhausted.
        """
        try:
            self._fence.check(message)
            yield from self._carry_out(message)
        except (PsError, WireError, StorageError) as error:
            yield self.refuse(message, error)

    def answer_dense(self) -> Iterator[Reply]:
        """Sends every piece of the dense weights that somebody waits for and that is up to date; to be called when no
        other message has arrived, so that pieces that came together leave together.
        """
        copies: dict[tuple[int, range], ReplyBuffer] = {}
        for message, pieces in self._lane.answers():
            header: PullDense = message.header
            floats = self.dense.read(header.form, pieces)
            if (header.form, pieces) not in copies:
                # on loan to this function as well: a reply may have left before the next one needs the copy
                copies[header.form, pieces] = self._buffers.take_buffer(floats.size)
                copies[header.form, pieces].array[: floats.size] = floats
            buffer = copies[header.form, pieces]
            buffer.lend()
            is_last = header.form == WHOLE or pieces.stop == self.dense.pieces
            pushed_bytes, pushed_seconds = self._lane.travelled(header.worker) if is_last else (0, 0.0)
            answer = self._header(
                DensePieces,
                message,
                form=header.form,
                piece=pieces.start,
                pieces=len(pieces),
                is_last=is_last,
                pushed_bytes=pushed_bytes,
                pushed_seconds=pushed_seconds,
            )
            self._entries.count((header.step, TRAIN), header.worker, dense_pulled=floats.size)
            if pieces.start == 0 and floats.nbytes >= COMING_BYTES:
                yield Reply(message.sender, self._header(Coming, message, is_dense=True))
            yield Reply(message.sender, answer, DenseArrays(floats=buffer.array[: floats.size]), buffer)
        for buffer in copies.values():
            buffer.sent([])

    def go_on(self) -> Iterator[Reply]:
        """Does a little of a checkpoint that is under way; to be called between messages."""
        yield from (Reply(self._fence.opener, outcome) for outcome in self.checkpoints.go_on())

    def refuse(self, message: Received, error: FreshetError) -> Reply:
        """Counts a message as refused; returns the answer."""
        kind = Refusals.UNREADABLE if message.header is None else type(message.header).__name__
        self.refused.add(kind, message.sender, str(error))
        step = message.header.step if isinstance(message.header, Header) else -1
        generation = message.header.generation if isinstance(message.header, Header) else -1
        reason = truncate_reason(f"{type(error).__name__}: {error}")
        fields: dict[str, Any] = {
            "generation": generation,
            "step": step,
            "reason": reason,
            "what": type(error).__name__,
        }
        return Reply(message.sender, Refused(run=self._fence.run, current=self._fence.generation, **fields))

    def _carry_out(self, message: Received) -> Iterator[Reply]:
        match message.header:
            case Open():
                self._terms.check(message.header.terms, "the dispatcher")
                yield from self._open(message)
            case Announce():
                yield from self._announce(message)
                yield from self._advance()
            case CheckpointCommitted():
                self.checkpoints.commit(message.header.checkpoint)
            case CountChunks():
                yield self._answer_count_chunks(message)
            case Prune():
                yield self._prune(message)
            case Push():
                self._push(message)
                yield from self.answer_dense()  # under way while rows are changed
                yield from self._advance()
            case Pull():
                if self._rounds.pull(message):
                    yield from self._answer_pull(message)
            case PushDense():
                self._push_dense(message)
            case PullDense():
                self._lane.pull(message)
            case Peek():
                yield self._answer_peek(message)
            case Count():
                yield self._answer_count(message)
            case Digest():
                digest = digest_store(self.store, self._terms.shard, self._terms.shards)
                yield Reply(message.sender, self._header(Digested, message, rows=len(self.store), digest=digest))

    # ── generations ───────────────────────────────────────────────────────────────────────────────────────────────────
    def _open(self, message: Received) -> Iterator[Reply]:
        header: Open = message.header
        if self._fence.is_news(message):
            self._fence.begin(message)
            yield from self._refuse_waiting(Fenced(f"generation {header.generation} has begun; join again"))
            self.checkpoints.abandon()
            if header.restore == GO_ON:
                self.parts.drop()
            else:
                self._go_back(header.restore)
            self._rounds = Rounds(self._held_bytes)
            self._lane = DenseLane(self.dense, self._held_bytes)
            self._entries = LedgerEntries()
            self._fence.let_in()
        masks = NO_U8 if header.restore == GO_ON else self.store.masks(np.arange(len(self.store)))
        yield Reply(message.sender, self._header(Opened, message, rows=len(self.store)), OpenedArrays(masks=masks))

    def _go_back(self, checkpoint: int) -> None:
        """Loads a checkpoint's model; if it cannot be read, keeps the current one and refuses every round."""
        try:
            restored = restore(
                storage=self.checkpoints.storage,
                number=checkpoint,
                model=self._model,
                run=self._fence.run,
                shard=self._terms.shard,
                shards=self._terms.shards,
            )
        except (PsError, StorageError) as error:
            self._fence.break_off(error)
            raise
        self.store = restored.store
        self.dense = restored.dense
        self.parts = Parts(self.store, rule_of(self._model.rows))
        self.checkpoints.build_on(restored.saved)

    # ── rounds ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _announce(self, message: Received) -> Iterator[Reply]:
        header: Announce = message.header
        arrays: AnnounceArrays = message.arrays
        check_announced(header, len(arrays.pushed), self._fence.workers)
        self.checkpoints.check(header)
        self._rounds.check_next(header)
        new = len(arrays.new_numbers)
        self.store.check(arrays.settled, new)
        self.store.check(arrays.changed, new)
        self.store.check(arrays.forgotten)
        self.store.check(arrays.reused)
        check_bare(arrays, self.store.shape.chunks)
        self.store.create(arrays.new_numbers, arrays.new_keys, arrays.bare)
        early = (*self._rounds.announce(message), *self._lane.announce(header))
        if header.checkpoint:
            self.checkpoints.announce(header, len(self.store), self._lane.copy())
        for held in early:
            try:
                self._push(held) if isinstance(held.header, Push) else self._push_dense(held)
            except (PsError, WireError) as error:
                yield self.refuse(held, error)

    def _push(self, message: Received) -> None:
        arrays: PushArrays = message.arrays
        owned = len(arrays.owned_numbers)
        parts = len(arrays.part_numbers)
        found = (len(arrays.owned_rows), len(arrays.part_gradients))
        owned_floats = self.store.packing.floats(owned, arrays.owned_masks, with_state=True)
        expected = (owned_floats, parts * self.store.shape.part)
        if found != expected:
            raise WireError(
                f"a push of {owned} owned rows and {parts} parts brought {found[0]} and {found[1]} floats; expected "
                f"{expected[0]} and {expected[1]}; give worker and shard the same settings"
            )
        # A worker pushes what it has pulled, so its rows are known even if the round is not announced yet.
        self.store.check(arrays.owned_numbers)
        self.store.check(arrays.part_numbers)
        self._rounds.push(message)

    def _push_dense(self, message: Received) -> None:
        header: PushDense = message.header
        if self._lane.push(message):
            self._entries.count((header.step, header.phase), header.worker, dense_pushed=message.arrays.floats.size)

    def _advance(self) -> Iterator[Reply]:
        """Applies every complete round, in order."""
        while gathering := self._rounds.next_complete():
            try:
                self._apply(gathering)
            except PsError as error:
                self._fence.break_off(error)
                assert gathering.announced is not None
                for message in (gathering.announced, *gathering.pulls):
                    yield self.refuse(message, error)
                yield from self._refuse_waiting(error)
                return
            yield from self._begin_checkpoint(gathering)
            for pull in gathering.pulls:
                try:
                    yield from self._answer_pull(pull, gathering.pushes.get(pull.header.worker))
                except PsError as error:
                    yield self.refuse(pull, error)

    def _apply(self, gathering: Gathering) -> None:
        assert gathering.announced is not None
        announced: AnnounceArrays = gathering.announced.arrays
        shape = self.store.shape
        self._change_keys(gathering.announced)
        for worker in sorted(gathering.pushes):
            push = gathering.pushes[worker]
            arrays: PushArrays = push.arrays
            self.checkpoints.keep(arrays.owned_numbers)
            owned_KT = self.store.packing.unpack(arrays.owned_rows, arrays.owned_masks, with_state=True)
            self.store.write(arrays.owned_numbers, owned_KT)
            self.parts.add(worker, arrays.part_numbers, arrays.part_gradients.reshape(-1, shape.part))
            moved = {"owned": len(arrays.owned_numbers), "parts": len(arrays.part_numbers)}
            at = (push.header.step, push.header.phase)
            self._entries.count(at, worker, **moved)
            reach("push_half_applied", push.header.step)
        self.checkpoints.keep(announced.settled)
        self.parts.apply_sums(announced.settled)
        self.store.stamp(announced.changed, announced.changed_steps)

    def _change_keys(self, message: Received) -> None:
        """Forgets keys, and gives free numbers to new ones."""
        announced: AnnounceArrays = message.arrays
        if len(announced.forgotten):
            self.checkpoints.keep(announced.forgotten)
            self.parts.discard(announced.forgotten)
            self.store.forget(announced.forgotten, message.header.step)
            reach("keys_forgotten", message.header.step)
        if len(announced.reused):
            self.checkpoints.keep(announced.reused)
            self.store.reuse(announced.reused, announced.reused_keys, announced.bare)

    def _begin_checkpoint(self, gathering: Gathering) -> Iterator[Reply]:
        """Begins the checkpoint that belongs to a round, after that round has been applied and
        before the next one is.
        """
        assert gathering.announced is not None
        header: Announce = gathering.announced.header
        if header.checkpoint:
            yield from (Reply(self._fence.opener, failed) for failed in self.checkpoints.begin(header, self.store))

    def _refuse_waiting(self, error: FreshetError) -> Iterator[Reply]:
        for pull in (*self._rounds.drop(), *self._lane.drop()):
            yield self.refuse(pull, error)

    # ── pruning ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def _answer_count_chunks(self, message: Received) -> Reply:
        header: CountChunks = message.header
        store = self._store_at_rest(message)
        counted = ChunksCountedArrays(counts=count_chunks(store).reshape(-1))
        if header.weighs_columns:
            counted = counted._replace(columns=weigh_columns(store))
        return Reply(message.sender, self._header(ChunksCounted, message), counted)

    def _prune(self, message: Received) -> Reply:
        header: Prune = message.header
        store = self._store_at_rest(message)
        check_thresholds(store.shape.chunks, header.evict_below, header.bring_from)
        if header.columns:
            store.drop_columns(header.columns)
        if header.columns or header.halvings:
            self.checkpoints.change_all()
        done = prune(store, header.evict_below, header.bring_from, header.halvings)
        self.checkpoints.change(done.numbers)
        answer = self._header(Pruned, message, pruned=done.pruned, brought_back=done.brought_back)
        return Reply(message.sender, answer, PrunedArrays(numbers=done.numbers, masks=done.masks))

    def _store_at_rest(self, message: Received) -> PrunedStore:
        """The rows, if they are in chunks and nothing is under way that would see only some of them changed."""
        kind = type(message.header).__name__
        if not isinstance(self.store, PrunedStore):
            raise OutOfOrder(
                f"{kind} reached a shard of whole rows; expected rows in chunks; give dispatcher and shard the same "
                "rows.chunks"
            )
        if self._rounds.waiting or self.checkpoints.is_taking:
            raise OutOfOrder(
                f"{kind} came while {self._rounds.waiting} rounds wait for pushes and a checkpoint is being taken: "
                f"{self.checkpoints.is_taking}; expected neither; the dispatcher must wait for the flush and for the "
                "checkpoint first"
            )
        return self.store

    # ── replies ───────────────────────────────────────────────────────────────────────────────────────────────────────
    def _answer_pull(self, message: Received, push: Received | None = None) -> Iterator[Reply]:
        """push: what the same worker has pushed in this round, if the pull waited for it."""
        arrays: PullArrays = message.arrays
        header: Pull = message.header
        reach("pull", header.step)
        pushed_bytes, pushed_seconds = (0, 0.0) if push is None else time_push(message, push)
        reply = self._rows(message, arrays, NO_I64, pushed_bytes, pushed_seconds)
        pulled = len(arrays.full_numbers) + len(arrays.value_numbers)
        self._entries.count((header.step, header.phase), header.worker, pulled=pulled)
        if sum(array.nbytes for array in reply.arrays) >= COMING_BYTES:
            yield Reply(message.sender, self._header(Coming, message, phase=header.phase))
        yield reply

    def _answer_peek(self, message: Received) -> Reply:
        arrays: PeekArrays = message.arrays
        return self._rows(message, PullArrays(full_numbers=arrays.numbers), self.store.steps(arrays.numbers))

    def _answer_count(self, message: Received) -> Reply:
        applied = self._rounds.applied or (-1, TRAIN)
        if unsettled := self._lane.unsettled:  # a round is applied when the dense weights up to it are, too
            step, phase = unsettled
            applied = min(applied, (step, phase - 1) if phase > FLUSH else (step - 1, LAST_FLUSH))
        step, phase = applied
        header = self._header(Ledger, message, rows=len(self.store), applied_step=step, applied_phase=phase)
        return Reply(message.sender, header, self._entries.columns())

    def _rows(
        self,
        message: Received,
        wanted: PullArrays,
        steps: I64,
        pushed_bytes: int = 0,
        pushed_seconds: float = 0.0,
    ) -> Reply:
        """Gathers rows into a buffer of the pool; checks first, because a buffer that was taken must be sent."""
        self.store.check(wanted.full_numbers)
        self.store.check(wanted.value_numbers)
        if len(wanted.full_numbers) + len(wanted.value_numbers) > len(self.store):
            raise OutOfOrder(
                f"{len(wanted.full_numbers)} rows with state and {len(wanted.value_numbers)} without were asked for at "
                f"once, of {len(self.store)} that there are; expected each row at most once; ask for different rows"
            )
        full_masks = self.store.masks(wanted.full_numbers)
        value_masks = self.store.masks(wanted.value_numbers)
        middle = self.store.packing.floats(len(wanted.full_numbers), full_masks, with_state=True)
        end = middle + self.store.packing.floats(len(wanted.value_numbers), value_masks, with_state=False)
        dense = self._beside_rows(message.header) if isinstance(message.header, Peek) else NO_F32
        buffer = self._buffers.take_buffer(end + dense.size)
        full, values, dense_copy = np.split(buffer.array[: end + dense.size], [middle, end])
        dense_copy[:] = dense
        self._pack(wanted.full_numbers, full_masks, full, self.store.shape.total)
        self._pack(wanted.value_numbers, value_masks, values, self.store.shape.value)
        held_seconds = perf_counter() - message.at_seconds
        phase = message.header.phase if isinstance(message.header, Pull) else TRAIN
        header = self._header(
            Rows,
            message,
            phase=phase,
            held_seconds=held_seconds,
            pushed_bytes=pushed_bytes,
            pushed_seconds=pushed_seconds,
        )
        arrays = RowsArrays(full, values, steps, full_masks, value_masks, dense_copy)
        return Reply(message.sender, header, arrays, buffer)

    def _pack(self, numbers_K: I64, masks_K: NDArray[np.uint8], packed: NDArray[Any], width: int) -> None:
        """Gathers rows, or their values, into a part of a buffer."""
        if not self.store.shape.chunks:
            self.store.gather(numbers_K, packed.reshape(-1, width))
            return
        rows_KX = np.empty((len(numbers_K), width), packed.dtype)
        self.store.gather(numbers_K, rows_KX)
        self.store.packing.pack(rows_KX, masks_K, packed)

    def _beside_rows(self, peek: Peek) -> F32:
        """What is requested besides rows: dense weights, or zeros."""
        return self.dense.read(peek.dense) if peek.dense else np.zeros(peek.padding, np.float32)

    def _header(self, kind: type[Header], message: Received, **fields: Any) -> Header:
        return kind(run=self._fence.run, generation=message.header.generation, step=message.header.step, **fields)


def time_push(pull: Received, push: Received) -> tuple[int, float]:
    """Bytes of a worker's push, and how long they took after its pull; zeros if that cannot be said."""
    seconds = push.at_seconds - pull.at_seconds - push.header.after_seconds
    if not pull.was_awaited or seconds <= 0.0:
        return 0, 0.0
    return sum(array.nbytes for array in push.arrays), seconds


def check_announced(header: Announce, fingerprints: int, workers: int) -> None:
    """Raises OutOfOrder for a round that the members of the generation cannot carry out."""
    pushers = header.pushers
    whole = header.dense_whole
    gradients = header.dense_gradients
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


def check_bare(arrays: AnnounceArrays, chunks: int) -> None:
    """Raises OutOfOrder if rows are to begin without chunks that have them already, or that never have any."""
    is_new = np.isin(arrays.bare, arrays.new_numbers) | np.isin(arrays.bare, arrays.reused)
    if not is_new.all() or (len(arrays.bare) and not chunks):
        raise OutOfOrder(
            f"row numbers {arrays.bare[:5].tolist()} of {len(arrays.bare)} were announced to begin with all chunks "
            f"pruned, {np.count_nonzero(~is_new)} of them neither new nor reused, and rows have {chunks} chunks; "
            "expected rows of the announcement that begin, in chunks; give dispatcher and shard the same rows.chunks"
        )
