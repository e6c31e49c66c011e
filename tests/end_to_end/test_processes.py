"""The command as a user runs it: real processes, real signals."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dispatch.journal.history import read_manifests
from infra.base.faults import ALLOWED, FAULT, read_fired
from infra.base.process import WRONG_SETTING
from infra.base.wire import write_curve
from infra.run.cluster import MOST_RESTARTS
from tests.end_to_end.processes import WAIT_SECONDS, children_of, ports_of_workers, run, start, wait_until

ONE = ("dispatch.workers=1", "dispatch.links_gbit=5", "ps.shards=1")
"""where a second worker or shard would prove nothing"""
TWO_WORKERS = ("dispatch.workers=2", "dispatch.links_gbit=5,0.5", "ps.shards=1")


def demo_arguments(folder: Path, *more: str) -> tuple[str | Path, ...]:
    small = ("stream.batch=128", "api.port=0", *more)
    settings = [part for setting in small for part in ("--set", setting)]
    return ("demo", "--rate", "1000", "--run", folder, "--json", folder / "summary.json", *settings)


def test_a_demo_of_20000_samples_learns_and_tells_everything(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    given = ("--samples", "20000", "--rate", "0", "--run", folder, "--json", tmp_path / "summary.json")
    process = start("demo", *given, PYTHONIOENCODING="ascii", LC_ALL="C")  # where not everything can be written
    output, _ = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 0, output
    assert output.isascii()
    summary = json.loads((tmp_path / "summary.json").read_text())
    status = summary["status"]
    assert (status["samples"], status["steps"], summary["exit_reason"]) == (20_000, 40, "finished")
    assert 0.65 < status["quality"]["auc"] < status["recent_quality"]["auc"] < status["best_auc"]
    assert "best possible" in output
    assert "20,000 samples in 40 steps" in output
    assert [w["link_gbit"] for w in status["workers"]] == [5, 5, 0.5, 0.5]
    traffic = [worker["traffic"] for worker in status["workers"] if worker["traffic"]["samples"]]  # others were parked
    assert traffic
    assert all(moved["miss_pulls"] and moved["pulled_bytes"] and moved["pushed_bytes"] for moved in traffic)
    assert children_of(folder) == []


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "at once": lambda folder: folder.exists(),
    "while all others import": lambda folder: (folder / "logs" / "worker-0.log").exists(),
}
"""later ones: in ``test_life``, and below"""


def expect_drained(folder: Path, process: "subprocess.Popen[str]", number: signal.Signals) -> tuple[int, int]:
    """Sends a signal; returns how many batches were recorded and how many of them were trained."""
    process.send_signal(number)
    output, _ = process.communicate(timeout=100)
    assert process.returncode == 0, output
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["exit_reason"], summary["killed"]) == (number.name, []), output
    manifests = read_manifests(folder / "journal")
    samples, steps = summary["status"]["samples"], summary["status"]["steps"]
    assert samples == sum(manifest.samples for manifest in manifests[:steps])
    assert children_of(folder) == []
    return len(manifests), steps


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_before_the_first_step_drains_and_exits_0(tmp_path: Path, moment: str) -> None:
    process = start(*demo_arguments(tmp_path / "run", *ONE))
    wait_until(lambda: MOMENTS[moment](tmp_path / "run"), process)
    expect_drained(tmp_path / "run", process, signal.SIGTERM)


def test_a_process_that_fails_again_and_again_ends_the_run_with_a_clear_error_and_no_orphans(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    faults = ",".join(["worker-0:start:exit=3"] * (MOST_RESTARTS + 1))
    process = start(*demo_arguments(folder, *ONE), **{FAULT: faults, ALLOWED: "1"})
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert len(read_fired(folder)) == MOST_RESTARTS + 1
    expected = f"process 'worker-0' ended with status 3, restarted {MOST_RESTARTS} times; expected it to run until"
    assert expected in " ".join(output.split())
    told, marker, log = output.partition(f"log {folder / 'logs' / 'worker-0.log'}:\n")
    assert marker
    assert "Traceback" not in told + "".join(line for line in log.splitlines() if not line.startswith("  | "))
    assert max(map(len, output.splitlines())) < 1100
    assert children_of(folder) == []


def test_a_dispatcher_that_finds_a_setting_wrong_is_not_started_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    faults = ",".join([f"dispatcher:batch_formed:exit={WRONG_SETTING}"] * (MOST_RESTARTS + 1))
    process = start(*demo_arguments(folder, *ONE), **{FAULT: faults, ALLOWED: "1"})
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    assert len(read_fired(folder)) == 1, "it would have ended in the same way again"
    assert "process 'dispatcher' ended with status 2; expected it to run until" in " ".join(output.split()), output
    assert children_of(folder) == []


RING = ("trainer.reduce=ring", "trainer.unencrypted_reduce=true")


def test_with_keys_workers_listen_for_a_ring_that_was_asked_for_alone(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_curve(tmp_path / "keys", ("server", "worker-0", "worker-1"))
    process = start(*demo_arguments(folder, *TWO_WORKERS, f"curve_folder={tmp_path / 'keys'}", *RING))
    wait_until(lambda: len(read_manifests(folder / "journal")) > 3, process)
    assert ports_of_workers(folder) == [1, 1]
    recorded, trained = expect_drained(folder, process, signal.SIGINT)
    assert recorded == trained > 3


def test_with_keys_a_ring_that_was_not_asked_for_is_refused_before_anything_starts(tmp_path: Path) -> None:
    write_curve(tmp_path / "keys", ("server", "worker-0", "worker-1"))
    keyed = (*TWO_WORKERS, f"curve_folder={tmp_path / 'keys'}", "trainer.reduce=ring")
    refused = run(*demo_arguments(tmp_path / "run", *keyed))
    assert refused.returncode == 2
    assert "2 workers sum dense gradients over Gloo or NCCL, which do not encrypt" in refused.stderr
    assert "trainer.unencrypted_reduce" in refused.stderr
    assert not (tmp_path / "run" / "endpoints").exists()
