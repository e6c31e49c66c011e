"""A run reaches every seam at which faults can be set, in the steps one expects, and a fault fires there."""

import subprocess
from pathlib import Path

import pytest

from infra import faults
from infra.faults import ALLOWED, FAULT, SEAMS, WORKER, read_fired
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.processes import ROOT, environment, freshet, run
from tests.end_to_end.threads import Plan, train


class Recorder:
    """Stands in for armed faults: keeps what is reached."""

    def __init__(self) -> None:
        self.reached: set[tuple[str, int]] = set()

    def reach(self, seam: str, step: int) -> None:
        self.reached.add((seam, step))


def test_a_run_reaches_every_seam_of_its_workers(write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(faults, "_armed", recorder)
    train(Plan(write_topic(512)))
    assert {name for name, seam in SEAMS.items() if seam.process == WORKER} <= {seam for seam, _ in recorder.reached}
    for seam in ("order_received", "waiting_for_pull", "after_pull", "forward", "backward", "after_report"):
        assert {step for reached, step in recorder.reached if reached == seam} == set(range(1, 9)), seam


def up_with_faults(faults: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    env = {**environment(), FAULT: faults, ALLOWED: "1"}
    return subprocess.run(freshet("up", *arguments), cwd=ROOT, env=env, capture_output=True, text=True, timeout=150)


@pytest.mark.timeout(300)
def test_a_fault_kills_a_worker_of_a_real_run_in_its_step_and_the_run_goes_on_without_it(tmp_path: Path) -> None:
    folder, log = tmp_path / "run", ["--set", f"stream.folder={tmp_path / 'log'}"]
    assert run("produce", "--limit", "640", *log).returncode == 0
    small = ("stream.batch=64", "dispatch.workers=2", "ps.shards=2", "api.port=0", "rows.dim=4")
    given = [*log, *(part for setting in small for part in ("--set", setting))]
    struck = up_with_faults("worker-1:after_pull:step=5:kill", "--samples", "640", "--folder", folder, *given)
    (fired,) = read_fired(folder)
    assert (fired.process, fired.seam, fired.step, fired.action) == ("worker-1", "after_pull", 5, "kill")
    if struck.returncode:  # the run was ended by it, and goes on when it is started again
        resumed = up_with_faults("worker-1:after_pull:step=5:kill", "--folder", folder)
        assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    checked = run("verify", folder)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert read_fired(folder) == [fired]
