"""Topics for benchmarks: files of real clicks, or synthetic clicks of the same shape, as packed records."""

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np

from infra.base.errors import ConfigError
from ingest.codec.packed import PackedCodec
from ingest.config import StreamConfig
from ingest.convert import Converter
from ingest.crosses import add_crosses
from ingest.log.embedded import LogWriter
from ingest.producing.readers import read_dataset
from ingest.samples import Samples
from ingest.schema import Schema, load_schema

SAMPLES_PER_RECORD = 64
CHUNK = 8192
LARGEST_TABLE = 50_000
MIX = np.uint64(0x9E3779B97F4A7C15)


def write_topic(config: StreamConfig, parts: Iterator[Samples]) -> int:
    """Appends samples in order to the topic's only partition; returns how many there were."""
    codec = PackedCodec(load_schema(config.schema_name))
    total = 0
    with closing(LogWriter(config.folder, config.topic, 1, config.segment_bytes)) as writer:
        for samples in parts:
            starts = range(0, len(samples), SAMPLES_PER_RECORD)
            writer.append(0, [(None, codec.encode(samples.slice(at, at + SAMPLES_PER_RECORD))) for at in starts])
            total += len(samples)
    return total


def read_samples(dataset: str, file: Path, schema: Schema) -> Iterator[Samples]:
    """The file's events as samples; raises ConfigError at the first bad event."""
    events = iter(read_dataset(dataset, file))
    converter = Converter(schema)
    while chunk := list(islice(events, CHUNK)):
        samples, faults = converter.convert_events(chunk)
        if faults:
            row, reason = next(iter(faults.items()))
            raise ConfigError(
                f"{file} holds a bad event ({chunk[row]}): {reason}; expected a clean {dataset} file; remove the event"
            )
        yield samples


def made_up_samples(schema: Schema, samples: int, seed: int = 0) -> Iterator[Samples]:
    """Synthetic samples of the schema's shape, skewed as click data: tables of all sizes, a few frequent keys."""
    draw = np.random.default_rng(seed)
    known_E = np.geomspace(10, LARGEST_TABLE, schema.singles).astype(np.uint64)
    effects = draw.normal(0, 0.5, (schema.singles, 64))
    for start in range(0, samples, CHUNK):
        size = min(CHUNK, samples - start)
        ranks_BE = draw.zipf(1.3, (size, schema.singles)).astype(np.uint64) % known_E
        keys_BE = (ranks_BE * MIX + np.arange(schema.singles, dtype=np.uint64)).astype(np.uint64)
        odds_B = -1.0 + effects[np.arange(schema.singles), (ranks_BE % np.uint64(64)).astype(np.int64)].mean(axis=1)
        yield Samples(
            (draw.random(size) < 1 / (1 + np.exp(-odds_B))).astype(np.float32),
            np.log1p(draw.exponential(10, (size, schema.dense))).astype(np.float32),
            add_crosses(keys_BE, schema),
            1.7e9 + np.arange(start, start + size, dtype=np.float64),
        )
