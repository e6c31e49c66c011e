"""Makes the topics a run on one machine needs, where they are missing."""

from contextlib import closing

from kafka import KafkaAdminClient
from kafka.errors import KafkaError, TopicAlreadyExistsError

from ingest.config import StreamConfig
from ingest.errors import SourceError
from ingest.kafka.config import KafkaConfig, kafka_python_arguments

WAIT_MS = 10_000


def ensure_topics(config: KafkaConfig, stream: StreamConfig) -> list[str]:
    """Creates the topics of events and of dead letters unless they are there; returns those it made."""
    made = []
    limit_ms = round(1000 * config.request_seconds)
    try:
        with closing(KafkaAdminClient(**kafka_python_arguments(config), bootstrap_timeout_ms=limit_ms)) as client:
            for name, partitions in ((stream.topic, stream.partitions), (stream.dead_letter_topic, 1)):
                try:
                    client.create_topics({name: {"num_partitions": partitions, "replication_factor": 1, "configs": {}}})
                    client.wait_for_topics([name], timeout_ms=WAIT_MS)
                    made.append(name)
                except TopicAlreadyExistsError:
                    continue
    except KafkaError as error:
        raise SourceError(
            f"cannot make the topics on Kafka at {','.join(config.servers)}: {type(error).__name__}: {error}; expected "
            "a broker that answers and lets this client create topics; check kafka.servers and its access rules"
        ) from error
    return made
