"""Budgets for chunks of rows, in real runs over a made-up file."""

import io
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console

from benchmarks.prune import PruneLoad, PruneResult, check_budgets, check_load, counted_bytes, read_rounds, variants
from benchmarks.tables import prune_table
from dispatch.progress.quality import Quality
from infra.base.errors import ConfigError, FreshetError
from ps.config import RowConfig
from tests.end_to_end.processes import run

LOAD = PruneLoad(Path("clicks.tsv"), "criteo", (16, 32), (1, 2), (1.0, 0.1), batch=8, workers=1)


def made_up_criteo(path: Path, lines: int) -> Path:
    """Lines of Criteo's format with many keys, some of them frequent."""
    draw = np.random.default_rng(5)
    with path.open("w") as file:
        for ranks in draw.zipf(1.3, (lines, 26)).tolist():
            label = int(draw.random() < 0.1 + 0.5 * (ranks[0] == 1))
            file.write("\t".join([str(label), *["1"] * 13, *(f"{rank % 99991:08x}" for rank in ranks)]) + "\n")
    return path


@pytest.mark.timeout(600)
def test_live_chunks_stay_within_a_budget_and_whole_rows_have_none(tmp_path: Path) -> None:
    file, output, picture = made_up_criteo(tmp_path / "clicks.tsv", 3000), tmp_path / "out.json", tmp_path / "out.svg"
    asked = (
        "--keep",
        "1,.5,.0001",
        "--columns",
        "1,.25",
        "--batch",
        "8",
        "--utility",
        "frequency",
        "--shape",
        "linear",
    )
    often = ("--set", "memory.prune_steps=50", "--set", "rows.half_life_steps=100")
    command = ("bench", "prune", "--input", file, "--format", "criteo", *asked, *often)
    ended = run(*command, "--json", output, "--plot", picture)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    whole, half, refused, narrow, _ = json.loads(output.read_text())
    assert (whole["chunks"], whole["live"], whole["budget"], whole["rounds"]) == (0, 0, 0, 0)
    assert half["keys"] == whole["keys"] > 5000
    assert half["budget"] == half["keys"]
    assert 0 < half["live"] <= half["most_live"] <= half["budget"]
    assert half["rounds"] >= 5
    assert half["pruned"] > 0
    assert 0 < half["counted_bytes"] < whole["counted_bytes"]
    assert (narrow["columns"], narrow["budget"]) == (0.25, 4 * half["budget"])
    assert half["budget"] < narrow["live"] <= narrow["most_live"] <= narrow["budget"]
    assert narrow["counted_bytes"] < whole["counted_bytes"]
    for result in (whole, half, narrow):
        assert (result["samples"], result["overall"]["samples"]) == (3000, 3000)
        assert 0.5 < result["overall"]["accuracy"] < 1
        assert result["shards_bytes"] > result["idle_bytes"] / 2 > 0
    assert "chunks, and a batch has 8 samples; expected" in refused["refused"]
    assert "<svg" in picture.read_text()[:2000]


def test_whole_rows_are_run_once_for_each_number_of_columns() -> None:
    found = [(variant.dim, variant.chunks, variant.keep) for variant in variants(LOAD)]
    assert found == [(16, 0, 1.0), (16, 1, 0.1), (16, 2, 0.1), (32, 0, 1.0), (32, 1, 0.1), (32, 2, 0.1)]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"shape": "round"}, "memory.prune_shape is 'round' for 1 chunks"),
        ({"chunks": (3,)}, "rows of 16 columns cannot be divided into 3 chunks"),
        ({"overrides": ("rows.dim=x",)}, "setting rows.dim = 'x' is wrong"),
    ],
)
def test_what_fits_no_budget_is_refused_before_anything_is_read(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        check_load(replace(LOAD, **change))


def test_the_most_live_chunks_are_those_that_a_round_found(tmp_path: Path) -> None:
    lines = [
        {"event": "chunks of rows pruned", "live": 80, "pruned": 30, "brought_back": 10, "seconds": 0.25, "step": 8},
        {"event": "chunks of rows pruned", "live": 90, "pruned": 5, "brought_back": 5, "seconds": 0.5, "step": 16},
        {"event": "checkpoint taken", "step": 16},
    ]
    log = tmp_path / "dispatcher.log"
    log.write_text("not JSON\n" + "\n".join(map(json.dumps, lines)))
    assert msgspec.structs.astuple(read_rounds(log)) == (2, 100, 0.5)


def test_a_row_is_counted_as_its_shard_keeps_it() -> None:
    assert counted_bytes(RowConfig(dim=16), 10, 0, 0) == 10 * (24 + 34 * 4)
    assert counted_bytes(RowConfig(dim=16, chunks=2), 10, 0, 64) == 10 * (24 + 4 * 4 + 2 * 4)
    assert counted_bytes(RowConfig(dim=16, chunks=2), 10, 7, 64) == 10 * 48 + 7 * 64


def results(*most_live: int) -> Sequence[PruneResult]:
    first = PruneResult(dim=16, chunks=2, keep=0.1, file="a.tsv", batch=8, workers=1, keys=500, budget=100)
    return [msgspec.structs.replace(first, most_live=most) for most in most_live]


def test_more_live_chunks_than_the_budget_are_an_error() -> None:
    check_budgets(results(100, 7))
    with pytest.raises(FreshetError, match=re.escape("101 of 100 (dim 16, 2 × 0.1)")):
        check_budgets(results(100, 101))


def test_the_table_has_a_line_for_each_result_and_the_reason_of_a_refusal() -> None:
    refused = msgspec.structs.replace(results(0)[0], refused="too small")
    large = {"dim": 128, "chunks": 8, "keep": 0.01, "pulled_bytes": 10**9, "counted_bytes": 10**8, "live_share": 1.0}
    figures = {"samples_per_second": 123_456.0, "overall": Quality(logloss=0.5, auc=0.7)}
    wide = msgspec.structs.replace(results(0)[0], **large, **figures)
    table = prune_table([*results(7), wide, refused])
    assert table.row_count == 3
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table)
    assert "…" not in console.export_text()
    assert "too small" in str(table.caption)


@pytest.mark.parametrize("keep", ["", "0", "1.5", "nan", "1,x"])
def test_shares_that_make_no_sense_are_refused(tmp_path: Path, keep: str) -> None:
    ended = run("bench", "prune", "--input", made_up_criteo(tmp_path / "a", 1), "--format", "criteo", "--keep", keep)
    assert ended.returncode == 2
    assert "expected shares above 0, up to 1, separated by commas" in ended.stderr
