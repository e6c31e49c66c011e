"""A Kafka topic as a sink of records, with either client library.

Records are sent to given partitions, the same ones as in the embedded log. The producer is idempotent and waits for all
replicas: whatever happens to the broker between the first attempt and the acknowledgement, a record is in the topic
once. ``write`` returns when every record has been acknowledged. If the broker is unavailable for longer than
``kafka.delivery_seconds``, or refuses a record, SinkError says so, and how many records were acknowledged before.
"""

import time
from collections.abc import Mapping, Sequence

from infra.base.process import Stop
from ingest.errors import SinkError
from ingest.kafka.access import check_access
from ingest.kafka.clients.choice import open_producer
from ingest.kafka.config import KafkaConfig
from ingest.kafka.topics import describe_topic, end_offsets, missing_topic
from ingest.streams.sink import Entry

STRETCH_SECONDS = 0.2
"""How long to wait for acknowledgements before checking whether a stop was requested."""
STOP_SECONDS = 5.0
"""How long a requested stop waits for missing acknowledgements."""


class KafkaSink:
    """A topic to write to. Implements Sink."""

    def __init__(self, config: KafkaConfig, topic: str, stop: Stop) -> None:
        check_access(config)
        self._config = config
        self._topic = topic
        self._stop = stop
        described = describe_topic(config, topic)
        if described is None:
            raise missing_topic(config, topic, "stream.topic")
        self._partitions = list(range(described.partitions))
        self._acknowledged = 0
        self._producer = open_producer(config, topic)

    @property
    def partitions(self) -> list[int]:
        return self._partitions

    def write(self, entries: Mapping[int, Sequence[Entry]]) -> None:
        count = 0
        for partition, batch in sorted(entries.items()):
            for key, payload in batch:
                self._producer.send(partition, key, payload)
            count += len(batch)
        self._await_answers(count)
        if (fault := self._producer.fault()) is not None:
            raise SinkError(
                f"Kafka refused a record for topic {self._topic!r}: {fault}; expected an acknowledgement, as for the "
                f"{self._acknowledged} records before; others of the last {count} may be in the topic"
            )
        self._acknowledged += count

    def ends(self) -> dict[int, int]:
        return end_offsets(self._config, self._topic)

    def close(self) -> None:
        self._producer.close()

    def _await_answers(self, count: int) -> None:
        until = time.monotonic() + self._config.delivery_seconds
        while not self._producer.flush(STRETCH_SECONDS):
            if self._stop.requested:
                until = min(until, time.monotonic() + STOP_SECONDS)
            if time.monotonic() > until:
                raise SinkError(
                    f"Kafka at {','.join(self._config.servers)} has not acknowledged the last {count} records for "
                    f"topic {self._topic!r}; expected it within kafka.delivery_seconds = "
                    f"{self._config.delivery_seconds:g}, as for the {self._acknowledged} records before; some of the "
                    "last may be in the topic: check its end with 'freshet topics describe' before producing again"
                )
