"""A command that is sent again is answered as it was the first time, by whichever dispatcher is there."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import zmq

from dispatch.control.checking import CommandCheck
from dispatch.control.client import command
from dispatch.control.commands import Commands
from dispatch.control.protocol import Accepted
from dispatch.control.server import ControlSocket
from dispatch.cuts.state import Decided, DispatcherState, load_state, save_state
from dispatch.journal.history import JOURNAL
from dispatch.journal.log import JournalTail, read_records
from dispatch.journal.records import Commanded
from dispatch.journal.run import RunJournal
from dispatch.peers.crew import Crew
from ingest.streams.position import Position
from tests.dispatch.cuts.cuts import decided, trained
from tests.dispatch.journal.test_cut_segments import step
from tests.dispatch.journal.test_run import begun_in, job_in

RUN = "r"


class Dispatcher:
    """As much of one as takes commands."""

    def __init__(self, folder: Path, saved: Decided | None, resources: ExitStack) -> None:
        self.journal = resources.enter_context(closing(RunJournal(job_in(folder))))
        context: zmq.Context[zmq.Socket[bytes]] = resources.enter_context(zmq.Context())
        crew = resources.enter_context(closing(Crew(context, "tcp://127.0.0.1:*", RUN)))
        self._socket = ControlSocket(context, "tcp://127.0.0.1:*", RUN)
        self.commands = Commands(self._socket, crew, self.journal, CommandCheck(job_in(folder), crew.roster))
        resources.enter_context(closing(self.commands))
        self.commands.go_back(self.journal.history, saved)

    def give(self, key: str) -> Accepted:
        """Has a command carried out, in whose place any other would do."""
        with ThreadPoolExecutor(1) as threads:
            asking = threads.submit(command, self._socket.endpoint, RUN, "alpha", "", "0.5", key=key)
            while not asking.done():
                self.commands.take(7, ())
        answer = asking.result()
        assert isinstance(answer, Accepted)
        return answer


@contextmanager
def dispatcher_in(folder: Path, saved: Decided | None = None) -> Iterator[Dispatcher]:
    """saved: with the cut that it goes back to"""
    with ExitStack() as resources:
        yield Dispatcher(folder, saved, resources)


def versions_of(folder: Path) -> dict[str, int]:
    """At which version of the journal each command is on record, by id."""
    frames = JournalTail(folder / JOURNAL, 0).read(4)
    return {record.id: version for version, records in frames for record in records if isinstance(record, Commanded)}


def test_a_dispatcher_that_comes_after_it_answers_a_command_with_its_version(tmp_path: Path) -> None:
    with dispatcher_in(tmp_path) as first:
        begun_in(first.journal)
        answers = [first.give(key) for key in "ab"]
        first.journal.append_step(step(1))
        assert first.give("a") == answers[0]
    with dispatcher_in(tmp_path) as second:
        assert [second.give(key) for key in "ab"] == answers
    assert {answer.id: answer.version for answer in answers} == versions_of(tmp_path) == {"a": 2, "b": 3}


def test_it_does_so_when_the_record_of_the_command_has_been_trimmed(tmp_path: Path) -> None:
    with dispatcher_in(tmp_path) as first:
        begun_in(first.journal)
        answer = first.give("a")
        first.journal.append_step(step(1))
        saved = decided(step=1, answers=first.commands.answers)
        first.journal.begin_cut(1, 1, {0: Position(1)}, 2)
        first.journal.trim(1)
    assert not any(isinstance(record, Commanded) for record in read_records(tmp_path / JOURNAL))
    loaded = load_state(save_state(DispatcherState(1, saved, trained())))
    with dispatcher_in(tmp_path, loaded.decided) as second:
        assert second.give("a") == answer
        assert second.commands.answers == first.commands.answers
