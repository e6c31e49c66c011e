"""Two copies of the model: one answers while the other loads the next snapshot.

    active    answers; never changed while it does
    standby   the snapshot served before, so that going back is fast, until the next one is loaded into it

When the standby is loaded, they swap. Any number of threads may read a copy at the same time, so a request does not
wait until the dispatcher's question has been scored. A thread that changes a copy waits for its readers, and nobody
waits for that thread: new readers go to the other copy. A batch is computed by one copy from beginning to end, so each
answer comes from one snapshot.

Legend: B samples, F keys a sample, N dense inputs, W columns of a row's value, L floats of the flat dense vector, M
labels.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ingest.keys import rare_keys
from ingest.samples import Samples
from ingest.schema import ListPool
from ps.checkpoints.manifest import CheckpointManifest
from ps.columns import KeptColumns
from ps.config import DenseRule, RowConfig
from serving.errors import NothingServed
from serving.rows.table import RowTable
from serving.snapshot_id import SnapshotId, snapshot_id_of
from trainer.config import ModelConfig
from trainer.dense import places_of
from trainer.models.layers import ClickModel
from trainer.models.registry import build_model

CPU = torch.device("cpu")


@dataclass(frozen=True)
class ModelSpec:
    """Everything that is needed to build an empty model."""

    run: str
    seed: int
    rows: RowConfig
    model: ModelConfig
    fields: int
    """Number of keys per sample, with those of crosses."""
    dense: int
    """Number of dense inputs per sample."""
    row_dtype: torch.dtype = torch.float32
    device: torch.device = CPU
    tables: tuple[str, ...] = ()
    """The table or cross of each key of a sample; empty: rare keys have no row in common."""
    crosses: int = 0
    """Keys of crosses, the last ones of a sample."""
    pools: tuple[ListPool, ...] = ()
    """The keys of each pooled table."""
    labels: tuple[str, ...] = ()
    """Names of the labels, if there are several."""

    @property
    def dense_rule(self) -> DenseRule:
        return DenseRule(self.model.dense_optimizer, self.model.dense_rate)

    def empty_table(self, kept: KeptColumns = ()) -> RowTable:
        """kept: the embedding columns that rows have kept, if they have dropped some."""
        rare_F = rare_keys(self.tables) if self.tables else None
        return RowTable(self.rows, self.seed, self.row_dtype, self.device, rare_F, kept)


class ModelCopy:
    """One snapshot in memory."""

    def __init__(self, spec: ModelSpec) -> None:
        self._turn = threading.Condition()
        self._readers = 0
        self.is_changing = False
        """Whether a thread changes the copy, or waits for its readers to finish; new readers are turned away then."""
        self.spec = spec
        self.table = spec.empty_table()
        self.manifest: CheckpointManifest | None = None
        """Manifest of the checkpoint that it holds; None if it holds none, or only a part of one."""
        self.module = self._start_module()

    @property
    def snapshot(self) -> SnapshotId | None:
        return None if self.manifest is None else snapshot_id_of(self.manifest)

    @property
    def dense_weights(self) -> int:
        """Number of floats in the flat dense vector."""
        return max((place.stop for place in places_of(self.module).values()), default=0)

    @property
    def nbytes(self) -> int:
        return self.table.nbytes + sum(weight.nbytes for weight in self.module.parameters())

    def begin_reading(self) -> bool:
        """Returns whether the copy will stay unchanged until ``end_reading``; False: it is about to change."""
        with self._turn:
            self._readers += not self.is_changing
            return not self.is_changing

    def end_reading(self) -> None:
        with self._turn:
            self._readers -= 1
            self._turn.notify_all()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Waits for the readers to finish, and keeps new ones out; for one thread at a time."""
        with self._turn:
            self.is_changing = True
            self._turn.wait_for(lambda: self._readers == 0)
        try:
            yield
        finally:
            with self._turn:
                self.is_changing = False

    def put_dense(self, flat_L: NDArray[Any] | None) -> None:
        """Replaces the dense weights; None: by the weights that a run starts with."""
        if flat_L is None:
            self.module = self._start_module()
            return
        flat = torch.from_numpy(np.require(flat_L, requirements="W")).to(self.spec.device, torch.float32)
        places = places_of(self.module)
        with torch.no_grad():
            for name, weight in self.module.named_parameters():
                weight.copy_(flat[places[name]].view_as(weight))

    def flat_weights(self) -> NDArray[np.float32]:
        """The dense weights as a flat vector, in the order of ``put_dense``."""
        flat_L = np.zeros(self.dense_weights, np.float32)
        for name, weight in self.module.named_parameters():
            flat_L[places_of(self.module)[name]] = weight.detach().cpu().numpy().reshape(-1)
        return flat_L

    def predict(self, samples: Samples) -> NDArray[np.float32]:
        """The probability of the main label for each sample."""
        return self.predict_labels(samples)[:, 0]

    def predict_labels(self, samples: Samples) -> NDArray[np.float32]:
        """The probability of each label for each sample (B × M)."""
        dim = self.spec.rows.dim
        device = self.spec.device
        with torch.inference_mode():
            values_BFW = self.table.look_up(samples.keys_BF)
            wide_BF = values_BFW[..., dim] if self.spec.rows.wide else None
            dense_BN = torch.from_numpy(np.array(samples.dense_BN, np.float32)).to(device)
            shares_BP = None
            if samples.shares_BP is not None:
                shares_BP = torch.from_numpy(np.array(samples.shares_BP, np.float32)).to(device)
            logits_B = self.module.score(values_BFW[:, : self.module.fields, :dim], wide_BF, dense_BN, shares_BP)
            probabilities: NDArray[np.float32] = torch.sigmoid(logits_B).cpu().numpy()
        return probabilities.reshape(len(samples), -1)

    def _start_module(self) -> ClickModel:
        spec = self.spec
        module = build_model(
            config=spec.model,
            fields=spec.fields - spec.crosses,
            dim=spec.rows.dim,
            dense=spec.dense,
            seed=spec.seed,
            dtype=torch.float32,
            device=spec.device,
            crosses=spec.crosses,
            pools=spec.pools,
            labels=max(1, len(spec.labels)),
        )
        return module.requires_grad_(False).eval()


class Copies:
    """The copy that answers, and the standby."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self._active = ModelCopy(spec)
        self.standby = ModelCopy(spec)

    @property
    def served(self) -> CheckpointManifest | None:
        """The checkpoint that is served; None before the first one."""
        return self._active.manifest

    @property
    def nbytes(self) -> int:
        return self._active.nbytes + self.standby.nbytes

    @property
    def rows(self) -> int:
        return len(self._active.table)

    def swap(self) -> None:
        """Makes the standby answer from now on; a batch under way is completed by the copy that began it."""
        assert self.standby.manifest is not None, "a copy that holds no whole snapshot would be served"
        self._active, self.standby = self.standby, self._active

    @contextmanager
    def reading(self) -> Iterator[tuple[ModelCopy, CheckpointManifest]]:
        """The active copy, unchanged until the context ends; raises NothingServed before the first snapshot."""
        copy = self._begin_reading()
        try:
            if copy.manifest is None:
                raise NothingServed("no snapshot has been loaded yet; expected a checkpoint; try again later")
            yield copy, copy.manifest
        finally:
            copy.end_reading()

    def _begin_reading(self) -> ModelCopy:
        """Registers a reader of the active copy.

        Only the standby is ever changed, so a copy that turns readers away has been swapped out: the loop tries again.
        """
        while True:
            copy = self._active
            if not copy.begin_reading():
                continue
            if copy is self._active:
                return copy
            copy.end_reading()  # it was swapped out in between, and may have been changed
