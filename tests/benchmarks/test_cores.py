"""Cores of their own for workers, on a machine that has some."""

import os
import subprocess
import sys

import pytest

from benchmarks.cores import CoreShares, run_on, share_out_cores
from infra.base.errors import ConfigError
from infra.run.cluster import Extras, specs
from infra.run.settings import load_settings

linux = pytest.mark.skipif(sys.platform != "linux", reason="cores are pinned on Linux")
SHOW = "import os; print(sorted(os.sched_getaffinity(0)))"


@linux
def test_workers_get_the_first_cores_and_everyone_else_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _process: {7, 1, 2, 3, 4})
    assert share_out_cores(2, 2) == CoreShares(((1, 2), (3, 4)), (7,))
    assert share_out_cores(0, 9) == CoreShares()
    with pytest.raises(ConfigError, match="3 workers cannot be pinned to 2 cores each: this process may use 5"):
        share_out_cores(2, 3)


@linux
def test_a_worker_starts_on_its_cores() -> None:
    core = max(os.sched_getaffinity(0))
    settings = load_settings(None, ["dispatch.workers=1"])
    (worker,) = [each for each in specs(settings, Extras(worker_cores=((core,),))) if each.name == "worker-0"]
    assert callable(worker.argv)
    argv = list(worker.argv({"dispatcher": "tcp://h:3\ntcp://h:4"}))
    place = argv[: argv.index(sys.executable)]
    assert subprocess.check_output([*place, sys.executable, "-c", SHOW], text=True).strip() == f"[{core}]"


@linux
def test_the_other_processes_run_on_theirs_until_it_is_over() -> None:
    before, core = os.sched_getaffinity(0), min(os.sched_getaffinity(0))
    with run_on([core]):
        assert subprocess.check_output([sys.executable, "-c", SHOW], text=True).strip() == f"[{core}]"
    assert os.sched_getaffinity(0) == before
