"""An event that a person writes with kcat is trained on like any other."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ingest.kafka.letter_topic import read_kafka_letters
from ingest.kafka.source import KafkaSource
from tests.brokers import TestBroker
from tests.end_to_end.threads import Plan, train

EVENT = b'{"event_time": 1731600000.25, "label": 1, "fields": {"user": "u17", "item": 42, "hour": 3}}'


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed (Debian: kcat)")
def test_an_event_written_with_kcat_is_trained_on(kafka: TestBroker, tmp_path: Path) -> None:
    config, topic, letters = kafka.config(), kafka.new_topic(), kafka.new_topic(partitions=1)
    kcat = ["kcat", "-P", "-b", kafka.servers[0], "-t", topic, "-k", "u17"]
    for line in (EVENT, b"no event"):
        subprocess.run(kcat, input=line + b"\n", check=True, timeout=100)
    plan = Plan(tmp_path, workers=1, topic=topic, kafka=config, dead_letter_topic=letters)
    result = train(replace(plan, open_source=lambda: KafkaSource(config, topic)))
    assert (result.status.samples, result.status.events.dead_letters) == (1, 1)
    assert [letter.payload for letter in read_kafka_letters(config, letters)] == [b"no event"]
