"""Opens a consumer or a producer on the client library that ``kafka.client`` names."""

from collections.abc import Iterator
from contextlib import contextmanager

from ingest.errors import IngestError, SinkError, SourceError
from ingest.kafka.clients.base import Consumer, Producer
from ingest.kafka.config import KafkaConfig


def open_consumer(config: KafkaConfig, topic: str) -> Consumer:
    if config.client == "kafka-python":
        from ingest.kafka.clients.kafka_python import KafkaPythonConsumer

        return KafkaPythonConsumer(config, topic)
    with _extra(SourceError):
        from ingest.kafka.clients.confluent import ConfluentConsumer
    return ConfluentConsumer(config, topic)


def open_producer(config: KafkaConfig, topic: str) -> Producer:
    if config.client == "kafka-python":
        from ingest.kafka.clients.kafka_python import KafkaPythonProducer

        return KafkaPythonProducer(config, topic)
    with _extra(SinkError):
        from ingest.kafka.clients.confluent import ConfluentProducer
    return ConfluentProducer(config, topic)


@contextmanager
def _extra(kind: type[IngestError]) -> Iterator[None]:
    """Translates the ImportError of a library that is not installed."""
    try:
        yield
    except ImportError as error:
        raise kind(
            "kafka.client = 'confluent-kafka' cannot be used: the package is not installed; expected the extra "
            "'kafka-fast'; install it (pip install 'freshet[kafka-fast]'), or set kafka.client = kafka-python"
        ) from error
