"""Copies of the model: one answers, the other takes in the next snapshot, and until then is the way back.

    active    answers; never changed while it does
    standby   the snapshot served before, until the files of the next one are applied to it; then they swap

Any number of threads read a copy at a time: a request does not wait until the dispatcher's question has been scored.
Whoever changes a copy waits for those that read it, and nobody waits for that: readers who come meanwhile go to the
other copy. A batch is answered by one copy from beginning to end, so that each answer is of one snapshot.

Legend: B samples, F keys a sample, N dense inputs, W columns of a row's value, L floats of the flat dense vector.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ingest.samples import Samples
from ps.checkpoints.manifest import CheckpointManifest
from ps.config import DenseRule, RowConfig
from serving.errors import NothingServed
from serving.rows.table import RowTable
from serving.snapshot_id import SnapshotId, snapshot_id_of
from trainer.config import ModelConfig
from trainer.dense import places_of
from trainer.models.registry import build_model

CPU = torch.device("cpu")


@dataclass(frozen=True)
class ModelSpec:
    """What an empty model is made of."""

    run: str
    seed: int
    rows: RowConfig
    model: ModelConfig
    fields: int
    """keys a sample"""
    dense: int
    """dense inputs a sample"""
    row_dtype: torch.dtype = torch.float32
    device: torch.device = CPU

    @property
    def dense_rule(self) -> DenseRule:
        return DenseRule(self.model.dense_optimizer, self.model.dense_rate)

    def empty_table(self) -> RowTable:
        return RowTable(self.rows, self.seed, self.row_dtype, self.device)


class ModelCopy:
    """One snapshot in memory."""

    def __init__(self, spec: ModelSpec) -> None:
        self._turn = threading.Condition()
        self._readers = 0
        self.is_changing = False
        """whether somebody changes it, or waits until nobody reads it; nobody begins to read it then"""
        self.spec = spec
        self.table = spec.empty_table()
        self.manifest: CheckpointManifest | None = None
        """of the checkpoint that it holds; None if it holds none, or only a part"""
        self.module = self._start_module()

    @property
    def snapshot(self) -> SnapshotId | None:
        return None if self.manifest is None else snapshot_id_of(self.manifest)

    @property
    def dense_weights(self) -> int:
        """Floats of the flat dense vector."""
        return max((place.stop for place in places_of(self.module).values()), default=0)

    @property
    def nbytes(self) -> int:
        return self.table.nbytes + sum(weight.nbytes for weight in self.module.parameters())

    def begin_reading(self) -> bool:
        """Whether it stays as it is until ``end_reading``; False: it is about to change."""
        with self._turn:
            self._readers += not self.is_changing
            return not self.is_changing

    def end_reading(self) -> None:
        with self._turn:
            self._readers -= 1
            self._turn.notify_all()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Waits for those who read it, and keeps others out; for one thread at a time."""
        with self._turn:
            self.is_changing = True
            self._turn.wait_for(lambda: self._readers == 0)
        try:
            yield
        finally:
            with self._turn:
                self.is_changing = False

    def put_dense(self, flat_L: NDArray[Any] | None) -> None:
        """Replaces the dense weights; None: by those that a run begins with."""
        if flat_L is None:
            self.module = self._start_module()
            return
        flat = torch.from_numpy(np.require(flat_L, requirements="W")).to(self.spec.device, torch.float32)
        places = places_of(self.module)
        with torch.no_grad():
            for name, weight in self.module.named_parameters():
                weight.copy_(flat[places[name]].view_as(weight))

    def flat_weights(self) -> NDArray[np.float32]:
        """The dense weights as ``put_dense`` takes them."""
        flat_L = np.zeros(self.dense_weights, np.float32)
        for name, weight in self.module.named_parameters():
            flat_L[places_of(self.module)[name]] = weight.detach().cpu().numpy().reshape(-1)
        return flat_L

    def predict(self, samples: Samples) -> NDArray[np.float32]:
        """The click probability of each sample."""
        dim = self.spec.rows.dim
        device = self.spec.device
        with torch.inference_mode():
            values_BFW = self.table.look_up(samples.keys_BF)
            wide_BF = values_BFW[..., dim] if self.spec.rows.wide else None
            dense_BN = torch.from_numpy(np.array(samples.dense_BN, np.float32)).to(device)
            logits_B = self.module(values_BFW[..., :dim], wide_BF, dense_BN)
            probabilities_B: NDArray[np.float32] = torch.sigmoid(logits_B).cpu().numpy()
        return probabilities_B

    def _start_module(self) -> torch.nn.Module:
        spec = self.spec
        module = build_model(
            config=spec.model,
            fields=spec.fields,
            dim=spec.rows.dim,
            dense=spec.dense,
            seed=spec.seed,
            dtype=torch.float32,
            device=spec.device,
        )
        return module.requires_grad_(False).eval()


class Copies:
    """The copy that answers, and the other one."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self._active = ModelCopy(spec)
        self.standby = ModelCopy(spec)

    @property
    def served(self) -> CheckpointManifest | None:
        """The checkpoint that is served; None before the first."""
        return self._active.manifest

    @property
    def nbytes(self) -> int:
        return self._active.nbytes + self.standby.nbytes

    @property
    def rows(self) -> int:
        return len(self._active.table)

    def swap(self) -> None:
        """The standby answers from now on; batches under way are finished by the copy that began them."""
        assert self.standby.manifest is not None, "a copy that holds no whole snapshot would be served"
        self._active, self.standby = self.standby, self._active

    @contextmanager
    def reading(self) -> Iterator[tuple[ModelCopy, CheckpointManifest]]:
        """The copy that answers, which does not change meanwhile; raises NothingServed before the first snapshot."""
        copy = self._begin_reading()
        try:
            if copy.manifest is None:
                raise NothingServed("no snapshot has been loaded yet; expected a checkpoint; try again later")
            yield copy, copy.manifest
        finally:
            copy.end_reading()

    def _begin_reading(self) -> ModelCopy:
        """The copy that answers now: only the other one is ever changed, so one that is about to change was swapped."""
        while True:
            copy = self._active
            if not copy.begin_reading():
                continue
            if copy is self._active:
                return copy
            copy.end_reading()  # swapped, and perhaps changed since
