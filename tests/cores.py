"""Finds out where a process crashed: native backtraces of the core files that a test run left behind."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

GDB_SECONDS = 120.0


def core_files(folder: Path, since: float) -> list[Path]:
    """Core files in a folder that are newer than a time; none if the system stores them elsewhere."""
    return sorted(path for path in folder.glob("core*") if path.is_file() and path.stat().st_mtime >= since)


def explain(core: Path) -> Iterator[str]:
    """What is known about a crash, line by line."""
    yield f"a process crashed and left {core}"
    gdb = shutil.which("gdb")
    if gdb is None:
        yield f"install gdb and run: gdb {sys.executable} {core} -ex 'thread apply all backtrace'"
        return
    command = [
        gdb,
        "-batch",
        "-nx",
        "-ex",
        "backtrace",
        "-ex",
        "thread apply all backtrace 12",
        sys.executable,
        str(core),
    ]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=GDB_SECONDS).stdout
    except subprocess.TimeoutExpired:
        told = f"gdb took longer than {GDB_SECONDS:g} seconds"
    yield from told.splitlines()
