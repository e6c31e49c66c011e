"""Examines events before they are trained: of a file, of a topic of the embedded log, or of a Kafka topic."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path

import msgspec

from infra.base.errors import ConfigError
from ingest.codec.json_events import encode_json
from ingest.config import StreamConfig
from ingest.kafka.config import KafkaConfig
from ingest.log.embedded import LogReader
from ingest.producing.readers import STDIN, read_dataset
from ingest.producing.tables import read_events
from ingest.schema import FileColumns, load_schema
from ingest.streams.plugged import open_plugged_source
from ingest.streams.source import Source
from ingest.streams.span import both_ends
from ingest.survey import Findings, Survey

READ_BYTES = 1 << 20
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
    payloads = payloads_of(where, dataset, stream, kafka, limit, schema.file)
    while survey.events < limit and (turn := list(islice(payloads, TURN_RECORDS))):
        survey.add(turn)
    found = survey.findings()
    if not suggests_crosses:
        return found
    from ingest.cross_search import suggest_crosses  # loads numba

    return msgspec.structs.replace(found, suggested=suggest_crosses(survey.samples, schema))


def payloads_of(
    where: str | None,
    dataset: str,
    stream: StreamConfig,
    kafka: KafkaConfig,
    limit: int,
    columns: FileColumns | None = None,
) -> Iterator[bytes]:
    """The records of a file, or about that many from both ends of a topic.

    columns: of the schema, for the rows of a file.
    """
    path = Path(where) if where is not None else None
    if path is not None and (path == STDIN or (path.exists() and not path.is_dir())):
        return islice(_file(path, dataset, columns), limit)
    if dataset != JSONL:
        raise ConfigError(f"no dataset file at {where}; expected a {dataset} file; give its path")
    if path is not None and path.is_dir():
        is_topic = any(path.glob("*/mark"))
        return _log(path.parent if is_topic else path, path.name if is_topic else stream.topic, limit)
    topic = where or stream.topic
    if stream.is_plugged:
        return _plugged(stream.model_copy(update={"topic": topic}), limit)
    return _kafka(kafka, topic, limit) if stream.source == "kafka" else _log(stream.folder, topic, limit)


def _file(path: Path, dataset: str, columns: FileColumns | None) -> Iterator[bytes]:
    if dataset == JSONL:
        return (event for event in read_events(path, columns) if event is not None)
    return (encode_json(event) for event in read_dataset(dataset, path))


def _log(folder: Path, topic: str, limit: int) -> Iterator[bytes]:
    with closing(LogReader(folder, topic)) as reader:
        spans = {partition: reader.span(partition) for partition in reader.partitions()}
        if not spans:
            raise ConfigError(
                f"no events at {folder / topic}; expected a file, or a topic of the embedded log; name one, or add "
                "--kafka for a topic there"
            )
        yield from _at_both_ends(reader, spans, limit)


def _plugged(stream: StreamConfig, limit: int) -> Iterator[bytes]:
    with closing(open_plugged_source(stream)) as source:
        yield from _at_both_ends(source, {number: source.span(number) for number in source.partitions()}, limit)


def _at_both_ends(source: Source, spans: Mapping[int, tuple[int, int]], limit: int) -> Iterator[bytes]:
    for partition, start, end in both_ends(spans, limit):
        while start < end and (records := source.read(partition, start, READ_BYTES)):
            yield from (record.payload for record in records if record.offset < end)
            start = records[-1].offset + 1


def _kafka(kafka: KafkaConfig, topic: str, limit: int) -> Iterator[bytes]:
    from ingest.kafka.topics import peek_ends  # loads a client library

    return peek_ends(kafka, topic, limit)
