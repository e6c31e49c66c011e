"""Signals at the first moments of a command, sent at an exact point: by the command itself."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from infra.cli.entry import drains
from tests.end_to_end.processes import ROOT, environment

SIGNAL_AT_IMPORT = """
import os, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal; a shell's background jobs ignore it
class Sender:
    def find_spec(self, name, *_):
        if name == "typer":
            sys.meta_path.remove(self)
            print("sent", flush=True)
            os.kill(os.getpid(), int(number))
number, *arguments = sys.argv[1:]
sys.meta_path.insert(0, Sender())
sys.argv = ["freshet", *arguments]
runpy.run_module("infra.cli.entry", run_name="__main__")
"""


SIGNAL_ONCE_CAUGHT = """
import os, runpy, signal, sys
catch = signal.signal
def catch_and_send(caught, handler):
    before = catch(caught, handler)
    if caught == int(number) and callable(handler):
        signal.signal = catch
        print("sent", flush=True)
        os.kill(os.getpid(), caught)
    return before
number, *arguments = sys.argv[1:]
signal.signal = catch_and_send
sys.argv = ["freshet", *arguments]
runpy.run_module("infra.cli.entry", run_name="__main__")
"""
ENDPOINTS = "--endpoint tcp://127.0.0.1:* --dispatcher tcp://127.0.0.1:1"


def signalled(
    number: signal.Signals, *arguments: str, program: str = SIGNAL_AT_IMPORT
) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", program, str(int(number)), *arguments]
    ended = subprocess.run(argv, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=100)
    assert ended.stdout.startswith("sent\n")
    assert "Traceback" not in ended.stderr
    return ended


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("demo", signal.SIGTERM),
        ("demo", signal.SIGINT),
        *((command, signal.SIGTERM) for command in ("up", "produce", f"ps --shard 0 {ENDPOINTS}", "api")),
    ],
)
def test_signal_while_importing_stops_a_command_that_drains(
    tmp_path: Path, command: str, number: signal.Signals
) -> None:
    folders = ("--set", f"folder={tmp_path / 'run'}", "--set", f"stream.folder={tmp_path / 'log'}")
    ended = signalled(number, *command.split(), *folders, "--set", "api.port=0")
    assert ended.returncode == 0, ended.stderr


def test_ctrl_c_while_importing_another_command_is_one_line() -> None:
    ended = signalled(signal.SIGINT, "settings")
    assert (ended.returncode, ended.stderr) == (130, "freshet: interrupted\n")


def test_sigterm_interrupts_a_benchmark_which_then_ends_what_it_has_started() -> None:
    ended = signalled(signal.SIGTERM, "bench", "freshness")
    assert (ended.returncode, ended.stderr) == (130, "freshet: interrupted\n")


def test_sigterm_as_soon_as_it_is_caught_ends_a_demo_with_0(tmp_path: Path) -> None:
    ended = signalled(signal.SIGTERM, "demo", "--run", str(tmp_path / "run"), program=SIGNAL_ONCE_CAUGHT)
    assert ended.returncode == 0, ended.stderr
    assert list(tmp_path.glob("run/logs/*")) == []


def test_commands_that_drain_are_told_by_their_first_words() -> None:
    assert drains(["demo", "--samples", "3"])
    assert drains(["bench", "quality"])
    assert drains(["bench", "train", "--steps", "9"])
    assert not drains(["bench", "step"])
    assert not drains(["settings", "--set", "demo"])


def test_signals_are_turned_into_one_request_however_often_it_is_asked() -> None:
    code = "from infra.base.process import stop_on_signals; assert stop_on_signals() is stop_on_signals()"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode == 0
