"""Builds the specification of the served model from the settings of its run."""

import torch

from infra.base.errors import ConfigError
from ingest.schema import Schema
from ps.config import RowConfig
from serving.config import ServingConfig
from serving.copies import ModelSpec
from serving.rows.table import DTYPES
from trainer.config import ModelConfig


def spec_of(
    config: ServingConfig, run: str, seed: int, rows: RowConfig, model: ModelConfig, schema: Schema
) -> ModelSpec:
    """Raises ConfigError if the configured device is not available."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "serving.device is 'cuda' and torch finds none here; expected a GPU and its driver; set it to 'cpu'"
        )
    dtype = DTYPES[config.row_dtype]
    device = torch.device(config.device)
    return ModelSpec(
        run=run,
        seed=seed,
        rows=rows,
        model=model,
        fields=schema.fields,
        dense=schema.dense,
        row_dtype=dtype,
        device=device,
        tables=schema.key_tables,
        crosses=len(schema.crosses),
        pools=schema.pools,
        labels=schema.labels,
    )
