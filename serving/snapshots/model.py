"""A checkpoint in memory, as other programs need it: keys and values of all rows, dense weights by name.

Legend: R rows, W columns of a value.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from infra.base.storage import Storage
from ingest.schema import Schema
from ps.checkpoints.manifest import CheckpointManifest, read_manifest
from ps.checkpoints.restore import ModelSettings, restore
from ps.config import DenseRule, RowConfig
from ps.dense.range import DenseRange
from ps.errors import OutOfOrder
from ps.keys import FREE
from ps.protocol import WHOLE
from ps.store import RowStore
from trainer.config import ModelConfig
from trainer.dense import Dense
from trainer.models.layers import ATTENTION_UNIT, ClickModel, Output
from trainer.models.registry import build_model
from trainer.rows import float_type

CHUNK_ROWS = 1 << 16
HEAD = "output"
MORE_HEADS = "output.more"
"""Names of the output layers: of the main label, and of the others with their number."""


@dataclass(frozen=True)
class RunModel:
    """The settings of the model that a run trains."""

    run: str
    seed: int
    rows: RowConfig
    model: ModelConfig
    schema: Schema


@dataclass(frozen=True, eq=False)
class ReadModel:
    """The model of one checkpoint."""

    manifest: CheckpointManifest
    keys_R: NDArray[np.int64]
    """The 64 bits of each key as a signed integer, which torch can search; ascending. Forgotten keys are not there."""
    values_RW: NDArray[Any]
    weights: Mapping[str, NDArray[Any]]
    """Dense weights by name; field scales are factors, and weights of attention have a unit of 1."""


def read_model(storage: Storage, number: int, of: RunModel) -> ReadModel:
    """Reads and verifies a checkpoint; raises CheckpointDamaged with the file, or Disagreement (another run)."""
    rule = DenseRule(of.model.dense_optimizer, of.model.dense_rate)
    settings = ModelSettings(of.rows, of.seed, CHUNK_ROWS, rule)
    restored = restore(storage, number, settings, of.run, 0, 1)
    keys_R, values_RW = _rows(restored.store)
    module = build(of)
    put_dense(module, of.model, restored.dense)
    weights = weights_of(module, of.schema.vectors + len(of.schema.crosses))
    return ReadModel(read_manifest(storage, number), keys_R, values_RW, weights)


def weights_of(module: ClickModel, keys: int) -> dict[str, NDArray[Any]]:
    """Dense weights by name; field scales as the factors that they are, not as they are trained, and 1 without any;
    weights of attention in units of 1.

    keys: wide weights of a sample, one for each pooled table.
    """
    weights = {name: weight.detach().numpy().copy() for name, weight in module.named_parameters()}
    for name, _ in module.attention.named_parameters():
        weights[f"attention.{name}"] *= ATTENTION_UNIT
    ones_F = np.ones(keys, weights["output.weight"].dtype)
    for name, head in heads_of(module):
        weights.pop(f"{name}.raw_scales", None)
        scales_F = head.scales()
        weights[f"{name}.scales"] = ones_F if scales_F is None else scales_F.detach().numpy().copy()
    return weights


def heads_of(module: ClickModel) -> list[tuple[str, Output]]:
    """The output layer of each label, by name; that of the main one first."""
    return [(name, each) for name, each in module.named_modules() if isinstance(each, Output)]


def build(of: RunModel) -> ClickModel:
    """The dense part, with the weights that a run starts with."""
    cpu = torch.device("cpu")
    return build_model(
        config=of.model,
        fields=of.schema.singles,
        dim=of.rows.dim,
        dense=of.schema.dense,
        seed=of.seed,
        dtype=float_type(of.rows),
        device=cpu,
        crosses=len(of.schema.crosses),
        pools=of.schema.pools,
        labels=max(1, len(of.schema.labels)),
    )


def put_dense(module: ClickModel, config: ModelConfig, found: DenseRange) -> None:
    """Gives a module the dense weights of a checkpoint, if it has any."""
    try:
        whole = found.read(WHOLE)
    except OutOfOrder:
        return
    Dense(module, config).put(WHOLE, 0, 1, whole)


def _rows(store: RowStore) -> tuple[NDArray[np.int64], NDArray[Any]]:
    numbers_R = np.flatnonzero(store.keys(np.arange(len(store))) != FREE)
    keys_R = store.keys(numbers_R).view(np.int64)
    order_R = np.argsort(keys_R)
    values_RW = np.empty((len(numbers_R), store.shape.value), store.dtype)
    store.gather(numbers_R[order_R], values_RW)
    return keys_R[order_R], values_RW
