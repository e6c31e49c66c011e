"""How many bytes a step moves: rows with and without their state, and the dense part of the model.

A dense part of P bytes is moved in one of two ways:

* hub: a worker with samples pushes its gradient to the PS and pulls the new weights, P bytes up and P bytes down; a
  worker without samples moves nothing. One that takes part alone by decision moves nothing either: it fetches weights
  and optimizer state once, and returns them when another worker takes part;
* ring: each of n workers, with samples or not, sends 2(n-1)/n·P bytes and receives as many at the same time.

A link is charged for what it carries: what a ring sends and receives at the same time counts once, and what the hub
moves up and down counts twice, as pushes and pulls of rows do. Bytes count in both directions. Decisions depend on
times, in which the hub's two directions overlap and count once.

Legend: n workers.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dispatch.placement.capacity.step_model import DenseLoad, rows_of_dense
from dispatch.placement.traffic import ring_moved
from ps.config import OptimizerName, RowConfig
from trainer.config import ModelConfig, ModelName
from trainer.models.size import dense_weights

Reduce = Literal["hub", "ring"]
FLOAT_BYTES = 4
STATE_COPIES = 2
"""Copies that Adam, the default of the settings, keeps."""


@dataclass(frozen=True)
class Sizes:
    """Bytes of what is moved."""

    row: int = FLOAT_BYTES
    """Bytes of a row with its state."""
    value: int = FLOAT_BYTES
    """Bytes of a row without its state."""
    dense: int = 0
    """Bytes of all weights of the dense part."""
    reduce: Reduce = "hub"
    dense_state_copies: int = STATE_COPIES
    """Copies of the dense part that its optimizer keeps."""

    @property
    def value_share(self) -> float:
        """The value's share of a row's bytes; the rest is optimizer state."""
        return self.value / self.row

    @property
    def dense_ways(self) -> int:
        """Number of directions in which a link's charged bytes move at the same time."""
        return 1 if self.reduce == "hub" else 2

    @property
    def dense_load(self) -> DenseLoad:
        """What a worker moves because it has samples; a ring moves the same without them."""
        return rows_of_dense(self.dense if self.reduce == "hub" else 0, self.row, self.dense_state_copies)


class DenseCharges:
    """The cost of the dense part on each link, step after step, in rows with their state."""

    def __init__(self, sizes: Sizes, workers: int) -> None:
        self._sizes = sizes
        self._workers = workers
        self._owner = 0 if workers == 1 else None

    def step(self, has_samples_n: NDArray[np.bool_], sole: int | None) -> NDArray[np.float64]:
        """sole: who owns the dense part in this step, if anyone."""
        if self._sizes.reduce == "ring":
            return np.full(self._workers, ring_moved(self._workers, self._sizes.dense) / self._sizes.row)
        load, given_back_by, self._owner = self._sizes.dense_load, self._owner, sole
        charged_n = np.where(has_samples_n, 0.0 if sole is not None else 2 * load.rows, 0.0)
        if sole != given_back_by:
            charged_n[[worker for worker in (given_back_by, sole) if worker is not None]] += load.whole_rows
        return charged_n


ROWS_ALONE = Sizes()
"""No state and no dense part, so that costs are numbers of rows."""


@dataclass(frozen=True)
class Architecture:
    """What the sizes follow from: the optimizer of rows, and a model on that many keys and dense inputs per sample."""

    optimizer: OptimizerName
    model: ModelName
    fields: int
    inputs: int
    dense_bytes: int | None = None
    """Bytes instead of the model's; 0 omits the dense part."""
    reduce: Reduce = "hub"

    def sizes(self, dim: int) -> Sizes:
        """Sizes with that many embedding columns; widths of the model's layers are the defaults of the settings."""
        row = RowConfig(dim=dim, optimizer=self.optimizer).shape()
        dense = self.dense_bytes
        if dense is None:
            dense = FLOAT_BYTES * dense_weights(ModelConfig(name=self.model), self.fields, dim, self.inputs)
        return Sizes(FLOAT_BYTES * row.total, FLOAT_BYTES * row.value, dense, self.reduce)
