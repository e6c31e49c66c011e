"""Dead letters on a real broker: complete, and each written once, whatever crashes in between."""

from collections.abc import Iterator
from threading import Event
from typing import Any

import msgspec
import pytest
from kafka import KafkaProducer

from ingest.errors import SinkError
from ingest.kafka import letter_topic as letters_module
from ingest.kafka.clients.peek import peek
from ingest.kafka.letter_topic import KafkaLetters, bounded, read_kafka_letters
from ingest.kafka.topics import end_offsets
from ingest.letters.letter import DeadLetter
from tests.brokers import TestBroker, admin, fill_topic

ORIGIN = "monday/clicks"


class LetterWriters:
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
def writers(kafka: TestBroker) -> Iterator[LetterWriters]:
    writers = LetterWriters(kafka)
    yield writers
    writers.close()


def letter(partition: int, offset: int, index: int = 0, payload: bytes = b"\xff\x00") -> DeadLetter:
    return DeadLetter(partition, offset, index, "label: 2, expected 0 or 1", payload)


def test_a_letter_comes_back_as_written(writers: LetterWriters) -> None:
    assert writers.writer().append([letter(0, 5), letter(1, 2, 7, b"")]) == 2
    found = list(read_kafka_letters(writers.config, writers.topic))
    origin = f"{writers.source}/{ORIGIN}"
    assert [msgspec.structs.replace(x, time_ms=0) for x in found] == [
        msgspec.structs.replace(x, origin=origin) for x in (letter(0, 5), letter(1, 2, 7, b""))
    ]
    assert all(x.time_ms for x in found)


def test_headers_tell_where_why_and_when_and_the_value_is_the_event(writers: LetterWriters) -> None:
    writers.writer().append([letter(1, 2, 7)])
    (record,) = peek(writers.config, writers.topic, {0: (0, 1)})
    headers = dict(record.headers)
    assert record.value == b"\xff\x00"
    assert (headers["partition"], headers["offset"], headers["index"]) == (b"1", b"2", b"7")
    assert headers["reason"] == b"label: 2, expected 0 or 1"
    assert headers["origin"] == f"{writers.source}/{ORIGIN}".encode()
    assert headers["time"].startswith(b"20")
    assert "cut" not in headers


def test_a_replay_writes_only_what_is_missing(writers: LetterWriters) -> None:
    first = writers.writer()
    first.append([letter(0, 5), letter(1, 2, 1)])
    first.close()
    again = [letter(0, 5), letter(0, 6), letter(1, 2, 1), letter(1, 2, 2), letter(1, 2, 2)]
    second = writers.writer()
    assert second.append(again) == 2
    assert second.append(again) == 0
    assert writers.kept() == [(0, 5, 0), (1, 2, 1), (0, 6, 0), (1, 2, 2)]


@pytest.mark.parametrize("step", ["send_offsets_to_transaction", "commit_transaction"])
def test_a_crash_within_a_transaction_leaves_nothing_that_is_not_written_again(
    writers: LetterWriters, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    died: list[str] = []

    def die(*_: object) -> None:
        died.append(step)
        raise ConnectionResetError("the process died here")

    first = writers.writer()
    first.append([letter(0, 5)])
    with monkeypatch.context() as patch:
        patch.setattr(KafkaProducer, step, die)
        with pytest.raises(ConnectionResetError):
            first.append([letter(0, 6), letter(1, 3)])
    assert died == [step]
    assert writers.writer().append([letter(0, 5), letter(0, 6), letter(1, 3)]) == 2
    assert writers.kept() == [(0, 5, 0), (0, 6, 0), (1, 3, 0)]


def test_a_commit_whose_answer_is_lost_is_not_written_twice(
    writers: LetterWriters, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit: Any = KafkaProducer.commit_transaction

    def commit_and_lose_the_answer(client: Any) -> None:
        commit(client)
        raise TimeoutError("the answer is lost")

    writer = writers.writer()
    with monkeypatch.context() as patch:
        patch.setattr(KafkaProducer, "commit_transaction", commit_and_lose_the_answer)
        with pytest.raises(SinkError, match=r"the answer is lost; try again"):
            writer.append([letter(0, 6)])
    assert writer.append([letter(0, 6), letter(0, 7)]) == 1
    assert writers.kept() == [(0, 6, 0), (0, 7, 0)]


def test_a_writer_that_only_seemed_dead_is_turned_away(writers: LetterWriters) -> None:
    first = writers.writer()
    first.append([letter(0, 5)])
    writers.writer().append([letter(0, 6)])
    with pytest.raises(SinkError, match="another process writes dead letters"):
        first.append([letter(0, 6), letter(0, 7)])
    assert writers.kept() == [(0, 5, 0), (0, 6, 0)]


def test_letters_of_another_run_hide_none(writers: LetterWriters) -> None:
    for origin in ("monday/clicks", "tuesday/clicks"):
        assert writers.writer(origin).append([letter(0, 5)]) == 1
    assert writers.kept() == [(0, 5, 0), (0, 5, 0)]


def test_a_topic_made_anew_has_letters_anew(writers: LetterWriters) -> None:
    writers.writer().append([letter(0, 5)])
    with admin(writers.config) as client:
        client.delete_topics([writers.source])
        while writers.source in client.list_topics():
            pass
        client.create_topics({writers.source: {"num_partitions": 2, "replication_factor": 1}})
    assert writers.writer().append([letter(0, 5)]) == 1


def test_an_event_too_large_for_the_topic_is_cut_and_says_so(kafka: TestBroker) -> None:
    writers = LetterWriters(kafka, **{"max.message.bytes": "100000"})
    writers.writer().append([letter(0, 1, payload=b"x" * 200_000), letter(0, 2, payload=b"y" * 50_000)])
    cut, whole = read_kafka_letters(writers.config, writers.topic)
    assert (len(cut.payload) < 100_000, cut.size) == (True, 200_000)
    assert (whole.payload, whole.size) == (b"y" * 50_000, None)
    writers.close()


def test_many_letters_come_in_several_transactions(writers: LetterWriters, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters_module, "TRANSACTION_LETTERS", 4)
    assert writers.writer().append([letter(0, offset) for offset in range(10)]) == 10
    assert writers.kept() == [(0, offset, 0) for offset in range(10)]
    assert end_offsets(writers.config, writers.topic) == {0: 13}  # three transactions leave a mark each


def test_what_is_no_letter_is_passed_over(writers: LetterWriters) -> None:
    fill_topic(writers.config, writers.topic, {0: [b"by hand"]})
    writers.writer().append([letter(0, 1)])
    assert writers.kept() == [(0, 1, 0)]


def test_work_that_takes_too_long_is_left_behind() -> None:
    never = Event()
    with pytest.raises(TimeoutError, match="no answer"):
        bounded(0.05, never.wait)
    never.set()
