"""The keys that dispatch is measured on: real or made-up clicks, cut down to the columns of the figures.

Only sparse columns count there: of Criteo the 26 categories and not the bucketed integers, of Avazu the 18 columns of
the published tables. A missing value is a key like any other.

Legend: B samples, F keys a sample.
"""

from itertools import islice
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.clicks import CHUNK, read_samples
from infra.errors import ConfigError
from ingest.convert import Converter
from ingest.schema import Schema, load_schema
from ingest.synthetic import synthetic_events

AVAZU = (
    *("C1", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category"),
    *("device_id", "device_ip", "device_model", *(f"C{i}" for i in range(14, 22))),
)
COLUMNS = {"criteo": tuple(f"C{i}" for i in range(1, 27)), "avazu": AVAZU}
"""tables that count, where not all do"""


def read_keys(dataset: str, file: Path | None, samples: int | None = None) -> NDArray[np.uint64]:
    """Keys of the file's samples, or of so many made-up ones, [B, F]."""
    schema = sparse_schema(dataset)
    if dataset == "synthetic":
        return _made_up(schema, samples or 50_000)
    if file is None:
        raise ConfigError(f"no file given for {dataset!r}: expected a {dataset} file; give its path with --input")
    parts = [part.keys_BF for part in read_samples(dataset, file, schema)]
    if not parts:
        raise ConfigError(f"{file} holds no samples; expected a {dataset} file; check --input")
    return np.concatenate(parts)[:samples]


def sparse_schema(dataset: str) -> Schema:
    """The data set's schema with the columns of the figures alone."""
    schema = load_schema(dataset)
    wanted = COLUMNS.get(dataset)
    tables = tuple(table for table in schema.tables if wanted is None or table.name in wanted)
    return msgspec.structs.replace(schema, tables=tables, dense_fields=(), partition_by=None)


def _made_up(schema: Schema, samples: int) -> NDArray[np.uint64]:
    events, converter = iter(synthetic_events(0)), Converter(schema)
    starts = range(0, samples, CHUNK)
    chunks = [list(islice(events, min(CHUNK, samples - start))) for start in starts]
    return np.concatenate([converter.convert_events(chunk)[0].keys_BF for chunk in chunks])
