"""How many bytes a step moves: rows with and without their state, and the dense part of the model.

A dense part of P bytes is moved in one of two ways:

* hub: a worker with samples pushes its gradient to the PS and pulls the new weights, P bytes up and then P bytes down;
  a worker without samples moves nothing, and one that is alone keeps the dense part;
* ring: each of n workers, with samples or not, sends 2(n-1)/n·P bytes and receives as many at the same time.

A link is charged for the time it is busy, so what a ring sends and receives at the same time counts once, and what the
hub moves one after the other counts twice, as pushes and pulls of rows do. Bytes count in both directions.

Legend: n workers.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dispatch.capacity.participation import rows_of_dense
from dispatch.protocol import ring_moved
from ps.config import OptimizerName, RowConfig
from trainer.config import ModelConfig, ModelName
from trainer.models.size import dense_weights

Reduce = Literal["hub", "ring"]
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Sizes:
    """Bytes of what is moved."""

    row: int = FLOAT_BYTES
    """a row with its state"""
    value: int = FLOAT_BYTES
    """a row without"""
    dense: int = 0
    """all weights of the dense part"""
    reduce: Reduce = "hub"

    @property
    def value_share(self) -> float:
        """Of a row's bytes; the rest is optimizer state."""
        return self.value / self.row

    @property
    def dense_ways(self) -> int:
        """In how many directions what a link is charged for moves at the same time."""
        return 1 if self.reduce == "hub" else 2

    @property
    def dense_of_samples(self) -> float:
        """What a worker moves because it has samples, in rows with their state; a ring moves the same without them."""
        return rows_of_dense(self.dense, self.row) if self.reduce == "hub" else 0.0

    def charged_dense(self, has_samples_n: NDArray[np.bool_]) -> NDArray[np.float64]:
        """What the dense part of one step costs on each link, in rows with their state."""
        workers = has_samples_n.size
        if self.reduce == "ring":
            return np.full(workers, ring_moved(workers, self.dense) / self.row)
        return np.where(has_samples_n, self.dense_of_samples if workers > 1 else 0.0, 0.0)


ROWS_ALONE = Sizes()
"""no state and no dense part, so that costs are numbers of rows"""


@dataclass(frozen=True)
class Architecture:
    """What the sizes follow from: the optimizer of rows, and a model on so many keys and dense inputs a sample."""

    optimizer: OptimizerName
    model: ModelName
    fields: int
    inputs: int
    dense_bytes: int | None = None
    """in place of the model's; 0 leaves the dense part out"""
    reduce: Reduce = "hub"

    def sizes(self, dim: int) -> Sizes:
        """With so many embedding columns; widths of the model's layers are those of the settings' defaults."""
        row = RowConfig(dim=dim, optimizer=self.optimizer).shape()
        dense = self.dense_bytes
        if dense is None:
            dense = FLOAT_BYTES * dense_weights(ModelConfig(name=self.model), self.fields, dim, self.inputs)
        return Sizes(FLOAT_BYTES * row.total, FLOAT_BYTES * row.value, dense, self.reduce)
