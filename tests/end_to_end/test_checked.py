"""No kernel reads or writes outside its arrays, in small runs with every index checked."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.checked import CHECKED, PLANS, SAMPLES, main
from tests.end_to_end.processes import ROOT, environment

CHECKS = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_OPT": "1"}
"""with little optimization, which takes most of the time of compiling"""


@pytest.mark.timeout(1000)
def test_no_kernel_leaves_its_arrays(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.end_to_end.checked", str(tmp_path)]
    where = {**environment(), **CHECKS}
    ended = subprocess.run(command, cwd=ROOT, env=where, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stderr
    first, *told = (line for line in ended.stdout.splitlines() if "[info" not in line)
    assert first == CHECKED
    runs = [re.fullmatch(r"(\S+): (\d+) samples, (\d+) evicted, (\d+) replicated", line) for line in told]
    seen = [(run[1], int(run[2])) for run in runs if run]
    assert seen == [(plan["policy"], SAMPLES) for plan in PLANS]
    assert sum(int(run[3]) for run in runs if run) > 100
    assert sum(int(run[4]) for run in runs if run) > 100


@pytest.mark.skipif("NUMBA_BOUNDSCHECK" in os.environ, reason="indices are checked everywhere")
def test_the_runs_are_refused_where_indices_are_not_checked(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="expected NUMBA_BOUNDSCHECK=1"):
        main()
    assert capsys.readouterr().out == ""
