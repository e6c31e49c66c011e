"""Real child processes, real signals."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from infra.base.errors import ConfigError, ProcessFailed
from infra.base.process import START_ANEW, Stop
from infra.run.supervision.child import Child, ProcessSpec, last_lines
from infra.run.supervision.supervisor import Supervisor

CHILD = """
import os, signal, sys, time
from pathlib import Path
from infra.base.process import end_with_parent, stop_on_signals, write_whole
stop = stop_on_signals()
end_with_parent()
name, folder = sys.argv[1], Path(sys.argv[2])
def note(what):
    with (folder / "story").open("a") as story:
        story.write(f"{name} {what}\\n")
note("started")
"""
SERVE = 'write_whole(folder / f"{name}.endpoint", f"at-{name}")\nstop.wait(600)\nnote("drained")'


def child(folder: Path, name: str, code: str = SERVE, **options: Any) -> ProcessSpec:
    argv = [sys.executable, "-c", CHILD + code, name, str(folder)]
    options.setdefault("endpoint_file", folder / f"{name}.endpoint" if code == SERVE else None)
    return ProcessSpec(name, argv, **{"backoff_seconds": 0.01, "env": {"PYTHONPATH": str(Path.cwd())}, **options})


def story(folder: Path) -> list[str]:
    path = folder / "story"
    return path.read_text().splitlines() if path.exists() else []


def poll_until(supervisor: Supervisor, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100
    while not done():
        supervisor.poll()
        assert time.monotonic() < deadline, "the children did not get there"
        time.sleep(0.01)


def run_until(supervisor: Supervisor, done: Callable[[], bool]) -> Any:
    """Runs, and asks for a stop as soon as the condition holds."""
    stop = Stop()
    return supervisor.run(stop, lambda: stop.request("SIGTERM") if done() else None)


def test_need_is_started_after_what_it_needs_and_gets_its_endpoint(tmp_path: Path) -> None:
    def argv(endpoints: Mapping[str, str]) -> Sequence[str]:
        return [sys.executable, "-c", f"print('got', {endpoints['ps-0']!r})"]

    specs = [ProcessSpec("worker", argv, needs=("ps-0",), ends_run=True), child(tmp_path, "ps-0")]
    outcome = Supervisor(specs, tmp_path).run(Stop())
    assert outcome.reason == "finished"
    assert (tmp_path / "logs" / "worker.log").read_text() == "got at-ps-0\n"


def test_stop_goes_in_stop_order_and_lets_each_drain(tmp_path: Path) -> None:
    specs = [child(tmp_path, name, stop_order=order) for name, order in (("ps", 3), ("worker", 2), ("dispatcher", 1))]
    supervisor = Supervisor(specs, tmp_path)
    outcome = run_until(supervisor, supervisor.ready)
    assert [line for line in story(tmp_path) if "drained" in line] == [
        "dispatcher drained",
        "worker drained",
        "ps drained",
    ]
    assert (outcome.reason, outcome.restarts, outcome.killed) == ("SIGTERM", {}, ())


def test_end_of_the_run_stops_the_others(tmp_path: Path) -> None:
    specs = [child(tmp_path, "ps"), child(tmp_path, "dispatcher", "pass", needs=("ps",), ends_run=True)]
    assert Supervisor(specs, tmp_path).run(Stop()).reason == "finished"
    assert story(tmp_path) == ["ps started", "dispatcher started", "ps drained"]


def test_process_that_finishes_its_work_leaves_the_others_running(tmp_path: Path) -> None:
    with Supervisor(
        [child(tmp_path, "producer", "pass", may_finish=True), child(tmp_path, "ps")], tmp_path
    ) as supervisor:
        poll_until(supervisor, lambda: supervisor.children["producer"].state == "finished")
        poll_until(supervisor, supervisor.ready)
        assert supervisor.poll()
        assert supervisor.children["ps"].state == "ready"


def test_process_that_exits_with_0_before_the_run_is_over_has_failed_and_is_named(tmp_path: Path) -> None:
    specs = [child(tmp_path, "ps", "note('ends'); sys.exit(0)"), child(tmp_path, "worker")]
    with pytest.raises(ProcessFailed, match="'ps' ended with status 0; expected it to run until the run is over"):
        Supervisor(specs, tmp_path).run(Stop())
    assert "ps ends" in story(tmp_path)


def test_process_that_must_not_end_is_restarted_after_0_where_it_may_be(tmp_path: Path) -> None:
    ends_once = "stop.wait(600 if story_lines() > 1 else 0)"
    code = f"story_lines = lambda: len((folder / 'story').read_text().splitlines())\n{ends_once}"
    supervisor = Supervisor([child(tmp_path, "broker", code, restart="on_failure")], tmp_path)
    outcome = run_until(supervisor, lambda: len(story(tmp_path)) == 2)
    assert outcome.restarts == {"broker": 1}


def test_process_with_a_wrong_setting_is_not_restarted(tmp_path: Path) -> None:
    spec = child(tmp_path, "api", "sys.exit(2)", restart="on_failure", essential=False)
    with Supervisor([spec, child(tmp_path, "ps")], tmp_path) as supervisor:
        poll_until(supervisor, lambda: supervisor.children["api"].state == "failed")
    assert story(tmp_path).count("api started") == 1


def test_failure_is_restarted_and_counted(tmp_path: Path) -> None:
    flaky = "sys.exit(0 if len((folder / 'story').read_text().splitlines()) == 3 else 7)"
    spec = child(tmp_path, "worker", flaky, restart="on_failure", max_restarts=2, ends_run=True)
    outcome = Supervisor([spec], tmp_path).run(Stop())
    assert outcome.restarts == {"worker": 2}
    assert story(tmp_path) == ["worker started"] * 3


def test_child_that_ran_long_enough_has_its_restarts_given_back(tmp_path: Path) -> None:
    flaky = "sys.exit(0 if len((folder / 'story').read_text().splitlines()) == 4 else 7)"
    spec = child(tmp_path, "api", flaky, restart="on_failure", max_restarts=1, healthy_seconds=0.0, ends_run=True)
    assert Supervisor([spec], tmp_path).run(Stop()).restarts == {"api": 3}


def test_pause_before_a_restart_doubles_up_to_half_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paused, now = Child(ProcessSpec("api", ["api"], backoff_seconds=1.0), tmp_path / "log"), [0.0]
    paused.state = "pausing"
    monkeypatch.setattr("infra.run.supervision.child.time", SimpleNamespace(monotonic=lambda: now[0]))
    for failures, pause in ((1, 0.0), (2, 1.0), (3, 2.0), (5, 8.0), (10, 30.0), (10_000, 30.0)):
        paused._failures = failures
        now[0] = pause - 0.01
        assert not paused.due()
        now[0] = pause
        assert paused.due()


NEVER = 3600.0
"""a pause that no test waits for"""


def test_first_failure_is_restarted_at_once(tmp_path: Path) -> None:
    flaky = "sys.exit(0 if len((folder / 'story').read_text().splitlines()) == 2 else 7)"
    spec = child(tmp_path, "ps", flaky, restart="on_failure", backoff_seconds=NEVER, ends_run=True)
    assert Supervisor([spec], tmp_path).run(Stop()).restarts == {"ps": 1}


def test_failure_after_progress_is_restarted_at_once_however_many_there_were(tmp_path: Path) -> None:
    flaky = "sys.exit(0 if len((folder / 'story').read_text().splitlines()) == 5 else 7)"
    spec = child(tmp_path, "ps", flaky, restart="on_failure", max_restarts=1, backoff_seconds=NEVER, ends_run=True)
    supervisor = Supervisor([spec], tmp_path, progress=lambda: len(story(tmp_path)))
    assert supervisor.run(Stop()).restarts == {"ps": 4}


def test_failures_without_progress_pause_and_are_final_in_the_end(tmp_path: Path) -> None:
    spec = child(tmp_path, "ps", "sys.exit(7)", restart="on_failure", max_restarts=2)
    with pytest.raises(ProcessFailed, match="'ps' ended with status 7, restarted 2 times"):
        Supervisor([spec], tmp_path, progress=lambda: 9).run(Stop())
    assert story(tmp_path) == ["ps started"] * 3


def test_process_whose_restarts_are_not_limited_comes_back_however_often_it_fails(tmp_path: Path) -> None:
    flaky = "sys.exit(0 if len((folder / 'story').read_text().splitlines()) == 9 else 7)"
    spec = child(tmp_path, "api", flaky, restart="on_failure", max_restarts=None, backoff_seconds=0.0, ends_run=True)
    assert Supervisor([spec], tmp_path).run(Stop()).restarts == {"api": 8}


def test_process_that_ended_itself_to_be_started_anew_is_restarted_at_once(tmp_path: Path) -> None:
    anew = f"sys.exit(0 if len((folder / 'story').read_text().splitlines()) == 3 else {START_ANEW})"
    spec = child(tmp_path, "worker", anew, restart="on_failure", backoff_seconds=NEVER, ends_run=True)
    assert Supervisor([spec], tmp_path).run(Stop()).restarts == {"worker": 2}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR1])
def test_process_ended_by_a_signal_is_restarted_under_its_old_address(tmp_path: Path, number: signal.Signals) -> None:
    given: list[str | None] = []

    def argv(endpoints: Mapping[str, str]) -> Sequence[str]:
        given.append(endpoints.get("ps"))
        return [sys.executable, "-c", CHILD + SERVE, "ps", str(tmp_path)]

    spec = child(tmp_path, "ps", restart="on_failure", backoff_seconds=NEVER)
    with Supervisor([replace(spec, argv=argv)], tmp_path) as supervisor:
        poll_until(supervisor, supervisor.ready)
        kill(supervisor, "ps", number)
        poll_until(supervisor, lambda: supervisor.children["ps"].restarts == 1 and supervisor.ready())
    assert supervisor.children["ps"].failure == f"was ended by {number.name}"
    assert given == [None, "at-ps"]


def kill(supervisor: Supervisor, name: str, number: signal.Signals = signal.SIGKILL) -> int:
    """Sends a signal to a child."""
    pid = supervisor.children[name].pid
    assert pid is not None
    os.kill(pid, number)
    return pid


def test_what_a_failed_process_left_behind_is_ended_before_it_is_restarted(tmp_path: Path) -> None:
    starts = """
import subprocess
left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
write_whole(folder / f"left-{left.pid}", "-")
write_whole(folder / "broker.endpoint", "-")
stop.wait(600)
"""
    at = tmp_path / "broker.endpoint"
    with Supervisor(
        [child(tmp_path, "broker", starts, endpoint_file=at, restart="on_failure")], tmp_path
    ) as supervisor:
        poll_until(supervisor, supervisor.ready)
        (left,) = (int(path.name.partition("-")[2]) for path in tmp_path.glob("left-*"))
        assert is_running(left)
        kill(supervisor, "broker")
        poll_until(supervisor, lambda: supervisor.children["broker"].restarts == 1)
        wait_for(lambda: not is_running(left))
        supervisor.children["broker"].kill()


def test_address_is_kept_over_a_restart_that_failed(tmp_path: Path) -> None:
    fails_twice = "if len((folder / 'story').read_text().splitlines()) in (2, 3): sys.exit(7)\n"
    spec = child(tmp_path, "ps", fails_twice + SERVE, restart="on_failure", endpoint_file=tmp_path / "ps.endpoint")
    known: list[dict[str, str]] = []
    with Supervisor([spec], tmp_path) as supervisor:
        poll_until(supervisor, supervisor.ready)
        kill(supervisor, "ps")
        while supervisor.children["ps"].restarts < 3 or not supervisor.ready():
            supervisor.poll()
            known.append(supervisor.endpoints())
    assert all(endpoints == {"ps": "at-ps"} for endpoints in known)


def test_process_that_ended_by_itself_when_it_is_asked_to_is_finished(tmp_path: Path) -> None:
    with Supervisor([child(tmp_path, "worker", "sys.exit(7)"), child(tmp_path, "ps")], tmp_path) as supervisor:
        supervisor.poll()
        worker = supervisor.children["worker"]
        wait_for(lambda: not is_running(worker.pid or 0))
        supervisor.end("worker")
        supervisor.poll()
        assert (worker.state, worker.status) == ("finished", 7)


def test_restart_waits_until_what_it_needs_is_ready(tmp_path: Path) -> None:
    waits = "while len((folder / 'story').read_text().splitlines()) > 2 and not (folder / 'go').exists():\n"
    slow = f"{waits}    time.sleep(0.01)\n{SERVE}"
    specs = [
        child(tmp_path, "dispatcher", slow, restart="on_failure", endpoint_file=tmp_path / "dispatcher.endpoint"),
        child(tmp_path, "worker", restart="on_failure", needs=("dispatcher",)),
    ]
    with Supervisor(specs, tmp_path) as supervisor:
        poll_until(supervisor, supervisor.ready)
        dispatcher, worker = (supervisor.children[name] for name in ("dispatcher", "worker"))
        kill(supervisor, "dispatcher")
        poll_until(supervisor, lambda: dispatcher.state == "starting" and len(story(tmp_path)) == 3)
        kill(supervisor, "worker")
        poll_until(supervisor, lambda: not worker.running)
        for _ in range(20):
            supervisor.poll()
        assert (dispatcher.state, worker.state) == ("starting", "pausing")
        (tmp_path / "go").touch()
        poll_until(supervisor, supervisor.ready)
    assert [line for line in story(tmp_path) if "started" in line] == ["dispatcher started", "worker started"] * 2


ALIVE = 'from infra.base.process import show_life\nshow_life(folder / f"{name}.alive", 0.01)\n' + SERVE


def alive(folder: Path, name: str, **options: Any) -> ProcessSpec:
    """A child that shows signs of life."""
    files = {"endpoint_file": folder / f"{name}.endpoint", "alive_file": folder / f"{name}.alive"}
    return child(folder, name, ALIVE, **files, restart="on_failure", **options)


def test_process_that_was_stopped_is_killed_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that goes faster while the process is stopped: a busy one is not silent for a minute."""
    read, ahead = time.monotonic, [0.0]
    with Supervisor([alive(tmp_path, "ps", alive_seconds=60.0)], tmp_path) as supervisor:
        clock = SimpleNamespace(monotonic=lambda: read() + ahead[0], sleep=time.sleep)
        for module in ("infra.base.process", "infra.run.supervision.supervisor", "infra.run.supervision.child"):
            monkeypatch.setattr(f"{module}.time", clock)
        poll_until(supervisor, lambda: supervisor.ready() and (tmp_path / "ps.alive").exists())
        stopped = kill(supervisor, "ps", signal.SIGSTOP)
        wait_for(lambda: psutil.Process(stopped).status() == psutil.STATUS_STOPPED)
        while is_running(stopped):
            ahead[0] += 1.0
            supervisor.poll()
        poll_until(supervisor, lambda: supervisor.children["ps"].restarts == 1 and supervisor.ready())
    assert ahead[0] >= 59
    assert supervisor.children["ps"].failure == "gave no sign of life for 60 seconds and was killed"


def test_silence_is_not_counted_while_the_supervisor_was_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = child(tmp_path, "ps", restart="on_failure", alive_file=tmp_path / "alive")
    with Supervisor([silent], tmp_path) as supervisor, monkeypatch.context() as patched:
        poll_until(supervisor, supervisor.ready)
        now = [time.monotonic()]
        for module in ("infra.base.process", "infra.run.supervision.supervisor", "infra.run.supervision.child"):
            patched.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: now[0]))
        (tmp_path / "alive").touch()
        silences = list[tuple[float, int]]()
        for away in (0.0, 60.0, *[1.0] * 5, 0.1):
            now[0] += away
            supervisor.poll()
            silences.append((away, supervisor.children["ps"].restarts))
    assert [restarts for _, restarts in silences] == [0] * 7 + [1]


def test_stop_while_a_restart_is_awaited_ends_clean(tmp_path: Path) -> None:
    specs = [
        child(tmp_path, "ps"),
        child(tmp_path, "worker", "sys.exit(7)", restart="on_failure", backoff_seconds=NEVER),
    ]
    supervisor = Supervisor(specs, tmp_path)
    paused = supervisor.children["worker"]
    outcome = run_until(
        supervisor, lambda: paused.restarts == 1 and paused.state == "pausing" and "ps started" in story(tmp_path)
    )
    assert (outcome.reason, outcome.restarts, paused.state) == ("SIGTERM", {"worker": 1}, "stopped")


def test_process_that_fails_while_the_run_drains_is_restarted(tmp_path: Path) -> None:
    needs_two = "stop.wait(600)\nwhile (folder / 'story').read_text().count('worker started') < 2: time.sleep(0.01)\n"
    at = tmp_path / "dispatcher.endpoint"
    drains = f"write_whole(folder / 'dispatcher.endpoint', '-')\n{needs_two}note('drained')"
    specs = [
        child(tmp_path, "dispatcher", drains, endpoint_file=at, ends_run=True, stop_order=1),
        child(tmp_path, "worker", needs=("dispatcher",), restart="on_failure", stop_order=2),
    ]
    supervisor, stop, killed = Supervisor(specs, tmp_path), Stop(), list[int]()

    def each_pass() -> None:
        if stop.requested and not killed:
            killed.append(kill(supervisor, "worker"))
        if supervisor.ready():
            stop.request("SIGTERM")

    outcome = supervisor.run(stop, each_pass)
    assert (outcome.restarts, outcome.killed) == ({"worker": 1}, ())
    told = story(tmp_path)
    assert told.index("dispatcher drained") > len(told) - 3 > told.index("worker started")


def test_stop_while_nothing_can_drain_ends_soon_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.run.supervision.supervisor.FAILED_SECONDS", 0.1)
    again = {"restart": "on_failure", "backoff_seconds": NEVER}
    specs = [
        child(tmp_path, "dispatcher", "sys.exit(7)", **again, needs=("worker",), ends_run=True, stop_order=1),
        child(tmp_path, "worker", DEAF, endpoint_file=tmp_path / "deaf", stop_order=2, stop_seconds=NEVER),
    ]
    supervisor = Supervisor(specs, tmp_path)
    paused = supervisor.children["dispatcher"]
    with pytest.raises(ProcessFailed, match=r"^process 'dispatcher' ended with status 7, restarted 1 time"):
        run_until(supervisor, lambda: paused.restarts == 1 and paused.state == "pausing")
    assert supervisor.outcome("failed").killed == ("worker",)


def test_process_that_fails_once_the_run_is_over_is_neither_restarted_nor_a_failure(tmp_path: Path) -> None:
    specs = [
        child(tmp_path, "worker", "sys.exit(3)"),
        child(tmp_path, "ps", "sys.exit(3)", restart="on_failure"),
        child(tmp_path, "dispatcher", "pass", ends_run=True),
    ]
    with Supervisor(specs, tmp_path) as supervisor:
        assert supervisor.poll()
        wait_for(lambda: all(not is_running(child.pid or 0) for child in supervisor.children.values()))
        assert not supervisor.poll()
    assert sorted(story(tmp_path)) == ["dispatcher started", "ps started", "worker started"]


def test_drain_that_fails_once_the_run_is_over_is_no_failure(tmp_path: Path) -> None:
    bad_drain = "write_whole(folder / 'ready', '-')\nstop.wait(600)\nnote('fails')\nsys.exit(3)"
    specs = [
        child(tmp_path, "worker", bad_drain, endpoint_file=tmp_path / "ready"),
        child(tmp_path, "dispatcher", "pass", needs=("worker",), ends_run=True),
    ]
    assert Supervisor(specs, tmp_path).run(Stop()).reason == "finished"
    assert "worker fails" in story(tmp_path)


def test_process_that_is_added_runs_and_one_that_is_asked_to_end_is_not_restarted(tmp_path: Path) -> None:
    with Supervisor([child(tmp_path, "ps")], tmp_path) as supervisor:
        supervisor.add(child(tmp_path, "worker", needs=("ps",), restart="on_failure"))
        poll_until(supervisor, supervisor.ready)
        with pytest.raises(ConfigError, match="process 'worker' is there already"):
            supervisor.add(child(tmp_path, "worker"))
        supervisor.end("worker")
        poll_until(supervisor, lambda: supervisor.children["worker"].state == "finished")
        assert story(tmp_path) == ["ps started", "worker started", "worker drained"]
        supervisor.add(child(tmp_path, "worker"))
        poll_until(supervisor, lambda: supervisor.children["worker"].state == "ready")


def test_process_that_does_not_end_when_asked_is_killed_and_finished(tmp_path: Path) -> None:
    spec = child(tmp_path, "worker", DEAF, endpoint_file=tmp_path / "deaf", stop_seconds=0.1, restart="on_failure")
    with Supervisor([spec, child(tmp_path, "ps")], tmp_path) as supervisor:
        poll_until(supervisor, supervisor.ready)
        supervisor.end("worker")
        poll_until(supervisor, lambda: supervisor.children["worker"].state == "finished")
        assert supervisor.children["worker"].status == -signal.SIGKILL
        with pytest.raises(ConfigError, match="no process 'stranger'; expected one of worker, ps"):
            supervisor.end("stranger")


def test_nothing_is_added_while_the_run_stops(tmp_path: Path) -> None:
    supervisor = Supervisor([child(tmp_path, "ps")], tmp_path)
    run_until(supervisor, supervisor.ready)
    with pytest.raises(ConfigError, match="the run is stopping"):
        supervisor.add(child(tmp_path, "worker"))


def test_a_process_that_gave_up_is_quoted_and_never_the_one_before_it(tmp_path: Path) -> None:
    once = "len((folder / 'story').read_text().splitlines()) == 1"
    broken = f"sys.exit('freshet: the disk is full' if {once} else 7)"
    supervisor = Supervisor([child(tmp_path, "ps", broken, restart="on_failure", max_restarts=1)], tmp_path)
    failures = list[str]()
    with pytest.raises(ProcessFailed, match="ended with status 7"):
        supervisor.run(Stop(), lambda: failures.append(supervisor.children["ps"].failure))
    assert list(filter(None, dict.fromkeys(failures))) == ["ended with status 1: the disk is full"]
    assert supervisor.children["ps"].failure == "ended with status 7"


def test_essential_process_that_fails_for_good_stops_everything_and_is_named(tmp_path: Path) -> None:
    broken = "print('the disk is full', flush=True); sys.exit(3)"
    specs = [
        child(tmp_path, "ps"),
        child(tmp_path, "worker", broken, needs=("ps",), restart="on_failure", max_restarts=1),
    ]
    with pytest.raises(ProcessFailed, match=r"'worker' ended with status 3, restarted 1 time(.|\n)*the disk is full"):
        Supervisor(specs, tmp_path).run(Stop())
    assert story(tmp_path) == ["ps started", "worker started", "worker started", "ps drained"]


def test_process_ended_by_a_signal_says_which(tmp_path: Path) -> None:
    spec = child(tmp_path, "ps", "os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(ProcessFailed, match="'ps' was ended by SIGKILL"):
        Supervisor([spec], tmp_path).run(Stop())


def test_failure_of_an_optional_process_changes_nothing(tmp_path: Path) -> None:
    specs = [child(tmp_path, "api", "sys.exit(1)", essential=False), child(tmp_path, "ps")]
    with Supervisor(specs, tmp_path) as supervisor:
        poll_until(supervisor, lambda: supervisor.children["api"].state == "failed")
        assert supervisor.poll()


def test_process_whose_need_failed_cannot_start(tmp_path: Path) -> None:
    specs = [child(tmp_path, "api", "sys.exit(1)", essential=False), child(tmp_path, "board", needs=("api",))]
    specs[0] = child(tmp_path, "api", "sys.exit(1)", essential=False, endpoint_file=tmp_path / "never")
    with pytest.raises(ProcessFailed, match="'board' could not be started, as it needs 'api'"):
        Supervisor(specs, tmp_path).run(Stop())


def test_process_that_is_never_ready_is_a_failure(tmp_path: Path) -> None:
    spec = child(tmp_path, "ps", "stop.wait(600)", endpoint_file=tmp_path / "never", ready_seconds=0.05)
    with pytest.raises(ProcessFailed, match=r"'ps' was not ready within 0\.05 seconds"):
        Supervisor([spec], tmp_path).run(Stop())


def test_process_that_does_not_stop_is_killed_with_its_children_and_reported(tmp_path: Path) -> None:
    deaf = """
import subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
write_whole(folder / "ready", str(grandchild.pid))
time.sleep(600)
"""
    supervisor = Supervisor(
        [child(tmp_path, "worker", deaf, endpoint_file=tmp_path / "ready", stop_seconds=0.1)], tmp_path
    )
    with pytest.raises(ProcessFailed, match=r"'worker' did not stop within 0\.1 seconds and was killed"):
        run_until(supervisor, supervisor.ready)
    wait_for(lambda: not is_running(int((tmp_path / "ready").read_text())))


def test_optional_process_that_had_to_be_killed_is_reported_and_no_failure(tmp_path: Path) -> None:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwrite_whole(folder / 'ready', '-')\ntime.sleep(600)"
    spec = child(tmp_path, "api", deaf, endpoint_file=tmp_path / "ready", stop_seconds=0.1, essential=False)
    supervisor = Supervisor([spec], tmp_path)
    assert run_until(supervisor, supervisor.ready).killed == ("api",)


def is_running(pid: int) -> bool:
    """A zombie that its new parent has not collected yet does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_drain_that_fails_is_not_passed_over(tmp_path: Path) -> None:
    bad_drain = "write_whole(folder / 'ready', '-')\nstop.wait(600)\nsys.exit('rows were lost')"
    supervisor = Supervisor([child(tmp_path, "worker", bad_drain, endpoint_file=tmp_path / "ready")], tmp_path)
    with pytest.raises(ProcessFailed, match=r"'worker' ended with status 1(.|\n)*rows were lost"):
        run_until(supervisor, supervisor.ready)


DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwrite_whole(folder / 'deaf', '-')\ntime.sleep(600)"


def test_once_a_process_has_failed_the_others_may_not_drain_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("infra.run.supervision.supervisor.FAILED_SECONDS", 0.1)
    specs = [
        child(tmp_path, "ps", DEAF, endpoint_file=tmp_path / "deaf", stop_seconds=3600),
        child(tmp_path, "worker", "sys.exit(3)", needs=("ps",)),
    ]
    supervisor = Supervisor(specs, tmp_path)
    with pytest.raises(ProcessFailed, match="'worker' ended with status 3"):
        supervisor.run(Stop())
    assert supervisor.outcome("failed").killed == ("ps",)


def test_what_failed_first_is_told_and_not_what_failed_while_stopping(tmp_path: Path) -> None:
    bad_drain = "write_whole(folder / 'ready', '-')\nstop.wait(600)\nsys.exit('rows were lost')"
    specs = [
        child(tmp_path, "ps", bad_drain, endpoint_file=tmp_path / "ready"),
        child(tmp_path, "worker", "sys.exit(3)", needs=("ps",)),
    ]
    with pytest.raises(ProcessFailed, match="'worker' ended with status 3"):
        Supervisor(specs, tmp_path).run(Stop())


def test_child_ended_by_the_signal_itself_has_stopped_clean(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    supervisor = Supervisor([ProcessSpec("worker", argv)], tmp_path)
    assert run_until(supervisor, supervisor.ready).killed == ()


def test_display_is_refreshed_while_children_drain(tmp_path: Path) -> None:
    supervisor, stop, passes = Supervisor([child(tmp_path, "ps")], tmp_path), Stop(), list[bool]()

    def each_pass() -> None:
        passes.append(stop.requested)
        if supervisor.ready():
            stop.request("SIGTERM")

    supervisor.run(stop, each_pass)
    assert passes[0] is False
    assert passes[-1] is True


def test_error_in_the_caller_leaves_no_child_behind(tmp_path: Path) -> None:
    pids: list[int | None] = []

    def explode() -> None:
        if supervisor.ready():
            pids.append(supervisor.children["ps"].pid)
            raise RuntimeError("the display broke")

    supervisor = Supervisor([child(tmp_path, "ps")], tmp_path)
    with pytest.raises(RuntimeError, match="the display broke"):
        supervisor.run(Stop(), explode)
    assert pids[0] is not None
    assert not is_running(pids[0])
    assert story(tmp_path)[-1] == "ps drained"


SUPERVISOR = """
import sys
from pathlib import Path
from infra.base.process import stop_on_signals
stop = stop_on_signals()
from infra.run.supervision.child import ProcessSpec
from infra.run.supervision.supervisor import Supervisor
from infra.base.telemetry import configure_logging
folder, code = Path(sys.argv[1]), sys.argv[2]
configure_logging("up", "test", path=folder / "log")
def spec(name, order, *needs):
    argv = [sys.executable, "-c", code, name, str(folder)]
    return ProcessSpec(name, argv, stop_order=order, needs=needs, endpoint_file=folder / f"{name}.endpoint")
print("up", flush=True)
outcome = Supervisor([spec("ps", 2), spec("worker", 1, "ps")], folder).run(stop)
print(outcome.reason, outcome.killed, flush=True)
"""


def run_supervisor(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(folder), CHILD + SERVE],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        start_new_session=True,
    )


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.002)


@pytest.mark.parametrize("moment", ["logs/ps.log", "story", "ps.endpoint", "logs/worker.log", "worker.endpoint"])
def test_sigterm_at_any_moment_of_starting_ends_clean(tmp_path: Path, moment: str) -> None:
    with run_supervisor(tmp_path) as parent:
        wait_for((tmp_path / moment).exists)
        parent.terminate()
        assert parent.stdout is not None
        assert parent.stdout.read() == "up\nSIGTERM ()\n"
    assert parent.returncode == 0
    drained = {line.split()[0] for line in story(tmp_path) if line.endswith("drained")}
    assert drained == {line.split()[0] for line in story(tmp_path) if line.endswith("started")}


def test_ctrl_c_reaches_the_supervisor_alone(tmp_path: Path) -> None:
    with run_supervisor(tmp_path) as parent:
        wait_for((tmp_path / "worker.endpoint").exists)
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.stdout is not None
        assert parent.stdout.read() == "up\nSIGINT ()\n"
    assert story(tmp_path)[-2:] == ["worker drained", "ps drained"]


def test_killed_supervisor_leaves_no_orphans(tmp_path: Path) -> None:
    with run_supervisor(tmp_path) as parent:
        wait_for((tmp_path / "worker.endpoint").exists)
        children = psutil.Process(parent.pid).children()
        parent.kill()
    gone, alive = psutil.wait_procs(children, timeout=30)
    assert (len(gone), alive) == (2, [])


def test_stop_before_the_start_starts_nothing(tmp_path: Path) -> None:
    stop = Stop()
    stop.request("SIGTERM")
    assert Supervisor([child(tmp_path, "ps")], tmp_path).run(stop).reason == "SIGTERM"
    assert story(tmp_path) == []


def test_stale_endpoint_of_an_earlier_run_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "ps.endpoint").write_text("stale")
    with Supervisor([child(tmp_path, "ps")], tmp_path) as supervisor:
        poll_until(supervisor, supervisor.ready)
        assert supervisor.endpoints() == {"ps": "at-ps"}


def test_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailed, match=r"'ps' cannot be started.*no-such-program"):
        Supervisor([ProcessSpec("ps", ["no-such-program"])], tmp_path).run(Stop())


@pytest.mark.parametrize(
    ("needs", "message"),
    [({"a": (), "b": ("x",)}, r"need \['x'\]"), ({"a": ("b",), "b": ("a",)}, "cycle"), ({"a": ("a",)}, "cycle")],
)
def test_impossible_needs_are_refused_before_anything_starts(
    tmp_path: Path, needs: dict[str, tuple[str, ...]], message: str
) -> None:
    specs = [child(tmp_path, name, needs=wanted) for name, wanted in needs.items()]
    with pytest.raises(ConfigError, match=message):
        Supervisor(specs, tmp_path)
    with pytest.raises(ConfigError, match="share a name"):
        Supervisor([child(tmp_path, "a"), child(tmp_path, "a")], tmp_path)


def test_last_lines_of_a_long_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f"line {i}\n" for i in range(100_000)))
    assert last_lines(path, 2) == ["line 99998", "line 99999"]
    assert last_lines(tmp_path / "none", 2) == []
    path.write_text(f"{'x' * 1100}\nthe reason\n")
    assert last_lines(path, 2) == [f"{'x' * 1000}…", "the reason"]


def test_a_log_that_cannot_be_opened_is_warned_of_and_does_not_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs" / "a.log").mkdir(parents=True)
    supervisor = Supervisor([child(tmp_path, "a", "print('lost')", ends_run=True)], tmp_path)
    assert supervisor.run(Stop()).reason == "finished"
    assert story(tmp_path) == ["a started"]
    assert f"the log {tmp_path}/logs/a.log is incomplete, and the run continues" in capsys.readouterr().err
