"""Writes a whole file into a topic that nobody reads yet, and counts what a run will make of it.

Training begins once everything is there, so the batches of a run over a file depend on the file alone.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from infra.base.errors import ConfigError
from infra.base.process import Stop
from ingest.codec.decoder import Decoder
from ingest.config import StreamConfig
from ingest.errors import InputError
from ingest.kafka.config import KafkaConfig
from ingest.opening import open_sink
from ingest.producing.encoder import Encoder
from ingest.producing.tables import read_events
from ingest.samples import Samples
from ingest.schema import Schema
from ingest.streams.position import Position
from ingest.streams.source import Record

TURN_EVENTS = 4096


@dataclass(frozen=True)
class FilledTopic:
    """What was written."""

    labels_B: NDArray[np.float32]
    """Labels of the good events, in their order."""
    reasons: dict[str, int]
    """Number of events that will be dead letters, by kind of reason."""
    first_reason: str
    """The first reason in full."""

    @property
    def good(self) -> int:
        return len(self.labels_B)

    @property
    def rejected(self) -> int:
        return sum(self.reasons.values())

    @property
    def events(self) -> int:
        return self.good + self.rejected


def fill_topic(
    path: Path, schema: Schema, stream: StreamConfig, stop: Stop, show: Callable[[int], None] = lambda events: None
) -> FilledTopic:
    """Writes all events of a file, unless a stop is requested. show: gets the number so far."""
    if not path.is_file():
        raise ConfigError(f"no file at {path}; expected JSON lines, CSV or Parquet; correct the path")
    decoder = Decoder(schema)
    labels: list[NDArray[np.float32]] = []
    reasons: Counter[str] = Counter()
    first_reason = ""
    written = 0
    with closing(open_sink(stream, KafkaConfig(), stop)) as sink:
        encoder = Encoder(schema, sink.partitions)
        events = (event for event in read_events(path, schema.file) if event is not None)
        while not stop.requested and (turn := list(islice(events, TURN_EVENTS))):
            decoded = decoder.decode(as_records(turn), Position(0))
            labels.append(decoded.samples.labels_B)
            reasons.update(reject.reason.partition(":")[0] for reject in decoded.rejects)
            first_reason = first_reason or next((reject.reason for reject in decoded.rejects), "")
            sink.write(encoder.encode(turn))
            written += len(turn)
            show(written)
    labels_B = np.concatenate(labels) if labels else np.empty(0, np.float32)
    return FilledTopic(labels_B, dict(reasons.most_common()), first_reason)


def check_filled(path: Path, filled: FilledTopic) -> None:
    """Raises InputError if no new model can learn from what was written."""
    if not filled.events:
        raise InputError(f"{path} holds no events; expected at least one line or row; give another file")
    if not filled.good:
        raise InputError(
            f"none of {filled.events:,} events of {path} fits the schema: {filled.first_reason}; expected events of "
            "it; 'freshet check' shows what differs, 'freshet init' guesses a schema"
        )
    if len(np.unique(filled.labels_B)) == 1:
        raise InputError(
            f"all {filled.good:,} events of {path} have label {filled.labels_B[0]:.0f}; expected clicks and "
            "non-clicks; correct the labels, or the column that holds them"
        )


def as_records(payloads: Iterable[bytes]) -> list[Record]:
    """Payloads as if a topic had them, numbered from 0."""
    return [Record(place, None, payload, 0) for place, payload in enumerate(payloads)]


def read_samples_of(path: Path, schema: Schema) -> Iterable[Samples]:
    """The good events of a file as samples."""
    decoder = Decoder(schema)
    events = (event for event in read_events(path, schema.file) if event is not None)
    while turn := list(islice(events, TURN_EVENTS)):
        yield decoder.decode(as_records(turn), Position(0)).samples
