"""A run whose processes are killed goes on in its folder, and equals a replay of its journal. Real processes."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dispatch.journal.history import read_history
from infra.cli.replay import digest_file
from tests.end_to_end.processes import children_of, named, run, start, wait_until

SAMPLES, BATCH = 8_000, 64
VICTIMS = ("dispatcher", "worker-1", "ps-0")
SETTINGS = (f"stream.batch={BATCH}", "dispatch.workers=2", "ps.shards=2", "api.port=0", "rows.dim=4")


def given(*settings: str) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def kill_one_after_another(folder: Path, process: "subprocess.Popen[str]", names: tuple[str, ...]) -> None:
    """Each after a few more steps of the run, which goes on behind the last one, too."""
    for name in (*names, ""):
        before = read_history(folder / "journal").step
        wait_until(lambda before=before: read_history(folder / "journal").step > before + 3, process)  # type: ignore[misc]
        for victim in named(folder, [name]):
            if victim.pid != process.pid:
                victim.kill()


def replayed(folder: Path, into: Path) -> dict[str, Any]:
    done = run("replay", folder, "--folder", into, "--json", into.with_suffix(".json"))
    assert done.returncode == 0, done.stdout + done.stderr
    summary: dict[str, Any] = json.loads(into.with_suffix(".json").read_text())
    return summary


@pytest.mark.timeout(400)
def test_a_run_whose_processes_are_killed_goes_on_and_equals_the_replay_of_its_journal(tmp_path: Path) -> None:
    log, folder = given(f"stream.folder={tmp_path / 'log'}"), tmp_path / "run"
    assert run("produce", "--limit", str(SAMPLES), "--poison", "0.02", *log).returncode == 0
    process = start("up", "--samples", str(SAMPLES), "--folder", folder, *log, *given(*SETTINGS))
    kill_one_after_another(folder, process, VICTIMS)
    process.kill()  # and with it, all of the run
    process.communicate(timeout=90)
    wait_until(lambda: children_of(folder) == [])
    told = [line for line in (folder / "supervisor.log").read_text().splitlines() if "was ended by SIGKILL" in line]
    assert [name for name in VICTIMS if any(f"name={name} " in line for line in told)] == list(VICTIMS)
    interrupted = read_history(folder / "journal")
    assert 3 < interrupted.step < SAMPLES / BATCH
    other = run("up", "--folder", folder, *given("rows.dim=8"))
    assert (other.returncode, "rows.dim was 4 and is 8" in other.stderr) == (2, True), other.stderr
    ended = run("up", "--folder", folder, "--json", tmp_path / "up.json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    status = json.loads((tmp_path / "up.json").read_text())["status"]
    history = read_history(folder / "journal")  # which checks that ranges tile
    assert history.steps[: interrupted.step] == interrupted.steps
    assert sum(step.manifest.samples for step in history.steps) == status["samples"] == SAMPLES
    letters = [json.loads(line) for line in run("dead-letters", "--run-folder", folder).stdout.splitlines()]
    places = {(letter["partition"], letter["offset"], letter["index"]) for letter in letters}
    assert len(places) == len(letters) == sum(step.manifest.rejected for step in history.steps) > 20
    golden = replayed(folder, tmp_path / "golden")
    assert (golden["differs_at"], golden["equals_end"]) == (None, True)
    assert golden["compared_steps"] > history.step - 8
    assert golden["dense_digest"] == digest_file(folder / "dense.safetensors")
    over = run("up", "--folder", folder)
    assert (over.returncode, "is over: it ended after step" in over.stderr) == (2, True)
    again = start("dispatcher", "--run-folder", folder, FRESHET_SUPERVISED=str(os.getpid()))
    output, _ = again.communicate(timeout=90)  # as a supervisor starts one that ended just before its own end
    assert (again.returncode, "nothing is left to do" in output) == (0, True), output
