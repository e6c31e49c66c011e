"""Processes that are forked with their modules loaded are the same as executed ones."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from infra.run.supervision.nursery import as_started
from tests.end_to_end.processes import (
    ROOT,
    WAIT_SECONDS,
    children_of,
    environment,
    freshet,
    named,
    start,
    wait_until,
)
from tests.preloaded import SCRIPT, commands_for_shells, executing


def run(*arguments: str, **more: str) -> "subprocess.CompletedProcess[str]":
    env = environment() | more
    return subprocess.run(freshet(*arguments), cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)


def waiting(**more: str) -> "subprocess.Popen[str]":
    """A command that waits for its input."""
    command = freshet("produce", "-", "--dataset", "jsonl")
    env = environment() | more
    return subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def in_shell(folder: Path, script: str, **more: str) -> "subprocess.Popen[str]":
    """A shell that finds the command in a folder."""
    env = {**environment(), "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", **more}
    command = ["bash", "-ec", script]
    return subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("arguments", [("--version",), ("settings",), ("no-such-command",), ("status", "--nonsense")])
def test_a_command_says_and_returns_what_one_that_is_executed_does(arguments: tuple[str, ...]) -> None:
    forked = run(*arguments)
    with executing():
        executed = run(*arguments)
    assert (forked.returncode, forked.stdout, forked.stderr) == (executed.returncode, executed.stdout, executed.stderr)


def test_a_forked_command_finds_modules_where_one_that_is_executed_does(tmp_path: Path) -> None:
    (tmp_path / "own_tower.py").write_text("class Tower: ...\n")
    arguments = ("dispatcher", "--set", f"folder={tmp_path}/run", "--set", "model.name=own_tower:Tower")
    missing = run(*arguments)
    found = run(*arguments, PYTHONPATH=f"{ROOT}{os.pathsep}{tmp_path}")
    assert "there is no module 'own_tower'" in missing.stdout + missing.stderr
    assert "expected a class derived from torch.nn.Module" in found.stdout + found.stderr


def test_a_forked_process_is_a_child_of_whoever_started_it_and_has_its_own_name(tmp_path: Path) -> None:
    with waiting(FRESHET_STREAM__FOLDER=str(tmp_path)) as process:
        there = psutil.Process(process.pid)
        assert there.ppid() == os.getpid()
        assert as_started(there.cmdline())[:2] == ["freshet", "produce"]
        process.kill()
    assert process.returncode == -9


def test_the_installed_command_is_forked_too(tmp_path: Path) -> None:
    env = {**environment(), "PATH": str(SCRIPT.parent), "FRESHET_STREAM__FOLDER": str(tmp_path)}
    command = ["freshet", "produce", "-", "--dataset", "jsonl"]
    with subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        assert psutil.Process(process.pid).cmdline()[0].startswith("freshet produce")
        process.kill()


def test_a_command_of_a_shell_says_and_returns_what_one_that_is_executed_does(tmp_path: Path) -> None:
    with commands_for_shells(tmp_path) as folder:
        script = "freshet status --nonsense 2>&1 || echo $?; echo $(freshet --version)"
        with in_shell(folder, script) as forked, in_shell(SCRIPT.parent, script) as executed:
            assert forked.communicate() == executed.communicate()
    assert [*(tmp_path / "guardians").iterdir()] != []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_a_command_of_a_shell_are_passed_on(tmp_path: Path, number: int) -> None:
    script = "exec freshet produce - --dataset jsonl"
    with (
        commands_for_shells(tmp_path) as folder,
        in_shell(folder, script, FRESHET_STREAM__FOLDER=str(tmp_path / "log")) as process,
    ):
        wait_until(lambda: (tmp_path / "log").exists(), process)  # it handles signals from its first moment on
        process.send_signal(number)
        assert process.wait(WAIT_SECONDS) == 0  # as a command that drains


def test_a_command_of_a_shell_that_is_killed_ends_it_in_the_same_way(tmp_path: Path) -> None:
    with (
        commands_for_shells(tmp_path) as folder,
        in_shell(folder, "freshet produce - --dataset jsonl; :", FRESHET_STREAM__FOLDER=str(tmp_path / "log")) as shell,
    ):
        wait_until(lambda: (tmp_path / "log").exists(), shell)
        (guardian,) = (psutil.Process(int(file.name)) for file in (tmp_path / "guardians").iterdir())
        (command,) = guardian.children()
        command.kill()
        assert shell.wait(WAIT_SECONDS) == 128 + signal.SIGKILL


def test_where_modules_would_be_loaded_otherwise_a_command_of_a_shell_is_executed(tmp_path: Path) -> None:
    with (
        commands_for_shells(tmp_path) as folder,
        in_shell(folder, "freshet --version", NUMBA_DEBUG_CACHE="0") as shell,
    ):
        assert shell.communicate()[0].startswith("freshet ")
    assert [*(tmp_path / "guardians").iterdir()] == []


def test_where_modules_would_be_loaded_otherwise_a_command_is_executed(tmp_path: Path) -> None:
    with waiting(FRESHET_STREAM__FOLDER=str(tmp_path), NUMBA_DEBUG_CACHE="0") as process:
        wait_until(lambda: psutil.Process(process.pid).cmdline()[:1] == [sys.executable])
        process.kill()


def test_the_nursery_of_a_forked_run_is_forked_a_child_of_it_and_ends_with_it(tmp_path: Path) -> None:
    settings = ("dispatch.workers=1", "ps.shards=1", "dispatch.links_gbit=")
    given = [part for setting in settings for part in ("--set", setting)]
    process = start("up", "--run", tmp_path / "run", "--no-api", *given)
    try:
        wait_until(lambda: named(tmp_path / "run", ["nursery"]) != [], process)
        # a process that the nursery forks has its name for a moment, but is not a child of the run
        (nursery,) = [one for one in named(tmp_path / "run", ["nursery"]) if one.ppid() == process.pid]
        assert as_started(nursery.cmdline())[:2] == ["freshet", "nursery"]
    finally:
        process.kill()
        process.communicate(timeout=WAIT_SECONDS)
    wait_until(lambda: children_of(tmp_path / "run") == [])
