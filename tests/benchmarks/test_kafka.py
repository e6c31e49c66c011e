import pytest

from benchmarks.kafka import run_kafka
from tests.brokers import TestBroker


def test_both_libraries_bring_both_encodings_from_a_real_broker(
    kafka: TestBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.kafka.ROUNDS", 1)
    results = run_kafka(kafka.config(), samples=640)
    assert [(result.name, result.client, result.records) for result in results] == [
        ("kafka, json", "kafka-python", 640),
        ("kafka, json", "confluent-kafka", 640),
        ("kafka, packed", "kafka-python", 10),
        ("kafka, packed", "confluent-kafka", 10),
    ]
    assert all(result.batch_samples_per_second > 0 and result.decode_ms_per_batch > 0 for result in results)
