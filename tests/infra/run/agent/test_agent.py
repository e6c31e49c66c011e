"""A supervisor with real children that is asked over its socket."""

import os
import random
import shutil
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import zmq

from dispatch.commands.client import ask
from dispatch.commands.supervision import AGENT, ListProcesses, StartWorker, StopWorker, WorkerEnding, WorkerStarted
from dispatch.errors import CommandRefused
from infra.base.files import SOCKETS
from infra.base.link_gbit import LinkGbit
from infra.base.wire import Codec, Refused, connect, receive
from infra.run.agent.agent import Agent
from infra.run.agent.sockets import SOCKET
from infra.run.supervision.child import ProcessSpec
from infra.run.supervision.supervisor import Supervisor
from tests.infra.run.supervision.test_supervisor import poll_until
from tests.malformed import spoiled_messages, valid_message

RUN = "r"
COMMON: dict[str, Any] = {"run": RUN, "generation": -1, "step": -1}
PATIENCE_MILLISECONDS = 30_000


def sleeper(name: str, _link: LinkGbit | None = None, may_finish: bool = True) -> ProcessSpec:
    return ProcessSpec(name, ["sleep", "60"], may_finish=may_finish, essential=False)


class Asking:
    """A supervisor with an agent, and requests that are answered between its passes."""

    def __init__(self, supervisor: Supervisor, agent: Agent, at: Path) -> None:
        self.supervisor, self.agent, self.at = supervisor, agent, at

    def __call__(self, message: Any) -> Any:
        """Sends a request from another thread and serves until it is answered; raises what the client raises."""
        answers: list[Any] = []

        def client() -> None:
            try:
                answers.append(ask(self.at.read_text(), message, AGENT))
            except CommandRefused as error:
                answers.append(error)

        thread = threading.Thread(target=client)
        thread.start()
        self.poll_until(lambda: bool(answers))
        thread.join()
        if isinstance(answers[0], CommandRefused):
            raise answers[0]
        return answers[0]

    def poll_until(self, done: Callable[[], bool]) -> None:
        def served() -> bool:
            self.agent.serve()
            return done()

        poll_until(self.supervisor, served)


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Asking]:
    at = tmp_path / "endpoints" / "agent"
    specs = [sleeper("dispatcher", may_finish=False), sleeper("worker-0")]
    with Supervisor(specs, tmp_path) as supervisor, Agent(supervisor, RUN, at, sleeper, "worker-") as agent:
        yield Asking(supervisor, agent, at)


def test_processes_are_listed(asking: Asking) -> None:
    asking.supervisor.poll()
    dispatcher, worker = asking(ListProcesses(**COMMON)).processes
    assert (dispatcher.name, worker.name, worker.state, worker.restarts) == ("dispatcher", "worker-0", "ready", 0)
    assert worker.pid == asking.supervisor.children["worker-0"].pid
    assert worker.seconds >= 0


def test_further_workers_get_the_next_free_name_or_their_own(asking: Asking) -> None:
    assert asking(StartWorker(**COMMON)) == WorkerStarted(**COMMON, worker="worker-1")
    assert asking(StartWorker(**COMMON, worker="edge", link_gbit=0.5)) == WorkerStarted(**COMMON, worker="edge")
    asking.poll_until(lambda: all(asking.supervisor.children[name].running for name in ("worker-1", "edge")))


def test_a_request_that_is_sent_again_starts_no_second_worker(asking: Asking) -> None:
    first, again = (asking(StartWorker(**COMMON, id="c1")) for _ in range(2))
    assert first == again == WorkerStarted(**COMMON, worker="worker-1")
    assert asking(StartWorker(**COMMON, id="c2")).worker == "worker-2"


def test_a_worker_is_stopped_and_stays_so(asking: Asking) -> None:
    asking.supervisor.poll()
    assert asking(StopWorker(**COMMON, worker="worker-0")) == WorkerEnding(**COMMON, worker="worker-0")
    asking.poll_until(lambda: asking.supervisor.children["worker-0"].state == "finished")
    assert asking.supervisor.children["worker-0"].restarts == 0


REFUSED = [
    (StartWorker(**COMMON, worker="worker-0"), "process 'worker-0' is there already"),
    (StartWorker(**COMMON, worker="../elsewhere"), r"the name '\.\./elsewhere' cannot be used"),
    (StopWorker(**COMMON, worker="worker-7"), "no process 'worker-7'; expected one of dispatcher, worker-0"),
    (StopWorker(**COMMON, worker="dispatcher"), "process 'dispatcher' cannot be stopped alone"),
    (ListProcesses(run="other", generation=-1, step=-1), "a command to run 'other' reached run 'r'"),
]


@pytest.mark.parametrize(("message", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_cannot_be_done_is_refused_without_effect(asking: Asking, message: Any, reason: str) -> None:
    asking.supervisor.poll()
    before = {name: (child.state, child.pid) for name, child in asking.supervisor.children.items()}
    with pytest.raises(CommandRefused, match=reason):
        asking(message)
    assert {name: (child.state, child.pid) for name, child in asking.supervisor.children.items()} == before


def test_malformed_requests_are_refused_without_effect(asking: Asking, fuzz_rounds: int) -> None:
    rng, answers, refused = random.Random(3), Codec(*AGENT.answers), 0
    with zmq.Context() as context, closing(context.socket(zmq.DEALER)) as socket:
        socket.set(zmq.LINGER, 0)
        connect(socket, asking.at.read_text())
        for kind in (*AGENT.requests,) * fuzz_rounds:
            for spoiled in spoiled_messages(valid_message(kind, run=RUN), rng):
                if spoiled.how == "too many bytes":  # the connection is closed
                    continue
                socket.send_multipart(spoiled.frames)
                while not socket.poll(1):
                    asking.agent.serve()
                assert isinstance(receive(socket, answers)[0], Refused), spoiled
                refused += 1
    assert refused > 30
    assert list(asking.supervisor.children) == ["dispatcher", "worker-0"]


def test_only_the_owner_can_reach_the_socket_and_nothing_is_left_behind(tmp_path: Path) -> None:
    at = tmp_path / "endpoints" / "agent"
    with Agent(Supervisor([], tmp_path), RUN, at, sleeper, "worker-"):
        folder = Path(at.read_text().removeprefix("ipc://")).parent
        assert stat.S_IMODE(at.stat().st_mode) == 0o600
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert not at.exists()
    assert not folder.exists()


def test_folders_of_supervisors_that_were_killed_are_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(tempfile.mkdtemp(dir="/tmp"))  # names of sockets are short
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    kinds = ("killed", "stopped", "empty", "starting", "bound")
    folders = {name: place / f"{SOCKETS}{name}" for name in kinds}
    folders["other"] = place / "other"
    for folder in folders.values():
        folder.mkdir()
    with ExitStack() as opened:
        listeners = {
            name: opened.enter_context(socket.socket(socket.AF_UNIX)) for name in ("killed", "stopped", "bound")
        }
        for name, listener in listeners.items():
            listener.bind(str(folders[name] / SOCKET))
        listeners["stopped"].listen()  # another has been bound, and is about to listen
        listeners["killed"].close()
        for name in ("killed", "stopped", "empty"):
            os.utime(folders[name], (0, 0))
        with Agent(Supervisor([], tmp_path), RUN, tmp_path / "agent", sleeper, "worker-"):
            left = {name for name, folder in folders.items() if folder.exists()}
    shutil.rmtree(place)
    assert left == {"stopped", "starting", "bound", "other"}


def test_a_worker_that_was_asked_for_before_the_run_was_stopped_is_not_started(tmp_path: Path) -> None:
    at = tmp_path / "endpoints" / "agent"
    with (
        Supervisor([sleeper("worker-0")], tmp_path) as supervisor,
        Agent(supervisor, RUN, at, sleeper, "worker-", stopped_at=100.0) as agent,
    ):
        asking = Asking(supervisor, agent, at)
        with pytest.raises(CommandRefused, match="given before the run was stopped"):
            asking(StartWorker(**COMMON, id="c1", given_seconds=100.0))
        assert asking(StartWorker(**COMMON, id="c2", given_seconds=101.0)).worker == "worker-1"
