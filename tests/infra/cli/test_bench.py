"""Every benchmark runs, on sizes that say nothing about speed, and writes what it measured."""

import json
from pathlib import Path

import pytest

from tests.infra.cli.conftest import Invoke


def test_step_compares_the_pipeline_with_the_plain_loop(invoke: Invoke, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    ended = invoke("bench", "step", "--batch", "32", "--steps", "30", "--json", output)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (result,) = json.loads(output.read_text())
    assert result["ratio"] == pytest.approx(result["pipeline_ms"] / result["plain_ms"])
    assert result["phases_ms"].keys() == {"push", "pull", "forward", "backward", "reduce", "rows"}


def test_ps_compares_with_raw_tcp(invoke: Invoke, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    ended = invoke("bench", "ps", "--repeat", "5", "--json", output)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    results = json.loads(output.read_text())
    assert [(r["operation"], r["rows"], r["dim"]) for r in results] == [
        ("pull", 3000, 512),
        ("push", 3000, 512),
        ("pull", 3000, 16),
        ("push", 3000, 16),
    ]
    assert all(r["freshet_ms"] > 0 and r["tcp_ms"] > 0 for r in results)


def test_serve_compares_with_plain_torch_and_answers_while_snapshots_change(invoke: Invoke, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    small = ("--rows", "3000,5000", "--seconds", "2", "--windows", "1", "--changed", "100", "--repeat", "5")
    ended = invoke("bench", "serve", *small, "--model", "wdl", "--json", output)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    *sizes, engine, http = json.loads(output.read_text())
    assert [size["rows"] for size in (*sizes, engine)] == [3000, 5000, 3000]
    assert http["swaps"] >= 1
    assert http["requests"] > 0
