"""The commands about a run under way, against real sockets in place of its processes."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq

from dispatch.commands.protocol import CommandAnswered, ListedMember, ListMembers, Members
from dispatch.commands.server import Asked, ControlSocket
from infra.base.link_gbit import LinkGbit
from infra.run.agent.agent import Agent
from infra.run.folder import claim
from infra.run.settings import load_settings, store_settings
from infra.run.supervision.child import ProcessSpec
from infra.run.supervision.supervisor import Supervisor
from tests.infra.cli.conftest import Invoke

RUN = "r"


class FakeRun:
    """A run in a folder: its lock is held, its dispatcher answers commands, its agent has real children."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands: list[tuple[str, str]] = []
        self.supervisor = Supervisor([], folder)
        store_settings(load_settings(folder=folder, run=RUN))

    def answer(self, control: ControlSocket, asked: Asked) -> None:
        command = asked.message
        common: dict[str, Any] = {"run": RUN, "generation": 2, "step": 40}
        if isinstance(command, ListMembers):
            member = ListedMember(name="worker-0", state="parked", number=0, link_gbit=0.5)
            control.answer(asked, Members(**common, is_paused=False, members=(member,)))
            return
        common |= {"id": command.id, "cursor": 7}
        if command.worker == "worker-9":
            control.answer(asked, CommandAnswered(**common, outcome="refused", text="no worker 'worker-9'"))
            return
        self.commands.append((command.verb, command.worker))
        text = f"{command.verb} from step 41 on"
        control.answer(asked, CommandAnswered(**common, outcome="accepted", text=text))


def sleeper(name: str, _link: LinkGbit) -> ProcessSpec:
    return ProcessSpec(name, ["sleep", "60"], may_finish=True, essential=False)


@contextmanager
def serving(loop: Callable[[], None]) -> Iterator[None]:
    """Calls it again and again in another thread."""
    done = threading.Event()

    def repeat() -> None:
        while not done.is_set():
            loop()
            done.wait(0.002)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def fake_run(folder: Path, has_agent: bool = True) -> Iterator[FakeRun]:
    with ExitStack() as stack:
        stack.enter_context(claim(folder))
        run = FakeRun(folder)
        context = stack.enter_context(zmq.Context())
        control = stack.enter_context(closing(ControlSocket(context, "tcp://127.0.0.1:*", RUN)))
        at = folder / "endpoints"
        at.mkdir()
        (folder / "journal").mkdir()
        (at / "dispatcher").write_text(f"tcp://h:1\ntcp://h:2\n{control.endpoint}")
        agent = None
        if has_agent:
            stack.enter_context(run.supervisor)
            agent = stack.enter_context(Agent(run.supervisor, RUN, at / "agent", sleeper, "worker-"))

        def loop() -> None:
            if (asked := control.next()) is not None:
                run.answer(control, asked)
            if agent is not None:
                agent.serve()

        stack.enter_context(serving(loop))
        yield run


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (("workers", "drain", "worker-1"), ("drain", "worker-1")),
        (("workers", "remove", "worker-1"), ("remove", "worker-1")),
        (("pause",), ("pause", "")),
        (("resume",), ("resume", "")),
        (("command", "link", "0.5", "--worker", "worker-1"), ("link", "worker-1")),
    ],
)
def test_a_command_reaches_the_dispatcher(
    invoke: Invoke, tmp_path: Path, arguments: tuple[str, ...], command: tuple[str, str]
) -> None:
    with fake_run(tmp_path / "run") as run:
        done = invoke(*arguments, "--run", run.folder)
        told = invoke(*arguments, "--run", run.folder, "--json")
    assert (done.returncode, done.stdout) == (0, f"{command[0]} from step 41 on\n")
    assert json.loads(told.stdout)["step"] == 40
    assert run.commands == [command] * 2


def test_a_worker_that_is_added_is_started_and_one_that_is_removed_is_stopped(invoke: Invoke, tmp_path: Path) -> None:
    with fake_run(tmp_path / "run") as run:
        added = invoke("workers", "add", "--run", run.folder, "--link", "0.5")
        assert added.returncode == 0
        assert added.stdout.endswith("worker worker-0 is being started\n")
        assert not run.supervisor.children["worker-0"].is_ending
        assert invoke("workers", "remove", "worker-0", "--run", run.folder).returncode == 0
        assert run.supervisor.children["worker-0"].is_ending
    assert run.commands == [("remove", "worker-0")]


def test_workers_are_listed_with_their_processes(invoke: Invoke, tmp_path: Path) -> None:
    with fake_run(tmp_path / "run") as run:
        invoke("workers", "add", "--run", run.folder, "--name", "edge")
        shown = invoke("workers", "list", "--run", run.folder).stdout
        told = json.loads(invoke("workers", "list", "--run", run.folder, "--json").stdout)
    assert [line.split()[:2] for line in shown.splitlines()] == [
        ["worker", "state"],
        ["worker-0", "parked"],
        ["process", "state"],
        ["edge", "waiting"],
    ]
    assert [member["name"] for member in told["dispatcher"]["members"]] == ["worker-0"]
    assert [process["name"] for process in told["processes"]] == ["edge"]


def test_without_an_agent_the_command_to_run_by_hand_is_told(invoke: Invoke, tmp_path: Path) -> None:
    with fake_run(tmp_path / "run", has_agent=False) as run:
        done = invoke("workers", "add", "--run", run.folder, "--name", "edge", "--link", "0.5", "--uplink", "0.05")
    assert done.returncode == 1
    command = f"freshet worker --run {run.folder} --name edge --dispatcher tcp://h:1 --link 0.5 --uplink 0.05"
    assert done.stderr.strip().endswith(command)


def test_a_refusal_is_one_line(invoke: Invoke, tmp_path: Path) -> None:
    with fake_run(tmp_path / "run") as run:
        done = invoke("workers", "drain", "worker-9", "--run", run.folder)
    assert (done.returncode, done.stderr) == (1, "freshet: no worker 'worker-9'\n")


def test_no_run_and_one_that_is_over_are_told_apart(invoke: Invoke, tmp_path: Path) -> None:
    nowhere = invoke("pause", "--run", tmp_path / "nowhere")
    assert (nowhere.returncode, nowhere.stderr.splitlines()[0].split(";")[0]) == (
        2,
        f"freshet: no run in {tmp_path / 'nowhere'}",
    )
    with fake_run(tmp_path / "run"):
        pass
    over = invoke("pause", "--run", tmp_path / "run")
    assert over.returncode == 1
    assert over.stderr.startswith(f"freshet: the run in {tmp_path / 'run'} is over or was interrupted")


def test_a_dispatcher_that_is_not_ready_is_told(invoke: Invoke, tmp_path: Path) -> None:
    with fake_run(tmp_path / "run") as run:
        (run.folder / "endpoints" / "dispatcher").unlink()
        done = invoke("pause", "--run", run.folder)
    assert done.returncode == 1
    assert "the dispatcher of run 'r' takes no commands now" in done.stderr


def test_processes_are_listed_while_the_dispatcher_is_restarted(invoke: Invoke, tmp_path: Path) -> None:
    with fake_run(tmp_path / "run") as run:
        invoke("workers", "add", "--run", run.folder, "--name", "edge")
        (run.folder / "endpoints" / "dispatcher").unlink()
        done = invoke("workers", "list", "--run", run.folder, "--json")
    told = json.loads(done.stdout)
    assert (told["dispatcher"], [process["name"] for process in told["processes"]]) == (None, ["edge"])
    assert "takes no commands now" in done.stderr


def test_in_an_agent_s_folder_its_processes_are_listed(invoke: Invoke, tmp_path: Path) -> None:
    with fake_run(tmp_path / "run") as run:
        invoke("workers", "add", "--run", run.folder, "--name", "edge")
        (run.folder / "journal").rmdir()
        done = invoke("workers", "list", "--run", run.folder)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["process", "edge"]
    assert (done.stderr, run.commands) == ("", [])


def test_nobody_answers_is_told(invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.cli.steer.sockets.AGENT_TIMEOUT_SECONDS", 0.05)
    with fake_run(tmp_path / "run", has_agent=False) as run:
        (run.folder / "endpoints" / "agent").write_text(f"ipc://{tmp_path}/nobody")
        done = invoke("workers", "add", "--run", run.folder)
    assert done.returncode == 1
    assert "nobody answers at ipc://" in done.stderr


def test_an_agent_without_a_dispatcher_s_address_is_refused(invoke: Invoke) -> None:
    done = invoke("agent", "--workers", "2")
    assert done.returncode == 2
    assert "no dispatcher can be reached at 'tcp://127.0.0.1:*'" in done.stderr
