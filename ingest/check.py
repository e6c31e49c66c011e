"""Examines events before they are trained: of a file, of a topic of the embedded log, or of a Kafka topic."""

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import msgspec

from infra.base.errors import ConfigError
from ingest.codec.json_events import encode_json
from ingest.config import StreamConfig
from ingest.kafka.config import KafkaConfig
from ingest.log.embedded import LogReader
from ingest.producing.readers import STDIN, read_dataset, read_jsonl
from ingest.schema import load_schema
from ingest.streams.span import both_ends
from ingest.survey import Findings, Survey

TURN_RECORDS = 64
JSONL = "jsonl"


def check_events(
    where: str | None,
    dataset: str,
    stream: StreamConfig,
    kafka: KafkaConfig,
    limit: int,
    suggests_crosses: bool = False,
) -> Findings:
    """Examines about limit events, at least one record of each partition; where: a file, a folder, or a topic.

    Of a file the first events are examined, of a topic the oldest and the newest of every partition.
    suggests_crosses: whether crosses are searched for in them, too.
    """
    schema = load_schema(stream.schema_name)
    survey = Survey(schema, keeps_samples=suggests_crosses)
    payloads = payloads_of(where, dataset, stream, kafka, limit)
    while survey.events < limit and (turn := list(islice(payloads, TURN_RECORDS))):
        survey.add(turn)
    found = survey.findings()
    if not suggests_crosses:
        return found
    from ingest.cross_search import suggest_crosses  # loads numba

    return msgspec.structs.replace(found, suggested=suggest_crosses(survey.samples, schema))


def payloads_of(
    where: str | None, dataset: str, stream: StreamConfig, kafka: KafkaConfig, limit: int
) -> Iterator[bytes]:
    """The records of a file, or about that many from both ends of a topic."""
    path = Path(where) if where is not None else None
    if path is not None and (path == STDIN or (path.exists() and not path.is_dir())):
        return islice(_file(path, dataset), limit)
    if dataset != JSONL:
        raise ConfigError(f"no dataset file at {where}; expected a {dataset} file; give its path")
    if path is not None and path.is_dir():
        is_topic = any(path.glob("*/mark"))
        return _log(path.parent if is_topic else path, path.name if is_topic else stream.topic, limit)
    topic = where or stream.topic
    return _kafka(kafka, topic, limit) if stream.source == "kafka" else _log(stream.folder, topic, limit)


def _file(path: Path, dataset: str) -> Iterator[bytes]:
    if dataset == JSONL:
        return (line for line in read_jsonl(path) if line is not None)
    return (encode_json(event) for event in read_dataset(dataset, path))


def _log(folder: Path, topic: str, limit: int) -> Iterator[bytes]:
    with closing(LogReader(folder, topic)) as reader:
        spans = {partition: reader.span(partition) for partition in reader.partitions()}
        if not spans:
            raise ConfigError(
                f"no events at {folder / topic}; expected a file, or a topic of the embedded log; name one, or add "
                "--kafka for a topic there"
            )
        for partition, start, end in both_ends(spans, limit):
            while start < end:
                records = reader.read(partition, start)[: end - start]
                yield from (record.payload for record in records)
                start += len(records)


def _kafka(kafka: KafkaConfig, topic: str, limit: int) -> Iterator[bytes]:
    from ingest.kafka.topics import peek_ends  # loads a client library

    return peek_ends(kafka, topic, limit)
