"""The number of dense weights of a model, from its settings alone: before any is allocated, and without torch.

Every function mirrors the constructor of its model, for F keys of D columns and N dense inputs.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from ingest.schema import ListPool
from trainer.config import ModelConfig


def dense_weights(
    config: ModelConfig,
    fields: int,
    dim: int,
    dense: int,
    crosses: int = 0,
    labels: int = 1,
    pools: Sequence[ListPool] = (),
) -> int:
    """Number of weights of the dense part, without the rows; a model that is not Freshet's own is built for that.

    fields: vectors, one for each pooled table.
    """
    attention = sum(dim * dim * (pool.query >= 0) + dim for pool in pools if pool.attends)
    if config.is_plugged:
        from trainer.models.registry import try_plugged

        return try_plugged(config, fields, dim, dense, crosses, labels) + attention
    scales = fields + crosses if config.scale_rate else 0
    head = _output_width(config, fields, dim, dense) + 1 + scales
    return SIZES[config.name](config, fields, dim, dense) + scales + (labels - 1) * head + attention


def _output_width(config: ModelConfig, fields: int, dim: int, dense: int) -> int:
    """Inputs of the output layer."""
    inputs = fields * dim + dense
    vectors = fields + (1 if dense else 0)
    before, beside = {
        "wdl": (inputs, 0),
        "deepfm": (inputs, dim),
        "dcn": (inputs, inputs),
        "dlrm": (vectors * dim + vectors * (vectors - 1) // 2, 0),
        "ncf": (fields * (dim - dim // 2) + dense, dim // 2),
    }[config.name]
    return beside + (before, *config.mlp)[-1]


def _wdl(config: ModelConfig, fields: int, dim: int, dense: int) -> int:
    return _deep(fields * dim + dense, config.mlp)


def _deepfm(config: ModelConfig, fields: int, dim: int, dense: int) -> int:
    return _deep(fields * dim + dense, config.mlp) + dim


def _dcn(config: ModelConfig, fields: int, dim: int, dense: int) -> int:
    inputs = fields * dim + dense
    layer = {
        "matrix": _linear(inputs, inputs),
        "low_rank": inputs * config.cross_rank + _linear(config.cross_rank, inputs),
        "vector": 2 * inputs,
    }[config.cross]
    return config.cross_layers * layer + _deep(inputs, config.mlp) + inputs


def _dlrm(config: ModelConfig, fields: int, dim: int, dense: int) -> int:
    vectors = fields + (1 if dense else 0)
    bottom = _linear(dense, dim) if dense else 0
    return bottom + _deep(vectors * dim + vectors * (vectors - 1) // 2, config.mlp)


def _ncf(config: ModelConfig, fields: int, dim: int, dense: int) -> int:
    product = dim // 2
    return _deep(fields * (dim - product) + dense, config.mlp) + product


def _linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _deep(inputs: int, widths: Sequence[int]) -> int:
    """Weights of an MLP, and of the output layer for its last vector, with their bias."""
    layers = (inputs, *widths)
    return sum(_linear(left, right) for left, right in pairwise(layers)) + layers[-1] + 1


SIZES: Mapping[str, Callable[[ModelConfig, int, int, int], int]] = {
    "wdl": _wdl,
    "deepfm": _deepfm,
    "dcn": _dcn,
    "dlrm": _dlrm,
    "ncf": _ncf,
}
