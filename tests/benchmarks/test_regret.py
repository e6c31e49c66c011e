"""An own choice against every fixed set of workers, and what is made of the rates."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.regret import (
    OwnRun,
    Rates,
    RegretCandidate,
    RegretResult,
    StaySummary,
    fastest_first,
    regret_of,
    regret_variants,
    set_sizes,
)
from benchmarks.tables import regret_table
from benchmarks.train import Experiment
from infra.base.errors import ConfigError
from tests.end_to_end.processes import run

EXPERIMENT = Experiment((0.5, 5.0, 1.0), batch=8, steps=4, warm_up=2, seed=0, dataset="avazu", file=None)
OWN, ONE, TWO = Rates(3.0, [3.0, 1.0, 4.0]), Rates(2.0, [2.0, 2.0, 8.0]), Rates(1.0, [1.0, 1.0, 1.0])


def test_the_own_choice_is_compared_with_all_fixed_sets_over_the_same_events(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    size = ("--workers", "2", "--batch", "16", "--steps", "12", "--warm-up", "3", "--dim", "4", "--links", "0.01,1")
    wide = ("--set", "rows.float_dtype=float64", "--set", "ps.shards=1", "--set", "dispatch.cache_rows=4096")
    ended = run("bench", "train", "--regret", *size, *wide, "--repeat", "2", "--json", output)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (result,) = json.loads(output.read_text())
    own, fixed = result["own"], result["fixed"]
    assert [(each["policy"], each["workers"]) for each in fixed] == [
        ("round_robin@1", 1),
        ("esd:1@hub@2", 2),
        ("esd:1@ring@2", 2),
    ]
    assert (own["policy"], own["workers"]) == ("joint:elastic", 2)
    for part in ("whole", "settled"):
        best = next(each for each in fixed if each["policy"] == result[part]["best"])
        assert best[part]["median"] == max(each[part]["median"] for each in fixed)
        ratios = [mine / other for mine, other in zip(own[part]["repeats"], best[part]["repeats"], strict=True)]
        assert result[part]["repeats"] == pytest.approx(ratios)
    losses = [loss for each in (own, *fixed) for loss in each["losses"]]
    assert max(losses) - min(losses) < 1e-6
    # the worker behind the slow link is parked at first, and the journals reach back to the first step
    assert len(result["own_runs"]) == 2
    for each in result["own_runs"]:
        first, *others = each["stays"]
        assert (first["step"], first["members"], first["reason"]) == (1, ["worker-0"], "one worker is measured first")
        assert first["ms"] > 0.0
        assert sum(stay["steps"] for stay in (first, *others)) == 12
        assert each["taking_part"] == (first, *others)[-1]["members"]
    assert "of the best fixed set in the whole run" in " ".join(ended.stdout.split())


def test_sets_double_up_to_all_workers() -> None:
    assert [set_sizes(workers) for workers in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


def test_the_candidates_are_the_workers_with_the_fastest_links() -> None:
    assert fastest_first(EXPERIMENT).links_gbit == (5.0, 1.0, 0.5)
    _, alone, pair, *_ = regret_variants("joint:elastic", 3, rings=False)
    even = replace(fastest_first(EXPERIMENT), batch=2)
    assert (alone.on(even).links_gbit, pair.on(even).links_gbit) == ((5.0,), (5.0, 1.0))
    assert pair.on(even).overrides == ("trainer.reduce=hub",)


def test_candidates_can_be_named_instead() -> None:
    own, *fixed = regret_variants("joint:elastic,esd:1@hub@4,joint@2", 8, rings=True)
    assert own.policy == "joint:elastic"
    assert [(each.policy, each.workers) for each in fixed] == [("esd:1", 4), ("joint", 2)]


@pytest.mark.parametrize("own", ["esd:1", "joint:elastic@2", "joint:elastic,esd:1:elastic", "esd:1@4,joint:elastic"])
def test_what_chooses_nothing_is_refused(own: str) -> None:
    with pytest.raises(ConfigError, match="has no own choice"):
        regret_variants(own, 2, rings=True)


def test_the_best_has_the_highest_median_and_ratios_are_taken_within_a_repeat() -> None:
    found = regret_of("own", OWN, {"one": ONE, "two": TWO})
    assert (found.best, found.repeats, found.ratio) == ("one", [1.5, 0.5, 0.5], 0.5)


def test_the_table_says_what_the_own_choice_came_to() -> None:
    own, one, two = (
        RegretCandidate(policy, workers, rates, rates, [0.5] * 3)
        for policy, workers, rates in (("joint:elastic", 3, OWN), ("round_robin@1", 1, ONE), ("esd:1@hub@2", 2, TWO))
    )
    found = regret_of("own", OWN, {"round_robin@1": ONE, "esd:1@hub@2": TWO})
    alone = StaySummary(1, ["worker-0"], "one worker is measured first", 5, None, 31.4, 0.4, [31.4] * 5)
    pair = StaySummary(6, ["worker-0", "worker-2"], "expected to be faster", 0, 9.0, None, None, [])
    ended = OwnRun(["worker-0", "worker-2"], [alone, pair])
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(regret_table(RegretResult(own, [one, two], found, found, [ended]), EXPERIMENT))
    text = " ".join(console.export_text().split())
    for part in ("joint:elastic (own) 3.00", "round_robin@1 2.00 0.50×", "esd:1@hub@2 1.00 3.00×"):
        assert part in text
    assert "joint:elastic has 0.50 of the best fixed set in the whole run (round_robin@1)" in text
    assert "2 of 3 took part (worker-0, worker-2); sets: 1 from step 1, 31 ms a step, 2 from step 6" in text
