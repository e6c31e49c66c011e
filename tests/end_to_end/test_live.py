"""What one live run is put through and must not notice, and what is left when it has drained: one run for all tests.

They are run in this order; the last one ends the run.
"""

import json
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from dispatch.journal.history import read_manifests
from infra.base.wire import write_curve
from tests.end_to_end.processes import children_of, ports_of_workers, run, start, wait_until

SMALL = ("stream.batch=64", "dispatch.workers=2", "dispatch.links_gbit=", "ps.shards=1", "api.port=0", "run=shared")
PATIENT = (
    "dispatch.silence_seconds=600",
    *(f"trainer.{each}_seconds=900" for each in ("silence", "pull_timeout", "reduce_timeout")),
)
"""all processes of the run are stopped together for a while"""


@dataclass(frozen=True)
class LiveRun:
    """A demo with keys, in its first steps or later."""

    process: "subprocess.Popen[str]"
    folder: Path
    settings: tuple[str | Path, ...]

    def steps(self) -> int:
        return len(read_manifests(self.folder / "journal"))

    def wait_for_steps(self, steps: int) -> None:
        wait_until(lambda: self.steps() >= steps, self.process)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRun]:
    folder = tmp_path_factory.mktemp("live")
    write_curve(folder / "keys", ("server", "worker-0", "worker-1", "odd"))
    chosen = (*SMALL, *PATIENT, f"curve_folder={folder / 'keys'}")
    settings = tuple(part for setting in chosen for part in ("--set", setting))
    run_folder = folder / "run"
    process = start("demo", "--rate", "500", "--run", run_folder, "--json", run_folder / "summary.json", *settings)
    try:
        yield LiveRun(process, run_folder, settings)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def live(shared: LiveRun) -> LiveRun:
    shared.wait_for_steps(4)
    return shared


def test_with_keys_workers_listen_for_nobody(live: LiveRun) -> None:
    assert ports_of_workers(live.folder) == [0, 0]


def test_a_worker_process_with_another_rate_ends_with_the_reason_and_the_run_goes_on(
    live: LiveRun, tmp_path: Path
) -> None:
    dispatcher = (live.folder / "endpoints" / "dispatcher").read_text()
    where = ("--dispatcher", dispatcher.split()[0], "--name", "odd")
    odd = run("worker", *live.settings, "--set", "model.dense_rate=0.03", "--set", f"folder={tmp_path}", *where)
    assert odd.returncode == 2
    assert "model.dense_rate is 0.003 in the dispatcher and 0.03 in worker 'odd'" in odd.stdout + odd.stderr
    live.wait_for_steps(live.steps() + 4)


def everything(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of every file, and the time of every folder."""
    return {
        str(path.relative_to(folder)): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in [folder, *folder.rglob("*")]
    }


def expect_refused(run_of: LiveRun, reason: str) -> None:
    """Of either command; and no file in the run's folder has changed."""
    before = everything(run_of.folder)
    for command in ("up", "demo"):
        ended = run(command, "--run", run_of.folder, *run_of.settings, "--set", "seed=7")
        assert (ended.returncode, "Traceback" in ended.stderr) == (2, False), ended.stderr
        assert reason in ended.stderr
        assert str(run_of.folder) in ended.stderr
    assert everything(run_of.folder) == before


@contextmanager
def suspended(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Stops them for a while, so that whatever changes in the meantime was changed by others."""
    for process in processes:
        process.suspend()
    try:
        yield
    except BaseException:
        for process in processes:
            process.kill()
        raise
    for process in processes:
        process.resume()


def test_a_second_start_in_the_folder_of_a_live_run_changes_nothing(live: LiveRun) -> None:
    with suspended([psutil.Process(live.process.pid), *children_of(live.folder)]):
        expect_refused(live, "a run is under way")
    live.wait_for_steps(live.steps() + 4)


def test_a_start_with_another_seed_in_the_folder_of_a_run_that_was_stopped_changes_nothing(live: LiveRun) -> None:
    live.process.send_signal(signal.SIGINT)
    output, _ = live.process.communicate(timeout=100)
    assert live.process.returncode == 0, output
    summary = json.loads((live.folder / "summary.json").read_text())
    assert (summary["exit_reason"], summary["killed"]) == ("SIGINT", [])
    assert summary["status"]["generation"] == 1, "nobody has joined"
    assert f"'freshet demo --rate 500 --no-serve --run {live.folder}' resumes it" in output
    expect_refused(live, "seed was")
