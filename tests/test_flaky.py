"""The search for flaky tests, with tests that are flaky on purpose."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.flaky import Outcome, busy_loops, main, read_report

FLAKY = """
from pathlib import Path

def test_that_fails_the_second_time(tmp_path):
    mark = Path(__file__).with_name("mark")
    count = int(mark.read_text()) if mark.exists() else 0
    mark.write_text(str(count + 1))
    assert count != 1

def test_that_holds():
    pass
"""


def test_a_test_that_fails_now_and_then_is_found_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # importing all plugins takes seconds
    (tmp_path / "test_it.py").write_text(FLAKY)
    given = ["--runs", "2", "--loops", "1", "--workers", "0", "--folder", str(tmp_path / "kept")]
    assert main([*given, str(tmp_path / "test_it.py")]) == 1
    shown = capsys.readouterr().out
    (line,) = [line for line in shown.splitlines() if line.startswith("failed in 1 of 2 runs (2): ")]
    assert line.endswith("test_it.py::test_that_fails_the_second_time")
    assert "test_that_holds" not in shown
    assert "run 2: 2 tests" in shown
    assert (tmp_path / "kept" / "run-2.log").exists()


def test_a_run_without_a_report_has_failed(tmp_path: Path) -> None:
    assert read_report(tmp_path / "none.xml", 3, 1.0) == Outcome(3, 1.0, 0, 0, ("(no report: see the log)",))


def test_busy_loops_end_with_their_context() -> None:
    with busy_loops(2) as loops:
        assert [loop.poll() for loop in loops] == [None, None]
    assert [loop.returncode for loop in loops] == [-signal.SIGKILL, -signal.SIGKILL]


def test_a_busy_loop_ends_with_whoever_started_it() -> None:
    started = (
        "from tests.flaky import busy_loops\nwith busy_loops(1) as (loop,):\n print(loop.pid, flush=True)\n input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", started], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        loop = psutil.Process(int(parent.stdout.readline()))
        assert loop.is_running()
        parent.kill()
    deadline = time.monotonic() + 60
    while loop.is_running() and loop.status() != psutil.STATUS_ZOMBIE:  # it may stay a zombie
        assert time.monotonic() < deadline
        time.sleep(0.05)
