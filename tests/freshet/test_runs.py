"""Runs that Python programs start: real processes, programs that are killed and interrupted, and what they leave."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import freshet
from dispatch.commands.supervision import ListedProcess
from dispatch.journal.history import read_history
from freshet import runs
from freshet.picture import as_html
from tests.end_to_end.processes import ROOT, children_of, environment, wait_until

SMALL = {"ps.shards": 1, "model.mlp": [8], "rows.dim": 4, "stream.batch": 64, "api.port": 0, "serving.port": 0}
PROGRAM = """
import sys, time, freshet
with freshet.start("synthetic", run={folder!r}, workers={workers}, settings={settings}, keep={keep}) as run:
    print(run.name, flush=True)
    time.sleep(600)
"""


def program(folder: Path, workers: int, *, keep: bool) -> "subprocess.Popen[str]":
    """A program that has started a run; it is in a process group of its own, as a notebook's kernel is."""
    text = PROGRAM.format(folder=str(folder), workers=workers, settings=SMALL, keep=keep)
    begun = subprocess.Popen(
        [sys.executable, "-c", text],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert begun.stdout is not None
    assert begun.stdout.readline(), begun.communicate()[1]
    return begun


def clicks(number: int) -> list[dict[str, Any]]:
    draw = Random(number)
    rows = [{"user": f"u{draw.randrange(50)}", "item": draw.randrange(40)} for _ in range(number)]
    return [{**row, "label": int(draw.random() < 0.3), "event_time": time.time()} for row in rows]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[freshet.Run]:
    """A run whose program was killed, and which goes on because it was told to."""
    folder = tmp_path_factory.mktemp("kept") / "run"
    begun = program(folder, 2, keep=True)
    begun.kill()
    begun.communicate()
    with freshet.attach(folder) as attached:
        yield attached
    assert attached.is_running, "closing a handle leaves a run alone that it has not started"
    with freshet.attach(folder) as attached:
        attached.stop()
        assert attached.wait()
    assert children_of(folder) == []


def test_a_run_that_is_kept_outlives_its_program_and_learns(run: freshet.Run) -> None:
    assert run.send(clicks(400)).accepted == 400
    wait_until(lambda: run.status()["samples"] == 400)
    (chance,) = run.predict({"user": "u1", "item": 3}).probabilities
    assert 0 < chance < 1
    assert not run.wait(0.1)
    assert run.name in repr(run)


def test_metrics_of_a_run_are_a_table(run: freshet.Run) -> None:
    run.send(clicks(64))
    wait_until(lambda: sum(run.metrics()["samples"].to_pylist()) >= 64)
    assert {"first_step", "loss", "moved_bytes", "alpha"} <= set(run.metrics().column_names)
    assert run.metrics("quality").num_rows == 0, "no window is full yet"
    with pytest.raises(freshet.InvalidInput, match="2000 points"):
        run.steps(points=2000)


def test_a_run_is_steered_by_its_handle(run: freshet.Run) -> None:
    assert "alpha is 0.5" in run.set_alpha(0.5)["text"]
    assert "a checkpoint is taken" in run.checkpoint()["text"]
    assert "worker-1 leaves" in run.drain_worker("worker-1")["text"]
    added = run.add_worker()["text"]
    assert "is being started" in added


def test_a_picture_shows_the_figures_of_the_run(run: freshet.Run) -> None:
    shown = run._repr_html_()
    assert "samples/s" in shown
    assert f'href="{run.address.url}/dashboard/"' in shown
    assert "#signin=fl_" in run.dashboard()


def test_without_a_status_a_picture_says_what_is_known() -> None:
    assert "<p>run &lt;b&gt; is starting</p>" in as_html(None, "run <b> is starting", "http://127.0.0.1:1/dashboard/")


@pytest.mark.parametrize(("number", "reason"), [(signal.SIGKILL, "the end of its input"), (signal.SIGINT, "SIGTERM")])
def test_a_program_that_ends_stops_its_run_in_order(tmp_path: Path, number: signal.Signals, reason: str) -> None:
    folder = tmp_path / "run"
    begun = program(folder, 1, keep=False)
    assert children_of(folder)
    os.killpg(begun.pid, number)
    said = begun.communicate(timeout=100)[1]
    wait_until(lambda: not children_of(folder))
    assert ("KeyboardInterrupt" in said) == (number == signal.SIGINT)
    assert f"reason={reason}" in (folder / "supervisor.log").read_text().replace('"', "").replace("'", "")
    history = read_history(folder / "journal")
    assert history.begun is not None
    assert history.ended is None, "it can be resumed"


def test_a_wrong_setting_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(freshet.ConfigError, match=r"stream\.batches"):
        freshet.start("synthetic", run=tmp_path / "run", settings={"stream.batches": 1})


def test_there_is_no_handle_for_a_run_that_is_not_under_way(tmp_path: Path) -> None:
    with pytest.raises(freshet.ConfigError, match="no settings of a run"):
        freshet.attach(tmp_path / "nothing")


def listed(name: str, state: str, restarts: int) -> ListedProcess:
    return msgspec.convert(
        {"name": name, "state": state, "pid": 1, "restarts": restarts, "seconds": 0.0}, ListedProcess
    )


@pytest.mark.parametrize("name", ["api", "serve"])
def test_a_handle_does_not_wait_for_what_fails_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    looks: list[tuple[ListedProcess, ...]] = []

    def look(_folder: Path) -> tuple[ListedProcess, ...]:
        ready = [listed(each, "ready", 9) for each in ("api", "serve") if each != name]
        looks.append((*ready, listed(name, "pausing", 5 + len(looks))))
        return looks[-1]

    monkeypatch.setattr(runs, "is_under_way", lambda _folder: True)
    monkeypatch.setattr(runs, "_processes", look)
    if name == "api":
        with pytest.raises(freshet.ProcessFailed, match="has no control plane"):
            runs._await_ready(tmp_path, None)
    else:
        runs._await_ready(tmp_path, None)
    assert len(looks) == 1 + runs.FAILS


def test_a_handle_takes_an_api_that_is_ready_however_often_it_was_restarted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([(listed("api", "starting", 0),), (listed("api", "ready", 2 * runs.FAILS),)])
    monkeypatch.setattr(runs, "is_under_way", lambda _folder: True)
    monkeypatch.setattr(runs, "_processes", lambda _folder: next(looks))
    runs._await_ready(tmp_path, None)
    assert not list(looks)
