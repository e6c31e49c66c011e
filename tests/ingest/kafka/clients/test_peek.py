"""Looking into a topic to which a transaction is being written."""

from contextlib import closing

from ingest.kafka.clients.peek import peek
from ingest.kafka.clients.transactions import TransactionalProducer
from tests.brokers import TestBroker, fill_topic


def test_a_range_ends_before_a_transaction_that_is_under_way(kafka: TestBroker) -> None:
    config, topic = kafka.config(), kafka.new_topic(1)
    fill_topic(config, topic, {0: [b"0", b"1"]})
    with closing(TransactionalProducer(config, topic, kafka.new_name(), 1 << 20, 10.0)) as producer:
        producer._client.begin_transaction()
        producer._client.send(topic, b"under way", partition=0).get(10)
        fill_topic(config, topic, {0: [b"later"]})
        assert [record.value for record in peek(config, topic, {0: (0, 4)})] == [b"0", b"1"]
        producer._client.commit_transaction()
        assert [record.value for record in peek(config, topic, {0: (1, 4)})] == [b"1", b"under way", b"later"]
