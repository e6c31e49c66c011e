"""The commands that change a run under way, against real processes; then the run goes on with other numbers."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dispatch.control.client import command
from dispatch.control.protocol import Accepted, Members, Verb
from dispatch.journal.history import History, read_history
from dispatch.journal.log import read_records
from dispatch.journal.records import Commanded, Stopped
from tests.end_to_end.processes import children_of, named, run, start, wait_until

SAMPLES = 5_000
SETTINGS = (
    "stream.batch=32",
    "dispatch.workers=2",
    "ps.shards=1",
    "api.port=0",
    "rows.dim=4",
    "run=told",
    "cuts.kept=50",
)


class ToldRun:
    """A run in real processes."""

    def __init__(self, folder: Path, process: "subprocess.Popen[str]") -> None:
        self.folder, self.process = folder, process

    def history(self) -> History:
        return read_history(self.folder / "journal")

    def stopped(self) -> Stopped:
        found = self.history().stopped
        assert found is not None
        return found

    def wait_for_steps(self, more: int) -> None:
        until = self.history().step + more
        wait_until(lambda: self.history().step >= until, self.process)

    def ask(self, verb: Verb) -> Accepted | Members:
        """The same without a process of its own."""
        return command((self.folder / "endpoints" / "dispatcher").read_text().split()[2], "told", verb)

    def members(self) -> list[str]:
        """Names of the workers that train."""
        answer = self.ask("list")
        assert isinstance(answer, Members)
        return sorted(member.name for member in answer.members if member.state == "training")

    def wait_for_members(self, *names: str) -> None:
        wait_until(lambda: self.members() == list(names), self.process)

    def told(self, *arguments: str, status: int = 0) -> str:
        """What a command says."""
        done = run(*arguments, "--folder", self.folder)
        assert done.returncode == status, done.stdout + done.stderr
        return " ".join((done.stdout + done.stderr).split())


@contextmanager
def told_run(folder: Path, arguments: list[str | Path]) -> Iterator[ToldRun]:
    process = start(*arguments)
    try:
        yield ToldRun(folder, process)
    finally:
        process.kill()
        process.communicate()


def given(*settings: str) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def commands_of(folder: Path) -> list[tuple[str, str]]:
    return [(r.verb, r.worker) for r in read_records(folder / "journal") if isinstance(r, Commanded)]


def change_members(told: ToldRun) -> None:
    """2 → 3 → 2 → 1 workers, of a run that is paused."""
    at = told.history().step
    assert told.told("workers", "add") == "worker worker-2 is being started"
    told.wait_for_members("worker-0", "worker-1", "worker-2")
    listed = told.told("workers", "list")
    assert "worker-2 training 2" in listed
    assert "ps-0 ready" in listed
    assert told.told("workers", "drain", "--name", "worker-0") == f"worker worker-0 leaves after step {at}"
    told.wait_for_members("worker-1", "worker-2")
    refused = told.told("workers", "drain", "--name", "worker-7", status=1)
    assert "there is no worker 'worker-7'; expected one of worker-1, worker-2" in refused
    removed = told.told("workers", "remove", "--name", "worker-1")
    assert removed == "worker worker-1 is removed; the others go back to the last cut"
    told.wait_for_members("worker-2")
    refused = told.told("workers", "remove", "--name", "worker-2", status=1)
    assert "worker 'worker-2' is the last one; expected another that stays; add one first" in refused
    wait_until(lambda: named(told.folder, ["worker-0", "worker-1"]) == [], told.process)
    assert told.history().step == at


@pytest.mark.timeout(400)
def test_a_run_takes_commands_is_stopped_and_goes_on_with_other_numbers(tmp_path: Path) -> None:
    log, folder = given(f"stream.folder={tmp_path / 'log'}"), tmp_path / "run"
    assert run("produce", "--limit", str(SAMPLES), "--poison", "0.02", *log).returncode == 0
    arguments: list[str | Path] = ["up", "--samples", str(SAMPLES), "--folder", folder, *log, *given(*SETTINGS)]
    with told_run(folder, arguments) as told:
        operate(told)
    expect_going_on(told, tmp_path)


def operate(told: ToldRun) -> None:
    """Pauses it, changes its members, and stops it after a few more steps."""
    folder = told.folder
    wait_until(lambda: told.history().step > 2, told.process)
    told.ask("pause")  # at once: the run must not end before the command has started
    assert told.told("pause") == f"paused after step {told.history().step}"
    change_members(told)
    at = told.history().step
    assert told.told("resume") == f"goes on after step {at}"
    told.wait_for_steps(5)
    told.process.send_signal(signal.SIGTERM)
    output, _ = told.process.communicate(timeout=60)
    assert (told.process.returncode, children_of(folder)) == (0, []), output
    assert f"stopped; 'freshet up --folder {folder}' resumes it" in output
    stopped = told.stopped()
    assert (stopped.reason, stopped.step) == ("SIGTERM", told.history().step)
    changes = [("drain", "worker-0"), ("remove", "worker-1")]
    assert commands_of(folder) == [("pause", ""), ("pause", ""), *changes, ("resume", "")]


def expect_going_on(told: ToldRun, tmp_path: Path) -> None:
    """The run goes on with other numbers to its end, and equals the replay of its journal."""
    folder, stopped = told.folder, told.stopped()
    ended = run("up", "--folder", folder, "--json", tmp_path / "up.json", *given("ps.shards=3", "dispatch.workers=2"))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert json.loads((tmp_path / "up.json").read_text())["status"]["samples"] == SAMPLES
    history = told.history()
    assert history.ended is not None
    assert (history.steps[: stopped.step][-1].step, {*history.members}) == (stopped.step, {"worker-0", "worker-1"})
    verified = run("verify", folder, "--json", tmp_path / "verify.json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    findings: list[dict[str, Any]] = json.loads((tmp_path / "verify.json").read_text())
    found = {each["name"]: each["ok"] for each in findings}
    assert [found[f"replay: {name}"] for name in ("predictions", "rows", "dense weights")] == [True, True, True]
