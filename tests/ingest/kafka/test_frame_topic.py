"""Frames in a topic of a real broker: order, owners, attempts of unknown outcome, and what is removed."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from typing import Any

import pytest

from ingest.errors import BrokerError, OwnerReplaced, SinkError, SinkUnavailable, TransactionFailed
from ingest.kafka import frame_topic
from ingest.kafka.clients.admin import open_admin
from ingest.kafka.clients.transactions import Message, TransactionalProducer
from ingest.kafka.frame_topic import LARGEST_BYTES, FrameTopic
from ingest.log.frame_copy import CopiedFrames
from tests.brokers import TestBroker, fill_topic

JOURNAL = "the journal's identity"


class Owners:
    """Owners of one topic."""

    def __init__(self, broker: TestBroker, topic: str, resources: ExitStack) -> None:
        self.config = broker.config()
        self.topic = topic
        self._resources = resources

    def new(self, name: str, after: str = "", journal: str = JOURNAL) -> FrameTopic:
        owner = FrameTopic(self.config, self.topic, name.encode())
        self._resources.callback(owner.close)
        owner.take(name, after, journal)
        return owner

    def read(self) -> CopiedFrames:
        return FrameTopic(self.config, self.topic).read()


@pytest.fixture
def owners(kafka: TestBroker) -> Iterator[Owners]:
    with ExitStack() as resources:
        yield Owners(kafka, kafka.new_name(), resources)


def bodies(*numbers: int) -> list[bytes]:
    return [f"frame {number}".encode() for number in numbers]


def write(owner: FrameTopic, *numbers: int) -> None:
    for number, body in zip(numbers, bodies(*numbers), strict=True):
        owner.append(number, body)


def test_frames_are_read_as_they_were_written_and_with_what_their_owner_said(owners: Owners) -> None:
    assert owners.read() == CopiedFrames("", "", b"", 0, [])
    write(owners.new("a"), 0, 1, 2)
    assert owners.read() == CopiedFrames(JOURNAL, "a", b"a", 0, bodies(0, 1, 2))


def test_an_owner_that_is_replaced_can_write_nothing_more_and_does_not_come_back(owners: Owners) -> None:
    first = owners.new("a")
    write(first, 0)
    second = owners.new("b", after="a")
    for _attempt in range(2):
        with pytest.raises(OwnerReplaced, match="belongs to b"):
            write(first, 1)
    with pytest.raises(OwnerReplaced, match="belongs to b"):
        owners.new("a")
    with pytest.raises(OwnerReplaced, match="belongs to b"):
        owners.new("c", after="a")
    write(second, 1)
    assert owners.read() == CopiedFrames(JOURNAL, "b", b"b", 0, bodies(0, 1))


def test_an_owner_whose_session_somebody_has_ended_begins_another(owners: Owners) -> None:
    owner = owners.new("a")
    write(owner, 0)
    TransactionalProducer(owners.config, owners.topic, f"freshet-journal/{owners.topic}", 1 << 20, 10.0).close()
    write(owner, 1)
    assert owners.read().bodies == bodies(0, 1)


def test_an_attempt_of_unknown_outcome_is_repeated_with_whatever_is_to_be_written_then(
    owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = owners.new("a")
    write(owner, 0)
    commit = TransactionalProducer.commit

    def commit_and_fail(producer: TransactionalProducer, messages: Sequence[Message], *offsets: Any) -> int:
        commit(producer, messages, *offsets)
        raise TransactionFailed("no answer")

    with monkeypatch.context() as patched:
        patched.setattr(TransactionalProducer, "commit", commit_and_fail)
        with pytest.raises(SinkUnavailable, match="no answer"):
            owner.append(1, b"lost")
    assert owners.read().bodies == [b"frame 0", b"lost"]
    write(owner, 1, 2)
    assert owners.read().bodies == bodies(0, 1, 2)


def test_an_owner_that_died_while_it_wrote_is_replaced_at_once(owners: Owners) -> None:
    owner = owners.new("a")
    write(owner, 0)
    assert owner._producer is not None
    owner._producer._client.begin_transaction()
    owner._producer._client.send(owners.topic, b"under way", partition=0, headers=owner._headers(1)).get(10)
    assert owners.read().bodies == bodies(0)
    write(owners.new("b", after="a"), 1)
    assert owners.read().bodies == bodies(0, 1)


def test_the_newest_owner_is_found_behind_what_transactions_leave(
    owners: Owners, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_topic, "LOOK_BACK", 1)  # the last offset is the mark of a transaction
    owner = owners.new("a")
    write(owner, 0)
    owner.close()
    write(owner, 1)
    with pytest.raises(OwnerReplaced):
        owners.new("b")


def test_frames_that_nobody_needs_are_removed_and_what_the_owner_said_is_not(owners: Owners) -> None:
    owner = owners.new("a")
    write(owner, 0, 1, 2, 3)
    owner.drop_before(2)
    owner.drop_before(7)  # a frame that is not there
    write(owner, 4)
    assert owners.read() == CopiedFrames(JOURNAL, "a", b"a", 2, bodies(2, 3, 4))
    after = owners.new("b", after="a")
    write(after, 5)
    after.drop_before(4)
    assert owners.read() == CopiedFrames(JOURNAL, "b", b"b", 4, bodies(4, 5))


def test_frames_stay_when_they_cannot_be_removed(owners: Owners, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = owners.new("a")
    write(owner, 0, 1)

    def refuse(*_arguments: Any) -> None:
        raise BrokerError("not now")

    with monkeypatch.context() as patched:
        patched.setattr("ingest.kafka.clients.admin.Admin.delete_before", refuse)
        owner.drop_before(1)
    write(owner, 2)
    assert owners.read().bodies == bodies(0, 1, 2)
    owner.drop_before(1)
    assert owners.read().bodies == bodies(1, 2)


def test_a_frame_that_is_too_large_is_refused_and_a_large_one_is_not(owners: Owners) -> None:
    owner = owners.new("a")
    owner.append(0, bytes(LARGEST_BYTES // 2))
    with pytest.raises(SinkError, match=r"does not fit.*lower stream.batch"):
        owner.append(1, bytes(LARGEST_BYTES))
    assert list(map(len, owners.read().bodies)) == [LARGEST_BYTES // 2]


def test_a_topic_may_take_less(kafka: TestBroker) -> None:
    kept = {"retention.ms": "-1", "retention.bytes": "-1", "max.message.bytes": "100000"}
    with closing(FrameTopic(kafka.config(), kafka.new_topic(1, **kept))) as owner:
        owner.take("a", "", JOURNAL)
        with pytest.raises(SinkError, match=r"at most 100,000; .* raise the topic's max\.message\.bytes"):
            owner.append(0, bytes(100_000))
        owner.append(0, bytes(90_000))


def test_the_journal_of_another_run_is_left_alone(owners: Owners) -> None:
    write(owners.new("a"), 0)
    with pytest.raises(SinkError, match="another run's journal"):
        owners.new("a", journal="another")
    assert owners.read().journal == JOURNAL


@pytest.mark.parametrize(
    ("partitions", "configs", "told"),
    [
        (2, {}, "2 partitions"),
        (1, {"retention.ms": "1000"}, "retention.ms = 1000"),
        (1, {"cleanup.policy": "compact"}, "cleanup.policy = compact"),
    ],
)
def test_a_topic_from_which_frames_would_vanish_is_refused(
    kafka: TestBroker, partitions: int, configs: dict[str, str], told: str
) -> None:
    topic = kafka.new_topic(partitions, **{"retention.ms": "-1", "retention.bytes": "-1", **configs})
    with pytest.raises(BrokerError, match=told):
        FrameTopic(kafka.config(), topic).take("a", "", JOURNAL)


def test_other_records_and_lost_ones_are_told(kafka: TestBroker, owners: Owners) -> None:
    owner = owners.new("a")
    write(owner, 0, 2)
    with pytest.raises(BrokerError, match=r"holds frame 2 .* expected frame 1"):
        owners.read()
    other = kafka.new_topic(1, **{"retention.ms": "-1", "retention.bytes": "-1"})
    fill_topic(kafka.config(), other, {0: [b"an event"]})
    with pytest.raises(BrokerError, match="at offset 0 that is no frame of a journal"):
        FrameTopic(kafka.config(), other).read()


def test_a_broker_that_is_away_may_be_asked_again(owners: Owners) -> None:
    owner = owners.new("a")
    owner.close()
    owner._config = owner._config.model_copy(update={"servers": ("127.0.0.1:1",)})
    with pytest.raises(SinkUnavailable, match="try again"):
        write(owner, 0)
    with open_admin(owners.config) as admin:
        topic = admin.describe(owners.topic)
        assert topic is not None
        assert admin.end_offsets(topic) == {0: 2}, "the owner's record, and the mark of its transaction"
