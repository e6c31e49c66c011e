"""A broker is killed while records and letters are on their way, and started again: nothing is lost or doubled."""

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from infra.base.process import Stop
from infra.kafka.broker import Broker
from ingest.errors import BrokerError, SinkError, SinkUnavailable
from ingest.kafka import letter_topic as letters_module
from ingest.kafka.access import check_access
from ingest.kafka.config import KafkaConfig
from ingest.kafka.letter_topic import KafkaLetters, read_kafka_letters
from ingest.kafka.sink import KafkaSink
from ingest.letters.letter import DeadLetter
from tests.brokers import TestBroker, running_broker
from tests.end_to_end.processes import wait_until
from tests.end_to_end.threads import WAIT_SECONDS, Threads
from tests.ingest.kafka.test_sink import CLIENTS, records_of

TURNS = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("mortal")) as started:
        yield started


class Writer:
    """Writes turns of records in a thread of its own."""

    def __init__(self, config: KafkaConfig, topic: str) -> None:
        self.config, self.topic = config, topic
        self.written, self.may_end = 0, threading.Event()
        self._threads = Threads()
        self._threads.start(self._write)

    def _write(self) -> None:
        with closing(KafkaSink(self.config, self.topic, Stop())) as sink:
            for turn in range(TURNS):
                assert turn < TURNS - 1 or self.may_end.wait(WAIT_SECONDS)
                sink.write({turn % 2: [(None, f"{turn}:{number}".encode()) for number in range(200)]})
                self.written += 1

    def join(self) -> None:
        self._threads.join()
        assert self.written == TURNS


def test_a_broker_killed_in_mid_stream_has_every_record_once(broker: Broker) -> None:
    test = TestBroker((broker.address,))
    writers = [Writer(test.config(client), test.new_topic(partitions=2)) for client in CLIENTS]
    wait_until(lambda: min(writer.written for writer in writers) > 3)
    broker.kill()
    assert max(writer.written for writer in writers) < TURNS, "all are interrupted"
    for writer in writers:
        writer.may_end.set()
    broker.start()
    sent = {n: [f"{t}:{i}".encode() for t in range(n, TURNS, 2) for i in range(200)] for n in range(2)}
    for writer in writers:
        writer.join()
        found = records_of(writer.config, writer.topic)
        assert {n: [payload for _, payload in records] for n, records in found.items()} == sent


class Interruption:
    """Letters and sinks that were opened, and wrote something, before the broker was killed."""

    def __init__(self, broker: Broker) -> None:
        test = TestBroker((broker.address,))
        self.config, self.topic, self.source = test.config(), test.new_topic(partitions=1), test.new_topic()
        self.letters = KafkaLetters(self.config, self.topic, self.source, self.source)
        self.letters.append(GIVEN[:1])
        self.impatient = KafkaLetters(test.config(outage_seconds=0), self.topic, self.source, "other")
        quick = {"delivery_seconds": 8, "request_seconds": 4}
        self.sinks = [KafkaSink(test.config(client, **quick), self.source, Stop()) for client in CLIENTS]
        self.stop = Stop()
        self.stopped = KafkaSink(test.config(delivery_seconds=600), self.source, self.stop)
        for sink in (*self.sinks, self.stopped):
            sink.write({0: [(None, b"there")] * 3})

    def close(self) -> None:
        for letters in (self.letters, self.impatient):
            letters.close()
        for sink in (*self.sinks, self.stopped):
            sink.close()


GIVEN = [DeadLetter(0, offset, 0, "bad", b"x") for offset in range(3)]


@pytest.fixture(scope="module")
def interruption(broker: Broker) -> Iterator[Interruption]:
    """Everything opened before; the broker is gone from here on."""
    with closing(Interruption(broker)) as opened:
        broker.kill()
        yield opened


@pytest.fixture(autouse=True)
def _short_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(letters_module, "ATTEMPT_SECONDS", 2.0)
    monkeypatch.setattr("ingest.kafka.sink.STOP_SECONDS", 0.5)


@pytest.mark.parametrize("number", range(len(CLIENTS)), ids=CLIENTS)
def test_a_broker_that_stays_away_is_reported_with_what_was_acknowledged(
    interruption: Interruption, number: int
) -> None:
    with pytest.raises(SinkError, match=r"as for the 3 records before"):
        interruption.sinks[number].write({0: [(None, b"not there")]})


def test_a_stop_does_not_wait_for_a_broker_that_is_away(interruption: Interruption) -> None:
    interruption.stop.request("SIGTERM")
    with pytest.raises(SinkError, match="has not acknowledged the last 1 records"):
        interruption.stopped.write({0: [(None, b"not there")]})


def test_a_check_of_a_broker_that_is_away_says_so(interruption: Interruption) -> None:
    with pytest.raises(BrokerError, match=r"no answer from Kafka at .*: Connection refused.*check kafka\.servers"):
        check_access(interruption.config)


def test_letters_do_not_wait_longer_than_an_outage_may_last(interruption: Interruption) -> None:
    with pytest.raises(SinkUnavailable):
        interruption.impatient.append(GIVEN)
    with pytest.raises(SinkError, match=r"kafka\.outage_seconds = 0"):
        interruption.impatient.append(GIVEN)


def test_letters_wait_for_a_broker_that_is_away_and_are_written_once(
    interruption: Interruption, broker: Broker
) -> None:
    for _ in range(2):  # the first finds its connection dead, the second nobody there
        with pytest.raises(SinkUnavailable, match="try again"):
            interruption.letters.append(GIVEN)
    broker.start()
    wait_until(lambda: append(interruption.letters))
    assert [letter.offset for letter in read_kafka_letters(interruption.config, interruption.topic)] == [0, 1, 2]


def append(letters: KafkaLetters) -> bool:
    try:
        return letters.append(GIVEN) >= 0
    except SinkUnavailable:
        return False
