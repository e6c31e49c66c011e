"""Runs the real command in real processes, and looks for what it leaves behind."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from infra.run.supervision.nursery import as_started

WAIT_SECONDS = 300.0
ROOT = Path(__file__).resolve().parents[2]


def freshet(*arguments: str | Path) -> list[str]:
    """A command; a run serves no predictions unless it is asked to."""
    unserved = ["--no-serve"] if arguments[0] in ("up", "demo") and "--serve" not in arguments else []
    return [sys.executable, "-m", "infra.cli.entry", *map(str, arguments), *unserved]


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        freshet(*arguments), cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=WAIT_SECONDS
    )


def start(*arguments: str | Path, **more: str) -> subprocess.Popen[str]:
    """Starts a command in a session of its own; more: variables of its environment."""
    return subprocess.Popen(
        freshet(*arguments),
        cwd=ROOT,
        env=environment() | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def environment() -> dict[str, str]:
    """This process's, without settings that a developer may have made, one thread a worker, and batches of one size,
    since many tests count steps.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FRESHET_")}
    ours = {"FRESHET_TRAINER__THREADS": "1", "FRESHET_STREAM__FIRST_BATCH": "0"}
    return {**kept, **ours, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


def wait_until(
    condition: Callable[[], bool], process: "subprocess.Popen[str] | None" = None, every_seconds: float = 0.02
) -> None:
    """Polls; fails when it takes too long or the process ends first."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        assert process is None or process.poll() is None, f"ended early: {process.communicate()[0]}"
        time.sleep(every_seconds)


def wait_for_line(process: "subprocess.Popen[str]", text: str) -> None:
    """Reads what a process prints until a line has this text; fails with all that it printed if it ends first."""
    assert process.stdout is not None
    printed: list[str] = []
    for line in process.stdout:
        printed.append(line)
        if text in line:
            return
    raise AssertionError(f"{text!r} was not printed: {''.join(printed)}")


def children_of(folder: Path) -> list[psutil.Process]:
    """Processes of the run in that folder that are still there."""
    there = [p for p in psutil.process_iter(["cmdline", "status"]) if p.info["status"] != psutil.STATUS_ZOMBIE]
    return [p for p in there if str(folder) in as_started(p.info["cmdline"] or [])]


def named(folder: Path, names: Sequence[str]) -> list[psutil.Process]:
    """Those of the given names."""
    return [p for p in children_of(folder) if any(name in as_started(p.info["cmdline"] or []) for name in names)]


def listening(process: psutil.Process) -> set[int]:
    """Ports on which a process accepts connections."""
    return {each.laddr.port for each in process.net_connections() if each.status == psutil.CONN_LISTEN}


def ports_of_workers(folder: Path) -> list[int]:
    """How many ports each worker of a run listens on, beside that of its metrics."""
    metrics = {
        path.stem: int(path.read_text().split(":")[2].split("/")[0]) for path in folder.glob("endpoints/*.metrics")
    }
    workers = [(p, name) for name in metrics if name.startswith("worker-") for p in named(folder, [name])]
    return [len(listening(process) - {metrics[name]}) for process, name in workers]
