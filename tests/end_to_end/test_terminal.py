"""A run and a daemon whose terminal is closed."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dispatch.journal.history import read_manifests
from tests.end_to_end.processes import ROOT, children_of, environment, freshet, wait_until

SMALL = ("stream.batch=128", "dispatch.workers=1", "dispatch.links_gbit=1", "ps.shards=1", "api.port=0")


def demo(folder: Path, *more: str) -> list[str]:
    settings = [part for setting in SMALL for part in ("--set", setting)]
    return freshet("demo", "--rate", "1000", "--run", folder, "--json", folder / "summary.json", *settings, *more)


def api(folder: Path) -> list[str]:
    return freshet("api", "--set", "api.port=0", "--set", f"folder={folder}")


@contextmanager
def in_a_terminal(command: list[str]) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """Starts a command as a terminal's foreground process; yields it and the end that keeps the terminal open."""
    master, terminal = os.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", *command], cwd=ROOT, env=environment(), stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    os.set_blocking(master, False)
    try:
        yield process, master
    finally:
        process.terminate()
        process.wait(60)


def close_when(condition: Callable[[], bool], process: "subprocess.Popen[bytes]", master: int) -> None:
    """Reads what the terminal shows until the condition holds, and closes the terminal."""

    def is_time() -> bool:
        assert process.poll() is None
        with suppress(BlockingIOError):
            os.read(master, 1 << 16)
        return condition()

    wait_until(is_time)
    os.close(master)


def test_a_closed_terminal_drains_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with in_a_terminal(demo(folder)) as (process, master):
        close_when(lambda: len(read_manifests(folder / "journal")) > 3, process, master)
        assert process.wait(60) == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["exit_reason"], summary["killed"]) == ("SIGHUP", [])
    assert summary["status"]["steps"] == len(read_manifests(folder / "journal"))
    assert children_of(folder) == []


def test_a_closed_terminal_drains_a_daemon(tmp_path: Path) -> None:
    with in_a_terminal(api(tmp_path)) as (process, master):
        close_when((tmp_path / "endpoints" / "api").exists, process, master)
        assert process.wait(60) == 0
