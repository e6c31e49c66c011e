import os
import re
import subprocess
import sys
from pathlib import Path

import psutil

from tests.end_to_end.processes import wait_until

WAYS_TO_STAND_STILL = """
import os, signal, subprocess, sys, time

def test_that_is_stopped():
    os.kill(os.getpid(), signal.SIGSTOP)

def test_that_waits_where_no_signal_is_heard():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open("child", "w").write(str(child.pid))
    child.wait()

def test_that_passes():
    pass
"""


def test_a_run_that_stands_still_is_ended_and_names_the_tests(tmp_path: Path) -> None:
    (tmp_path / "test_still.py").write_text(WAYS_TO_STAND_STILL)
    plugins = [part for name in ("xdist", "pytest_timeout", "tests.standstill") for part in ("-p", name)]
    command = [sys.executable, "-m", "pytest", *plugins, "-n", "1", "--timeout", "300"]
    options = ["-c", "/dev/null", "--rootdir", str(tmp_path), "-o", "standstill_seconds=8", str(tmp_path)]
    told = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=300, env=_here())
    for name in ("test_that_is_stopped", "test_that_waits_where_no_signal_is_heard"):
        assert f"crashed while running 'test_still.py::{name}'" in told.stdout
    assert re.search(r"\(stopped, .*test_that_is_stopped", told.stderr)
    assert "in test_that_waits_where_no_signal_is_heard" in told.stderr, "the stacks of its threads"
    assert "2 failed, 1 passed" in told.stdout
    assert "no test has ended for 8 seconds" in told.stderr
    child = int((tmp_path / "child").read_text())
    wait_until(lambda: has_ended(child))


def has_ended(pid: int) -> bool:
    """A zombie has: nobody has noticed yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _here() -> dict[str, str]:
    """Without plugins that are not asked for: four processes would take seconds to import them."""
    root = str(Path(__file__).parents[1])
    return {**os.environ, "PYTHONPATH": root, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
