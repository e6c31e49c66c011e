import pytest
from structlog.testing import capture_logs

from ingest.codec.json_events import encode_json
from ingest.config import StreamConfig
from ingest.errors import BrokerError
from ingest.kafka.clients.admin import TopicSpec
from ingest.kafka.topics import (
    check_stream,
    create_topics,
    describe_topic,
    ensure_topics,
    list_topics,
    partition_spans,
)
from ingest.schema import load_schema, parse_schema
from tests.brokers import TestBroker, fill_topic
from tests.ingest.topics import SYNTHETIC, events


def test_a_topic_is_made_as_asked_and_once(kafka: TestBroker) -> None:
    spec = TopicSpec(kafka.new_name(), 3, configs={"retention.ms": "60000", "compression.type": "zstd"})
    assert create_topics(kafka.config(), [spec]) == [spec.name]
    assert create_topics(kafka.config(), [spec]) == []
    found = describe_topic(kafka.config(), spec.name)
    assert found is not None
    assert (found.partitions, found.configs["retention.ms"], found.configs["compression.type"]) == (3, "60000", "zstd")
    assert spec.name in [topic.name for topic in list_topics(kafka.config())]


def test_a_topic_that_is_there_otherwise_is_reported_with_every_difference(kafka: TestBroker) -> None:
    name = kafka.new_topic(partitions=2, **{"retention.ms": "60000"})
    with pytest.raises(BrokerError, match=r"partitions = 2, not 4; .*retention\.ms = 60000, not 99.*nothing has been"):
        create_topics(kafka.config(), [TopicSpec(name, 4, configs={"retention.ms": "99"})])


def stream_of(kafka: TestBroker, **values: str) -> StreamConfig:
    names = {"topic": kafka.new_name(), "dead_letter_topic": kafka.new_name()}
    return StreamConfig(source="kafka", **(names | values))


def test_spans_tell_what_is_there_and_how_far_the_group_is(kafka: TestBroker) -> None:
    stream, config = stream_of(kafka), kafka.config(group=kafka.new_name())
    assert ensure_topics(config, stream) == [stream.topic, stream.dead_letter_topic]
    assert ensure_topics(config, stream) == []
    fill_topic(config, stream.topic, {0: [b"a", b"b"], 1: [b"c"]})
    found = describe_topic(config, stream.topic)
    assert found is not None
    spans = partition_spans(config, found)
    assert [(span.first, span.end, span.committed, span.lag) for span in spans] == [
        (0, 2, None, None),
        (0, 1, None, None),
    ]


def test_a_stream_that_fits_passes_the_check(kafka: TestBroker) -> None:
    stream, config = stream_of(kafka), kafka.config()
    ensure_topics(config, stream)
    check_stream(config, stream, SYNTHETIC)  # empty
    fill_topic(config, stream.topic, {0: [b"poison"] * 20 + [encode_json(event) for event in events(20)]})
    check_stream(config, stream, SYNTHETIC)


@pytest.mark.parametrize(
    ("schema", "payload", "why"),
    [
        ("synthetic", b"no event", "'not decodable: JSON is malformed"),
        ("criteo", encode_json(events(1)[0]), "none of the schema's fields"),
    ],
)
def test_a_topic_of_other_events_is_reported(kafka: TestBroker, schema: str, payload: bytes, why: str) -> None:
    stream, config = stream_of(kafka, schema_name=schema), kafka.config()
    ensure_topics(config, stream)
    fill_topic(config, stream.topic, {0: [payload] * 3, 1: [payload]})
    with pytest.raises(
        BrokerError, match=rf"holds no event of schema '{schema}': .*{why}.*correct stream\.schema_name"
    ):
        check_stream(config, stream, load_schema(schema))
    check_stream(config.model_copy(update={"check_events": False}), stream, load_schema(schema))


def test_a_field_that_no_record_has_is_a_warning_before_the_run(kafka: TestBroker) -> None:
    schema = parse_schema('name = "mine"\ntables = [{name = "user"}, {name = "itm"}]', "mine")
    stream, config = stream_of(kafka), kafka.config()
    ensure_topics(config, stream)
    fill_topic(config, stream.topic, {0: [encode_json(event) for event in events(5)]})
    with capture_logs() as logs:
        check_stream(config, stream, schema)
    looked, warning = logs
    assert (looked["records"], looked["present"]) == (5, {"user": 1.0, "itm": 0.0})
    assert (warning["log_level"], warning["absent"]) == ("warning", ("itm",))
    assert "item (" in warning["unknown"]


def test_a_missing_topic_is_reported_with_its_setting(kafka: TestBroker) -> None:
    stream = stream_of(kafka, topic=kafka.new_topic())
    with pytest.raises(BrokerError, match=r"is not on Kafka .*correct stream\.dead_letter_topic"):
        check_stream(kafka.config(), stream, SYNTHETIC)
    with pytest.raises(BrokerError, match=r"is not on Kafka .*correct stream\.topic"):
        check_stream(kafka.config(), stream_of(kafka), SYNTHETIC)
