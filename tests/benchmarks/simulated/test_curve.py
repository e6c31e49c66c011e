"""What alpha trades, on a small stream."""

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from benchmarks.simulated.curve import CurvePoint, parse_alphas, run_curve
from benchmarks.simulated.dispatch import simulate
from benchmarks.simulated.keys import read_keys
from benchmarks.simulated.workload import Workload, make_workload
from infra.base.errors import ConfigError
from infra.cli.main import app
from tests.benchmarks.simulated.test_dispatch import small_workload

ALPHAS = [0.0, 0.125, 0.25, 0.5, 0.75, 1.0]


def test_there_is_a_point_for_every_policy_and_alpha_and_it_moves_what_that_policy_alone_moves() -> None:
    workload = small_workload()
    points = run_curve(workload, ["esd:1", "joint"], [0.0, 1.0])
    assert [(point.policy, point.alpha) for point in points] == [
        *[("esd:1", 0.0), ("esd:1", 1.0)],
        *[("joint", 0.0), ("joint", 1.0)],
    ]
    for point, alone in zip(points, ["esd:0", "esd:1", "esd:0", "joint"], strict=True):
        assert point.megabytes == pytest.approx(sum(msgspec.structs.astuple(simulate(workload, alone).megabytes)))
        assert 0 < point.assign_ms < point.decide_ms
    assert [points[0].saved, points[2].saved] == [0.0, 0.0]


def test_a_small_alpha_saves_more_than_half_of_what_all_of_it_saves() -> None:
    """On made-up clicks over links of which half are ten times slower; at an eighth Heu and Opt once were equal."""
    keys_KF = read_keys("synthetic", None, 12_000)
    workload = make_workload(keys_KF, (5.0,) * 4 + (0.5,) * 4, batch=64, cache_ratio=0.2, warm_up=4)
    for of_policy in (points_of(workload, "esd:1"), points_of(workload, "joint")):
        saved = [point.saved for point in of_policy]
        assert saved[1] > 0.5 * saved[3] > 0
        assert all(more >= less - 0.02 for less, more in pairwise(saved))


def points_of(workload: Workload, policy: str) -> list[CurvePoint]:
    return run_curve(workload, [policy], ALPHAS)


@pytest.mark.parametrize(
    ("alphas", "policy"), [("", "esd:1"), ("0,x", "esd:1"), ("0,1.5", "esd:1"), ("0,1", "esd:0.5"), ("0,1", "laia")]
)
def test_alphas_that_a_policy_does_not_have_are_refused(alphas: str, policy: str) -> None:
    with pytest.raises(ConfigError, match="correct --"):
        parse_alphas(alphas, [policy])


def test_the_command_prints_the_curve_and_writes_it(tmp_path: Path) -> None:
    output = tmp_path / "curve.json"
    options = "--format synthetic --samples 2000 --workers 4 --batch 32 --warm-up 2 --cache-ratio 0.3 --links 5,5,.5,.5"
    chosen = "--policies esd,joint --alphas 0,0.5,1 --dense-bytes 0"
    command = ["bench", "dispatch", *options.split(), *chosen.split(), "--json", str(output)]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    points = msgspec.json.decode(output.read_bytes(), type=list[CurvePoint])
    assert [point.alpha for point in points] == [0.0, 0.5, 1.0] * 2
    assert all(f"{point.saved:.1%}" in shown.output for point in points)
