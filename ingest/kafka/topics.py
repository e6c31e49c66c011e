"""Creates and describes topics on the broker, and checks them before a run begins.

Every function raises BrokerError, in one line that says what is wrong and what to do.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from ingest.config import StreamConfig
from ingest.errors import BrokerError
from ingest.kafka.access import check_access
from ingest.kafka.clients.admin import Admin, Topic, TopicSpec, open_admin
from ingest.kafka.clients.peek import peek
from ingest.kafka.config import KafkaConfig
from ingest.schema import Schema
from ingest.streams.span import both_ends
from ingest.survey import Survey

SAMPLED_RECORDS = 16
"""Records read at each end of each partition, to check whether they are events of the schema."""

SHOWN_FIELDS = 8
"""Most unknown fields in a message."""


@dataclass(frozen=True)
class PartitionSpan:
    """The contents of a partition, and how far the display group has read it."""

    partition: int
    first: int
    end: int
    committed: int | None

    @property
    def lag(self) -> int | None:
        return None if self.committed is None else self.end - self.committed


@contextmanager
def connect(config: KafkaConfig) -> Iterator[Admin]:
    """The admin client of a broker that accepts this client; otherwise BrokerError says which setting is wrong."""
    check_access(config)
    with open_admin(config) as admin:
        yield admin


# ── looking ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def describe_topic(config: KafkaConfig, name: str) -> Topic | None:
    """The topic, or None if there is none of that name."""
    with connect(config) as admin:
        return admin.describe(name)


def list_topics(config: KafkaConfig) -> list[Topic]:
    """All topics except the broker's own."""
    with connect(config) as admin:
        return [found for name in admin.names() if (found := admin.describe(name)) is not None]


def partition_spans(config: KafkaConfig, topic: Topic) -> list[PartitionSpan]:
    with connect(config) as admin:
        firsts = admin.first_offsets(topic)
        ends = admin.end_offsets(topic)
        group = admin.committed(config.group) if config.group else {}
    committed = {partition: at.offset for (name, partition), at in group.items() if name == topic.name}
    return [PartitionSpan(number, firsts[number], ends[number], committed.get(number)) for number in sorted(ends)]


def end_offsets(config: KafkaConfig, name: str) -> dict[int, int]:
    """The offset that the next record of each partition will have; empty if there is no such topic."""
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
    """Raises BrokerError for anything that would keep a run from reading this stream."""
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
    """Raises BrokerError if records at both ends of the topic were examined and none is an event of the schema.

    An unknown field is not a fault, but an event with only unknown fields is. Fields that no record has are logged.
    """
    survey = Survey(schema)
    survey.add(list(peek_ends(config, topic.name, 2 * SAMPLED_RECORDS * topic.partitions)))
    found = survey.findings()
    instead = ", ".join(f"{each.name} ({each.examples[0]})" for each in found.unknown[:SHOWN_FIELDS] if each.examples)
    if found.records and not found.fitting:
        blank = f"have none of the schema's fields, but {instead or 'no others'}"
        reason = f"are rejected, the first because of {found.rejects[0]!r}" if found.rejects else blank
        raise BrokerError(
            f"topic {topic.name!r} holds no event of schema {stream.schema_name!r}: the {found.records} records looked "
            f"at {reason}; expected some that fit; correct stream.schema_name or stream.topic ('freshet check' says "
            "more), or set kafka.check_events=false to take them as they are"
        )
    shares = {each.name: round(each.share, 3) for each in found.fields}
    structlog.get_logger().info("looked at events", topic=topic.name, records=found.records, present=shares)
    if found.records and found.absent:
        structlog.get_logger().warning("fields in no record looked at", absent=found.absent, unknown=instead)


def peek_ends(config: KafkaConfig, name: str, records: int) -> Iterator[bytes]:
    """The payloads of about that many records, the newest and the oldest of each partition."""
    topic = describe_topic(config, name)
    if topic is None:
        raise missing_topic(config, name, "the name")
    spans = {span.partition: (span.first, span.end) for span in partition_spans(config, topic)}
    ranges = both_ends(spans, records)
    newest = {partition: (first, end) for partition, first, end in ranges if end == spans[partition][1]}
    oldest = {partition: (first, end) for partition, first, end in ranges if end != spans[partition][1]}
    for chosen in (newest, oldest):
        for record in peek(config, name, chosen):
            yield record.value or b""


def missing_topic(config: KafkaConfig, name: str, setting: str) -> BrokerError:
    return BrokerError(
        f"topic {name!r} is not on Kafka at {','.join(config.servers)}; expected it to exist; create it with 'freshet "
        f"topics create', or correct {setting}"
    )
