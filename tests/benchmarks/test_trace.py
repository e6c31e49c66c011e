"""Spans of all processes of a run, as a table and a picture."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.trace import ProcessSpans, after_step, read_spans, span_times, usual_step, write_trace
from infra.base.errors import FreshetError
from infra.base.trace import Span
from infra.cli.main import app
from tests.end_to_end.processes import run


def worker(*orders: tuple[int, float, float]) -> tuple[Span, ...]:
    return tuple(Span("step", began, ended, "MainThread", step) for step, began, ended in orders)


PROCESSES = [
    ProcessSpans("dispatcher", (Span("decide", 0.0, 0.1, "MainThread"), Span("decide", 2.0, 2.4, "MainThread"))),
    ProcessSpans("ps-0", (Span("Push", 1.5, 1.6, "MainThread", 2),)),
    ProcessSpans("worker-0", worker((1, 0.1, 0.9), (2, 1.0, 1.9), (3, 2.0, 3.9), (4, 4.0, 4.9))),
    ProcessSpans("worker-1", worker((1, 0.2, 0.8), (2, 0.9, 1.9), (4, 4.1, 4.8))),
]


def test_a_step_lasts_from_its_first_order_to_the_next_steps_first() -> None:
    assert usual_step(PROCESSES) == (2, 0.9, 2.0)


def test_spans_of_the_warm_up_are_left_out() -> None:
    left = after_step(PROCESSES, 2)
    assert [[span.name for span in each.spans] for each in left] == [["decide"], [], ["step", "step"], ["step"]]


def test_times_are_means_over_steps_and_processes_of_a_kind() -> None:
    found = {(each.kind, each.name): (round(each.ms, 6), each.times) for each in span_times(PROCESSES)}
    assert found["dispatcher", "decide"] == (125.0, 0.5)
    assert found["shard", "Push"] == (25.0, 0.25)
    assert found["worker", "step"] == (round(1000 * (0.8 + 0.9 + 1.9 + 0.9 + 0.6 + 1.0 + 0.7) / 8, 6), 7 / 8)


def test_a_run_without_later_steps_is_refused() -> None:
    with pytest.raises(FreshetError, match="raise --steps"):
        after_step(PROCESSES, 4)
    with pytest.raises(FreshetError, match="raise --steps"):
        usual_step(after_step(PROCESSES, 3))


def test_spans_written_are_the_spans_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_trace(PROCESSES[3:], tmp_path / "in" / "worker-1.json")
    (read,) = read_spans(tmp_path / "in")
    assert read.process == "worker-1"
    assert [(span.step, round(span.began, 6), round(span.ended, 6)) for span in read.spans] == [
        (1, 0.2, 0.8),
        (2, 0.9, 1.9),
        (4, 4.1, 4.8),
    ]


def test_two_policies_cannot_be_traced_at_once() -> None:
    refused = CliRunner().invoke(app, ["bench", "trace", "--policy", "laia,esd:1"])
    assert "one policy" in str(refused.exception)


def test_a_real_run_is_traced(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("times.json", "spans.json", "step.svg")}
    arguments = ["--workers", "2", "--links", "1,1", "--batch", "16", "--steps", "12", "--warm-up", "3"]
    arguments += ["--json", str(files["times.json"]), "--spans", str(files["spans.json"])]
    ended = run("bench", "trace", *arguments, "--plot", files["step.svg"])
    assert ended.returncode == 0, ended.stderr
    assert "PushDense" in ended.stdout
    kinds = {(each["kind"], each["name"]) for each in json.loads(files["times.json"].read_bytes())}
    assert {("dispatcher", "decide"), ("shard", "PushDense"), ("worker", "forward"), ("worker", "step")} <= kinds
    events = json.loads(files["spans.json"].read_bytes())["traceEvents"]
    steps = {event["args"]["step"] for event in events if event["name"] == "step" and event["ph"] == "X"}
    assert steps == set(range(4, 13))
    assert b"<svg" in files["step.svg"].read_bytes()
