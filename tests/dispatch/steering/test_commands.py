"""A command that is sent again is answered as it was the first time, by whichever dispatcher is there."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from time import time
from typing import Any

import pytest
import zmq

from dispatch.checkpoints.state import Decided, DispatcherState, load_state, save_state
from dispatch.commands.client import carry_out
from dispatch.commands.protocol import Command, CommandAnswered
from dispatch.commands.server import ControlSocket
from dispatch.errors import CommandRefused
from dispatch.journal.history import JOURNAL
from dispatch.journal.log import JournalTail, read_records
from dispatch.journal.records import Commanded
from dispatch.journal.run import RunJournal
from dispatch.peers.crew import Crew
from dispatch.steering.commands import Commands
from infra.base.process import Stop
from ingest.streams.position import Position
from tests.dispatch.checkpoints.checkpoints import decided, trained
from tests.dispatch.journal.test_checkpoint_segments import step
from tests.dispatch.journal.test_run import begun_in, job_in

RUN = "r"


class Dispatcher:
    """As much of one as takes commands."""

    def __init__(self, folder: Path, saved: Decided | None, resources: ExitStack) -> None:
        self.journal = resources.enter_context(closing(RunJournal(job_in(folder))))
        context: zmq.Context[zmq.Socket[bytes]] = resources.enter_context(zmq.Context())
        crew = resources.enter_context(closing(Crew(context, "tcp://127.0.0.1:*", RUN)))
        self._socket = ControlSocket(context, "tcp://127.0.0.1:*", RUN)
        self.stop = Stop()
        self.commands = Commands(self._socket, crew, self.journal, job_in(folder), self.stop)
        resources.enter_context(closing(self.commands))
        self.commands.go_back(self.journal.history, saved)

    def give(self, key: str, verb: str = "alpha", value: str = "0.5", given_seconds: float = 0.0) -> CommandAnswered:
        """Has a command carried out, in whose place any other would do."""
        told: dict[str, Any] = {"id": key, "verb": verb, "value": value, "given_seconds": given_seconds}
        with ThreadPoolExecutor(1) as threads:
            asking = threads.submit(carry_out, self._socket.endpoint, Command(run=RUN, generation=-1, step=-1, **told))
            while not asking.done():
                self.commands.carry_out_arrived(7, ())
        return asking.result()


@contextmanager
def dispatcher_in(folder: Path, saved: Decided | None = None) -> Iterator[Dispatcher]:
    """saved: with the checkpoint that it goes back to"""
    with ExitStack() as resources:
        yield Dispatcher(folder, saved, resources)


def cursors_of(folder: Path) -> dict[str, int]:
    """The cursor of each command in the journal, by id."""
    frames = JournalTail(folder / JOURNAL, 0).read(4)
    return {record.id: cursor for cursor, records in frames for record in records if isinstance(record, Commanded)}


def test_a_dispatcher_that_comes_after_it_answers_a_command_with_its_cursor(tmp_path: Path) -> None:
    with dispatcher_in(tmp_path) as first:
        begun_in(first.journal)
        answers = [first.give(key) for key in "ab"]
        first.journal.append_step(step(1))
        assert first.give("a") == answers[0]
    with dispatcher_in(tmp_path) as second:
        assert [second.give(key) for key in "ab"] == answers
    assert {answer.id: answer.cursor for answer in answers} == cursors_of(tmp_path) == {"a": 2, "b": 3}


def test_it_does_so_when_the_record_of_the_command_has_been_trimmed(tmp_path: Path) -> None:
    with dispatcher_in(tmp_path) as first:
        begun_in(first.journal)
        answer = first.give("a")
        first.journal.append_step(step(1))
        saved = decided(step=1, answers=first.commands.answers)
        first.journal.begin_checkpoint(1, 1, {0: Position(1)}, 2)
        first.journal.trim(1)
    assert not any(isinstance(record, Commanded) for record in read_records(tmp_path / JOURNAL))
    loaded = load_state(save_state(DispatcherState(1, saved, trained())))
    with dispatcher_in(tmp_path, loaded.decided) as second:
        assert second.give("a") == answer
        assert second.commands.answers == first.commands.answers


def test_a_run_that_is_stopping_takes_no_command_but_to_stop(tmp_path: Path) -> None:
    with dispatcher_in(tmp_path) as dispatcher:
        begun_in(dispatcher.journal)
        before = dispatcher.give("a")
        dispatcher.stop.request("SIGTERM")
        with pytest.raises(CommandRefused, match="the run is stopping"):
            dispatcher.give("b", value="0.25")
        assert dispatcher.give("a") == before, "it was carried out in time"
        dispatcher.give("s", "stop", "")
        assert dispatcher.commands.desired.alpha == 0.5


@pytest.mark.parametrize("how", ["stopped", "before the first step"])
def test_a_command_from_before_a_stop_is_refused_by_whoever_resumes_the_run(tmp_path: Path, how: str) -> None:
    with dispatcher_in(tmp_path) as first:
        begun_in(first.journal)
        given_seconds = time()
        if how == "stopped":
            first.journal.stop("asked to", 1, 0, "")
        else:
            first.give("s", "stop", "")
            first.commands.settle_stop(0)
    for _ in range(2):
        with dispatcher_in(tmp_path) as resumed:
            with pytest.raises(CommandRefused, match="given before the run was stopped"):
                resumed.give("a", given_seconds=given_seconds)
            resumed.give("b", given_seconds=time())
            begun_in(resumed.journal)


def test_that_the_run_was_stopped_is_known_when_the_record_of_it_has_been_trimmed(tmp_path: Path) -> None:
    with dispatcher_in(tmp_path) as first:
        begun_in(first.journal)
        first.journal.append_step(step(1))
        first.journal.stop("asked to", 1, 0, "")
    with dispatcher_in(tmp_path) as second:
        stopped_at = second.commands.desired.stopped_at
        saved = decided(step=1, desired=second.commands.desired)
    loaded = load_state(save_state(DispatcherState(1, saved, trained())))
    with dispatcher_in(tmp_path / "trimmed", loaded.decided) as third:
        begun_in(third.journal)
        with pytest.raises(CommandRefused, match="given before the run was stopped"):
            third.give("a", given_seconds=stopped_at)


def test_alpha_above_that_of_the_policy_is_refused(tmp_path: Path) -> None:
    with dispatcher_in(tmp_path) as dispatcher:
        begun_in(dispatcher.journal)
        dispatcher.give("p", "policy", "esd:0.5")
        with pytest.raises(CommandRefused, match=r"alpha cannot be 0\.75: policy 'esd:0\.5.*' has 0\.5"):
            dispatcher.give("a", value="0.75")
        dispatcher.give("b", value="0.5")
        dispatcher.give("c", value="auto")
        dispatcher.give("q", "policy", "esd:1")
        dispatcher.give("d", value="0.75")
