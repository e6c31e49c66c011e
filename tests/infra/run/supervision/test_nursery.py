"""A real nursery: what it forks is the command, with its own log, environment, session and exit status."""

import math
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from infra.base.parts import COMMAND
from infra.base.process import WRONG_SETTING
from infra.run.supervision.forking import HEAVY, load_next
from infra.run.supervision.nursery import FORGOTTEN, IDLE_SECONDS, Forked, Nursery, as_started, nursery_in
from tests.end_to_end.processes import wait_until
from tests.preloaded import ONE_THREAD

WAITING = "worker", "--name", "worker-7", "--dispatcher", "tcp://127.0.0.1:9"
"""a command that goes on until it is stopped: nobody is there whom it could join"""


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """One for all tests, since it takes seconds to load what it does; one that a test ends begins anew at its next."""
    yield from nursery_of(tmp_path_factory, {})


@pytest.fixture(scope="module")
def loaded_nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """One that begins with everything loaded (``tests/preloaded.py``), for tests after which the next has another."""
    yield from nursery_of(tmp_path_factory, ONE_THREAD)


def nursery_of(folders: pytest.TempPathFactory, environment: dict[str, str]) -> Iterator[Nursery]:
    folder = folders.mktemp("run")
    (folder / "logs").mkdir()
    made = nursery_in(folder, environment)
    if made is None:
        pytest.skip("processes are forked on Linux alone")
    yield made
    made.close()


def start(nursery: Nursery, log: Path, *arguments: str, **environment: str) -> Forked:
    with log.open("wb") as file:
        return nursery.start([*COMMAND, *arguments], environment, file)


def await_pid(child: Forked) -> psutil.Process:
    wait_until(lambda: child.poll() is None and bool(child.pid))
    return psutil.Process(child.pid)


def test_a_forked_process_is_the_command_with_its_environment_log_and_status(nursery: Nursery, tmp_path: Path) -> None:
    told = start(nursery, tmp_path / "told", "settings", FRESHET_SEED="77")
    refused = start(nursery, tmp_path / "refused", "settings", FRESHET_SEED="many")
    assert (told.wait(), refused.wait()) == (0, WRONG_SETTING)
    assert '"seed": 77' in (tmp_path / "told").read_text()
    assert "seed" in (tmp_path / "refused").read_text()


def test_a_forked_process_has_a_session_of_its_own_and_is_known_by_its_command(
    nursery: Nursery, tmp_path: Path
) -> None:
    child = start(nursery, tmp_path / "log", *WAITING)
    process = await_pid(child)
    wait_until(lambda: as_started(process.cmdline()) == ["freshet", *WAITING])
    assert os.getsid(child.pid) == child.pid
    assert process.ppid() == nursery.pid


def test_a_nursery_that_has_loaded_everything_has_one_thread(nursery: Nursery, tmp_path: Path) -> None:
    await_pid(start(nursery, tmp_path / "log", *WAITING))
    assert nursery.pid is not None
    assert "torch" in HEAVY
    assert any("libtorch" in file.path for file in psutil.Process(nursery.pid).memory_maps())
    assert psutil.Process(nursery.pid).num_threads() == 1


def test_an_api_that_is_replaced_a_second_time_has_everything_loaded(nursery: Nursery, tmp_path: Path) -> None:
    def has_loaded_drivers() -> bool:
        assert nursery.pid is not None
        return any("asyncpg" in file.path for file in psutil.Process(nursery.pid).memory_maps())

    assert start(nursery, tmp_path / "first", "api", "--help").wait() == 0
    assert not has_loaded_drivers()  # in its place: workers wait for torch then
    assert start(nursery, tmp_path / "second", "api", "--help").wait() == 0
    assert has_loaded_drivers()
    assert psutil.Process(nursery.pid or 0).num_threads() == 1


def test_a_module_that_cannot_be_loaded_is_left_to_the_process_that_needs_it() -> None:
    modules = ["freshet_has_no_such_module"]
    assert load_next(modules), "it was tried"
    assert not load_next(modules), "and is not tried again"


def test_a_process_that_is_not_there_yet_can_be_stopped(nursery: Nursery, tmp_path: Path) -> None:
    nursery.close()
    child = start(nursery, tmp_path / "log", *WAITING)
    assert not child.pid
    child.terminate()
    assert child.wait() in (0, -signal.SIGTERM)


def test_a_signal_and_a_kill_reach_it(nursery: Nursery, tmp_path: Path) -> None:
    stopped, killed = (start(nursery, tmp_path / name, *WAITING) for name in ("stopped", "killed"))
    wait_until(lambda: bool(await_pid(killed)) and "worker-7" in (tmp_path / "stopped").read_text())
    stopped.terminate()
    killed.kill_group()
    assert (stopped.wait(), killed.wait()) == (0, -signal.SIGKILL), (tmp_path / "killed").read_text()


def test_a_signal_to_one_that_has_just_ended_is_none(nursery: Nursery, tmp_path: Path) -> None:
    """The supervisor may learn of an end only after it has sent the signal: nobody has the process id any more."""
    ended = start(nursery, tmp_path / "ended", *WAITING)
    wait_until(lambda: bool(await_pid(ended)) and "worker-7" in (tmp_path / "ended").read_text())
    pid = ended.pid
    ended.kill_group()
    assert ended.wait() == -signal.SIGKILL
    wait_until(lambda: not psutil.pid_exists(pid))
    nursery.signal(1, pid, signal.SIGTERM)


def test_children_of_a_nursery_that_is_killed_die_and_the_next_has_another(
    loaded_nursery: Nursery, tmp_path: Path
) -> None:
    child = start(loaded_nursery, tmp_path / "log", *WAITING)
    process, before = await_pid(child), loaded_nursery.pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    assert child.wait() == FORGOTTEN
    wait_until(lambda: not process.is_running())
    assert start(loaded_nursery, tmp_path / "next", "settings").wait() == 0
    assert loaded_nursery.pid != before


def test_a_nursery_that_does_not_answer_is_replaced(
    loaded_nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start(loaded_nursery, tmp_path / "first", "settings").wait() == 0
    assert loaded_nursery.pid is not None
    os.kill(loaded_nursery.pid, signal.SIGSTOP)
    monkeypatch.setattr("infra.run.supervision.nursery.IDLE_SECONDS", 0.1)
    assert start(loaded_nursery, tmp_path / "lost", "settings").wait() == FORGOTTEN
    monkeypatch.undo()
    assert start(loaded_nursery, tmp_path / "next", "settings").wait() == 0


def test_a_nursery_that_takes_long_to_load_what_a_process_needs_is_left_alone(
    nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nursery.close()
    times: list[Any] = [(0.0, 0.0)]

    class Watched(psutil.Process):
        def cpu_times(self) -> Any:
            times.append(super().cpu_times())
            return times[-1]

    def later_and_later() -> float:
        """A clock that a busy machine does not disturb: much time passes whenever the nursery was seen to work."""
        return 10_000 * float(sum(times[-1][:2]))

    monkeypatch.setattr("infra.run.supervision.nursery.psutil", SimpleNamespace(Process=Watched))
    monkeypatch.setattr("infra.run.supervision.nursery.time", SimpleNamespace(monotonic=later_and_later))
    monkeypatch.setattr("infra.run.supervision.nursery.LOADING_SECONDS", math.inf)
    child = start(nursery, tmp_path / "log", *WAITING)
    before = nursery.pid
    wait_until(lambda: child.poll() is not None or bool(child.pid))
    assert child.returncode is None
    assert nursery.pid == before
    assert later_and_later() > 2 * IDLE_SECONDS, "no time has passed"


def test_a_nursery_that_works_without_end_is_replaced(
    nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nursery.close()
    monkeypatch.setattr("infra.run.supervision.nursery.LOADING_SECONDS", 0.1)
    assert start(nursery, tmp_path / "lost", *WAITING).wait() == FORGOTTEN


def test_nobody_waits_for_a_process_that_is_killed_before_it_is_there(loaded_nursery: Nursery, tmp_path: Path) -> None:
    loaded_nursery.close()
    assert start(loaded_nursery, tmp_path / "first", "settings").wait() == 0
    pid = loaded_nursery.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    child = start(loaded_nursery, tmp_path / "killed", *WAITING)
    child.kill_group()
    assert child.returncode == FORGOTTEN
    os.kill(pid, signal.SIGCONT)
    assert start(loaded_nursery, tmp_path / "next", "settings").wait() == 0
    assert loaded_nursery.pid == pid
    wait_until(lambda: not psutil.Process(pid).children())


def test_other_programs_and_folders_with_spaces_are_left_alone(nursery: Nursery, tmp_path: Path) -> None:
    assert not nursery.can_start(["ip", "netns", "exec", "worker", sys.executable, "-m", "infra.cli.entry"])
    assert nursery_in(tmp_path / "my runs", {}) is None
