"""The real dispatcher with simulated workers and shards."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.crowd import ServiceTimes
from benchmarks.scale import PARTS, ScaleLoad, ScaleResult, busy_seconds, plot_scale, run_scale, scale_table
from infra.base.trace import Span
from infra.cli.main import app

LOAD = ScaleLoad("avazu", batch=8, steps=8, shards=2, cache_rows=1000, times=ServiceTimes(0.001, 1e-5, 1e-6))


@pytest.fixture(scope="module")
def result() -> ScaleResult:
    (result,) = run_scale(["laia"], [3], LOAD)
    return result


def test_every_worker_gets_an_order_in_every_step_and_the_parts_add_up(result: ScaleResult) -> None:
    assert (result.policy, result.workers, result.batch) == ("laia", 3, 24)
    assert result.orders == 3
    assert min(getattr(result, part) for part in PARTS) > 0
    assert sum(getattr(result, part) for part in (*PARTS, "receive")) == pytest.approx(result.loop)


def test_orders_and_announcements_are_counted(result: ScaleResult) -> None:
    least_order_bytes = 24 * 20  # a byte for each key of a sample
    assert result.order_kilobytes * 1000 > least_order_bytes
    assert result.announce_kilobytes > 0
    assert result.memory_megabytes > 50


def test_a_table_and_a_picture_have_every_result(result: ScaleResult, tmp_path: Path) -> None:
    assert scale_table([result, result]).row_count == 2
    plot_scale([result], tmp_path / "scale.svg")
    assert "laia" in (tmp_path / "scale.svg").read_text()


def test_polls_within_a_wait_count_once() -> None:
    spans = [Span("decide", 0, 1, "main", busy=0.5), Span("poll", 1, 2, "main", busy=0.25)]
    spans += [Span("poll", 2.5, 3, "main", busy=1.0), Span("complete", 2, 4, "main", busy=2.0)]
    assert busy_seconds(spans) == {"decide": 0.5, "record": 0, "announce": 0, "order": 0, "receive": 2.25}


def test_numbers_that_are_none_are_refused() -> None:
    refused = CliRunner().invoke(app, ["bench", "scale", "--workers", "8,many"])
    assert "--workers is '8,many'" in str(refused.exception)
