"""Real signals to real processes."""

import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from infra.base.errors import NameTaken
from infra.base.files import writing_whole
from infra.base.process import (
    CLAIM_GAP_SECONDS,
    CLAIM_SECONDS,
    FREE_MEMORY,
    NameClaim,
    ProcessPlace,
    SignsOfLife,
    Stop,
    own_place,
    write_whole,
)
from ps.fingerprints import fingerprint


def run_python(code: str, stderr: int | None = None, **env: str) -> "subprocess.Popen[str]":
    env = {**os.environ, "PYTHONPATH": ".", **env}
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=stderr, text=True, env=env)


def test_two_requests_the_first_reason_counts() -> None:
    stop = Stop()
    assert not stop.wait(0)
    stop.request("SIGTERM")
    stop.request("SIGINT")
    assert stop.requested
    assert stop.reason == "SIGTERM"


def test_request_wakes_every_waiter() -> None:
    stop, woken = Stop(), []
    threads = [threading.Thread(target=lambda: woken.append(stop.wait(600))) for _ in range(3)]
    for thread in threads:
        thread.start()
    stop.request("done")
    for thread in threads:
        thread.join(30)
    assert woken == [True, True, True]


HEED_SIGHUP = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)"
"""whoever runs the tests may ignore it, as nohup does"""
DRAIN = """
from infra.base.process import stop_on_signals
stop = stop_on_signals()
print("ready", flush=True)
while not stop.wait(600):
    pass
print("drained after", stop.reason)
"""


INTERRUPT = """
import signal, time
from infra.base.process import interrupt_on_signals
interrupt_on_signals()
try:
    print("ready", flush=True)
    time.sleep(600)
finally:
    signal.raise_signal(signal.SIGTERM)
    print("all ended", flush=True)
"""


def test_the_first_signal_interrupts_and_the_next_does_not_disturb_the_end() -> None:
    with run_python(INTERRUPT, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.terminate()
        assert child.stdout.read() == "all ended\n"
        assert child.wait(30) == -signal.SIGINT


def test_signal_ends_the_loop_which_then_drains_and_exits_0() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        with run_python(HEED_SIGHUP + DRAIN) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            child.send_signal(number)
            assert child.stdout.read() == f"drained after {number.name}\n"
        assert child.returncode == 0


def test_nohup_is_respected() -> None:
    command = ["nohup", sys.executable, "-c", DRAIN]
    env = {**os.environ, "PYTHONPATH": "."}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        for number in (signal.SIGHUP, signal.SIGTERM):  # a process handles the lower number first
            child.send_signal(number)
        assert child.stdout.read() == "drained after SIGTERM\n"


def test_signal_at_any_point_of_wait_is_noticed() -> None:
    """Hangs if wait and handler share a lock that is not re-entrant, or if a signal just before a wait is missed."""
    code = """
import signal
from infra.base.process import Stop
signal.signal(signal.SIGALRM, lambda *_: current.request("alarm"))
for turn in range(3000):
    current = Stop()
    signal.setitimer(signal.ITIMER_REAL, 0.000002 + 0.00000001 * turn)
    assert current.wait(3600)
print("done")
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env={**os.environ, "PYTHONPATH": "."})
    assert done.stdout == "done\n"


END = """
import atexit, sys, threading, time, weakref
from infra.base.process import end_process
class Module:
    def __del__(self):
        print("taken down")
kept = Module()
def free_memory():
    print("freed")
free_memory.__module__ = "torch.library"
weakref.finalize(kept, free_memory)
weakref.finalize(kept, print, "finalizer")
atexit.register(lambda: print("exit function"))
print("command")
threading.Thread(target=lambda: (time.sleep(0.05), print("thread"))).start()
end_process(7)
"""


def test_a_process_ends_with_its_threads_exit_functions_and_output_and_takes_nothing_down() -> None:
    with run_python(END) as child:
        assert child.stdout is not None
        assert child.stdout.read().split("\n") == ["command", "thread", "exit function", "finalizer", ""]
    assert child.returncode == 7


def test_the_finalizers_that_are_left_out_are_those_of_kernels_and_operators() -> None:
    assert (torch.__name__, fingerprint.__name__) == ("torch", "fingerprint")  # both are loaded
    finalizers = weakref.finalize._registry.values()  # type: ignore[attr-defined]
    assert set(FREE_MEMORY) <= {each.func.__module__ for each in finalizers if each.atexit}


def test_a_process_whose_output_nobody_reads_ends_as_python_does() -> None:
    read, write = os.pipe()
    os.close(read)
    code = "print('lost'); from infra.base.process import end_process; end_process(0)"
    env = {**os.environ, "PYTHONPATH": ".", "PYTHONUNBUFFERED": ""}
    ended = subprocess.run([sys.executable, "-c", code], stdout=write, stderr=subprocess.PIPE, env=env, timeout=100)
    os.close(write)
    assert (ended.returncode, b"BrokenPipeError" in ended.stderr) == (120, True)


def test_supervisor_killed_child_gets_sigterm(tmp_path: Path) -> None:
    inner = """
from infra.base.process import end_with_parent, stop_on_signals
stop = stop_on_signals()
end_with_parent()
print("ready", flush=True)
stop.wait(600)
print(stop.reason, flush=True)
"""
    outer = f"""
import os, subprocess, sys
os.environ["FRESHET_SUPERVISED"] = str(os.getpid())
subprocess.Popen([sys.executable, "-c", {inner!r}], start_new_session=True).wait()
"""
    with run_python(outer) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        assert parent.stdout.read() == "", "the pipe closes when the child, too, is gone"


def test_supervisor_gone_before_the_child_asks_ends_the_child() -> None:
    code = "from infra.base.process import end_with_parent; end_with_parent(); print('still here')"
    with run_python(code, FRESHET_SUPERVISED="1") as child:
        assert child.communicate()[0] == ""
    assert child.returncode == -signal.SIGKILL


def test_unsupervised_process_is_left_alone() -> None:
    os.environ.pop("FRESHET_SUPERVISED", None)
    code = "from infra.base.process import end_with_parent; end_with_parent(); print('still here')"
    with run_python(code) as child:
        assert child.communicate()[0] == "still here\n"


def test_write_whole_replaces_the_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "endpoint"
    write_whole(path, "tcp://127.0.0.1:1")
    write_whole(path, "tcp://127.0.0.1:2")
    assert path.read_text() == "tcp://127.0.0.1:2"
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o077


def test_write_whole_makes_a_private_file_from_the_start(tmp_path: Path) -> None:
    with writing_whole(tmp_path / "database", is_private=True) as temporary:
        assert temporary.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "database").stat().st_mode & 0o777 == 0o600


WRITES = """
import os, signal
from pathlib import Path
from infra.base.files import writing_whole
with writing_whole(Path(os.environ["WRITTEN"])) as temporary:
    temporary.write_text("half")
    print(temporary, flush=True)
    signal.sigwait({signal.SIGUSR1})
    temporary.write_text("whole")
"""


def test_what_a_killed_writer_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    path, others = tmp_path / "serve.database", tmp_path / ".serve.database.old"
    others.write_text("of somebody else")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # which both inherit
    with run_python(WRITES, WRITTEN=str(path)) as killed, run_python(WRITES, WRITTEN=str(path)) as slow:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        assert killed.stdout is not None
        assert slow.stdout is not None
        left, still_written = (Path(said.readline().strip()) for said in (killed.stdout, slow.stdout))
        killed.kill()
        killed.wait()
        assert left.exists()
        write_whole(path, "the next")
        assert sorted(tmp_path.iterdir()) == sorted([path, others, still_written])
        slow.send_signal(signal.SIGUSR1)
        assert slow.wait() == 0
    assert path.read_text() == "whole"
    assert sorted(tmp_path.iterdir()) == sorted([path, others])


def test_a_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "endpoint"
    write_whole(path, "before")
    with pytest.raises(TypeError), writing_whole(path) as temporary:
        temporary.write_text(3)  # type: ignore[arg-type]
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


LIVE = """
import sys, time
from pathlib import Path
from infra.base.process import show_life
show_life(Path(sys.argv[1]), every_seconds=0.01)
time.sleep(600)
"""


def test_a_process_that_runs_touches_its_file_again_and_again(tmp_path: Path) -> None:
    path, seen, deadline = tmp_path / "endpoints" / "ps.alive", set[int](), time.monotonic() + 100
    process = subprocess.Popen([sys.executable, "-c", LIVE, path], env={**os.environ, "PYTHONPATH": "."})
    try:
        while len(seen) < 3:
            assert time.monotonic() < deadline, "the file was not touched"
            with suppress(FileNotFoundError):
                seen.add(path.stat().st_mtime_ns)
    finally:
        process.kill()
        process.wait()


def test_silence_is_counted_from_the_last_touch_on_whatever_the_time_of_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, now = tmp_path / "alive", [100.0]
    monkeypatch.setattr("infra.base.process.time", SimpleNamespace(monotonic=lambda: now[0]))
    signs, silences = SignsOfLife(path), list[float]()
    for touched, seconds in ((None, 7.0), (1_000, 0.0), (1_000, 3.0), (500, 4.0), (500, 2.0)):
        now[0] += seconds
        if touched is not None:
            path.touch()
            os.utime(path, (touched, touched))
        silences.append(signs.silent_seconds())
    assert silences == [0.0, 0.0, 3.0, 0.0, 2.0]
    signs.excuse()
    assert signs.silent_seconds() == 0.0
    signs.forget()
    assert not path.exists()


class Refusing:
    """A dispatcher that refuses a claim now and then, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
        self.now, self.claim = 1000.0, NameClaim(waits)
        monkeypatch.setattr("infra.base.process.time", SimpleNamespace(monotonic=lambda: self.now))

    def refuse(self, *after_seconds: float) -> None:
        for seconds in after_seconds:
            self.now += seconds
            self.claim.refuse("shard 0 is taken")


def test_a_process_gives_up_when_the_other_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = Refusing(monkeypatch, waits=False)
    refusing.refuse(0.0, CLAIM_SECONDS / 2, CLAIM_SECONDS / 2)
    with pytest.raises(NameTaken, match="shard 0 is taken"):
        refusing.refuse(1.0)


def test_refusals_long_apart_are_not_of_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    Refusing(monkeypatch, waits=False).refuse(0.0, CLAIM_GAP_SECONDS + 1, CLAIM_GAP_SECONDS + 1, CLAIM_GAP_SECONDS + 1)


def test_a_supervised_process_waits_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    Refusing(monkeypatch, waits=True).refuse(*[CLAIM_GAP_SECONDS / 2] * 100)


def test_a_process_knows_its_machine_and_how_its_number_is_counted(tmp_path: Path) -> None:
    boot, namespace = tmp_path / "boot_id", tmp_path / "pid"
    boot.write_text("1234\n")
    namespace.symlink_to("pid:[7]")
    assert own_place(boot, namespace) == ProcessPlace("1234", "pid:[7]", os.getpid())
    assert own_place(tmp_path / "none", namespace) == ProcessPlace("", "", os.getpid())
