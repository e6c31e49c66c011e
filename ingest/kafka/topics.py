"""Topics on the broker: made, described, and checked before a run begins.

Through kafka-python whatever ``kafka.client`` says: none of it is often or much. Every error is ours: BrokerError in
one line that says what is wrong and what to do.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, NoError, RetriableError, TopicAlreadyExistsError, UnknownTopicOrPartitionError
from kafka.structs import TopicPartition

from ingest.codec.decoder import Decoder
from ingest.config import StreamConfig
from ingest.errors import BrokerError
from ingest.kafka.access import knock
from ingest.kafka.config import KafkaConfig, kafka_python_arguments
from ingest.kafka.peek import peek
from ingest.keys import absent_key
from ingest.samples import Samples
from ingest.schema import Schema
from ingest.streams.position import Position
from ingest.streams.source import Record

EARLIEST, LATEST = -2, -1
SAMPLED_RECORDS = 16
"""of each end of each partition, to see whether they are events of the schema"""
WAIT_MS = 10_000


@dataclass(frozen=True)
class TopicSpec:
    """A topic as it is wanted; what is None is left to the broker."""

    name: str
    partitions: int
    replication: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)
    """Kafka's names: retention.ms, retention.bytes, compression.type, max.message.bytes"""


@dataclass(frozen=True)
class Topic:
    """A topic as the broker has it."""

    name: str
    identity: str
    """changes when it is deleted and created again"""
    partitions: int
    replication: int
    configs: Mapping[str, str]


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
def admin(config: KafkaConfig) -> Iterator[Any]:
    """kafka-python's admin client, its errors translated."""
    knock(config)
    client = None
    try:
        client = KafkaAdminClient(
            **kafka_python_arguments(config), bootstrap_timeout_ms=round(1000 * config.request_seconds)
        )
        yield client
    except KafkaError as error:
        raise BrokerError(
            f"Kafka at {','.join(config.servers)} does not do as asked: {type(error).__name__}: {error}; expected a "
            f"broker that lets {config.username or 'this client'} do it; check its access rules and try again"
        ) from error
    finally:
        if client is not None:
            with suppress(KafkaError):
                client.close()


# ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def describe_topic(config: KafkaConfig, name: str) -> Topic | None:
    """The topic, or None if there is none of that name."""
    with admin(config) as client:
        return _described(client, name)


def list_topics(config: KafkaConfig) -> list[Topic]:
    """Every topic but the broker's own."""
    with admin(config) as client:
        names = sorted(name for name in client.list_topics() if not name.startswith("__"))
        return [found for name in names if (found := _described(client, name)) is not None]


def partition_spans(config: KafkaConfig, topic: Topic) -> list[PartitionSpan]:
    with admin(config) as client:
        firsts, ends = _offsets(client, topic, EARLIEST), _offsets(client, topic, LATEST)
        told = group_offsets(client, config.group) if config.group else {}
        committed = {place.partition: int(at.offset) for place, at in told.items() if place.topic == topic.name}
    return [PartitionSpan(number, firsts[number], ends[number], committed.get(number)) for number in sorted(ends)]


def group_offsets(client: Any, group: str) -> dict[Any, Any]:
    """What a group has committed. On a broker that never had a group, the first question makes it ready for one."""
    until = time.monotonic() + WAIT_MS / 1000
    while True:
        try:
            return dict(client.list_group_offsets({group: None})[group])
        except RetriableError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def end_offsets(config: KafkaConfig, name: str) -> dict[int, int]:
    """The offset the next record of each partition will have; none where there is no topic."""
    with admin(config) as client:
        found = _described(client, name)
        return {} if found is None else _offsets(client, found, LATEST)


def _described(client: Any, name: str) -> Topic | None:
    (told,) = client.describe_topics([name])
    if told["error_code"] == UnknownTopicOrPartitionError.errno:
        return None
    if told["error_code"] != NoError.errno:
        raise BrokerError(
            f"topic {name!r} cannot be described: Kafka's error {told['error_code']}; expected a topic this user may "
            "see; check the access rules and the name"
        )
    resource = ConfigResource(ConfigResourceType.TOPIC, name)
    configs = client.describe_configs([resource], config_filter="all")["topic"][name]
    values = {key: str(value["value"]) for key, value in configs.items()}
    replication = min((len(partition["replica_nodes"]) for partition in told["partitions"]), default=0)
    return Topic(name, str(told["topic_id"]), len(told["partitions"]), replication, values)


def _offsets(client: Any, topic: Topic, which: int) -> dict[int, int]:
    places = {TopicPartition(topic.name, number): which for number in range(topic.partitions)}
    return {place.partition: int(at.offset) for place, at in client.list_partition_offsets(places).items()}


# ── making ────────────────────────────────────────────────────────────────────────────────────────────────────────────
def create_topics(config: KafkaConfig, specs: Sequence[TopicSpec]) -> list[str]:
    """Makes those that are missing and returns their names; BrokerError if one is there and is another than wanted."""
    with admin(config) as client:
        made = [spec.name for spec in specs if _create(client, spec)]
        differences = [line for spec in specs if spec.name not in made for line in _differences(client, spec)]
    if differences:
        raise BrokerError(
            f"{'; '.join(differences)}; expected what was asked for, and nothing has been changed; alter the topic "
            "with Kafka's own tools (partitions can only grow), name another, or leave the option out"
        )
    return made


def ensure_topics(config: KafkaConfig, stream: StreamConfig) -> list[str]:
    """Makes the topics of events and of dead letters unless they are there, however they are; returns those made."""
    specs = (TopicSpec(stream.topic, stream.partitions), TopicSpec(stream.dead_letter_topic, 1))
    with admin(config) as client:
        return [spec.name for spec in specs if _create(client, spec)]


def _create(client: Any, spec: TopicSpec) -> bool:
    asked = {
        "num_partitions": spec.partitions,
        "replication_factor": spec.replication,
        "configs": dict(spec.configs),
    }
    try:
        client.create_topics({spec.name: asked})
    except TopicAlreadyExistsError:
        return False
    client.wait_for_topics([spec.name], timeout_ms=WAIT_MS)
    return True


def _differences(client: Any, spec: TopicSpec) -> Iterator[str]:
    found = _described(client, spec.name)
    if found is None:
        yield f"topic {spec.name!r} was deleted just now"
        return
    pairs = [("partitions", str(spec.partitions), str(found.partitions))]
    pairs += [(name, wanted, found.configs.get(name, "")) for name, wanted in spec.configs.items()]
    for name, wanted, has in pairs:
        if wanted != has:
            yield f"topic {spec.name!r} is there with {name} = {has}, not {wanted}"


# ── checking ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def check_stream(config: KafkaConfig, stream: StreamConfig, schema: Schema) -> None:
    """Raises BrokerError, in one line, for whatever would keep a run from reading this stream."""
    with admin(config) as client:
        events = _described(client, stream.topic)
        letters = _described(client, stream.dead_letter_topic)
    if events is None:
        raise missing_topic(config, stream.topic, "stream.topic")
    if letters is None:
        raise missing_topic(config, stream.dead_letter_topic, "stream.dead_letter_topic")
    if config.check_events:
        _check_events(config, events, stream, schema)


def _check_events(config: KafkaConfig, topic: Topic, stream: StreamConfig, schema: Schema) -> None:
    """Some records of the topic's ends must be events of the schema, or none is there yet."""
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
    """Whether nothing that the schema names is there: unknown fields are no fault, but all of them unknown is."""
    absent_F = np.array([absent_key(column) for column in schema.columns], np.uint64)
    return bool((samples.keys_BF == absent_F).all() and not samples.dense_BN.any())


def missing_topic(config: KafkaConfig, name: str, setting: str) -> BrokerError:
    return BrokerError(
        f"topic {name!r} is not on Kafka at {','.join(config.servers)}; expected it to be there; make it with 'freshet "
        f"topics create', or correct {setting}"
    )
