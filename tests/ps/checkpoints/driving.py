"""Shards driven by hand, message by message, beside a plain model of what they must hold."""

import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infra.base.errors import StorageError
from infra.base.storage import Storage
from infra.base.wire import NO_ARRAYS, NO_I64, Arrays, Header, Refused
from ps.checkpoints.digest import add_digests, digest_reference, word_of
from ps.checkpoints.manifest import CheckpointManifest, ShardPart, write_manifest
from ps.checkpoints.restore import ModelSettings
from ps.checkpoints.taker import CheckpointTaker
from ps.config import DenseRule, RowConfig
from ps.dense.range import DenseRange, pieces_of
from ps.optimizers import update_reference
from ps.packed import Packing
from ps.phases import FLUSH, LAST_FLUSH, TRAIN
from ps.protocol import (
    BARE,
    WHOLE,
    Announce,
    AnnounceArrays,
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointSaved,
    DenseArrays,
    Digest,
    FilePart,
    Open,
    Opened,
    Prune,
    Push,
    PushArrays,
    PushDense,
    Terms,
)
from ps.pruned_store import stored_reference
from ps.pruning import decide_reference, halve_reference
from ps.rounds import Received
from ps.settling import settle_rows_reference
from ps.shard import Reply, Shard
from ps.start import start_reference
from tests.ps.doubles import fingerprints

RUN = "r"
ROWS = RowConfig(dim=3)
MODEL = ModelSettings(ROWS, 7, 4, DenseRule("adam", 0.1))
WIDTH = ROWS.shape().total
IN_CHUNKS = ModelSettings(RowConfig(dim=4, chunks=2), 7, 4, DenseRule("adam", 0.1))
DENSE = 7
"""weights of the dense vector"""
DISPATCHER = FilePart("00000001/dispatcher", 0, "")


@dataclass
class PlainModel:
    """Every row of the run as (key, last step, value and state), and the dense vector as one range."""

    rows: list[tuple[int, int, NDArray[Any]]] = field(default_factory=list)
    dense: DenseRange = field(default_factory=MODEL.empty_dense)

    def digest(self) -> str:
        plain = [
            (number, key, last_step, row.view(word_of(row.nbytes)).tolist())
            for number, (key, last_step, row) in enumerate(self.rows)
        ]
        return digest_reference(plain)


class FailingStorage(Storage):
    """A storage whose next writes fail if told so."""

    fails = 0

    def write(self, name: str, chunks: Any) -> int:
        if self.fails:
            self.fails -= 1
            raise StorageError(f"cannot use {name}: no room")
        return super().write(name, chunks)


def failing_storage(folder: Path) -> FailingStorage:
    plain = Storage.at(folder)
    return FailingStorage(plain._system, plain._root, True)


class Driven:
    """Some shards of one run; rounds take effect in the model when announced, on the shards once delivered."""

    def __init__(self, storage: Storage, shards: int = 1, deltas: int = 8, settings: ModelSettings = MODEL) -> None:
        self.settings, self.width = settings, settings.rows.shape().total
        self.storage, self.deltas = storage, deltas
        self.model = PlainModel()
        self.step, self.phase, self.generation, self.checkpoint = 0, TRAIN, 0, 0
        self.random = np.random.default_rng(1)
        self.pending: list[tuple[int, Header, Arrays]] = []
        """messages of workers not delivered yet"""
        self.taken: dict[int, tuple[int, PlainModel]] = {}
        """checkpoints under way: after which step, and what they must hold"""
        self.committed: dict[int, tuple[int, PlainModel]] = {0: (0, PlainModel())}
        self.kept: dict[int, int] = {}
        """rows that an owner keeps, and the step that trained each"""
        self.outcomes: dict[int, list[CheckpointSaved | CheckpointFailed]] = {}
        self.shards: list[Shard] = []
        self.start(shards)
        self.open(0)

    # ── generations ───────────────────────────────────────────────────────────────────────────────────────────────────
    def start(self, shards: int) -> None:
        """New shards, which hold nothing."""
        self.close()
        takers = [CheckpointTaker(self.storage, number, self.deltas) for number in range(shards)]
        self.shards = [
            Shard(self.settings, RUN, terms=Terms(number, shards, {}), checkpoints=taker)
            for number, taker in enumerate(takers)
        ]

    def open(self, restore: int) -> list[Any]:
        """Begins a generation with a checkpoint; returns the answers."""
        self.generation += 1
        self.pending.clear()
        self.taken.clear()
        answers = []
        for number, shard in enumerate(self.shards):
            opened = Open(**self._at(), workers=1, terms=Terms(number, len(self.shards), {}), restore=restore)
            answers.append(self._tell(shard, opened)[-1].header)
        if all(isinstance(answer, Opened) for answer in answers) and restore >= 0:
            self.step, self.model = deepcopy(self.committed[restore])
            self.phase, self.kept = LAST_FLUSH, {}
        return answers

    def close(self) -> None:
        for shard in self.shards:
            shard.checkpoints.close()

    # ── rounds ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def train(self, new: int, changed: Sequence[int], kept: Sequence[int] = (), by_gradient: bool = False) -> None:
        """A step that creates some rows, and trains some: pushed at once, or kept by their owner until the flush."""
        self.step, self.phase = self.step + 1, TRAIN
        first = len(self.model.rows)
        for _ in range(new):
            key = int(self.random.integers(1 << 63))
            start = np.array(start_reference(self.settings.rows, self.settings.seed, key), np.float32)
            self.model.rows.append((key, -1, start))
        count = max(1, len(self.model.rows))
        used = {row % count: self.step for row in changed if self.model.rows}
        self.kept = {row: step for row, step in self.kept.items() if row not in used}
        self.kept |= {row % count: self.step for row in kept if self.model.rows and row % count not in used}
        self._round(used, range(first, first + new), by_gradient)
        self._dense()

    def prune(self, evict_below: list[int], bring_from: list[int], halvings: int = 0) -> list[Any]:
        """Prunes chunks of the model and of the shards; returns the shards' answers."""
        header = Prune(**self._at(), evict_below=evict_below, bring_from=bring_from, halvings=halvings)
        answers = [self._tell(shard, header)[0].header for shard in self.shards]
        chunks = self.settings.rows.chunks
        for number, (key, last_step, old) in enumerate(self.model.rows):
            utilities = old[-1 - chunks : -1]
            live = old[-1:].astype(np.uint8)
            pruned, brought = decide_reference(utilities[None], live, evict_below, bring_from)
            now = old.copy()
            now[-1 - chunks : -1] = halve_reference(utilities, halvings)
            start = np.array(start_reference(self.settings.rows, self.settings.seed, key), np.float32)
            for chunk, columns in enumerate(np.split(np.arange(self.settings.rows.dim), chunks)):
                if brought[0] >> chunk & 1:
                    now[columns] = start[columns]
            now[-1] = (live & ~pruned | brought)[0]
            self.model.rows[number] = (key, last_step, stored_reference(self.settings.rows, now[None])[0])
        return answers

    def flush(self, checkpoint: bool = True) -> int:
        """A flush that writes rows back, and a checkpoint after it; returns its number."""
        self.phase = max(FLUSH, self.phase + 1)
        self.checkpoint += checkpoint
        self._round(self.kept, (), False, self.checkpoint * checkpoint)
        self.kept = {}
        if checkpoint:
            self.taken[self.checkpoint] = (self.step, deepcopy(self.model))
            self.outcomes[self.checkpoint] = []
        return self.checkpoint

    def deliver(self, count: int) -> None:
        """Sends the oldest messages of workers."""
        for number, header, arrays in self.pending[:count]:
            self._tell(self.shards[number], header, arrays)
        del self.pending[:count]

    def go_on(self, times: int = 1) -> None:
        """Lets every shard do a little of its checkpoint."""
        for _ in range(times):
            for shard in self.shards:
                self._note(shard.go_on())

    # ── checkpoints
    # ──────────────────────────────────────────────────────────────────────────────────────────────────────────
    def finish(self, checkpoint: int) -> list[CheckpointSaved | CheckpointFailed]:
        """Waits until every shard has saved a checkpoint or failed to; delivers what is pending."""
        self.deliver(len(self.pending))
        deadline = time.monotonic() + 100
        while len(self.outcomes[checkpoint]) < len(self.shards):
            assert time.monotonic() < deadline, f"checkpoint {checkpoint} does not end"
            self.go_on()
            time.sleep(0.0002)
        return self.outcomes[checkpoint]

    def settle(self) -> None:
        """Waits until nothing is being merged."""
        deadline = time.monotonic() + 100
        while any(shard.checkpoints._merging for shard in self.shards):
            assert time.monotonic() < deadline, "a merge does not end"
            self.go_on()
            time.sleep(0.0002)

    def commit(self, checkpoint: int) -> bool:
        """Writes the manifest and tells the shards; returns whether every shard had saved its part."""
        outcomes = self.finish(checkpoint)
        step, model = self.taken.pop(checkpoint)
        saved = [outcome for outcome in outcomes if isinstance(outcome, CheckpointSaved)]
        if len(saved) < len(self.shards):
            return False
        assert {outcome.step for outcome in saved} == {step}
        write_manifest(self.storage, self.manifest(checkpoint, step, saved))
        self.committed[checkpoint] = step, model
        for shard in self.shards:
            assert self._tell(shard, CheckpointCommitted(**self._at(), checkpoint=checkpoint)) == []
        return True

    def take(self) -> int:
        """A checkpoint from its announcement to its commitment."""
        checkpoint = self.flush()
        assert self.commit(checkpoint), self.outcomes[checkpoint]
        return checkpoint

    def manifest(self, checkpoint: int, step: int, saved: Sequence[CheckpointSaved]) -> CheckpointManifest:
        ordered = sorted(saved, key=lambda each: self.outcomes[checkpoint].index(each))
        by_shard = {int(part.parts[-1].name.split("-")[1]): part for part in ordered}
        parts = [ShardPart(number, by_shard[number].rows, tuple(by_shard[number].parts)) for number in sorted(by_shard)]
        told: dict[str, Any] = {"generation": self.generation, "at_seconds": 0.0, "dispatcher": DISPATCHER}
        return CheckpointManifest(run=RUN, number=checkpoint, step=step, shards=tuple(parts), **told)

    def check(self) -> None:
        """The shards hold what the model says; to be called when everything is delivered."""
        self.deliver(len(self.pending))
        count = len(self.shards)
        for number, shard in enumerate(self.shards):
            mine = self.model.rows[number::count]
            numbers = np.arange(len(mine))
            assert len(shard.store) == len(mine)
            assert shard.store.keys(numbers).tolist() == [key for key, _, _ in mine]
            assert shard.store.steps(numbers).tolist() == [last_step for _, last_step, _ in mine]
            out = np.empty((len(mine), self.width), np.float32)
            shard.store.gather(numbers, out)
            assert np.array_equal(out, np.array([row for _, _, row in mine]).reshape(-1, self.width))
        self._check_dense()
        digests: list[Any] = [self._tell(shard, Digest(**self._at()))[0].header for shard in self.shards]
        assert add_digests(each.digest for each in digests) == self.model.digest()

    # ── inside ────────────────────────────────────────────────────────────────────────────────────────────────────────
    def _check_dense(self) -> None:
        if self.model.dense._length is None:
            assert all(shard.dense._length is None for shard in self.shards)
            return
        whole = self.model.dense.read(WHOLE)
        for number, shard in enumerate(self.shards):
            assert np.array_equal(shard.dense.read(WHOLE), self._range(whole, number))

    def _range(self, whole: NDArray[Any], number: int) -> NDArray[Any]:
        """Of a whole vector with its state, one shard's range."""
        place = self._place(number)
        return np.append(np.concatenate([third[place] for third in whole[:-1].reshape(3, -1)]), whole[-1])

    def _place(self, number: int) -> slice:
        count = len(self.shards)
        return slice(DENSE * number // count, DENSE * (number + 1) // count)

    def _round(self, used: dict[int, int], new: Sequence[int], by_gradient: bool, checkpoint: int = 0) -> None:
        """Announces a round in which worker 0 brings rows, trained in some step each; its pushes are pending."""
        floats = self._change(used, by_gradient)
        whole = [0] * self._hands_in
        told: dict[str, Any] = {
            "dense_whole": whole,
            "dense_gradients": whole or [0] * self._has_dense,
            "checkpoint": checkpoint,
        }
        if self.phase != TRAIN:
            told |= {"dense_whole": [], "dense_gradients": []}
        for number, shard in enumerate(self.shards):
            arrays, brought = self._part(number, used, floats, new, by_gradient)
            assert not self._tell(shard, Announce(**self._at(), phase=self.phase, pushers=[0], **told), arrays)
            self.pending.append((number, Push(**self._at(), phase=self.phase, worker=0), brought))

    def _change(self, used: dict[int, int], by_gradient: bool) -> dict[int, NDArray[Any]]:
        """Changes rows of the model; returns what a worker brings of each."""
        floats = {}
        rows = self.settings.rows
        shape = rows.shape()
        for row, step in used.items():
            key, _, old = self.model.rows[row]
            now = np.abs(self.random.normal(size=self.width)).astype(np.float32)
            if by_gradient:
                floats[row] = now[: shape.part].copy()
                settle = settle_rows_reference if shape.chunks else update_reference
                now = settle(rows, old[None], floats[row][None])[0]
            else:
                now[-1] = old[-1] if shape.chunks else now[-1]
                floats[row] = now = stored_reference(rows, now[None])[0] if shape.chunks else now
            self.model.rows[row] = (key, step, now)
        return floats

    def _part(
        self, shard: int, used: dict[int, int], floats: dict[int, NDArray[Any]], new: Sequence[int], by_gradient: bool
    ) -> tuple[AnnounceArrays, PushArrays]:
        """One shard's part of a round, and of the push."""
        count = len(self.shards)
        here = [row for row in sorted(used) if row % count == shard]
        numbers = np.array([row // count for row in here], np.int64)
        owned, parts = (NO_I64, numbers) if by_gradient else (numbers, NO_I64)
        mine = [row for row in new if row % count == shard]
        arrays = AnnounceArrays(
            new_numbers=np.array([row // count for row in mine], np.int64),
            new_keys=np.array([self.model.rows[row][0] for row in mine], np.uint64),
            settled=parts,
            changed=numbers,
            changed_steps=np.array([used[row] for row in here], np.int64),
            pushed=fingerprints((owned.tolist(), parts.tolist())),
        )
        if by_gradient:
            flat = np.concatenate([floats[row] for row in here] or [np.empty(0, np.float32)])
            return arrays, PushArrays(owned, flat[:0], parts, flat)
        rows_KT = np.array([floats[row] for row in here], np.float32).reshape(len(here), self.width)
        packing = Packing(self.settings.rows)
        masks = packing.masks_of(rows_KT)
        return arrays, PushArrays(owned, packing.pack(rows_KT, masks), parts, np.empty(0, np.float32), masks)

    @property
    def _has_dense(self) -> bool:
        return self.model.dense._length is not None

    @property
    def _hands_in(self) -> bool:
        """Dense weights are handed in with step 2."""
        return self.step == 2 and not self._has_dense

    def _dense(self) -> None:
        """Every step from the one on in which dense weights are handed in brings a gradient, in pieces."""
        if self._hands_in:
            self.model.dense.put(np.append(self.random.normal(size=3 * DENSE) ** 2, 0).astype(np.float32))
            for number in range(len(self.shards)):
                whole = DenseArrays(self._range(self.model.dense.read(WHOLE), number))
                self.pending.append((number, self._push_dense(WHOLE, 0), whole))
        if not self._has_dense:
            return
        gradient = self.random.normal(size=DENSE).astype(np.float32)
        for piece, place in enumerate(pieces_of(DENSE, 4)):
            self.model.dense.add(piece, gradient[place], is_first=True)
            self.model.dense.apply(piece)
        for number in range(len(self.shards)):
            mine = gradient[self._place(number)]
            for piece, place in enumerate(pieces_of(mine.size, 4)):
                self.pending.append((number, self._push_dense(BARE, piece), DenseArrays(mine[place])))

    def _push_dense(self, form: int, piece: int) -> PushDense:
        return PushDense(**self._at(), phase=TRAIN, worker=0, form=form, piece=piece)

    def _tell(self, shard: Shard, header: Header, arrays: Arrays = NO_ARRAYS) -> list[Reply]:
        replies = [*shard.receive(Received(b"dispatcher", header, arrays)), *shard.answer_dense()]
        self._note(replies)
        refused = [reply.header for reply in replies if isinstance(reply.header, Refused)]
        assert isinstance(header, Open) or not refused, refused
        return [reply for reply in replies if not isinstance(reply.header, CheckpointSaved | CheckpointFailed)]

    def _note(self, replies: Any) -> None:
        for reply in replies:
            if isinstance(reply.header, CheckpointSaved | CheckpointFailed):
                self.outcomes[reply.header.checkpoint].append(reply.header)

    def _at(self) -> dict[str, Any]:
        return {"run": RUN, "generation": self.generation, "step": self.step}
