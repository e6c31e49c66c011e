"""The training of one worker and one shard in this process, without messages, caches or a dispatcher.

The parts are those of a run: rows in a shard's store, the passes of a worker, the optimizers of both. What it predicts
and learns from a batch is therefore what a run with one worker does.

Legend: B samples, F keys per sample, N dense inputs, U distinct rows of a batch, T columns of a row, W of its value.
"""

from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dispatch.placement.rows.index import BatchRows, Index
from infra.base.distinct import number_keys
from infra.run.settings import Settings
from ingest.samples import Samples
from ps.checkpoints.files import Columns
from ps.checkpoints.restore import ModelSettings, Restored
from ps.config import DenseRule
from ps.errors import OutOfOrder
from ps.protocol import WHOLE
from ps.start import start_rows
from trainer.dense import Dense
from trainer.labels import smoothed
from trainer.models.registry import build_model
from trainer.passes import MicroBatch, Pass
from trainer.rows import RowOptimizer, float_type, look_up, summed_over

CPU = torch.device("cpu")
CHUNK_ROWS = 1 << 16


def model_settings_of(settings: Settings) -> ModelSettings:
    """The settings of a shard's model."""
    rule = DenseRule(settings.model.dense_optimizer, settings.model.dense_rate)
    return ModelSettings(settings.scaled_rows, settings.seed, CHUNK_ROWS, rule)


class SoleWorker:
    """Predicts and learns whole batches, one after the other."""

    def __init__(self, settings: Settings, begun: Restored, step: int = 0) -> None:
        """begun: the model to go on with, after that many steps."""
        schema = settings.event_schema
        rows = settings.scaled_rows
        self.step = step
        self._seed = settings.seed
        self._rows = rows
        self._full = settings.stream.batch
        self._dtype = float_type(rows)
        self._smoothing = settings.model.label_smoothing
        self._model = build_model(
            config=settings.model,
            fields=schema.singles,
            dim=rows.dim,
            dense=schema.dense,
            seed=settings.seed,
            dtype=self._dtype,
            device=CPU,
            crosses=len(schema.crosses),
            pools=schema.pools,
        )
        self._dense = Dense(self._model, settings.model)
        with suppress(OutOfOrder):  # an empty model: its dense weights are those that a run starts with
            self._dense.put(WHOLE, 0, 1, begun.dense.read(WHOLE))
        self._optimizer = RowOptimizer(rows, CPU)
        self._store = begun.store
        self._index = Index.restore(begun.store.keys(np.arange(len(begun.store))))

    @property
    def known(self) -> int:
        """Keys that have a row."""
        return self._index.known

    def learn(self, samples: Samples) -> NDArray[np.float32]:
        """Predicts a batch, then learns from it; returns the logits."""
        self.step += 1
        rows = self._index.resolve(number_keys(np.ascontiguousarray(samples.keys_BF)))
        self._begin_rows(rows)
        rows_UT = np.empty((rows.rows_U.size, self._store.shape.total), self._store.dtype)
        self._store.gather(rows.rows_U, rows_UT)
        values_UW, state_US = (torch.from_numpy(part) for part in np.split(rows_UT, [self._width], axis=1))
        self._dense.clear()
        micro = self._micro_batch(samples, values_UW.contiguous(), rows.local_BF)
        computed = Pass(self._model, self._rows.dim, micro)
        gradients_UW = summed_over(computed.backward(), len(samples), self._full)
        self._dense.step()
        self._optimizer.update_(values_UW, state_US, gradients_UW)
        self._store.write(rows.rows_U, rows_UT)
        self._store.stamp(rows.rows_U, np.full(rows.rows_U.size, self.step))
        logits_B: NDArray[np.float32] = computed.logits_b.detach().to(torch.float32).numpy()
        return logits_B

    @torch.no_grad()
    def score(self, samples: Samples) -> NDArray[np.float32]:
        """The logits of samples; keys that were never learnt have the values that learning would begin with."""
        keys = number_keys(np.ascontiguousarray(samples.keys_BF))
        is_known_U = self._index.knows(keys.keys_U)
        values_UW = start_rows(self._rows, self._seed, keys.keys_U)[:, : self._width].copy()
        numbers = self._index.resolve(number_keys(keys.keys_U[is_known_U][:, None])).rows_U
        known_KW = np.empty((numbers.size, self._width), self._store.dtype)
        self._store.gather(numbers, known_KW)
        values_UW[is_known_U] = known_KW
        micro = self._micro_batch(samples, torch.from_numpy(values_UW), keys.local_BF)
        dim = self._rows.dim
        wide_BF = look_up(micro.values_UW[:, dim:], micro.positions_bF).squeeze(-1) if self._rows.wide else None
        embeddings_BED = look_up(micro.values_UW[:, :dim], micro.positions_bF[:, : self._model.fields])
        scored_B = self._model.score(embeddings_BED, wide_BF, micro.dense_bN, micro.shares_bP)
        logits_B: NDArray[np.float32] = scored_B.to(torch.float32).numpy()
        return logits_B

    def columns(self) -> Columns:
        """All rows and dense weights, as a shard writes them into a file."""
        numbers = np.arange(len(self._store))
        rows_KT = np.empty((numbers.size, self._store.shape.total), self._store.dtype)
        self._store.gather(numbers, rows_KT)
        (whole,) = self._dense.ranges(WHOLE, 1).ranges
        return Columns(
            numbers_K=numbers,
            keys_K=self._store.keys(numbers),
            last_steps_K=self._store.steps(numbers),
            values_KW=np.ascontiguousarray(rows_KT[:, : self._width]),
            state_KS=np.ascontiguousarray(rows_KT[:, self._width :]),
            dense_L=whole,
        )

    @property
    def _width(self) -> int:
        return self._store.shape.value

    def _begin_rows(self, rows: BatchRows) -> None:
        if rows.reused.size:
            self._store.reuse(rows.reused, rows.reused_keys)
        if rows.new_keys.size:
            first = rows.first_new
            self._store.create(np.arange(first, first + rows.new_keys.size), np.ascontiguousarray(rows.new_keys))

    def _micro_batch(self, samples: Samples, values_UW: torch.Tensor, positions_BF: NDArray[Any]) -> MicroBatch:
        return MicroBatch(
            values_UW=values_UW,
            positions_bF=torch.from_numpy(positions_BF.astype(np.int64)),
            dense_bN=self._tensor(samples.dense_BN),
            labels_b=smoothed(self._tensor(samples.labels_B), self._smoothing),
            batch=len(samples),
            weights_b=None if samples.weights_B is None else self._tensor(samples.weights_B),
            shares_bP=None if samples.shares_BP is None else self._tensor(samples.shares_BP),
        )

    def _tensor(self, array: NDArray[np.float32]) -> torch.Tensor:
        return torch.from_numpy(array.copy()).to(self._dtype)
