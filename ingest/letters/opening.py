"""Where the settings say that dead letters are kept: in the embedded log, or in a topic on Kafka."""

from collections.abc import Iterator

from ingest.config import StreamConfig
from ingest.kafka.config import KafkaConfig
from ingest.letters.letter import DeadLetter, DeadLetterLog, DeadLetters, read_dead_letters


def open_letters(stream: StreamConfig, kafka: KafkaConfig, run: str) -> DeadLetters:
    """For writing, by one run; the log is made if it is not there, a topic on Kafka must be."""
    origin = f"{run}/{stream.topic}"
    if stream.source == "log":
        return DeadLetterLog(stream.folder, stream.dead_letter_topic, origin, stream.retention_bytes)
    from ingest.kafka.letter_topic import KafkaLetters  # its client library takes a while to load

    return KafkaLetters(kafka, stream.dead_letter_topic, stream.topic, origin)


def read_letters(stream: StreamConfig, kafka: KafkaConfig) -> Iterator[DeadLetter]:
    """Every dead letter that is kept, oldest first."""
    if stream.source == "log":
        return read_dead_letters(stream.folder, stream.dead_letter_topic)
    from ingest.kafka.letter_topic import read_kafka_letters

    return read_kafka_letters(kafka, stream.dead_letter_topic)
