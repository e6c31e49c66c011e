"""Real processes that kill themselves at every fault point there is, a few in a run.

A day has one of these runs, each day another, and ``--all-faults`` has all of them; ``test_life`` has some fault points
of every kind in one run.
"""

import subprocess
from pathlib import Path

import pytest

from infra.base.faults import ALLOWED, FAULT, SEAMS, read_fired
from tests.end_to_end.processes import ROOT, environment, freshet, run

BATCH = 64
SIZES = f"stream.batch={BATCH}", "dispatch.workers=2", "ps.shards=2", "rows.dim=4"
PRUNING = "rows.chunks=2", "memory.prune_share=0.5", "memory.prune_steps=7", "memory.columns=0.5"
SETTINGS = (*SIZES, *PRUNING, "api.port=0", "checkpoints.seconds=0.2", "memory.expire_steps=10")
PROCESSES = {"worker": "worker-1", "ps": "ps-0", "dispatcher": "dispatcher"}
"""the one that fails, of each kind"""
SELDOM = {
    "start": "count=1",
    "push_half_sent": "count=10",
    "idle": "count=2",
    "pruned": "count=3",
    **dict.fromkeys(("checkpoint_flush", "gathering", "before_file", "after_file"), "count=2"),
    **dict.fromkeys(("checkpoint_half_done", "before_manifest", "after_manifest"), "count=2"),
}
"""seams that are not reached in every step; the others crash far from each other, because the supervisor gives up a
process that ends again and again"""
RUNS = 6
SHARES = [tuple(SEAMS)[number::RUNS] for number in range(RUNS)]
"""seams of each run, of all kinds of process"""
APART, AFTER = 40, 60
"""steps between two faults that name one, and after the last"""
LIMIT_SECONDS = 500.0


def up(folder: Path, faults: tuple[str, ...], steps: int) -> subprocess.CompletedProcess[str]:
    """Produces events and trains all of them."""
    given = [part for setting in (*SETTINGS, f"stream.folder={folder.parent / 'log'}") for part in ("--set", setting)]
    samples = str(steps * BATCH)
    assert run("produce", "--limit", samples, "--poison", "0.02", *given).returncode == 0
    env = {**environment(), FAULT: ",".join(faults), ALLOWED: "1"}
    command = freshet("up", "--samples", samples, "--run", folder, *given)
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LIMIT_SECONDS)


def check(folder: Path, faults: tuple[str, ...], ended: subprocess.CompletedProcess[str]) -> None:
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert sorted(fired.fault for fired in read_fired(folder)) == sorted(faults)
    checked = run("verify", "--run", folder)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_every_seam_has_its_day() -> None:
    assert sorted(seam for share in SHARES for seam in share) == sorted(SEAMS)


@pytest.mark.one_by_one(a_day=1)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seams", SHARES, ids="-".join)
def test_a_run_survives_a_kill_at_every_seam(tmp_path: Path, seams: tuple[str, ...]) -> None:
    faults = tuple(
        f"{PROCESSES[SEAMS[seam].process]}:{seam}:{SELDOM.get(seam, f'step={20 + APART * number}')}:kill"
        for number, seam in enumerate(seams)
    )
    ended = up(tmp_path / "run", faults, steps=20 + APART * len(seams) + AFTER)
    check(tmp_path / "run", faults, ended)
