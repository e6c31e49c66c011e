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


def bench(file: Path, output: Path, *more: str, form: str = "criteo") -> dict[str, Any]:
    ended = run("bench", "quality", "--input", file, "--format", form, "--json", output, *more)
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


@dataclass(frozen=True)
class Bar:
    """What Vowpal Wabbit reaches in one pass, over the whole file and over its second half."""

    file: str
    samples: int
    overall: tuple[float, float]
    second_half: tuple[float, float]


BARS = {
    "criteo": Bar("criteo_100k.tsv.gz", 100_000, overall=(0.4910, 0.7484), second_half=(0.4861, 0.7583)),
    "avazu": Bar("avazu_40k.csv.gz", 40_000, overall=(0.4117, 0.7212), second_half=(0.4036, 0.7340)),
}
AHEAD = 0.003, 0.004
"""by which logloss and AUC must be better"""


@pytest.mark.parametrize("form", BARS)
def test_one_pass_is_ahead_of_vowpal_wabbit(tmp_path: Path, form: str) -> None:
    folder, bar = real_data(), BARS[form]
    if folder is None:
        pytest.skip(f"{bar.file} is missing: set FRESHET_DATA to the folder that holds it")
    usual = ("--batch", "1024", "--workers", "4", "--set", "stream.first_batch=32")
    result = bench(folder / bar.file, tmp_path / "out.json", *usual, form=form)
    assert result["samples"] == bar.samples
    for part, (logloss, auc) in (("overall", bar.overall), ("second_half", bar.second_half)):
        assert result[part]["logloss"] <= logloss - AHEAD[0], part
        assert result[part]["auc"] >= auc + AHEAD[1], part
