"""A grid of real runs: its places, what is measured there, and how it is shown."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.regret import Rates, Regret, RegretCandidate
from benchmarks.train import Experiment
from infra.plan.grid import Grid, GridPlace
from infra.plan.picture import plot_grid
from infra.plan.report import grid_table
from tests.end_to_end.processes import run

BASE = Experiment((0.2, 0.05), batch=8, steps=4, warm_up=2, seed=0, dataset="avazu", file=None)


def place(gbit: float, batch: int, gain: float) -> GridPlace:
    def candidate(policy: str, workers: int, rate: float) -> RegretCandidate:
        return RegretCandidate(policy, workers, Rates(rate, [rate]), Rates(rate, [rate]), [0.5])

    fixed = [candidate("round_robin@1", 1, 10.0), candidate("esd:1@hub@2", 2, 10.0 * gain)]
    regret = Regret("esd:1@hub@2", 0.5, [0.5])
    return GridPlace(
        [gbit, gbit], batch, candidate("joint:elastic", 2, 7.0), fixed, regret, [2, 1], "esd:1@hub@2", gain, 2.0
    )


def test_every_speed_is_combined_with_every_size() -> None:
    places = list(Grid((0.5, 10.0), (1, 4)).places(BASE))
    assert [(each.links_gbit, each.whole_batch) for each in places] == [
        ((0.1, 0.025), 16),
        ((2.0, 0.5), 16),
        ((0.1, 0.025), 64),
        ((2.0, 0.5), 64),
    ]


def test_a_place_holds_what_was_measured_there_and_what_the_plan_expects(tmp_path: Path) -> None:
    output, picture = tmp_path / "out.json", tmp_path / "map.svg"
    size = ("--workers", "2", "--batch", "16", "--steps", "8", "--warm-up", "3", "--dim", "4", "--links", "0.1,0.1")
    grid = ("--speeds", "10", "--sizes", "2", "--plot", picture)
    ended = run("bench", "map", *size, *grid, "--set", "ps.shards=1", "--json", output)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (found,) = json.loads(output.read_text())
    assert (found["links_gbit"], found["batch"]) == ([1.0, 1.0], 64)
    alone, several = found["fixed"]
    assert (alone["policy"], several["policy"], found["several"]) == ("round_robin@1", "esd:1@hub@2", "esd:1@hub@2")
    assert found["gain"] == pytest.approx(several["settled"]["median"] / alone["settled"]["median"])
    best = max(alone["settled"]["median"], several["settled"]["median"])
    assert found["regret"]["ratio"] == pytest.approx(found["own"]["settled"]["median"] / best)
    assert found["planned_gain"] > 0
    assert "samples a step" in picture.read_text()


def test_a_table_and_a_picture_show_every_place(tmp_path: Path) -> None:
    places = [place(0.1, 64, 0.4), place(0.1, 256, 1.5), place(0.4, 64, 1.0), place(0.4, 256, 3.25)]
    console = Console(file=io.StringIO(), width=140)
    console.print(grid_table(places))
    assert isinstance(console.file, io.StringIO)
    (line,) = (each.split() for each in console.file.getvalue().splitlines() if "32.50" in each)
    assert line == ["0.4", "256", "10.00", "32.50", "3.25×", "2.00×", "7.00", "0.50×", "2,", "1"]
    plot_grid(places, tmp_path / "map.svg")
    drawn = (tmp_path / "map.svg").read_text()
    assert drawn.count("<!-- 2.00× -->") == 4
    assert all(f"<!-- {gain}× -->" in drawn for gain in ("0.40", "1.50", "1.00", "3.25"))
