"""Changes in mid-run, and how soon a choice follows them."""

import io
import json
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from benchmarks.change import Change, first_steps, own_choice, parse_changes, phases_of, throttled
from benchmarks.tables import change_table
from benchmarks.train import Experiment
from dispatch.journal.records import AnyRecord, SetChosen, StepDone, StepFigures
from infra.base.errors import ConfigError, FreshetError
from tests.end_to_end.processes import run
from tests.infra.run.allowed import NEEDED, can_make_namespaces

EXPERIMENT = Experiment((0.2, 0.2, 0.02), batch=8, steps=90, warm_up=1, seed=0, dataset="synthetic", file=None)


def test_changes_come_in_the_order_of_their_steps() -> None:
    parsed = parse_changes(["join-2@60", "link-0=0.02@30", "processor-1=0.1@40"], EXPERIMENT)
    assert parsed == [Change(30, "link", 0, 0.02), Change(40, "processor", 1, 0.1), Change(60, "join", 2)]
    assert [change.text for change in parsed] == [
        "link of worker 0 at 0.02 Gbit/s",
        "processor of worker 1 runs 10% of the time",
        "worker 2 joins",
    ]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["link-0=0.02"], "expected link-WORKER=GBIT@STEP"),
        (["link-0@30"], "expected link-WORKER=GBIT@STEP"),
        (["cable-0=1@30"], "expected link-WORKER=GBIT@STEP"),
        (["link-3=1@30"], "a worker of 0 to 2"),
        (["processor-0=1.5@30"], "processor-WORKER=SHARE@STEP up to 1"),
        (["join-1@30"], "those who join are the last ones"),
        (["join-2@30", "join-2@40"], "each once"),
        ([], "at least one change"),
        (["join-0@30", "join-1@30", "join-2@30"], "a worker that is there from the start"),
        (["link-0=1@90"], "come after the last of 90 steps"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_changes(texts, EXPERIMENT)


@pytest.mark.parametrize("policy", ["esd:1", "joint:elastic@2", "joint:elastic,esd:1"])
def test_only_one_own_choice_can_be_measured(policy: str) -> None:
    assert own_choice("joint:elastic").policy == "joint:elastic"
    with pytest.raises(ConfigError, match="expected one policy that ends in :elastic"):
        own_choice(policy)


def done(step: int, seconds: float) -> StepDone:
    figures = StepFigures(
        at_seconds=100.0 + step, seconds=seconds, decide_seconds=0.001, samples=8, clicks=1, loss=1.0, moved_bytes=9
    )
    return StepDone(step, 0, figures)


def chosen(step: int, *members: str) -> SetChosen:
    return SetChosen(step, members, "expected to be faster", None, None)


def test_a_choice_has_followed_when_steps_take_as_long_as_they_do_in_the_end() -> None:
    records: list[AnyRecord] = [chosen(1, "a")]
    for step in range(1, 91):
        if step in (42, 50):
            records.append(chosen(step, *("b" if step == 42 else "cd")))
        if step == 60:
            records.append(chosen(step, "b"))
        records.append(done(step, 0.01 if step < 31 or step >= 60 else 0.1))
    start, slower = phases_of(records, [Change(30, "link", 0, 0.02)], [130.5])
    assert (start.settled, start.followed_after, start.step, start.steps, len(start.sets)) == (["a"], 0, 1, 30, 1)
    assert (slower.settled, slower.followed_after, slower.step, slower.steps) == (["b"], 29, 31, 60)
    assert [stay.members for stay in slower.sets] == [["b"], ["c", "d"], ["b"]]
    assert start.before_ms is None
    assert slower.before_ms == pytest.approx(10.0)
    assert slower.first_ms == pytest.approx((29 * 100 + 31 * 10) / 60)
    assert slower.settled_ms == pytest.approx(10.0)
    console = Console(file=io.StringIO(), width=140, record=True)
    console.print(change_table([start, slower], EXPERIMENT))
    shown = console.export_text()
    assert "link of worker 0 at 0.02 Gbit/s" in shown
    assert "29 steps" in shown


def test_changes_that_happen_at_once_have_a_step_each() -> None:
    figures = {step: done(step, 0.01).figures for step in range(1, 11)}
    known = {step: each for step, each in figures.items() if each is not None}
    assert first_steps(known, [103.5, 107.0]) == [1, 4, 8]
    assert first_steps(known, [103.5, 103.6, 103.7]) == [1, 4, 5, 6]
    assert first_steps(known, [50.0]) == [1, 2]
    assert first_steps(known, [109.5, 110.5, 110.6]) == [1, 8, 9, 10]
    with pytest.raises(FreshetError, match="2 steps were trained while 2 changes happened"):
        first_steps({step: known[step] for step in (1, 2)}, [101.5, 101.6])


def test_a_throttled_process_runs_that_share_of_the_time_and_then_all_of_it() -> None:
    with subprocess.Popen(["sh", "-c", "while :; do :; done"]) as busy:
        try:
            process = psutil.Process(busy.pid)
            with throttled(process, 0.2):
                time.sleep(0.2)
                used = process.cpu_times().user
                began = time.monotonic()
                time.sleep(1.0)
                share = (process.cpu_times().user - used) / (time.monotonic() - began)
            assert share < 0.5
            assert process.status() != psutil.STATUS_STOPPED
        finally:
            busy.kill()


@pytest.mark.skipif(not can_make_namespaces(), reason=NEEDED)
def test_a_run_goes_on_while_its_link_its_processor_and_its_members_change(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    size = ("--workers", "2", "--links", "1,1", "--batch", "16", "--steps", "2500")
    model = ("--dim", "4", "--format", "synthetic")
    changes = ("--change", "link-0=0.1@20", "--change", "processor-0=0.5@40", "--change", "join-1@50")
    ended = run("bench", "change", *size, *model, *changes, "--json", output)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    phases = json.loads(output.read_text())
    assert [phase["after"].split()[0] for phase in phases] == ["the", "link", "processor", "worker"]
    assert sum(phase["steps"] for phase in phases) == 2500
    assert [phase["step"] for phase in phases] == sorted(phase["step"] for phase in phases)
    assert phases[-1]["sets"], "nobody noticed that a worker joined"
