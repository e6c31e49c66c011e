"""A model that is trained the plain way, and checkpoints of it with the shards' own stores, files and merges."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from dispatch.placement.rows.pruning import Pruner, PruneTerms
from infra.base.storage import Storage
from ingest.samples import Samples
from ingest.schema import load_schema
from ps.checkpoints.files import new_name, write_columns
from ps.checkpoints.gather import RowCopy
from ps.checkpoints.manifest import CheckpointManifest, ShardPart, Verdict, write_manifest
from ps.checkpoints.merge import merge
from ps.checkpoints.restore import ModelSettings, dealt
from ps.columns import KeptColumns
from ps.config import RowConfig
from ps.keys import FREE
from ps.protocol import FilePart
from ps.store import NEVER
from serving.copies import ModelSpec
from trainer.config import ModelConfig
from trainer.dense import places_of
from trainer.reference import Reference

RUN, SEED = "r", 7
SCHEMA = load_schema("synthetic")
ROWS = RowConfig(dim=4)
KEYS = 400
"""that training chooses from"""
NO_STATE = FilePart("00000001/dispatcher", 0, "")


def samples_of(count: int, seed: int, keys: int = KEYS) -> Samples:
    """Random clicks; equal seeds give equal samples."""
    random = np.random.default_rng(seed)
    known = np.random.default_rng(0).integers(1 << 63, size=keys, dtype=np.uint64)
    return Samples(
        random.integers(2, size=count).astype(np.float32),
        np.abs(random.normal(size=(count, SCHEMA.dense))).astype(np.float32),
        known[random.integers(keys, size=(count, SCHEMA.fields))],
        np.zeros(count),
    )


PROBE = samples_of(32, 1, 3 * KEYS)
"""what is predicted: of two keys in three training knows nothing"""


def probabilities(logits_B: NDArray[np.float32]) -> NDArray[np.float32]:
    return torch.sigmoid(torch.from_numpy(logits_B)).numpy()


@dataclass
class Trained:
    """A run of one model; checkpoints are numbered from 1."""

    folder: Path
    model: ModelConfig = field(default_factory=lambda: ModelConfig(mlp=(8,), cross_layers=1))
    rows: RowConfig = ROWS
    shards: int = 2

    def __post_init__(self) -> None:
        self.storage = Storage.at(self.folder)
        self.reference = Reference(self.rows, self.model, SCHEMA.fields, SCHEMA.dense, SEED)
        self.timeline = self.step = self.checkpoint = self._since = 0
        self.expected: dict[int, NDArray[np.float32]] = {}
        """probabilities of the probe, by checkpoint"""
        self._last_steps: list[int] = []
        self._reshaped = set[int]()
        """rows of which chunks were pruned or came back since the last checkpoint"""
        self.is_full = False
        """whether new keys get no chunks"""
        self.kept: KeptColumns = ()
        """columns that rows have kept; empty: all"""
        self._keys: list[int] = []
        self._saved: dict[int, Any] = {}
        self._chains: list[tuple[FilePart, ...]] = []
        self.deal(self.shards)

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec(RUN, SEED, self.rows, self.model, SCHEMA.fields, SCHEMA.dense)

    def train(self, steps: int = 2, forget_after: int | None = None) -> "Trained":
        """forget_after: steps after which keys are forgotten."""
        for _ in range(steps):
            self.step += 1
            if forget_after is not None:
                self._forget(self.step - forget_after)
            batch = samples_of(16, 100 * self.timeline + self.step, min(KEYS, 40 * self.step))
            self.reference.step(batch.keys_BF, batch.dense_BN, batch.labels_B, self.step, self._admit)
            for key in dict.fromkeys(batch.keys_BF.reshape(-1).tolist()):
                if (row := self.reference.numbering.row(key)) == len(self._keys):
                    self._keys.append(key)
                    self._last_steps.append(NEVER)
                self._keys[row], self._last_steps[row] = key, self.step
            assert len(self._keys) == len(self.reference.numbering)
        return self

    def prune(self, share: float) -> "Trained":
        """Prunes that share of all chunks, by their utilities; their rows keep their last steps."""
        before_RT = self.reference.rows()
        pruner = Pruner(PruneTerms(chunks=self.rows.chunks, share=share, enforce=0.0))
        self.reference.prune(*pruner.plan(self.step, self.reference.count_chunks()))
        is_changed_R = (self.reference.rows()[:, -1] != before_RT[:, -1]).tolist()
        self._reshaped |= {row for row, is_changed in enumerate(is_changed_R) if is_changed}
        return self

    def drop_columns(self, share: float) -> "Trained":
        """Drops columns until that share of each chunk is left: the next checkpoint begins a chain."""
        width = self.rows.dim // self.rows.chunks
        pruner = Pruner(PruneTerms(chunks=self.rows.chunks, width=width, columns=share))
        done = pruner.plan(self.step, self.reference.count_chunks(), self.reference.weigh_columns())
        self.reference.prune(*done)
        self.kept = done.columns
        self.deal(self.shards)
        return self

    @property
    def live_share(self) -> float:
        """share of the chunks of known keys"""
        masks_R = self.reference.rows()[:, -1].astype(np.uint8)
        return float(np.bitwise_count(masks_R).sum()) / (self.rows.chunks * self.known)

    @property
    def _admit(self) -> Callable[[int], int] | None:
        return (lambda new: 0) if self.is_full else None

    @property
    def known(self) -> int:
        """keys that are not forgotten"""
        return len(self._keys) - self._keys.count(int(FREE))

    def _forget(self, before: int) -> None:
        self.reference.forget(before)
        for row, step in enumerate(self._last_steps):
            if step < before and self._keys[row] != FREE:
                self._keys[row], self._last_steps[row] = int(FREE), self.step

    def take(self, *reasons: str, at_seconds: float = 0.0) -> int:
        """A checkpoint, held back if there are reasons; returns its number."""
        self.checkpoint += 1
        parts = [self._part(shard) for shard in range(self.shards)]
        manifest = CheckpointManifest(
            run=RUN,
            number=self.checkpoint,
            step=self.step,
            generation=1,
            at_seconds=at_seconds,
            shards=tuple(parts),
            dispatcher=NO_STATE,
            timeline=self.timeline,
            verdict=Verdict(reasons),
            are_new_keys_bare=self.is_full if self.rows.chunks else msgspec.UNSET,
            columns=self.kept or msgspec.UNSET,
        )
        write_manifest(self.storage, manifest)
        self._since, self._known = self.step, len(self._keys)
        self._chains = [part.files for part in parts]
        probe = deepcopy(self.reference)
        logits_B = probe.step(PROBE.keys_BF, PROBE.dense_BN, PROBE.labels_B, admit=self._admit)
        self.expected[self.checkpoint] = probabilities(logits_B)
        self._reshaped.clear()
        kept = self.reference, self._last_steps, self._keys, self.step, self._since, self._known, self._chains
        self._saved[self.checkpoint] = deepcopy(kept)
        return self.checkpoint

    def compact(self, first: int = 0) -> None:
        """Merges files of the newest checkpoint, from the first on, as shards do while training goes on."""
        for shard, chain in enumerate(self._chains):
            merged = merge(self.storage, chain[first:], self.checkpoint, shard, first == 0)
            self._chains[shard] = (*chain[:first], merged)

    def deal(self, shards: int) -> None:
        """The run goes on with another number of shards: the next checkpoint begins a chain."""
        self.shards, self._since, self._known = shards, NEVER, 0
        self._chains = [()] * shards

    def decide_anew(self, checkpoint: int) -> None:
        """Goes back to a checkpoint, and begins a line."""
        kept = deepcopy(self._saved[checkpoint])
        self.reference, self._last_steps, self._keys, self.step, self._since, self._known, self._chains = kept
        self.timeline += 1

    def _part(self, shard: int) -> ShardPart:
        store = ModelSettings(self.rows, SEED, 64).empty_store(self.kept)
        mine = slice(shard, None, self.shards)
        keys, rows_RT = np.array(self._keys[mine], np.uint64), self.reference.rows()[mine]
        store.reserve(len(keys))
        if len(keys):
            store.load(np.arange(len(keys)), keys, np.array(self._last_steps[mine], np.int64), rows_RT)
        reshaped = np.array([row // self.shards for row in self._reshaped if row % self.shards == shard], np.int64)
        copy = RowCopy(store, self._since, dealt(self._known, shard, self.shards), len(store), reshaped)
        while not copy.is_complete:
            copy.go_on()
        name = new_name(self.checkpoint, "shard", shard)
        part = write_columns(self.storage, name, copy.columns(self._dense(shard)))
        return ShardPart(shard, len(keys), (*self._chains[shard], part))

    def _dense(self, shard: int) -> NDArray[Any]:
        """A shard's range of weights, with Adam's means and count."""
        places, weights = places_of(self.reference.model), self.reference.dense_weights()
        flat = np.zeros(max(place.stop for place in places.values()), self.rows.float_dtype)
        for name, place in places.items():
            flat[place] = weights[name].reshape(-1)
        mine = flat[flat.size * shard // self.shards : flat.size * (shard + 1) // self.shards]
        return np.concatenate([mine, 0 * mine, 0 * mine, [self.step]]).astype(self.rows.float_dtype)
