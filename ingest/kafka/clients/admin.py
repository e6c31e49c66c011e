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
"""Kafka's code for the first offset of a partition."""
LATEST = -1
"""Kafka's code for the next offset of a partition."""
WAIT_SECONDS = 10.0
"""How long a new topic, or a broker's first group, may take to become usable."""


@dataclass(frozen=True)
class TopicSpec:
    """A topic as requested; configs that are not named are left to the broker."""

    name: str
    partitions: int
    replication: int = 1
    """How many brokers keep it; -1: as many as the broker's default says."""
    configs: Mapping[str, str] = field(default_factory=dict)
    """Configs by Kafka's names: retention.ms, retention.bytes, compression.type, max.message.bytes."""


@dataclass(frozen=True)
class Topic:
    """A topic as it is on the broker."""

    name: str
    partitions: int
    replication: int
    configs: Mapping[str, str]


class GroupOffset(NamedTuple):
    """The offset that a group has committed for one partition."""

    offset: int
    metadata: str


class Admin:
    """Queries and changes topics and groups on the broker."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def names(self) -> list[str]:
        """Names of all topics except the broker's own."""
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
        """The offset that the next record of each partition will have."""
        return self._offsets(topic, LATEST)

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Deletes the records of a partition before an offset."""
        self._client.delete_records({TopicPartition(topic, partition): offset})

    def committed(self, group: str) -> dict[tuple[str, int], GroupOffset]:
        """The offsets that a group has committed, by topic and partition.

        A broker that never had a group may refuse the first request, which prepares it for the next.
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
    """Opens the admin client; errors of the library, here and in the block, become BrokerError."""
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
