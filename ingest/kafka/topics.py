"""Topics on the broker: created, described, and checked before a run begins.

Every function raises BrokerError, in one line that says what is wrong and what to do.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ingest.codec.decoder import Decoder
from ingest.config import StreamConfig
from ingest.errors import BrokerError
from ingest.kafka.access import check_access
from ingest.kafka.clients.admin import Admin, Topic, TopicSpec, open_admin
from ingest.kafka.clients.peek import peek
from ingest.kafka.config import KafkaConfig
from ingest.keys import absent_key
from ingest.samples import Samples
from ingest.schema import Schema
from ingest.streams.position import Position
from ingest.streams.source import Record

SAMPLED_RECORDS = 16
"""at each end of each partition, to see whether they are events of the schema"""


@dataclass(frozen=True)
class PartitionSpan:
    """What a partition holds, and how far the display group has read it."""

    partition: int
    first: int
    end: int
    committed: int | None

    @property
    def lag(self) -> int | None:
        return None if self.committed is None else self.end - self.committed


@contextmanager
def connect(config: KafkaConfig) -> Iterator[Admin]:
    """The admin client of a broker that accepts this client; BrokerError says which setting is wrong otherwise."""
    check_access(config)
    with open_admin(config) as admin:
        yield admin


# ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def describe_topic(config: KafkaConfig, name: str) -> Topic | None:
    """The topic, or None if there is none of that name."""
    with connect(config) as admin:
        return admin.describe(name)


def list_topics(config: KafkaConfig) -> list[Topic]:
    """Every topic but the broker's own."""
    with connect(config) as admin:
        return [found for name in admin.names() if (found := admin.describe(name)) is not None]


def partition_spans(config: KafkaConfig, topic: Topic) -> list[PartitionSpan]:
    with connect(config) as admin:
        firsts, ends = admin.first_offsets(topic), admin.end_offsets(topic)
        group = admin.committed(config.group) if config.group else {}
    committed = {partition: at.offset for (name, partition), at in group.items() if name == topic.name}
    return [PartitionSpan(number, firsts[number], ends[number], committed.get(number)) for number in sorted(ends)]


def end_offsets(config: KafkaConfig, name: str) -> dict[int, int]:
    """The offset the next record of each partition will have; empty if there is no such topic."""
    with connect(config) as admin:
        found = admin.describe(name)
        return {} if found is None else admin.end_offsets(found)


# ── creating ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def create_topics(config: KafkaConfig, specs: Sequence[TopicSpec]) -> list[str]:
    """Creates those that are missing and returns their names; BrokerError if one exists and differs."""
    with connect(config) as admin:
        made = [spec.name for spec in specs if admin.create(spec)]
        differences = [line for spec in specs if spec.name not in made for line in _differences(admin, spec)]
    if differences:
        raise BrokerError(
            f"{'; '.join(differences)}; expected what was asked for, and nothing has been changed; alter the topic "
            "with Kafka's own tools (partitions can only grow), name another, or leave the option out"
        )
    return made


def ensure_topics(config: KafkaConfig, stream: StreamConfig) -> list[str]:
    """Creates the topics of events and of dead letters if they are missing; returns those created."""
    specs = (TopicSpec(stream.topic, stream.partitions), TopicSpec(stream.dead_letter_topic, 1))
    with connect(config) as admin:
        return [spec.name for spec in specs if admin.create(spec)]


def _differences(admin: Admin, spec: TopicSpec) -> Iterator[str]:
    found = admin.describe(spec.name)
    if found is None:
        yield f"topic {spec.name!r} was deleted just now"
        return
    pairs = [("partitions", str(spec.partitions), str(found.partitions))]
    pairs += [(name, wanted, found.configs.get(name, "")) for name, wanted in spec.configs.items()]
    for name, wanted, has in pairs:
        if wanted != has:
            yield f"topic {spec.name!r} exists with {name} = {has}, not {wanted}"


# ── checking ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def check_stream(config: KafkaConfig, stream: StreamConfig, schema: Schema) -> None:
    """Raises BrokerError for whatever would keep a run from reading this stream."""
    with connect(config) as admin:
        events = admin.describe(stream.topic)
        letters = admin.describe(stream.dead_letter_topic)
    if events is None:
        raise missing_topic(config, stream.topic, "stream.topic")
    if letters is None:
        raise missing_topic(config, stream.dead_letter_topic, "stream.dead_letter_topic")
    if config.check_events:
        _check_events(config, events, stream, schema)


def _check_events(config: KafkaConfig, topic: Topic, stream: StreamConfig, schema: Schema) -> None:
    """Raises BrokerError if records were looked at, at both ends of the topic, and none is an event of the schema."""
    spans = partition_spans(config, topic)
    newest = {span.partition: (max(span.first, span.end - SAMPLED_RECORDS), span.end) for span in spans}
    oldest = {span.partition: (span.first, min(span.end, span.first + SAMPLED_RECORDS)) for span in spans}
    decoder, reason, looked = Decoder(schema), "", 0
    for ranges in (newest, oldest):
        for record in peek(config, topic.name, ranges):
            decoded = decoder.decode([Record(record.offset, None, record.value or b"", 0)], Position(record.offset))
            if len(decoded) and not _is_blank(decoded.samples, schema):
                return
            blank = "it has none of the schema's fields"
            looked, reason = looked + 1, reason or (decoded.rejects[0].reason if decoded.rejects else blank)
    if looked:
        raise BrokerError(
            f"topic {topic.name!r} holds no event of schema {stream.schema_name!r}: each of the {looked} records "
            f"looked at is rejected, the first because of {reason!r}; expected some that fit; correct "
            "stream.schema_name or stream.topic, or set kafka.check_events=false to make them all dead letters"
        )


def _is_blank(samples: Samples, schema: Schema) -> bool:
    """Whether no field of the schema has a value: one unknown field is no fault, but only unknown fields are."""
    absent_F = np.array([absent_key(column) for column in schema.columns], np.uint64)
    return bool((samples.keys_BF == absent_F).all() and not samples.dense_BN.any())


def missing_topic(config: KafkaConfig, name: str, setting: str) -> BrokerError:
    return BrokerError(
        f"topic {name!r} is not on Kafka at {','.join(config.servers)}; expected it to exist; create it with 'freshet "
        f"topics create', or correct {setting}"
    )
