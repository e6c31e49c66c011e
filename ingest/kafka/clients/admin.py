"""Topics and groups on the broker, through kafka-python's admin client whatever ``kafka.client`` says.

None of it is called often. The library's errors become BrokerError, in one line that says what is wrong and what to do.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, NoError, RetriableError, TopicAlreadyExistsError, UnknownTopicOrPartitionError
from kafka.structs import TopicPartition

from ingest.errors import BrokerError
from ingest.kafka.config import KafkaConfig, kafka_python_arguments

EARLIEST = -2
"""how Kafka asks for the first offset of a partition"""
LATEST = -1
"""… and for the next one"""
WAIT_SECONDS = 10.0
"""how long a new topic, or a broker's first group, may take to become usable"""


@dataclass(frozen=True)
class TopicSpec:
    """A topic as it is wanted; configs that are not named are left to the broker."""

    name: str
    partitions: int
    replication: int = 1
    configs: Mapping[str, str] = field(default_factory=dict)
    """Kafka's names: retention.ms, retention.bytes, compression.type, max.message.bytes"""


@dataclass(frozen=True)
class Topic:
    """A topic as the broker has it."""

    name: str
    partitions: int
    replication: int
    configs: Mapping[str, str]


class GroupOffset(NamedTuple):
    """What a group has committed for one partition."""

    offset: int
    metadata: str


class Admin:
    """What is asked of the broker about topics and groups."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def names(self) -> list[str]:
        """Every topic but the broker's own."""
        return sorted(name for name in self._client.list_topics() if not name.startswith("__"))

    def describe(self, name: str) -> Topic | None:
        """The topic, or None if there is none of that name."""
        (found,) = self._client.describe_topics([name])
        if found["error_code"] == UnknownTopicOrPartitionError.errno:
            return None
        if found["error_code"] != NoError.errno:
            raise BrokerError(
                f"topic {name!r} cannot be described: Kafka's error {found['error_code']}; expected a topic this user "
                "may see; check the access rules and the name"
            )
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        configs = self._client.describe_configs([resource], config_filter="all")["topic"][name]
        values = {key: str(value["value"]) for key, value in configs.items()}
        replication = min((len(partition["replica_nodes"]) for partition in found["partitions"]), default=0)
        return Topic(name, len(found["partitions"]), replication, values)

    def create(self, spec: TopicSpec) -> bool:
        """Whether the topic was created; False if one of that name exists."""
        wanted = {
            "num_partitions": spec.partitions,
            "replication_factor": spec.replication,
            "configs": dict(spec.configs),
        }
        try:
            self._client.create_topics({spec.name: wanted})
        except TopicAlreadyExistsError:
            return False
        self._client.wait_for_topics([spec.name], timeout_ms=round(1000 * WAIT_SECONDS))
        return True

    def first_offsets(self, topic: Topic) -> dict[int, int]:
        """The first retained offset of each partition."""
        return self._offsets(topic, EARLIEST)

    def end_offsets(self, topic: Topic) -> dict[int, int]:
        """The offset the next record of each partition will have."""
        return self._offsets(topic, LATEST)

    def committed(self, group: str) -> dict[tuple[str, int], GroupOffset]:
        """What a group has committed, by topic and partition.

        A broker that never had a group may refuse the first question, which makes it ready for one.
        """
        until = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                found = self._client.list_group_offsets({group: None})[group]
                break
            except RetriableError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
        return {
            (place.topic, place.partition): GroupOffset(int(at.offset), str(at.metadata)) for place, at in found.items()
        }

    def _offsets(self, topic: Topic, which: int) -> dict[int, int]:
        places = {TopicPartition(topic.name, number): which for number in range(topic.partitions)}
        return {place.partition: int(at.offset) for place, at in self._client.list_partition_offsets(places).items()}


@contextmanager
def open_admin(config: KafkaConfig) -> Iterator[Admin]:
    """The admin client; errors of the library, here and in the block, become BrokerError."""
    client = None
    try:
        client = KafkaAdminClient(
            **kafka_python_arguments(config), bootstrap_timeout_ms=round(1000 * config.request_seconds)
        )
        yield Admin(client)
    except KafkaError as error:
        raise BrokerError(
            f"Kafka at {','.join(config.servers)} does not do as asked: {type(error).__name__}: {error}; expected a "
            f"broker that lets {config.username or 'this client'} do it; check its access rules and try again"
        ) from error
    finally:
        if client is not None:
            with suppress(KafkaError):
                client.close()
