"""One pass over a file through real processes: real data where this machine has it, else a made-up file."""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from benchmarks.quality import run_quality
from benchmarks.report import report
from infra.base.errors import FreshetError
from infra.base.process import Stop
from infra.run.display import Display
from tests.end_to_end.processes import run
from tests.ingest.topics import real_data


@dataclass(frozen=True)
class Named:
    file: str


def bench(file: Path, output: Path, *more: str) -> dict[str, Any]:
    ended = run("bench", "quality", "--input", file, "--format", "criteo", "--json", output, *more)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (result,) = json.loads(output.read_text())
    return dict(result)


def made_up_criteo(path: Path, lines: int) -> Path:
    """Lines of Criteo's format whose first category alone decides how likely a click is."""
    draw = np.random.default_rng(5)
    with path.open("w") as file:
        for category in draw.integers(0, 8, lines).tolist():
            label = int(draw.random() < 0.05 + 0.11 * category)
            file.write("\t".join([str(label), *["1"] * 13, f"{category:08x}", *["68fd1e64"] * 25]) + "\n")
    return path


def test_a_pass_over_a_small_file_learns_what_there_is_to_learn(tmp_path: Path) -> None:
    file = made_up_criteo(tmp_path / "clicks.tsv", 3000)
    result = bench(file, tmp_path / "out.json", "--batch", "100", "--workers", "1")
    assert (result["samples"], result["batch"], result["workers"]) == (3000, 100, 1)
    assert result["second_half"]["samples"] == 1500
    assert result["second_half"]["auc"] > result["overall"]["auc"] > 0.6


def test_a_stop_before_the_end_is_told_and_gives_no_result(tmp_path: Path) -> None:
    stop, display = Stop(), Display(Console(file=io.StringIO()))
    stop.request("SIGINT")
    file = made_up_criteo(tmp_path / "clicks.tsv", 100)
    with pytest.raises(FreshetError, match="no result: stopped by SIGINT after 0 samples"):
        run_quality(tmp_path / "run", file, "criteo", 10, 1, [], stop, display)


def test_a_file_s_name_is_not_read_as_markup(capsys: pytest.CaptureFixture[str]) -> None:
    report([Named("clicks[/].tsv")], None)
    assert "clicks[/].tsv" in capsys.readouterr().out


def test_a_pass_over_criteo_reaches_the_bar(tmp_path: Path) -> None:
    folder = real_data()
    if folder is None:
        pytest.skip("criteo_100k.tsv.gz is missing: set FRESHET_DATA to the folder that holds it")
    result = bench(folder / "criteo_100k.tsv.gz", tmp_path / "out.json", "--batch", "1024", "--workers", "4")
    assert result["samples"] == 100_000
    assert result["overall"]["logloss"] <= 0.4935
    assert result["overall"]["auc"] >= 0.745
    assert result["second_half"]["logloss"] <= 0.4865
    assert result["second_half"]["auc"] >= 0.758
