"""The command as a user runs it: real processes, real signals."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from dispatch.journal.history import read_manifests
from tests.end_to_end.processes import children_of, named, run, start, wait_until


def demo_arguments(folder: Path, *more: str) -> tuple[str | Path, ...]:
    small = ("stream.batch=128", "dispatch.workers=2", "dispatch.links_gbit=5,0.5", *more)
    settings = [part for setting in small for part in ("--set", setting)]
    return ("demo", "--folder", folder, "--json", folder / "summary.json", *settings)


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


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "at once": lambda folder: folder.exists(),
    "while shards start": lambda folder: bool(named(folder, ["ps-1"])),
    "while workers import": lambda folder: bool(named(folder, ["worker-1"])),
    "after the first steps": lambda folder: len(read_manifests(folder / "journal")) > 3,
}


@pytest.mark.parametrize(
    ("moment", "number"), [*((m, signal.SIGTERM) for m in MOMENTS), ("after the first steps", signal.SIGINT)]
)
def test_a_signal_at_any_moment_drains_and_exits_0(tmp_path: Path, moment: str, number: signal.Signals) -> None:
    folder = tmp_path / "run"
    process = start(*demo_arguments(folder))
    wait_until(lambda: MOMENTS[moment](folder), process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["exit_reason"], summary["killed"]) == (number.name, []), output
    manifests = read_manifests(folder / "journal")
    samples, steps = summary["status"]["samples"], summary["status"]["steps"]
    assert samples == sum(manifest.samples for manifest in manifests[:steps])
    if moment == "after the first steps":
        assert len(manifests) == steps > 3
    assert children_of(folder) == []


@pytest.mark.parametrize("victim", ["worker-1", "ps-0", "dispatcher"])
def test_a_killed_process_ends_the_run_with_a_clear_error_and_no_orphans(tmp_path: Path, victim: str) -> None:
    folder = tmp_path / "run"
    process = start(*demo_arguments(folder, "dispatch.drain_seconds=2"))
    wait_until(lambda: len(read_manifests(folder / "journal")) > 3, process)
    (target,) = (p for p in named(folder, [victim]) if p.pid != process.pid)
    target.send_signal(signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"process '{victim}' was ended by SIGKILL" in output
    told, marker, log = output.partition(f"the end of its log {folder / 'logs' / victim}.log:\n")
    assert marker
    assert "Traceback" not in told + "".join(line for line in log.splitlines() if not line.startswith("  | "))
    assert children_of(folder) == []


def test_a_shard_that_ends_with_0_ends_the_run_and_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(*demo_arguments(folder))
    wait_until(lambda: len(read_manifests(folder / "journal")) > 3, process)
    (shard,) = (p for p in named(folder, ["ps-0"]) if p.pid != process.pid)
    shard.terminate()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "process 'ps-0' ended with status 0; expected it to run until the run is over" in output
    assert "reason=SIGTERM" in output.splitlines()[-1], "the report ends with what the shard said last"
    assert max(map(len, output.splitlines())) < 1100
    assert children_of(folder) == []


def test_a_stopped_worker_is_named_and_not_the_one_that_waits_for_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(*demo_arguments(folder, "dispatch.silence_seconds=3", "dispatch.drain_seconds=2"))
    wait_until(lambda: len(read_manifests(folder / "journal")) > 3, process)
    (stopped,) = (p for p in named(folder, ["worker-1"]) if p.pid != process.pid)
    stopped.suspend()
    wait_until(lambda: stopped.status() == psutil.STATUS_STOPPED)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "lost worker worker-1: it ended, or gave no sign of life for 3 s" in " ".join(output.split())
    assert children_of(folder) == []


def test_a_killed_supervisor_leaves_no_orphans(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(*demo_arguments(folder))
    wait_until(lambda: len(read_manifests(folder / "journal")) > 3, process)
    left = [p for p in children_of(folder) if p.pid != process.pid]
    assert len(left) >= 6
    process.kill()
    process.communicate()
    gone, alive = psutil.wait_procs(left, timeout=30)
    assert (len(gone), alive) == (len(left), [])


def listening(process: psutil.Process) -> set[int]:
    """Ports on which a process accepts connections."""
    return {each.laddr.port for each in process.net_connections() if each.status == psutil.CONN_LISTEN}


def ports_of_workers(folder: Path) -> list[int]:
    """How many ports each worker of a run listens on, beside that of its metrics."""
    metrics = {
        path.stem: int(path.read_text().split(":")[2].split("/")[0]) for path in folder.glob("endpoints/*.metrics")
    }
    workers = [(p, name) for name in metrics if name.startswith("worker-") for p in named(folder, [name])]
    return [len(listening(process) - {metrics[name]}) for process, name in workers]


RING = ("trainer.reduce=ring", "trainer.unencrypted_reduce=true")


@pytest.mark.parametrize(("workers", "ring"), [(1, ()), (2, ()), (2, RING)])
def test_with_keys_workers_listen_for_nobody_but_a_ring_that_was_asked_for(
    tmp_path: Path, workers: int, ring: tuple[str, ...]
) -> None:
    folder, keys = tmp_path / "run", tmp_path / "keys"
    assert run("keys", keys, "--worker", "worker-0", "--worker", "worker-1").returncode == 0
    links = ",".join(["5"] * workers)
    keyed = (f"dispatch.workers={workers}", f"dispatch.links_gbit={links}", f"curve_folder={keys}", *ring)
    process = start(*demo_arguments(folder, *keyed))
    wait_until(lambda: len(read_manifests(folder / "journal")) > 3, process)
    ports = ports_of_workers(folder)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert ports == [int(bool(ring))] * workers


def test_with_keys_a_ring_that_was_not_asked_for_is_refused_before_anything_starts(tmp_path: Path) -> None:
    assert run("keys", tmp_path / "keys", "--worker", "worker-0", "--worker", "worker-1").returncode == 0
    refused = run(*demo_arguments(tmp_path / "run", f"curve_folder={tmp_path / 'keys'}", "trainer.reduce=ring"))
    assert refused.returncode == 2
    assert "2 workers sum dense gradients over Gloo or NCCL, which do not encrypt" in refused.stderr
    assert "trainer.unencrypted_reduce" in refused.stderr
    assert not (tmp_path / "run" / "endpoints").exists()


def test_produce_then_up_trains_what_was_produced_over_encrypted_links_and_shows_what_was_not(tmp_path: Path) -> None:
    log = ("--set", f"stream.folder={tmp_path / 'log'}")
    produced = run("produce", "--limit", "2000", "--poison", "0.05", *log)
    assert produced.returncode == 0, produced.stderr
    folder = tmp_path / "run"
    assert run("keys", tmp_path / "keys", "--worker", "worker-0").returncode == 0
    small = ("--set", "dispatch.workers=1", "--set", "ps.shards=1", "--set", f"curve_folder={tmp_path / 'keys'}")
    trained = run("up", "--samples", "1900", "--folder", folder, "--json", tmp_path / "up.json", *log, *small)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    summary = json.loads((tmp_path / "up.json").read_text())
    assert summary["status"]["samples"] == 1900
    letters = run("dead-letters", "--run-folder", folder).stdout.splitlines()
    assert len(letters) == summary["status"]["events"]["dead_letters"] > 20
    assert {"partition", "offset", "index", "reason", "payload"} <= json.loads(letters[0]).keys()
