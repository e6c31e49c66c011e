from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.table import Table
from typer.testing import CliRunner

from benchmarks.simulated.paper import BATCHES, BREAKDOWN, EMBEDDING_SIZE, HERALD_POLICIES, Setting, run_paper, settings
from benchmarks.simulated.sizes import Architecture
from benchmarks.simulated.tables import paper_tables
from infra.base.errors import ConfigError
from infra.cli.main import app

POLICIES = ["laia", "round_robin"]
WDL = Architecture("sgd", "wdl", 2, 0)


@pytest.fixture(scope="module")
def done() -> list[Setting]:
    keys_KF = np.random.default_rng(5).integers(0, 3500, (24_000, 2), dtype=np.uint64)
    return run_paper(keys_KF, POLICIES, WDL)


def of(done: Sequence[Setting], varied: str) -> list[Setting]:
    return [setting for setting in done if setting.varied == varied]


def cells(table: Table) -> list[list[str]]:
    """By column."""
    return [[str(cell) for cell in column.cells] for column in table.columns]


def test_one_thing_is_varied_at_a_time(done: list[Setting]) -> None:
    wanted = [(s.varied, s.value) for s in settings(POLICIES)]
    assert [value for varied, value in wanted if varied == "batch per worker"] == [str(batch) for batch in BATCHES]
    assert [(s.varied, s.value) for s in done] == wanted
    assert {(s.value, s.why_not[:6]) for s in done if not s.results} == {
        ("256", "caches"), ("512", "24000 "), ("4%", "caches"), ("6%", "caches"),
    }  # fmt: skip
    assert [table.row_count for table in paper_tables(done)] == [4, 4, 4, 4, 4, 4]


def test_the_defaults_of_the_paper_stand_in_every_table_and_are_measured_once(done: list[Setting]) -> None:
    default = Setting("", "", tuple(POLICIES))
    defaults = [s.results for s in done if msgspec.structs.replace(s, varied="", value="", results=()) == default]
    assert len(defaults) == 4
    assert all(results is defaults[0] for results in defaults)


def test_wider_rows_change_times_and_not_what_is_moved(done: list[Setting]) -> None:
    lines = of(done, EMBEDDING_SIZE)
    assert [(s.value, s.dim) for s in lines] == [("128", 128), ("256", 256), ("512", 512), ("1,024", 1024)]
    assert len({tuple(s.results[0].miss_pull) for s in lines}) == 1
    times = [s.results[0].link_ms for s in lines]
    assert times[3].rows / times[0].rows == pytest.approx(1025 / 129)
    assert times[3].dense / times[0].dense == pytest.approx(WDL.sizes(1024).dense / WDL.sizes(128).dense)
    split = cells(paper_tables(done)[3])
    assert split[1][0] == f"{times[0].rows:.1f} + {times[0].dense:.1f}"


def test_four_workers_are_tried_with_equal_links_too(done: list[Setting]) -> None:
    links = {s.value: s.links_gbit for s in of(done, "workers and links, Gbit/s")}
    assert links["4, all 5"] == (5.0,) * 4
    assert links["4, half 5, half 0.5"] == (5.0, 5.0, 0.5, 0.5)


def test_the_breakdown_tells_assignment_and_synchronisation_apart(done: list[Setting]) -> None:
    (setting,) = of(done, BREAKDOWN)
    assert (setting.policies, setting.eviction, setting.cache_ratio) == (HERALD_POLICIES, "lru", 0.1)
    vanilla, laia, on_demand, both = setting.results
    pulls = [sum(result.miss_pull) for result in setting.results]
    assert pulls[1] < pulls[0]
    assert pulls[3] < pulls[2]
    assert sum(on_demand.update_push) < sum(vanilla.update_push)
    assert sum(both.update_push) < sum(laia.update_push)
    names, pull, push, overall = cells(paper_tables(done)[-1])
    assert names == list(HERALD_POLICIES)
    assert (pull[0], push[0], overall[0]) == ("0.0%", "0.0%", "0.0%")
    assert pull[3] == f"{1 - pulls[3] / pulls[0]:.1%}"


def test_tables_say_why_a_line_is_missing() -> None:
    keys_KF = np.random.default_rng(5).integers(0, 3500, (6_000, 2), dtype=np.uint64)
    tables = paper_tables(run_paper(keys_KF, POLICIES, WDL))
    assert cells(tables[-1])[1] == ["file too short"] * 4
    assert cells(tables[3])[1] == ["file too short"] * 4


def test_a_file_too_short_for_all_of_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="none of the paper's settings"):
        run_paper(np.zeros((100, 2), np.uint64), ["laia"], WDL)


def test_the_command_prints_tables_and_writes_json(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    options = "--format synthetic --samples 6000 --policies round_robin,random --reduce ring --dense-bytes 8000"
    shown = CliRunner().invoke(app, ["bench", "paper", *options.split(), "--json", str(output)])
    assert shown.exit_code == 0, shown.output
    assert "embedding size" in shown.output
    done = msgspec.json.decode(output.read_bytes(), type=list[Setting])
    (result,) = [s.results[0] for s in done if s.value == "64"]
    assert result.megabytes.dense == pytest.approx(result.steps * 8 * 2 * 1.75 * 8000 / 1e6)
