"""The broker of a test run: started at first use, or the one that FRESHET_KAFKA names."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from infra.base.errors import MissingProgram
from infra.kafka.broker import Broker
from ingest.kafka.clients.admin import open_admin
from ingest.kafka.config import Client, KafkaConfig, kafka_python_arguments


class TestBroker:
    """A running broker, and topics that no other test uses."""

    __test__ = False

    def __init__(self, servers: tuple[str, ...]) -> None:
        self.servers = servers
        self._numbers = count()
        self._run = uuid4().hex[:8]

    def config(self, client: Client = "kafka-python", **values: Any) -> KafkaConfig:
        return KafkaConfig(**{"servers": self.servers, "client": client, **values})

    def new_name(self) -> str:
        """A name that no topic has had yet."""
        return f"test-{self._run}-{next(self._numbers)}"

    def new_topic(self, partitions: int = 2, **configs: str) -> str:
        """Creates a topic for one test."""
        name = self.new_name()
        self.create(name, partitions, **configs)
        return name

    def create(self, name: str, partitions: int, **configs: str) -> None:
        wanted = {"num_partitions": partitions, "replication_factor": 1, "configs": configs}
        with admin(self.config()) as client:
            client.create_topics({name: wanted})
            client.wait_for_topics([name], timeout_ms=30_000)

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """The offsets a group has committed, by topic and partition."""
        with open_admin(self.config()) as client:
            return {place: at.offset for place, at in client.committed(group).items()}


@contextmanager
def admin(config: KafkaConfig) -> Iterator[Any]:
    """kafka-python's admin client."""
    client = KafkaAdminClient(**kafka_python_arguments(config))
    try:
        yield client
    finally:
        client.close()


@contextmanager
def running_broker(folder: Path, **options: Any) -> Iterator[Broker]:
    """A separate broker, for tests that break it; skips if the machine cannot run one."""
    broker = Broker(folder, **options)
    try:
        broker.start()
    except MissingProgram as error:
        pytest.skip(str(error))
    try:
        yield broker
    finally:
        broker.stop()


@contextmanager
def shared_broker(folder: Path) -> Iterator[TestBroker]:
    if named := os.environ.get("FRESHET_KAFKA"):
        yield TestBroker(tuple(named.split(",")))
        return
    with running_broker(folder) as broker:
        yield TestBroker((broker.address,))


@contextmanager
def producer(config: KafkaConfig, **options: Any) -> Iterator[Any]:
    """kafka-python's producer."""
    client = KafkaProducer(**kafka_python_arguments(config), acks="all", linger_ms=5, **options)
    try:
        yield client
    finally:
        client.close()


def send(client: Any, topic: str, partition: int, payloads: Sequence[bytes | None]) -> None:
    """Writes records to one partition, in order, and waits until they are durable."""
    sent = [client.send(topic, key=b"", value=payload, partition=partition) for payload in payloads]
    client.flush()
    for future in sent:
        future.get(30)


def fill_topic(config: KafkaConfig, topic: str, payloads: Mapping[int, Sequence[bytes | None]], **options: Any) -> None:
    """Writes records to a topic, by partition."""
    with producer(config, **options) as client:
        for partition, records in payloads.items():
            send(client, topic, partition, records)
