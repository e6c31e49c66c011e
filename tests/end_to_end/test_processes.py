"""The command as a user runs it: real processes, real signals."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from dispatch.journal.history import read_manifests
from infra.faults import ALLOWED, FAULT, read_fired
from infra.run.cluster import MOST_RESTARTS
from infra.wire import write_curve
from tests.end_to_end.processes import children_of, named, ports_of_workers, run, start, wait_until

ONE = ("dispatch.workers=1", "dispatch.links_gbit=5", "ps.shards=1")
"""where a second worker or shard would prove nothing"""
TWO_WORKERS = ("dispatch.workers=2", "dispatch.links_gbit=5,0.5", "ps.shards=1")
TWO_SHARDS = ("dispatch.workers=1", "dispatch.links_gbit=5", "ps.shards=2")
TWO_OF_EACH = (*TWO_WORKERS, "ps.shards=2")


def demo_arguments(folder: Path, *more: str) -> tuple[str | Path, ...]:
    small = ("stream.batch=128", "api.port=0", *more)
    settings = [part for setting in small for part in ("--set", setting)]
    return ("demo", "--rate", "1000", "--folder", folder, "--json", folder / "summary.json", *settings)


@pytest.mark.timeout(180)
def test_a_demo_of_20000_samples_learns_and_tells_everything(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ended = run("demo", "--samples", "20000", "--rate", "0", "--folder", folder, "--json", tmp_path / "summary.json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    status = summary["status"]
    assert (status["samples"], status["steps"], summary["exit_reason"]) == (20_000, 40, "finished")
    assert 0.65 < status["quality"]["auc"] < status["recent_quality"]["auc"] < status["best_auc"]
    assert "best possible" in ended.stdout
    assert [w["link_gbit"] for w in status["workers"]] == [5, 5, 0.5, 0.5]
    traffic = [worker["traffic"] for worker in status["workers"]]
    assert all(moved["miss_pulls"] and moved["pulled_bytes"] and moved["pushed_bytes"] for moved in traffic)
    assert children_of(folder) == []


MOMENTS: dict[str, tuple[tuple[str, ...], Callable[[Path], bool]]] = {
    "at once": (ONE, lambda folder: folder.exists()),
    "while shards start": (ONE, lambda folder: (folder / "logs" / "ps-0.log").exists()),
    "while workers import": (ONE, lambda folder: (folder / "logs" / "worker-0.log").exists()),
    "after the first steps": (TWO_OF_EACH, lambda folder: len(read_manifests(folder / "journal")) > 3),
}


def expect_drained(folder: Path, process: "subprocess.Popen[str]", number: signal.Signals) -> tuple[int, int]:
    """Sends a signal; returns how many batches were recorded and how many of them were trained."""
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["exit_reason"], summary["killed"]) == (number.name, []), output
    manifests = read_manifests(folder / "journal")
    samples, steps = summary["status"]["samples"], summary["status"]["steps"]
    assert samples == sum(manifest.samples for manifest in manifests[:steps])
    assert children_of(folder) == []
    return len(manifests), steps


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_at_any_moment_drains_and_exits_0(tmp_path: Path, moment: str) -> None:
    settings, has_come = MOMENTS[moment]
    process = start(*demo_arguments(tmp_path / "run", *settings))
    wait_until(lambda: has_come(tmp_path / "run"), process)
    recorded, trained = expect_drained(tmp_path / "run", process, signal.SIGTERM)
    if moment == "after the first steps":
        assert recorded == trained > 3


def steps_of(folder: Path) -> int:
    return len(read_manifests(folder / "journal"))


def expect_it_goes_on(folder: Path, process: "subprocess.Popen[str]", restarts: dict[str, int]) -> str:
    """Waits for further steps, drains, and returns what the run printed; so often each process was restarted."""
    before = steps_of(folder)
    wait_until(lambda: steps_of(folder) > before + 8, process)  # more than may have been on their way
    process.terminate()
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0, output
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["exit_reason"], summary["restarts"]) == ("SIGTERM", restarts), output
    assert summary["status"]["samples"] == sum(manifest.samples for manifest in read_manifests(folder / "journal"))
    assert "Traceback" not in output
    assert children_of(folder) == []
    return " ".join(output.split())


VICTIMS = {"worker-1": TWO_WORKERS, "ps-0": TWO_SHARDS, "dispatcher": ONE}


@pytest.mark.timeout(180)
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_killed_process_is_replaced_and_the_run_goes_on(tmp_path: Path, victim: str) -> None:
    folder = tmp_path / "run"
    process = start(*demo_arguments(folder, *VICTIMS[victim]))
    wait_until(lambda: steps_of(folder) > 3, process)
    (target,) = (p for p in named(folder, [victim]) if p.pid != process.pid)
    target.send_signal(signal.SIGKILL)
    told = expect_it_goes_on(folder, process, {victim: 1})
    assert f"{victim} was restarted (ended by SIGKILL)" in told
    assert "why='was ended by SIGKILL'" in (folder / "supervisor.log").read_text()


@pytest.mark.timeout(180)
def test_a_shard_that_ends_with_0_is_replaced_and_the_run_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(*demo_arguments(folder, *ONE))
    wait_until(lambda: steps_of(folder) > 3, process)
    (shard,) = (p for p in named(folder, ["ps-0"]) if p.pid != process.pid)
    shard.terminate()
    assert "ps-0 was restarted (ended with status 0)" in expect_it_goes_on(folder, process, {"ps-0": 1})


@pytest.mark.timeout(180)
def test_a_stopped_worker_is_named_and_not_the_one_that_waits_for_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(*demo_arguments(folder, *TWO_WORKERS, "dispatch.silence_seconds=3"))
    wait_until(lambda: steps_of(folder) > 3, process)
    (stopped,) = (p for p in named(folder, ["worker-1"]) if p.pid != process.pid)
    stopped.suspend()
    wait_until(lambda: not stopped.is_running(), process)
    told = expect_it_goes_on(folder, process, {"worker-1": 1})
    assert "worker-1 was restarted (gave no sign of life for 5 seconds and was killed)" in told
    said = (folder / "logs" / "dispatcher.log").read_text()
    assert "lost worker worker-1: it ended, or gave no sign of life for 3 s" in said
    assert "lost worker worker-0" not in said


@pytest.mark.timeout(180)
def test_a_process_that_fails_again_and_again_ends_the_run_with_a_clear_error_and_no_orphans(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    faults = ",".join(["worker-0:start:exit=3"] * (MOST_RESTARTS + 1))
    process = start(*demo_arguments(folder, *ONE), **{FAULT: faults, ALLOWED: "1"})
    output, _ = process.communicate(timeout=150)
    assert process.returncode == 1
    assert len(read_fired(folder)) == MOST_RESTARTS + 1
    expected = f"process 'worker-0' ended with status 3, restarted {MOST_RESTARTS} times; expected it to run until"
    assert expected in " ".join(output.split())
    told, marker, log = output.partition(f"log {folder / 'logs' / 'worker-0.log'}:\n")
    assert marker
    assert "Traceback" not in told + "".join(line for line in log.splitlines() if not line.startswith("  | "))
    assert max(map(len, output.splitlines())) < 1100
    assert children_of(folder) == []


def test_a_process_that_was_stopped_is_replaced_while_the_run_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(*demo_arguments(folder, *ONE))
    wait_until(lambda: len(read_manifests(folder / "journal")) > 3, process)
    (stopped,) = (p for p in named(folder, ["api"]) if p.pid != process.pid)
    stopped.suspend()
    wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED)
    wait_until(lambda: not stopped.is_running() and (folder / "endpoints" / "api").exists(), process)
    process.terminate()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert "api was restarted (gave no sign of life for 5 seconds and was killed)" in " ".join(output.split())
    assert children_of(folder) == []


def test_a_killed_supervisor_leaves_no_orphans(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(*demo_arguments(folder, *ONE))
    wait_until(lambda: len(read_manifests(folder / "journal")) > 3, process)
    left = [p for p in children_of(folder) if p.pid != process.pid]
    assert len(left) == 5, "a shard, the dispatcher, a worker, the generator, the API"
    process.kill()
    process.communicate()
    gone, alive = psutil.wait_procs(left, timeout=30)
    assert (len(gone), alive) == (len(left), [])


RING = ("trainer.reduce=ring", "trainer.unencrypted_reduce=true")


@pytest.mark.parametrize("ring", [(), RING])
def test_with_keys_workers_listen_for_nobody_but_a_ring_that_was_asked_for(
    tmp_path: Path, ring: tuple[str, ...]
) -> None:
    folder = tmp_path / "run"
    write_curve(tmp_path / "keys", ("server", "worker-0", "worker-1"))
    process = start(*demo_arguments(folder, *TWO_WORKERS, f"curve_folder={tmp_path / 'keys'}", *ring))
    wait_until(lambda: len(read_manifests(folder / "journal")) > 3, process)
    assert ports_of_workers(folder) == [int(bool(ring))] * 2
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
