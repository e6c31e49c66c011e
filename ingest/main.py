"""The producer process: events of the synthetic stream or of a file, into the embedded log.

A crash or a stop leaves whole records only; what the summary counts is durable.
"""

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from infra.errors import ConfigError
from infra.process import Stop
from ingest.config import StreamConfig
from ingest.convert import Event
from ingest.log import LogWriter
from ingest.producer import Produced, produce
from ingest.readers import read_dataset
from ingest.schema import load_schema
from ingest.synthetic import synthetic_events


def run_producer(
    config: StreamConfig,
    stop: Stop,
    dataset: str = "synthetic",
    path: Path | None = None,
    seed: int = 0,
    rate: float | None = None,
    limit: int | None = None,
    samples_per_record: int = 0,
    poison_share: float = 0.0,
) -> Produced:
    """Produces until the events end, limit good ones are written, or a stop is requested."""
    _check(rate, limit, samples_per_record, poison_share)
    schema = load_schema(config.schema_name)
    events = _events(dataset, path, seed)
    writer = LogWriter(
        config.folder, config.topic, config.partitions, config.segment_bytes, config.retention_bytes
    )  # fmt: skip
    with closing(writer):
        return produce(events, writer, schema, stop, samples_per_record, rate, limit, poison_share)


def _events(dataset: str, path: Path | None, seed: int) -> Iterable[Event]:
    if dataset == "synthetic":
        return synthetic_events(seed)
    if path is None:
        raise ConfigError(f"no file given for dataset {dataset!r}: expected its path; add it after the dataset's name")
    return read_dataset(dataset, path)


def _check(rate: float | None, limit: int | None, samples_per_record: int, poison_share: float) -> None:
    wrong = [
        (name, value, expected)
        for name, value, expected, good in (
            ("rate", rate, "events a second above 0", rate is None or rate > 0),
            ("limit", limit, "0 or more events", limit is None or limit >= 0),
            ("samples_per_record", samples_per_record, "0 (JSON) or more", samples_per_record >= 0),
            ("poison_share", poison_share, "0 to 0.9", 0 <= poison_share <= 0.9),
        )
        if not good
    ]
    for name, value, expected in wrong:
        raise ConfigError(f"cannot produce with {name} = {value}: expected {expected}; correct it")
