"""The journal read over real sockets, page after page, while it is written."""

import random
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from time import time

import pytest
import zmq
from structlog.testing import capture_logs

from dispatch.commands.server import ControlSocket
from dispatch.errors import CommandRefused, NoAnswer
from dispatch.feed import server as feed_server
from dispatch.feed.client import read_feed
from dispatch.feed.protocol import FEED, ReadJournal
from dispatch.feed.server import FeedServer
from dispatch.journal import readers
from dispatch.journal.history import read_history
from dispatch.journal.log import read_records
from dispatch.journal.readers import JournalReaders
from dispatch.journal.records import AnyRecord, CheckpointTaken, StepDecided
from dispatch.journal.run import RunJournal
from infra.base.wire import Codec, Refused, connect, guarded, load_curve, receive, write_curve
from ingest.streams.position import Position
from tests.dispatch.journal.test_checkpoint_segments import step
from tests.dispatch.journal.test_run import begun_in, job_in
from tests.malformed import spoiled_messages, valid_message

RUN = "r"


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[RunJournal]:
    with closing(RunJournal(job_in(tmp_path))) as made:
        begun_in(made)
        yield made


@pytest.fixture
def endpoint(journal: RunJournal) -> Iterator[str]:
    with zmq.Context() as context:
        socket = ControlSocket(context, "tcp://127.0.0.1:*", RUN, exchange=FEED)
        with closing(FeedServer(socket, journal)):
            yield socket.endpoint


def read_all(endpoint: str, cursor: int = 0) -> list[tuple[int, AnyRecord]]:
    """What follows a cursor, up to the newest."""
    found: list[tuple[int, AnyRecord]] = []
    while True:
        page = read_feed(endpoint, RUN, cursor)
        found += [(each.cursor, each.record) for each in page.records]
        cursor = page.next
        if cursor == page.newest:
            return found


def test_every_record_is_read_once_without_its_assignment(journal: RunJournal, endpoint: str) -> None:
    for number in (1, 2, 3):
        journal.append_step(step(number))
    found = read_all(endpoint)
    expected = [feed_server.stripped(record) for record in read_records(journal.own_folder)]
    assert [record for _, record in found] == expected
    assert [cursor for cursor, _ in found] == [1, 1, 2, 3, 4]
    assert all(record.assignment == b"" for _, record in found if isinstance(record, StepDecided))


def test_pages_are_small_and_those_of_one_frame_stay_together(
    journal: RunJournal, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_server, "PAGE_RECORDS", 1)
    journal.append_step(step(1))
    first = read_feed(endpoint, RUN, 0)
    assert (first.after, first.next, first.newest, len(first.records)) == (0, 1, 2, 2)
    second = read_feed(endpoint, RUN, first.next)
    assert (second.after, second.next, len(second.records)) == (1, 2, 1)


def test_a_reader_that_has_everything_waits_and_holds_up_nobody(
    journal: RunJournal, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_server, "HOLD_SECONDS", 60.0)
    answers: list[int] = []
    waiting = threading.Thread(target=lambda: answers.append(read_feed(endpoint, RUN, 1, timeout_seconds=60.0).next))
    waiting.start()
    assert read_feed(endpoint, RUN, 0).next == 1
    journal.append_step(step(1))
    waiting.join(60.0)
    assert answers == [2]


def test_nothing_new_is_an_empty_page_in_time(
    journal: RunJournal, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_server, "HOLD_SECONDS", 0.01)
    page = read_feed(endpoint, RUN, 1)
    assert (page.after, page.next, page.newest, page.records) == (1, 1, 1, ())


def test_what_was_dropped_is_passed_over_and_told(journal: RunJournal, endpoint: str) -> None:
    journal.append_step(step(1))
    journal.begin_checkpoint(1, 1, {0: Position(1)}, 2)
    journal.take_checkpoint(CheckpointTaken(1, 1, {0: Position(1)}, 2))
    read_feed(endpoint, RUN, 2, reader="a")
    journal.trim(1)
    page = read_feed(endpoint, RUN, 0)
    assert (page.after, page.next, page.newest) == (2, 4, 4)
    assert [each.cursor for each in page.records] == [3, 4]


def test_what_no_checkpoint_needs_is_read_as_long_as_nobody_has(journal: RunJournal, endpoint: str) -> None:
    journal.append_step(step(1))
    journal.begin_checkpoint(1, 1, {0: Position(1)}, 2)
    journal.trim(1)
    assert read_history(journal.own_folder).base.number == 1
    assert [cursor for cursor, _ in read_all(endpoint)] == [1, 1, 2, 3]


def test_what_the_slower_of_two_readers_has_not_read_stays_also_for_the_next_dispatcher(
    journal: RunJournal, endpoint: str, tmp_path: Path
) -> None:
    journal.append_step(step(1))
    journal.begin_checkpoint(1, 1, {0: Position(1)}, 2)
    for reader, cursor in (("slow", 1), ("fast", 3)):
        read_feed(endpoint, RUN, cursor, reader=reader)
    journal.trim(1)
    assert read_feed(endpoint, RUN, 1, reader="slow").after == 1
    journal.close()
    again = JournalReaders(journal.own_folder, journal.cursor)
    again.note("fast", 3)
    assert (again.slowest, again.floor) == ("slow", 1)


def test_a_reader_that_was_silent_for_a_day_is_forgotten_aloud(
    journal: RunJournal, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.append_step(step(1))
    journal.begin_checkpoint(1, 1, {0: Position(1)}, 2)
    read_feed(endpoint, RUN, 1, reader="slow")
    monkeypatch.setattr(readers, "time", lambda: time() + 1.5 * readers.FORGOTTEN_SECONDS)
    read_feed(endpoint, RUN, 3, reader="fast")
    with capture_logs() as logs:
        journal.trim(1)
    assert [(log["reader"], log["read_up_to"]) for log in logs] == [("slow", 1)]
    assert read_feed(endpoint, RUN, 1, reader="slow").after == 2


@pytest.mark.parametrize(("cursor", "known"), [(7, ""), (7, "another"), (1, "another")])
def test_a_reader_of_another_journal_begins_anew(journal: RunJournal, endpoint: str, cursor: int, known: str) -> None:
    page = read_feed(endpoint, RUN, cursor, reader="api", journal=known)
    assert (page.after, page.next, page.journal) == (0, 1, journal.identity)
    assert (journal.readers.slowest, journal.readers.floor) == ("api", 0)


def test_a_cursor_that_this_journal_cannot_have_given_is_refused(journal: RunJournal, endpoint: str) -> None:
    with pytest.raises(CommandRefused, match=r"cursor 7 is not in .* ends at cursor 1; .* put back to an earlier"):
        read_feed(endpoint, RUN, 7, journal=journal.identity)
    assert journal.readers.slowest == ""


def test_what_cannot_be_read_is_refused_and_the_next_request_is_answered(
    journal: RunJournal, endpoint: str, fuzz_rounds: int
) -> None:
    rng, answers = random.Random(6), Codec(*FEED.answers)
    with zmq.Context() as context, closing(context.socket(zmq.DEALER)) as socket:
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.RCVTIMEO, 30_000)
        connect(socket, endpoint)
        for _ in range(fuzz_rounds):
            for message in spoiled_messages(valid_message(ReadJournal, run=RUN), rng):
                if message.how != "too many bytes":
                    socket.send_multipart(message.frames)
                    assert isinstance(receive(socket, answers)[0], Refused), message
    assert read_feed(endpoint, RUN, 0).next == 1


def test_with_keys_a_stranger_reads_nothing(journal: RunJournal, tmp_path: Path) -> None:
    write_curve(tmp_path / "keys", ["server"])
    write_curve(tmp_path / "others", ["server"])
    server, stranger = load_curve(tmp_path / "keys", "server"), load_curve(tmp_path / "others", "server")
    with zmq.Context() as context, guarded(context, server):
        socket = ControlSocket(context, "tcp://127.0.0.1:*", RUN, server, exchange=FEED)
        with closing(FeedServer(socket, journal)):
            with pytest.raises(NoAnswer):
                read_feed(socket.endpoint, RUN, 0, stranger, timeout_seconds=0.2)
            assert read_feed(socket.endpoint, RUN, 0, server).next == 1
