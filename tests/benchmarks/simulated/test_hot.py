"""What hot sets of several sizes cost, and the one that the rule chooses."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.pictures import plot_hot
from benchmarks.simulated.hot import HotPoint, HotWorkload, hot_table, parse_sizes, run_hot
from benchmarks.simulated.sizes import Sizes
from benchmarks.simulated.workload import Workload
from infra.base.errors import ConfigError


def points_with(server_gbit: float) -> list[HotPoint]:
    """Four workers whose samples all use one of four keys, and a rare one each."""
    rng = np.random.default_rng(5)
    keys_KF = np.stack((rng.integers(0, 4, 4 * 8 * 40), rng.integers(10, 3000, 4 * 8 * 40)), axis=1).astype(np.uint64)
    workload = Workload(keys_KF, (1.0,) * 4, batch=8, cache_rows=400, sizes=Sizes(row=8, value=4))
    return run_hot(HotWorkload(workload, "round_robin", server_gbit), [0, 4])


def test_the_rule_chooses_the_rows_that_everybody_uses() -> None:
    none, fixed, chosen = points_with(server_gbit=1.0)
    assert (none.rows, fixed.rows, chosen.rows, chosen.is_chosen) == (0, 4, 4, True)
    assert chosen.cost < 0.9 * none.cost == 0.9
    assert chosen.shards_mb < none.shards_mb
    assert none.ring_mb == 0.0 < chosen.ring_mb


def test_a_narrow_link_of_the_shards_makes_replicas_save_more_time() -> None:
    wide, narrow = points_with(server_gbit=0.0), points_with(server_gbit=1.0)
    gains = [points[1].links_ms / points[0].links_ms for points in (wide, narrow)]
    assert gains[1] < gains[0]


def test_the_choice_is_marked_in_the_table() -> None:
    case = HotWorkload(Workload(np.zeros((8, 1), np.uint64), (1.0, 1.0), 1, 10), "esd:1", 0.5)
    table = hot_table([HotPoint(7, True, 1.0, 1.0, 1.0, 0.5)], case)
    assert "7 (the rule)" in list(table.columns[0].cells)
    assert "0.5 Gbit/s" in str(table.title)


def test_the_picture_marks_the_choice(tmp_path: Path) -> None:
    points = [HotPoint(rows, rows == 16, 2.0, 1.0, 3.0, 1.0 - rows / 100) for rows in (0, 16, 64)]
    plot_hot(points, "esd:1, 2 workers", tmp_path / "hot.svg")
    assert "<!-- the rule: 16 rows -->" in (tmp_path / "hot.svg").read_text()


@pytest.mark.parametrize(("text", "problem"), [("1,x", "are no numbers"), ("-1", "a hot set of -1 rows")])
def test_sizes_that_are_none_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_sizes(text)
