import sys

import pytest

from ingest.errors import SinkError, SourceError
from ingest.kafka.clients.choice import open_consumer, open_producer
from ingest.kafka.config import KafkaConfig

EXTRA = r"package is not installed; expected the extra 'kafka-fast'; install it .*or set kafka\.client = kafka-python"


def test_a_library_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ingest.kafka.clients.confluent", None)
    config = KafkaConfig(client="confluent-kafka")
    with pytest.raises(SourceError, match=EXTRA):
        open_consumer(config, "clicks")
    with pytest.raises(SinkError, match=EXTRA):
        open_producer(config, "clicks")
