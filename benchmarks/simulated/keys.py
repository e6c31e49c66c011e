"""The keys on which dispatch is measured: real or synthetic clicks, reduced to the columns of the figures.

Only sparse columns count there: of Criteo the 26 categories and not the bucketed integers, of Avazu the 18 columns of
the published tables. A missing value is a key like any other. Synthetic clicks have as many tables as Criteo: those of
the demo's stream have too few users for a cache of a few per cent of them to hold a micro-batch.

Legend: B samples, F keys per sample.
"""

from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.clicks import made_up_samples, read_samples
from infra.base.errors import ConfigError
from ingest.schema import Schema, load_schema

AVAZU = (
    *("C1", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category"),
    *("device_id", "device_ip", "device_model", *(f"C{i}" for i in range(14, 22))),
)
COLUMNS = {"criteo": tuple(f"C{i}" for i in range(1, 27)), "avazu": AVAZU}
"""Tables that count, if not all do."""
MADE_UP_SAMPLES = 50_000


def read_keys(dataset: str, file: Path | None, samples: int | None = None) -> NDArray[np.uint64]:
    """Keys of the file's samples, or of that many synthetic ones, [B, F]."""
    if dataset == "synthetic":
        made_up = made_up_samples(sparse_schema("criteo"), samples or MADE_UP_SAMPLES)
        return np.concatenate([part.keys_BF for part in made_up])
    schema = sparse_schema(dataset)
    if file is None:
        raise ConfigError(f"no file given for {dataset!r}; expected a {dataset} file; give its path with --input")
    parts = [part.keys_BF for part in read_samples(dataset, file, schema)]
    if not parts:
        raise ConfigError(f"{file} holds no samples; expected a {dataset} file; check --input")
    return np.concatenate(parts)[:samples]


def dense_inputs(dataset: str) -> int:
    """Floats of a sample besides its keys, as in the data set's own schema."""
    return load_schema("criteo" if dataset == "synthetic" else dataset).dense


def sparse_schema(dataset: str) -> Schema:
    """The data set's schema with only the columns of the figures."""
    schema = load_schema(dataset)
    wanted = COLUMNS.get(dataset)
    tables = tuple(table for table in schema.tables if wanted is None or table.name in wanted)
    return msgspec.structs.replace(schema, tables=tables, dense_fields=(), partition_by=None, crosses=())
