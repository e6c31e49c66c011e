"""Dead letters on a real broker: whole, and each once, whatever dies in between."""

from collections.abc import Iterator
from threading import Event
from typing import Any

import msgspec
import pytest
from kafka import KafkaProducer

from ingest.errors import SinkError
from ingest.kafka import letter_topic as letters_module
from ingest.kafka.letter_topic import KafkaLetters, bounded, read_kafka_letters
from ingest.kafka.peek import peek
from ingest.kafka.topics import end_offsets
from ingest.letters.letter import DeadLetter
from tests.brokers import TestBroker, admin, fill_topic

ORIGIN = "monday/clicks"


class Desk:
    """Writers of one dead-letter topic, as dispatchers open them one after the other."""

    def __init__(self, kafka: TestBroker, **configs: str) -> None:
        self.config, self.kafka = kafka.config(), kafka
        self.source, self.topic = kafka.new_topic(), kafka.new_topic(partitions=1, **configs)
        self._open: list[KafkaLetters] = []

    def writer(self, origin: str = ORIGIN) -> KafkaLetters:
        self._open.append(KafkaLetters(self.config, self.topic, self.source, f"{self.source}/{origin}"))
        return self._open[-1]

    def kept(self) -> list[tuple[int, int, int]]:
        return [(x.partition, x.offset, x.index) for x in read_kafka_letters(self.config, self.topic)]

    def close(self) -> None:
        for writer in self._open:
            writer.close()


@pytest.fixture
def desk(kafka: TestBroker) -> Iterator[Desk]:
    desk = Desk(kafka)
    yield desk
    desk.close()


def letter(partition: int, offset: int, index: int = 0, payload: bytes = b"\xff\x00") -> DeadLetter:
    return DeadLetter(partition, offset, index, "label: 2, expected 0 or 1", payload)


def test_a_letter_comes_back_as_written(desk: Desk) -> None:
    assert desk.writer().append([letter(0, 5), letter(1, 2, 7, b"")]) == 2
    found = list(read_kafka_letters(desk.config, desk.topic))
    origin = f"{desk.source}/{ORIGIN}"
    assert [msgspec.structs.replace(x, time_ms=0) for x in found] == [
        msgspec.structs.replace(x, origin=origin) for x in (letter(0, 5), letter(1, 2, 7, b""))
    ]
    assert all(x.time_ms for x in found)


def test_headers_tell_where_why_and_when_and_the_value_is_the_event(desk: Desk) -> None:
    desk.writer().append([letter(1, 2, 7)])
    (record,) = peek(desk.config, desk.topic, {0: (0, 1)})
    headers = dict(record.headers)
    assert record.value == b"\xff\x00"
    assert (headers["partition"], headers["offset"], headers["index"]) == (b"1", b"2", b"7")
    assert headers["reason"] == b"label: 2, expected 0 or 1"
    assert headers["origin"] == f"{desk.source}/{ORIGIN}".encode()
    assert headers["time"].startswith(b"20")
    assert "cut" not in headers


def test_a_replay_writes_only_what_is_missing(desk: Desk) -> None:
    first = desk.writer()
    first.append([letter(0, 5), letter(1, 2, 1)])
    first.close()
    again = [letter(0, 5), letter(0, 6), letter(1, 2, 1), letter(1, 2, 2), letter(1, 2, 2)]
    second = desk.writer()
    assert second.append(again) == 2
    assert second.append(again) == 0
    assert desk.kept() == [(0, 5, 0), (1, 2, 1), (0, 6, 0), (1, 2, 2)]


@pytest.mark.parametrize("step", ["send_offsets_to_transaction", "commit_transaction"])
def test_a_crash_within_a_transaction_leaves_nothing_that_is_not_written_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    died: list[str] = []

    def die(*_: object) -> None:
        died.append(step)
        raise ConnectionResetError("the process died here")

    first = desk.writer()
    first.append([letter(0, 5)])
    with monkeypatch.context() as patch:
        patch.setattr(KafkaProducer, step, die)
        with pytest.raises(ConnectionResetError):
            first.append([letter(0, 6), letter(1, 3)])
    assert died == [step]
    assert desk.writer().append([letter(0, 5), letter(0, 6), letter(1, 3)]) == 2
    assert desk.kept() == [(0, 5, 0), (0, 6, 0), (1, 3, 0)]


def test_a_commit_whose_answer_is_lost_is_not_written_twice(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    commit: Any = KafkaProducer.commit_transaction

    def commit_and_lose_the_answer(client: Any) -> None:
        commit(client)
        raise TimeoutError("the answer is lost")

    writer = desk.writer()
    with monkeypatch.context() as patch:
        patch.setattr(KafkaProducer, "commit_transaction", commit_and_lose_the_answer)
        with pytest.raises(SinkError, match=r"the answer is lost; try again"):
            writer.append([letter(0, 6)])
    assert writer.append([letter(0, 6), letter(0, 7)]) == 1
    assert desk.kept() == [(0, 6, 0), (0, 7, 0)]


def test_a_writer_that_only_seemed_dead_is_turned_away(desk: Desk) -> None:
    first = desk.writer()
    first.append([letter(0, 5)])
    desk.writer().append([letter(0, 6)])
    with pytest.raises(SinkError, match="another process writes dead letters"):
        first.append([letter(0, 6), letter(0, 7)])
    assert desk.kept() == [(0, 5, 0), (0, 6, 0)]


def test_letters_of_another_run_hide_none(desk: Desk) -> None:
    for origin in ("monday/clicks", "tuesday/clicks"):
        assert desk.writer(origin).append([letter(0, 5)]) == 1
    assert desk.kept() == [(0, 5, 0), (0, 5, 0)]


def test_a_topic_made_anew_has_letters_anew(desk: Desk) -> None:
    desk.writer().append([letter(0, 5)])
    with admin(desk.config) as client:
        client.delete_topics([desk.source])
        while desk.source in client.list_topics():
            pass
        client.create_topics({desk.source: {"num_partitions": 2, "replication_factor": 1}})
    assert desk.writer().append([letter(0, 5)]) == 1


def test_an_event_too_large_for_the_topic_is_cut_and_says_so(kafka: TestBroker) -> None:
    desk = Desk(kafka, **{"max.message.bytes": "100000"})
    desk.writer().append([letter(0, 1, payload=b"x" * 200_000), letter(0, 2, payload=b"y" * 50_000)])
    cut, whole = read_kafka_letters(desk.config, desk.topic)
    assert (len(cut.payload) < 100_000, cut.size) == (True, 200_000)
    assert (whole.payload, whole.size) == (b"y" * 50_000, None)
    desk.close()


def test_many_letters_come_in_several_transactions(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters_module, "TRANSACTION_LETTERS", 4)
    assert desk.writer().append([letter(0, offset) for offset in range(10)]) == 10
    assert desk.kept() == [(0, offset, 0) for offset in range(10)]
    assert end_offsets(desk.config, desk.topic) == {0: 13}  # three transactions leave a mark each


def test_what_is_no_letter_is_passed_over(desk: Desk) -> None:
    fill_topic(desk.config, desk.topic, {0: [b"by hand"]})
    desk.writer().append([letter(0, 1)])
    assert desk.kept() == [(0, 1, 0)]


def test_work_that_takes_too_long_is_left_behind() -> None:
    never = Event()
    with pytest.raises(TimeoutError, match="no answer"):
        bounded(0.05, never.wait)
    never.set()
