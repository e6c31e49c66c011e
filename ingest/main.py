"""The producer process: events of the synthetic stream, of a file or of stdin, into the embedded log or Kafka.

A crash or a stop leaves whole records only; what the summary counts is durable. The synthetic stream goes on where the
topic ends: after a stop exactly, after a crash with the events of one append, at most, repeated or left out.
"""

from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

from infra.errors import ConfigError
from infra.process import Stop
from ingest.config import StreamConfig
from ingest.kafka.config import KafkaConfig
from ingest.log.embedded import LogWriter
from ingest.producing.producer import Produced, Unit, produce
from ingest.producing.readers import STDIN, read_dataset, read_jsonl
from ingest.producing.synthetic import synthetic_events
from ingest.schema import load_schema
from ingest.streams.sink import Sink


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
    duration_seconds: float | None = None,
    kafka: KafkaConfig | None = None,
    show: Callable[[Produced], None] = lambda so_far: None,
) -> Produced:
    """Produces until the events end, limit good ones are written, the time is over, or a stop is requested."""
    check_producer(dataset, path, rate, limit, samples_per_record, poison_share, duration_seconds)
    schema = load_schema(config.schema_name)
    with closing(open_sink(config, kafka, stop)) as sink:
        # Only a topic of one event a record tells how many there are.
        is_counted = dataset == "synthetic" and not (samples_per_record or poison_share)
        events = _events(dataset, path, seed, sum(sink.ends().values()) if is_counted else 0)
        return produce(
            events, sink, schema, stop, samples_per_record, rate, limit, poison_share, duration_seconds, show
        )


def open_sink(config: StreamConfig, kafka: KafkaConfig | None, stop: Stop) -> Sink:
    """Where ``stream.source`` says that events are; the log is made if it is not there, a topic on Kafka is not."""
    if config.source == "log":
        return LogWriter(
            config.folder, config.topic, config.partitions, config.segment_bytes, config.retention_bytes
        )  # fmt: skip
    from ingest.kafka.sink import KafkaSink

    return KafkaSink(kafka or KafkaConfig(), config.topic, stop)


def check_producer(
    dataset: str,
    path: Path | None,
    rate: float | None,
    limit: int | None,
    samples_per_record: int,
    poison_share: float,
    duration_seconds: float | None = None,
) -> None:
    """Raises ConfigError for arguments that cannot be followed; nothing is written yet."""
    checks = (
        ("rate", rate, "events a second above 0", rate is None or rate > 0),
        ("limit", limit, "0 or more events", limit is None or limit >= 0),
        ("duration", duration_seconds, "seconds above 0", duration_seconds is None or duration_seconds > 0),
        ("samples_per_record", samples_per_record, "0 (JSON) or more", samples_per_record >= 0),
        ("poison_share", poison_share, "0 to 0.9", 0 <= poison_share <= 0.9),
    )
    for name, value, expected, good in checks:
        if not good:
            raise ConfigError(f"cannot produce with {name} = {value}: expected {expected}; correct it")
    if dataset == "jsonl" and (samples_per_record or poison_share):
        raise ConfigError("lines of jsonl are written as they are: expected no --packed and no --poison; leave it out")
    if dataset != "synthetic":
        _check_path(dataset, path)


def _check_path(dataset: str, path: Path | None) -> None:
    if path is None:
        raise ConfigError(f"no file given for dataset {dataset!r}: expected its path; add it after the dataset's name")
    is_stream = dataset == "jsonl" and (path == STDIN or (path.exists() and not path.is_dir()))
    if not (is_stream or path.is_file()):
        raise ConfigError(f"no dataset file at {path}: expected a {dataset} file; give its path")


def _events(dataset: str, path: Path | None, seed: int, start: int) -> Iterable[Unit]:
    if dataset == "synthetic":
        return synthetic_events(seed, start)
    assert path is not None, "checked before"
    return read_jsonl(path) if dataset == "jsonl" else read_dataset(dataset, path)
