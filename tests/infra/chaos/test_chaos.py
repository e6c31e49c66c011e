"""Chaos: what is drawn, what is done to real processes, what is measured and reported."""

import json
import math
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from io import StringIO
from itertools import islice
from pathlib import Path

import msgspec
import psutil
import pytest
from msgspec.structs import replace as replace_fields
from rich.console import Console

import infra.chaos.main
from dispatch.journal.history import JOURNAL
from dispatch.journal.log import JournalWriter, read_records
from dispatch.journal.records import REPLAY, Begun, GenerationStarted, StepDecided, StepDone, Stopped
from infra.base.process import Stop
from infra.chaos.census import SETTLED_SAMPLES, Census, Usage
from infra.chaos.clients import KINDS
from infra.chaos.main import MOST_IN_A_ROW, RECORD, ChaosJob, Storm, SupervisedRun, targets_of
from infra.chaos.progress import CONVINCING, Progress
from infra.chaos.report import ChaosReport, by_kind, show_report
from infra.chaos.strikes import WEIGHTS, Strike, Struck, draw_strikes
from infra.verify.finding import Finding
from tests.end_to_end.processes import children_of, run, start, wait_until

NAMES = ["worker-0", "worker-1", "worker-2", "ps-0", "ps-1", "dispatcher", "supervisor", "nursery", "serve", "api"]
Sleeper = Callable[[str], "subprocess.Popen[bytes]"]


# ── drawing ───────────────────────────────────────────────────────────────────────────────────────────────────────────
def test_the_same_seed_gives_the_same_faults() -> None:
    first, again, other = (list(islice(draw_strikes(seed, 4.0), 50)) for seed in (7, 7, 8))
    assert first == again != other
    assert all(2.0 <= strike.pause_seconds <= 6.0 and 1.0 <= strike.stopped_seconds <= 20.0 for strike in first)


def test_in_time_every_process_is_killed_and_stopped() -> None:
    struck = {(strike.choose(NAMES), strike.kind) for strike in islice(draw_strikes(1, 4.0), 1000)}
    assert struck == {(name, kind) for name in NAMES for kind in ("kill", "stop")}
    assert set(WEIGHTS) == {name.partition("-")[0] for name in NAMES}


def test_the_first_faults_are_one_of_each_kind_of_process_and_about_half_of_them_stops(fuzz_seed: int) -> None:
    orders = set()
    for seed in range(fuzz_seed, fuzz_seed + 50):
        first = list(islice(draw_strikes(seed, 4.0, most_stopped_seconds=3.0), len(WEIGHTS)))
        assert sorted(strike.target for strike in first) == sorted(WEIGHTS)
        assert Counter(strike.kind for strike in first) == {"kill": 4, "stop": 3}
        assert all(1.0 <= strike.stopped_seconds <= 3.0 for strike in first)
        orders.add(tuple(first))
    assert len(orders) == 50


def test_a_process_that_a_run_does_not_have_is_not_struck(tmp_path: Path) -> None:
    job = ChaosJob(tmp_path, seed=1, seconds=1.0, every_seconds=0.0, rate=1.0, settings=())
    assert set(WEIGHTS) - set(targets_of(job)) == {"serve"}
    assert set(WEIGHTS) - set(targets_of(replace(job, serves=True, folder=tmp_path / "a b"))) == {"nursery"}


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
        command = ["worker", "--run", str(tmp_path), "--name", name]
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
    storm.strike_once_there(Strike(1.0, "kill", "dispatcher", 0.0, 1.0), until=0.0, stop=Stop())
    assert (storm.missed, storm.struck) == (1, [])


def test_a_fault_waits_for_a_process_that_is_about_to_start(
    tmp_path: Path, sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    storm, late = storm_over(tmp_path, sleeper("other")), list["subprocess.Popen[bytes]"]()

    def start_late() -> None:
        if not late:
            late.append(sleeper("worker-3"))

    monkeypatch.setattr(storm, "watch", start_late)
    storm.strike_once_there(Strike(1.0, "kill", "worker", 0.0, 1.0), until=math.inf, stop=Stop())
    assert (storm.missed, [struck.pid for struck in storm.struck]) == (0, [late[0].pid])


def test_nobody_is_struck_so_often_that_its_supervisor_gives_it_up(tmp_path: Path, sleeper: Sleeper) -> None:
    sleeper("api")
    sleeper("nursery")
    storm = storm_over(tmp_path, sleeper("other"))
    wait_until(lambda: storm.run.processes().keys() >= {"api", "nursery"})
    stop_api = Strike(1.0, "stop", "api", 0.0, 1.0)
    assert [storm.strike(stop_api) for _ in range(MOST_IN_A_ROW + 1)] == [True] * MOST_IN_A_ROW + [False]
    assert not storm.strike(Strike(1.0, "kill", "nursery", 0.0, 1.0)), "the API would end with it"
    storm.release()


def test_a_storm_is_over_when_everyone_who_was_struck_is_ready_again(tmp_path: Path, sleeper: Sleeper) -> None:
    storm = storm_over(tmp_path, sleeper("other"))
    victim = sleeper("api")
    wait_until(lambda: "api" in storm.run.processes())
    assert storm.away() == []
    assert storm.strike(Strike(1.0, "kill", "api", 0.0, 1.0))
    assert storm.away() == ["api"]
    victim.wait(60)
    sleeper("api")
    wait_until(lambda: "api" in storm.run.processes())
    assert storm.away() == ["api"], "it has not said that it is ready"
    (tmp_path / "endpoints").mkdir()
    (tmp_path / "endpoints" / "api").touch()
    assert storm.away() == []


def test_a_run_that_was_recovering_when_it_was_asked_to_stop_is_started_again(
    tmp_path: Path, sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    storm = storm_over(tmp_path, sleeper("other"))
    begun = Begun("r", "log/clicks", {}, {}, "", ())
    generation = GenerationStarted(1, ("a",), True, 0, 0, "start")
    replay = replace_fields(generation, number=2, reason=f"{REPLAY} 1")
    with closing(JournalWriter(tmp_path / JOURNAL)) as writer:
        writer.append(begun, generation)
        ends = 0

        def end_again(process: object, patience_seconds: float) -> int:
            nonlocal ends
            ends += 1
            if ends == 2:
                writer.append(Stopped("SIGTERM", 0, 0, ""))
            return 0

        def launch_again(job: ChaosJob) -> "subprocess.Popen[bytes]":
            writer.append(replay, replace_fields(generation, number=3, reason="resumed"))
            return sleeper("again")

        monkeypatch.setattr(infra.chaos.main, "end", end_again)
        monkeypatch.setattr(infra.chaos.main, "_launch_run", launch_again)
        storm.finish(60.0)
    assert (ends, storm.run.surprises) == (2, [])


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
    census.sample(watched)
    process.kill()
    process.wait()
    census.sample(watched)
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
    progress.read_if_due()
    writer = JournalWriter(tmp_path / JOURNAL)
    writer.append(Begun("r", "log/clicks", {}, {}, "", ()), GenerationStarted(3, ("a",), True, 0, 0, "start"))
    writer.append(StepDone(1, 11), StepDone(2, 22))
    assert progress.read_newest() == (3, 2)
    assert progress.read_generation() == GenerationStarted(3, ("a",), True, 0, 0, "start")
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
    bad = report(
        Finding("letters unique", False, "two"), Finding("checkpoints whole", None, "-"), surprises=("it ended",)
    )
    console = Console(width=120, record=True, file=StringIO())
    show_report(bad, console)
    text = console.export_text()
    assert list(by_kind(bad.struck)) == [("worker-1", 1, 1)]
    assert bad.violations == ["it ended", "letters unique: two"]
    for told in ("2 faults in 61 s with seed 3", "4.5 s without a new one", "5.00 MB", "violated: it ended"):
        assert told in text
    assert report(Finding("letters unique", True, "0")).violations == []


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────────────────
SMALL = ("--set", "dispatch.workers=2", "--set", "ps.shards=1", "--set", "rows.dim=4")
SETTINGS = "memory.expire_steps=8", "memory.admit_after=2", "rows.chunks=2", "memory.prune_share=0.5"
FORGETFUL = tuple(
    part for setting in (*SETTINGS, "memory.prune_steps=9", "memory.columns=0.5") for part in ("--set", setting)
)
FAULTS = len(WEIGHTS)
"""the first of these are one of each kind of process"""
PROMISES = (
    "accepted events in the log once",
    "accepted events trained once",
    "answers of good snapshots",
    "snapshots go forward",
    "no 5xx twice",
)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("more", [FORGETFUL, ("--clients",)])
def test_a_run_whose_processes_are_killed_and_stopped_at_random_keeps_every_promise(
    tmp_path: Path, fuzz_seed: int, more: tuple[str, ...]
) -> None:
    folder, told_in = tmp_path / "run", tmp_path / "report.json"
    how = ("--minutes", "60", "--every", "3", "--stopped", "8", "--rate", "500", "--seed", str(fuzz_seed))
    chaos = start("chaos", *how, "--json", told_in, "--run", folder, *SMALL, *more)
    try:
        for faults in range(1, FAULTS + 1):
            wait_until(lambda n=faults: (folder / RECORD).exists() and len(recorded(folder)) >= n, chaos)  # type: ignore[misc]
    finally:
        chaos.terminate()  # it strikes no more, ends the run and checks it
        output, _ = chaos.communicate(timeout=600)
    assert chaos.returncode == 0, f"seed {fuzz_seed}: {output}"
    told = json.loads(told_in.read_text())
    assert (told["surprises"], told["seed"], told["missed"]) == ([], fuzz_seed, 0)
    first = told["struck"][:FAULTS]
    assert {each["process"].partition("-")[0] for each in first} == set(WEIGHTS)
    assert {each["kind"] for each in first} == {"kill", "stop"}
    starts = {each["name"]: each["starts"] for each in told["measured"]}
    killed = Counter(each["process"] for each in told["struck"] if each["kind"] == "kill")
    assert all(starts[name] > times for name, times in killed.items()), (starts, killed)
    assert told["steps"] > 0
    found = {finding["name"]: finding["ok"] for finding in told["findings"]}
    assert {name: ok for name, ok in found.items() if not ok} == {"faults fired": None, "no unreferenced file": None}
    assert found["events add up"] is found["replay: rows"] is found["no process left"] is True
    assert children_of(folder) == []
    if more == FORGETFUL:
        decided = [record for record in read_records(folder / JOURNAL) if isinstance(record, StepDecided)]
        assert any(step.forget_before for step in decided)
        assert all(step.admitted is not None for step in decided if step.assignment)
        assert any(step.pruned for step in decided)
    else:
        assert {name: found.get(name) for name in PROMISES} == dict.fromkeys(PROMISES, True)
        assert told["levels"]["samples"] > 0
        assert {level["name"] for level in told["levels"]["memory"]} >= {"api", "serve", *KINDS}


def test_a_folder_that_is_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    done = run("chaos", "--run", tmp_path)
    assert (done.returncode, "is not empty" in done.stderr) == (2, True)
