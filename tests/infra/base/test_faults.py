"""Fault points, in real processes: each fires where it is set, once, and leaves a line behind."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from infra.base.errors import ConfigError
from infra.base.faults import ALL_SEAMS, ALLOWED, API, DISPATCHER, FAULT, SHARD, WORKER, Fault, read_faults, read_fired
from tests.end_to_end.processes import ROOT, environment, freshet

PROGRAM = """
import sys
from pathlib import Path
from infra.base.faults import arm, reach
arm(sys.argv[1], Path(sys.argv[2]))
for step in range(1, 6):
    reach("forward", step)
    reach("backward", step)
    if step % 2:
        reach("after_pull", step)
print("came to its end")
"""


def started(folder: Path, faults: str, name: str = "worker-2", allowed: str = "1") -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, name, str(folder)],
        cwd=ROOT,
        env={**environment(), FAULT: faults, ALLOWED: allowed},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(folder: Path, faults: str, name: str = "worker-2") -> tuple[int, str]:
    process = started(folder, faults, name)
    output, _ = process.communicate(timeout=100)
    return process.returncode, output.strip()


def test_a_fault_kills_its_process_in_its_step_once_in_a_run(tmp_path: Path) -> None:
    fault = "worker-2:forward:step=3:kill"
    assert ended(tmp_path, fault) == (-signal.SIGKILL, "")
    (fired,) = read_fired(tmp_path)
    assert (fired.fault, fired.process, fired.seam, fired.step) == (fault, "worker-2", "forward", 3)
    assert ended(tmp_path, fault) == (0, "came to its end")
    assert read_fired(tmp_path) == [fired]


def test_a_fault_whose_step_passes_its_seam_by_fires_at_the_next_that_does_not(tmp_path: Path) -> None:
    assert ended(tmp_path, "worker-2:after_pull:step=2:kill") == (-signal.SIGKILL, "")
    assert [fired.step for fired in read_fired(tmp_path)] == [3]


def test_a_fault_stops_its_process_until_it_is_continued(tmp_path: Path) -> None:
    process = started(tmp_path, "worker-2:backward:count=2:stop")
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert [fired.step for fired in read_fired(tmp_path)] == [2]
    process.send_signal(signal.SIGCONT)
    assert (process.communicate(timeout=100)[0].strip(), process.returncode) == ("came to its end", 0)


def test_a_fault_fires_in_its_own_process_alone(tmp_path: Path) -> None:
    assert ended(tmp_path, "worker-2:forward:kill", name="worker-1") == (0, "came to its end")
    assert read_fired(tmp_path) == []


def test_faults_end_a_process_with_a_status_or_an_error(tmp_path: Path) -> None:
    assert ended(tmp_path, "worker-2:forward:exit=7")[0] == 7
    process = started(tmp_path, "worker-2:backward:raise")
    assert "fault worker-2:backward:raise was set" in process.communicate(timeout=100)[1]
    assert [fired.action for fired in read_fired(tmp_path)] == ["exit=7", "raise"]


def test_a_fault_that_is_written_twice_fires_in_two_starts(tmp_path: Path) -> None:
    twice = "worker-2:forward:kill, worker-2:forward:kill"
    assert [ended(tmp_path, twice)[0] for _ in range(3)] == [-signal.SIGKILL, -signal.SIGKILL, 0]
    assert len({fired.pid for fired in read_fired(tmp_path)}) == 2


@pytest.mark.parametrize("command", ["worker", "ps", "produce", "up"])
def test_no_process_starts_with_faults_that_are_not_allowed(command: str, tmp_path: Path) -> None:
    arguments = ["--shard", "0", "--endpoint", "tcp://127.0.0.1:*"] if command == "ps" else []
    given = [*arguments, "--set", f"folder={tmp_path / 'run'}", "--set", f"stream.folder={tmp_path / 'log'}"]
    env = {**environment(), FAULT: "worker-2:forward:kill"}
    done = subprocess.run(freshet(command, *given), cwd=ROOT, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2, done.stderr
    assert "expected it in tests alone, with FRESHET_ALLOW_FAULTS=1" in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []


def test_a_supervised_process_refuses_faults_that_are_not_allowed(tmp_path: Path) -> None:
    process = started(tmp_path, "worker-2:forward:kill", allowed="0")
    assert "ConfigError" in process.communicate(timeout=100)[1]
    assert read_fired(tmp_path) == []


def test_faults_are_read_as_they_are_written() -> None:
    text = "worker-2:after_pull:step=37:kill,ps-0:idle:count=3:stop,dispatcher:ordered:exit=3"
    assert read_faults({FAULT: text, ALLOWED: "1"}) == [
        Fault("worker-2:after_pull:step=37:kill", "worker-2", "after_pull", "kill", step=37),
        Fault("ps-0:idle:count=3:stop", "ps-0", "idle", "stop", count=3),
        Fault("dispatcher:ordered:exit=3", "dispatcher", "ordered", "exit=3"),
    ]
    assert read_faults({}) == read_faults({ALLOWED: "1"}) == []


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("", "process '' is not known; expected PROCESS:SEAM"),
        (
            "produce:start:kill",
            "process 'produce' is not known; expected PROCESS:SEAM[:step=N|:count=N]:ACTION with one of wor",
        ),
        ("worker-2:after_lunch:kill", "seam of worker-N 'after_lunch' is not known"),
        (
            "ps-0:after_pull:kill",
            "with one of idle, keys_forgotten, push_half_applied, pull, gathering, before_file, after_file;",
        ),
        ("worker-2:start:explode", "with one of kill, stop, raise, exit=N;"),
        ("worker-2:start:step=x:kill", "condition 'step=x' is not known"),
        ("worker-2:start:step=1:count=2:kill", "process '' is not known"),
    ],
)
def test_a_fault_that_cannot_be_read_is_refused_with_what_is_known(fault: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        read_faults({FAULT: f"worker-1:start:kill,{fault}", ALLOWED: "1"})


# ── the seams ─────────────────────────────────────────────────────────────────────────────────────────────────────────
REACHED = re.compile(r"\breach\(\s*\"(\w+)\"")
FOLDERS = {
    WORKER: ("trainer", "ps/client.py"),
    SHARD: ("ps", "infra/base/storage.py"),
    DISPATCHER: ("dispatch",),
    API: ("api",),
}


def sources(*places: str) -> list[Path]:
    return [
        file for place in places for file in ([ROOT / place] if place.endswith("py") else (ROOT / place).rglob("*.py"))
    ]


def reached_in(*places: str) -> list[str]:
    return [seam for file in sources(*places) for seam in REACHED.findall(file.read_text())]


def test_every_seam_that_the_code_reaches_is_declared() -> None:
    folders = "trainer", "ps", "dispatch", "ingest", "infra", "api"
    assert [seam for seam in reached_in(*folders) if seam not in ALL_SEAMS] == []


@pytest.mark.parametrize("kind", list(FOLDERS))
def test_every_declared_seam_is_reached_in_one_place(kind: str) -> None:
    found = reached_in(*FOLDERS[kind])
    declared = [name for name, seam in ALL_SEAMS.items() if seam.process == kind]
    where = {name: ALL_SEAMS[name].where for name in declared}
    wrong = [f"{seam} ({where[seam]}): {found.count(seam)} times" for seam in declared if found.count(seam) != 1]
    assert not wrong, "\n".join(wrong)
