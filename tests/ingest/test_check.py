from collections.abc import Callable
from pathlib import Path

import pytest

from infra.base.errors import ConfigError
from ingest.check import check_events
from ingest.codec.json_events import encode_json
from ingest.config import StreamConfig
from ingest.kafka.config import KafkaConfig
from ingest.log.embedded import LogWriter
from ingest.streams.span import both_ends
from ingest.survey import Findings
from tests.brokers import TestBroker, fill_topic
from tests.ingest.topics import events, write_json

Look = Callable[..., Findings]


@pytest.fixture
def look(tmp_path: Path) -> Look:
    def look(where: object = None, dataset: str = "jsonl", limit: int = 1000, **stream: object) -> Findings:
        config = StreamConfig.model_validate({"folder": tmp_path, **stream})
        return check_events(None if where is None else str(where), dataset, config, KafkaConfig(), limit)

    return look


def test_a_topic_of_the_log_is_found_by_its_name_its_folder_or_the_log_s(tmp_path: Path, look: Look) -> None:
    write_json(tmp_path, events(40))
    for where in (None, "clicks", tmp_path / "clicks", tmp_path):
        found = look(where)
        assert (found.good, found.faults) == (40, ())


def test_the_first_lines_of_a_file_are_looked_at(tmp_path: Path, look: Look) -> None:
    lines = [encode_json(event) for event in events(30)]
    (tmp_path / "clicks.jsonl").write_bytes(b"\n".join((*lines, b"bad")))
    assert look(tmp_path / "clicks.jsonl", limit=30).faults == ()
    assert look(tmp_path / "clicks.jsonl").rejected == 1


def test_a_file_of_a_public_dataset_is_looked_at(tmp_path: Path, look: Look) -> None:
    (tmp_path / "ratings.tsv").write_text("1\t2\t5\t880000000\n3\t4\t1\t880000001\n")
    found = look(tmp_path / "ratings.tsv", "movielens", schema_name="movielens")
    assert (found.good, found.faults) == (2, ())


def test_both_ends_of_every_partition_are_looked_at(tmp_path: Path, look: Look) -> None:
    good = [(None, encode_json(event)) for event in events(50)]
    writer = LogWriter(tmp_path, "clicks", 2)
    writer.append(0, [(None, b"oldest"), *good, (None, b"newest")])
    writer.append(1, good)
    writer.close()
    found = look(limit=20)
    assert (found.records, found.rejected) == (20, 2)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ({0: (0, 100), 1: (7, 8)}, [(0, 95, 100), (0, 0, 5), (1, 7, 8)]),
        ({0: (0, 7)}, [(0, 0, 7)]),
        ({0: (3, 18)}, [(0, 8, 18), (0, 3, 8)]),
        ({0: (5, 5)}, []),
    ],
)
def test_no_record_of_two_ends_is_there_twice(
    spans: dict[int, tuple[int, int]], expected: list[tuple[int, int, int]]
) -> None:
    assert both_ends(spans, 20) == expected


def test_a_place_without_events_is_refused(tmp_path: Path, look: Look) -> None:
    with pytest.raises(ConfigError, match=r"no events at .*nowhere; expected a file, or a topic"):
        look("nowhere")
    with pytest.raises(ConfigError, match=r"no dataset file at nowhere; expected a criteo file"):
        look("nowhere", "criteo")


def test_a_topic_on_kafka_is_looked_at(kafka: TestBroker) -> None:
    topic = kafka.new_topic(partitions=2)
    good = [encode_json(event) for event in events(30)]
    fill_topic(kafka.config(), topic, {0: [b"bad", *good], 1: good[:3]})
    found = check_events(topic, "jsonl", StreamConfig(source="kafka"), kafka.config(), 20)
    assert (found.good, found.rejected, found.absent) == (12, 1, ())
