"""Real processes that kill themselves at every fault point there is, in one run for each kind of process.

They run with ``--all-faults``; ``test_life`` has some fault points of every kind in one run.
"""

import subprocess
from pathlib import Path

import pytest

from infra.faults import ALLOWED, FAULT, SEAMS, read_fired
from tests.end_to_end.processes import ROOT, environment, freshet, run

BATCH = 64
SIZES = f"stream.batch={BATCH}", "dispatch.workers=2", "ps.shards=2", "rows.dim=4"
SETTINGS = (*SIZES, "api.port=0", "cuts.seconds=0.5")
SELDOM = {
    "start": "count=1",
    "push_half_sent": "count=10",
    "idle": "count=2",
    **dict.fromkeys(("cut_flush", "gathering", "before_file", "after_file"), "count=2"),
    **dict.fromkeys(("cut_half_done", "before_manifest", "after_manifest"), "count=2"),
}
"""seams that are not reached in every step; the others crash far from each other, because the supervisor gives up a
process that ends again and again"""
LIMIT_SECONDS = 500.0


def up(folder: Path, faults: tuple[str, ...], steps: int) -> subprocess.CompletedProcess[str]:
    """Produces events and trains all of them."""
    given = [part for setting in (*SETTINGS, f"stream.folder={folder.parent / 'log'}") for part in ("--set", setting)]
    samples = str(steps * BATCH)
    assert run("produce", "--limit", samples, "--poison", "0.02", *given).returncode == 0
    env = {**environment(), FAULT: ",".join(faults), ALLOWED: "1"}
    command = freshet("up", "--samples", samples, "--folder", folder, *given)
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LIMIT_SECONDS)


def check(folder: Path, faults: tuple[str, ...], ended: subprocess.CompletedProcess[str]) -> None:
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert sorted(fired.fault for fired in read_fired(folder)) == sorted(faults)
    checked = run("verify", folder)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.one_by_one
@pytest.mark.timeout(900)
@pytest.mark.parametrize("process", ["worker-1", "ps-0", "dispatcher"])
def test_a_run_survives_a_kill_at_every_seam_of_a_process(tmp_path: Path, process: str) -> None:
    seams = [name for name, seam in SEAMS.items() if process.startswith(seam.process)]
    faults = tuple(
        f"{process}:{seam}:{SELDOM.get(seam, f'step={20 + 60 * number}')}:kill" for number, seam in enumerate(seams)
    )
    check(tmp_path / "run", faults, up(tmp_path / "run", faults, steps=1000))
