"""How large the dense part of a run's model is, compared with the rows of a step; known before anything starts."""

from dataclasses import dataclass

import numpy as np

from infra.run.figures import number, size
from infra.run.settings import Settings
from trainer.models.size import dense_weights

NOTABLE_BYTES = 1_000_000
"""A smaller dense part is not worth a warning."""
STATE_COPIES = {"adam": 2, "sgd": 0}
"""Tensors of the size of the weights that the optimizer keeps."""


@dataclass(frozen=True)
class DensePart:
    """The weights that every worker holds and that all workers all-reduce in every step."""

    weights: int
    bytes: int
    worker_bytes: int
    """Bytes with gradients and the optimizer's state."""
    row_bytes: int
    """Bytes of the rows that one step can use at most."""

    @property
    def is_heavy(self) -> bool:
        return self.bytes > max(NOTABLE_BYTES, self.row_bytes)

    def __str__(self) -> str:
        return f"{self.weights:,} weights, {size(self.bytes)}"


def dense_part(settings: Settings) -> DensePart:
    """The dense part of the model that these settings describe."""
    schema = settings.event_schema
    rows = settings.rows
    labels = max(1, len(schema.labels))
    weights = dense_weights(
        config=settings.model,
        fields=schema.vectors,
        dim=rows.dim,
        dense=schema.dense,
        crosses=len(schema.crosses),
        labels=labels,
        pools=schema.pools,
    )
    itemsize = np.dtype(rows.float_dtype).itemsize
    used = settings.stream.batch * schema.fields * rows.shape().value
    copies = 2 + STATE_COPIES[settings.model.dense_optimizer]
    return DensePart(weights, weights * itemsize, copies * weights * itemsize, used * itemsize)


def heavy_warning(settings: Settings, part: DensePart) -> str:
    """The cost of a heavy dense part, and what to do about it."""
    model = settings.model
    is_crossed = model.name == "dcn" and model.cross == "matrix"
    layers = "model.cross=low_rank or vector, or another model.name" if is_crossed else "narrower model.mlp"
    return (
        f"the dense part has {number(part.weights)} weights ({size(part.bytes)}, {size(part.worker_bytes)} in every "
        f"worker), more than all rows of a step (at most {size(part.row_bytes)}), and is all-reduced in every step; "
        f"choose a smaller rows.dim than {settings.rows.dim:,}, {layers}, or a larger stream.batch"
    )
