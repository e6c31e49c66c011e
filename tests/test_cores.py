import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cores import core_files, explain

CRASH = "import ctypes; ctypes.string_at(0)"


def test_a_crash_is_found_and_explained(tmp_path: Path) -> None:
    before = time.time() - 1
    subprocess.run([sys.executable, "-c", CRASH], cwd=tmp_path, stderr=subprocess.DEVNULL)
    found = core_files(tmp_path, before)
    if not found:
        pytest.skip("the system writes no core file into the folder of a process that crashed")
    told = list(explain(found[0]))
    assert told[0] == f"a process crashed and left {found[0]}"
    assert any("string_at" in line or "SIGSEGV" in line or "gdb" in line for line in told[1:])


def test_files_older_than_the_run_are_nobodys_crash(tmp_path: Path) -> None:
    (tmp_path / "core").write_bytes(b"")
    assert core_files(tmp_path, time.time() + 60) == []


def test_processes_of_a_test_run_may_leave_cores_and_say_where_they_crashed() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    assert soft == hard
    crashed = subprocess.run([sys.executable, "-X", "faulthandler", "-c", CRASH], cwd="/", capture_output=True)
    assert b"Fatal Python error: Segmentation fault" in crashed.stderr
