"""Chaos: what is drawn, what is done to real processes, what is measured and reported."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from itertools import islice
from pathlib import Path

import msgspec
import psutil
import pytest
from rich.console import Console

from dispatch.journal.history import JOURNAL
from dispatch.journal.log import JournalWriter
from dispatch.journal.records import Begun, GenerationStarted, StepDone
from infra.chaos.census import SETTLED_SAMPLES, Census, Usage
from infra.chaos.main import RECORD, ChaosJob, Storm, SupervisedRun
from infra.chaos.progress import CONVINCING, Progress
from infra.chaos.report import ChaosReport, by_kind, show_report
from infra.chaos.strikes import WEIGHTS, Strike, Struck, draw_strikes
from infra.verify.finding import Finding
from tests.end_to_end.processes import children_of, run, start, wait_until

NAMES = ["worker-0", "worker-1", "worker-2", "ps-0", "ps-1", "dispatcher", "supervisor", "nursery", "api"]
Sleeper = Callable[[str], "subprocess.Popen[bytes]"]


# ── drawing ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_the_same_seed_gives_the_same_faults() -> None:
    first, again, other = (list(islice(draw_strikes(seed, 4.0), 50)) for seed in (7, 7, 8))
    assert first == again != other
    assert all(2.0 <= strike.pause_seconds <= 6.0 and 1.0 <= strike.stopped_seconds <= 20.0 for strike in first)


def test_in_time_every_process_is_killed_and_stopped() -> None:
    struck = {(strike.choose(NAMES), strike.kind) for strike in islice(draw_strikes(1, 4.0), 1000)}
    assert struck == {(name, kind) for name in NAMES if name != "api" for kind in ("kill", "stop")}
    assert set(WEIGHTS) == {name.partition("-")[0] for name in NAMES} - {"api"}


def test_nothing_is_struck_where_nothing_is_to_be_or_nobody_is_there() -> None:
    assert list(draw_strikes(1, 0.0)) == []
    assert Strike(1.0, "kill", "ps", 0.99, 1.0).choose(["worker-0", "ps-0", "ps-1"]) == "ps-1"
    assert Strike(1.0, "kill", "ps", 0.5, 1.0).choose(["worker-0", "dispatcher"]) is None


# ── striking ──────────────────────────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Sleeper]:
    """Starts processes that look like those of a run in tmp_path, and sleep."""
    started = []

    def start(name: str) -> "subprocess.Popen[bytes]":
        command = ["worker", "--run-folder", str(tmp_path), "--name", name]
        started.append(subprocess.Popen([sys.executable, "-c", "input()", *command], stdin=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def storm_over(folder: Path, supervisor: "subprocess.Popen[bytes]") -> Storm:
    job = ChaosJob(folder, seed=1, seconds=1.0, every_seconds=0.0, rate=1.0, settings=())
    return Storm(job, SupervisedRun(job, supervisor), lambda line: None)


def recorded(folder: Path) -> list[Struck]:
    return [msgspec.json.decode(line, type=Struck) for line in (folder / RECORD).read_bytes().splitlines()]


def test_a_struck_process_is_killed_and_the_record_says_so(tmp_path: Path, sleeper: Sleeper) -> None:
    supervisor, worker = sleeper("other"), sleeper("worker-3")
    storm = storm_over(tmp_path, supervisor)
    wait_until(lambda: "worker-3" in storm.run.processes())
    storm.strike(Strike(1.0, "kill", "worker", 0.0, 1.0))
    assert worker.wait(60) == -signal.SIGKILL
    (struck,) = recorded(tmp_path)
    assert (struck.kind, struck.process, struck.pid) == ("kill", "worker-3", worker.pid)


def test_a_stopped_process_goes_on_when_its_time_is_over(tmp_path: Path, sleeper: Sleeper) -> None:
    supervisor, worker = sleeper("other"), sleeper("worker-3")
    storm, watched = storm_over(tmp_path, supervisor), psutil.Process(worker.pid)
    wait_until(lambda: "worker-3" in storm.run.processes())
    storm.strike(Strike(1.0, "stop", "worker", 0.0, 0.0))
    wait_until(lambda: watched.status() == psutil.STATUS_STOPPED)
    storm.watch()
    wait_until(lambda: watched.status() == psutil.STATUS_SLEEPING)
    assert [struck.stopped_seconds for struck in recorded(tmp_path)] == [0.0]


def test_a_fault_that_finds_no_process_is_counted(tmp_path: Path, sleeper: Sleeper) -> None:
    storm = storm_over(tmp_path, sleeper("other"))
    storm.strike(Strike(1.0, "kill", "dispatcher", 0.0, 1.0))
    assert (storm.missed, storm.struck) == (1, [])


# ── watching ──────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_use_is_measured_when_a_process_has_settled_and_starts_are_counted() -> None:
    census = Census()
    for sample in range(SETTLED_SAMPLES + 5):
        census.add("ps-0", 100, Usage(sample, 10 * sample))
    for sample in range(3):  # started again, and still loading
        census.add("ps-0", 200, Usage(sample, 0))
    (found,) = census.measured()
    assert (found.name, found.starts) == ("ps-0", 2)
    assert (found.first.rss_bytes, found.last.rss_bytes, found.most.descriptors) == (9, 14, 140)


def test_a_process_that_has_gone_is_left_out_of_a_sample(sleeper: Sleeper) -> None:
    process, census = sleeper("worker-1"), Census()
    watched = {"worker-1": psutil.Process(process.pid)}
    census.take(watched)
    process.kill()
    process.wait()
    census.take(watched)
    assert [found.name for found in census.measured()] == ["worker-1"]


def test_the_longest_time_without_a_new_step_is_kept() -> None:
    progress = Progress(Path())
    for newest, now in (((1, 5), 10.0), ((1, 9), 11.0), ((2, 9), 26.5), ((2, 12), 27.0)):
        progress.see(newest, now)
    assert (progress.longest_seconds, progress.steps) == (15.5, 12)


def test_a_run_is_over_a_fault_when_it_has_completed_steps_again() -> None:
    progress = Progress(Path())
    progress.see((1, 5), 1.0)
    progress.strike()
    for sighting in range(CONVINCING):
        assert not progress.is_over_it
        progress.see((2, 6 + sighting), 2.0 + sighting)
    assert progress.is_over_it


def test_progress_is_read_from_the_journal_while_it_is_written(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    progress.look()
    writer = JournalWriter(tmp_path / JOURNAL)
    writer.append(Begun("r", "log/clicks", {}, {}, "", ()), GenerationStarted(3, ("a",), True, 0, 0, "start"))
    writer.append(StepDone(1, 11), StepDone(2, 22))
    assert progress.read_newest() == (3, 2)
    writer.close()


# ── reporting ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def report(*findings: Finding, surprises: tuple[str, ...] = ()) -> ChaosReport:
    census = Census()
    census.add("worker-1", 1, Usage(5_000_000, 12))
    return ChaosReport(
        folder="runs/x",
        seed=3,
        seconds=61.2,
        struck=(Struck(1.0, "kill", "worker-1", 7), Struck(2.0, "stop", "worker-1", 8, 3.0)),
        missed=1,
        steps=1234,
        longest_seconds=4.5,
        measured=tuple(census.measured()),
        findings=findings,
        surprises=surprises,
    )


def test_a_report_tells_faults_use_and_violations() -> None:
    bad = report(Finding("letters unique", False, "two"), Finding("cuts whole", None, "-"), surprises=("it ended",))
    console = Console(width=120, record=True, file=StringIO())
    show_report(bad, console)
    text = console.export_text()
    assert list(by_kind(bad.struck)) == [("worker-1", 1, 1)]
    assert bad.violations == ["it ended", "letters unique: two"]
    for told in ("2 faults in 61 s with seed 3", "4.5 s without a new one", "5.00 MB", "violated: it ended"):
        assert told in text
    assert report(Finding("letters unique", True, "0")).violations == []


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────────────────
KILLS, SEED = 5, 11615
"""the first five faults of this seed are kills: of a worker, a shard, the dispatcher, a shard and a worker"""


@pytest.mark.timeout(300)
def test_a_run_whose_processes_are_killed_at_random_keeps_every_promise(tmp_path: Path) -> None:
    folder, small = tmp_path / "run", ("--set", "dispatch.workers=2", "--set", "ps.shards=1", "--set", "rows.dim=4")
    how = ("--minutes", "10", "--every", "3", "--rate", "500", "--seed", str(SEED), "--json", tmp_path / "report.json")
    chaos = start("chaos", *how, "--folder", folder, *small)
    try:
        wait_until(lambda: (folder / RECORD).exists() and len(recorded(folder)) >= KILLS, chaos)
    finally:
        chaos.terminate()  # it strikes no more, ends the run and checks it
        output, _ = chaos.communicate(timeout=240)
    assert chaos.returncode == 0, output
    told = json.loads((tmp_path / "report.json").read_text())
    assert (told["surprises"], told["seed"]) == ([], SEED)
    assert {each["process"].partition("-")[0] for each in told["struck"]} == {"worker", "ps", "dispatcher"}
    assert {each["kind"] for each in told["struck"]} == {"kill"}
    assert told["steps"] > 0
    starts = {each["name"]: each["starts"] for each in told["measured"]}
    assert min(starts["dispatcher"], starts["ps-0"], max(starts["worker-0"], starts["worker-1"])) > 1
    found = {finding["name"]: finding["ok"] for finding in told["findings"]}
    assert {name: ok for name, ok in found.items() if not ok} == {"faults fired": None, "no unreferenced file": None}
    assert found["events add up"] is found["replay: rows"] is found["no process left"] is True
    assert children_of(folder) == []


def test_a_folder_that_is_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    done = run("chaos", "--folder", tmp_path)
    assert (done.returncode, "is not empty" in done.stderr) == (2, True)
