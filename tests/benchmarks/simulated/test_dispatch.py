from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks.simulated import plots, tables
from benchmarks.simulated.dispatch import (
    DispatchResult,
    Megabytes,
    Percentiles,
    run_dispatch,
    saving,
    simulate,
    speed_up,
)
from benchmarks.simulated.keys import read_keys, sparse_schema
from benchmarks.simulated.plots import plot_dispatch
from benchmarks.simulated.sizes import Reduce, Sizes
from benchmarks.simulated.tables import dispatch_table
from benchmarks.simulated.workload import Workload, check_policies, even_links, make_workload, parse_links
from dispatch.placement.decide import Decider
from dispatch.placement.policies.registry import build_policy
from dispatch.placement.policies.spec import Needs
from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.index import Index
from infra.base.distinct import number_keys
from infra.base.errors import ConfigError
from infra.base.link_gbit import LinkGbit
from infra.cli.main import app

LINKS = (5.0, 5.0, 0.5, 0.5)


def small_workload(**changes: object) -> Workload:
    keys_KF = np.random.default_rng(3).zipf(1.4, (700, 5)).astype(np.uint64) % np.uint64(400)
    values: dict[str, object] = {"batch": 16, "cache_ratio": 0.5, "warm_up": 2, **changes}
    return make_workload(keys_KF, values.pop("links", LINKS), **values)  # type: ignore[arg-type]


def test_totals_are_those_of_the_directory_s_own_accounting() -> None:
    workload = small_workload()
    result = simulate(workload, "esd:1")
    directory = Directory(np.full(4, workload.cache_rows), "emark", 1)
    decider = Decider(Index(), directory, build_policy("esd:1", 0), Needs(), np.array([1.0, 1.0, 10.0, 10.0]))
    plans = [
        decider.decide(t + 1, number_keys(workload.keys_KF[64 * t : 64 * (t + 1)])).plan.traffic for t in range(10)
    ][2:]
    assert result.steps == 8
    assert result.miss_pull == sum(p.miss_pull for p in plans).tolist()  # type: ignore[union-attr]
    assert result.update_push == sum(p.update_push for p in plans).tolist()  # type: ignore[union-attr]
    assert result.evict_push == sum(p.evict_push for p in plans).tolist()  # type: ignore[union-attr]
    times = [(p.miss_pull + p.update_push + p.evict_push) * [1, 1, 10, 10] for p in plans]
    assert result.cost == sum(int(t.sum()) for t in times)
    assert result.link_time == sum(int(t.max()) for t in times)
    assert result.hit_ratio == pytest.approx(sum(p.hits.sum() for p in plans) / sum(p.lookups.sum() for p in plans))


def test_rows_written_behind_are_no_part_of_the_cost_and_leave_less_to_flush() -> None:
    none, some = simulate(small_workload(), "esd:1"), simulate(replace(small_workload(), write_behind=0.5), "esd:1")
    assert (sum(none.behind_push), sum(some.behind_push) > 0) == (0, True)
    assert some.flush_push < none.flush_push
    assert some.cost == np.array([some.miss_pull, some.update_push, some.evict_push]).sum(axis=0) @ [1, 1, 10, 10]


def test_moves_without_state_cost_their_share_of_a_row() -> None:
    rows, whole = (
        simulate(small_workload(), "round_robin"),
        simulate(small_workload(sizes=Sizes(row=8, value=4)), "round_robin"),
    )
    assert np.less(np.array(rows.miss_pull) / 2, whole.miss_pull).all()
    assert np.less(whole.miss_pull, rows.miss_pull).all()
    assert 0.5 < whole.cost / rows.cost < 1.0
    assert whole.cost == np.array([whole.miss_pull, whole.update_push, whole.evict_push]).sum(axis=0) @ [1, 1, 10, 10]


def test_the_dense_part_goes_up_and_down_every_link_with_samples() -> None:
    rows, both = (simulate(small_workload(sizes=Sizes(8, 4, dense)), "laia") for dense in (0, 40))
    assert rows.dense == [0.0] * 4
    assert both.dense == [8 * 2 * 40 / 8] * 4
    assert both.cost == rows.cost + np.array(both.dense) @ [1, 1, 10, 10]
    assert both.megabytes.dense == 4 * 8 * 2 * 40 / 1e6
    assert both.link_time > rows.link_time


@pytest.mark.parametrize(("reduce", "is_charged"), [("hub", False), ("ring", True)])
def test_a_step_without_samples_is_free_through_a_hub_and_not_in_a_ring(reduce: Reduce, is_charged: bool) -> None:
    workload = small_workload(batch=2, links=(5.0, 5.0, 5.0, 0.005), sizes=Sizes(dense=40, reduce=reduce))
    fast, *_, slow = simulate(workload, "joint:elastic").dense
    assert fast > 0
    assert (slow == fast) == is_charged


def test_a_dense_part_that_costs_more_than_a_worker_brings_parks_it() -> None:
    light, heavy = (simulate(small_workload(sizes=Sizes(dense=dense)), "joint:elastic").dense for dense in (4, 120))
    assert light == [8 * 2.0] * 4
    assert heavy[:2] == [8 * 60.0] * 2
    assert max(heavy[2:]) < min(heavy[:2])


def test_a_dense_part_that_costs_more_than_all_others_bring_is_taken_once_by_one() -> None:
    # in the first step, of which nothing is known yet, no cache is expected to hold the batch
    dense = simulate(small_workload(sizes=Sizes(dense=4000), warm_up=1), "joint:elastic").dense
    assert sorted(dense) == [0.0, 0.0, 0.0, 3 * 1000.0]
    assert max(dense[:2]) == 3000.0


def test_a_ring_moves_its_part_over_every_link_both_ways_at_once() -> None:
    ring = simulate(small_workload(sizes=Sizes(8, 4, 40, "ring")), "laia")
    assert ring.dense == [8 * 60 / 8] * 4
    assert ring.megabytes.dense == 4 * 8 * 2 * 60 / 1e6


def test_megabytes_are_those_of_the_rows_moved() -> None:
    result = simulate(small_workload(sizes=Sizes(8, 4), warm_up=5), "fae:0.2:4")
    kinds = (result.miss_pull, result.update_push, result.evict_push, result.all_reduce)
    assert msgspec.structs.astuple(result.megabytes) == pytest.approx(
        [*(8 * ways * sum(kind) / 1e6 for kind, ways in zip(kinds, (1, 1, 1, 2), strict=True)), 0.0]
    )


def test_link_time_of_the_slowest_worker_splits_into_rows_and_dense() -> None:
    workload = small_workload(sizes=Sizes(8, 4, 40))
    result, row_ms = simulate(workload, "laia"), 8 * 8 / 5e6
    assert result.link_ms.rows + result.link_ms.dense == pytest.approx(result.link_time * row_ms / 8)
    assert result.link_ms.dense == pytest.approx(2 * 40 / 8 * 10 * row_ms)


def test_all_reduced_rows_are_part_of_cost_and_link_time() -> None:
    workload = small_workload(warm_up=5)
    result, full = simulate(workload, "fae:0.2:4"), simulate(workload, "het")
    assert min(result.all_reduce) == max(result.all_reduce) > 0
    moved = np.array([result.miss_pull, result.update_push, result.evict_push, result.all_reduce]).sum(axis=0)
    assert result.cost == moved @ [1, 1, 10, 10]
    assert result.link_time >= (moved * [1, 1, 10, 10]).max()
    assert full.all_reduce == [0, 0, 0, 0]
    assert result.hit_ratio > full.hit_ratio


def test_a_literal_hot_set_all_reduces_rows_that_do_not_pay_for_it() -> None:
    workload = small_workload(warm_up=5)
    literal, worthwhile = simulate(workload, "fae:0.2:4:literal"), simulate(workload, "fae:0.2:4")
    assert literal.all_reduce[0] > worthwhile.all_reduce[0] > 0
    assert literal.hit_ratio > worthwhile.hit_ratio
    assert literal.cost > worthwhile.cost


def test_het_is_random_under_full_synchronisation() -> None:
    het, random = (simulate(small_workload(), policy) for policy in ("het", "random:full"))
    assert msgspec.structs.replace(random, policy="het", decide_ms=het.decide_ms) == het


def test_on_demand_synchronisation_saves_pushes_under_any_assignment() -> None:
    full, on_demand = (simulate(small_workload(), policy) for policy in ("round_robin:full", "round_robin"))
    assert sum(on_demand.update_push) < sum(full.update_push)
    assert sum(on_demand.miss_pull) <= sum(full.miss_pull)


def test_a_hot_set_without_a_row_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"fae:0\.001 cannot be simulated; hot set is empty"):
        simulate(small_workload(), "fae:0.001")


def test_the_same_run_twice_moves_the_same() -> None:
    first, second = (run_dispatch(small_workload(), ["laia", "esd:0.5", "random", "fae:0.1:2"]) for _ in range(2))
    timeless = [[msgspec.structs.replace(r, decide_ms=Percentiles(0, 0)) for r in run] for run in (first, second)]
    assert timeless[0] == timeless[1]


@pytest.mark.parametrize(("deadline_ms", "misses"), [(None, 0), (0.0, 8), (1e6, 0)])
def test_decisions_over_the_deadline_are_counted(deadline_ms: float | None, misses: int) -> None:
    assert simulate(small_workload(deadline_ms=deadline_ms), "laia").deadline_misses == misses


def test_costs_are_in_rows_over_the_fastest_link() -> None:
    slower = tuple(link / 7 for link in LINKS)
    assert simulate(small_workload(), "laia").cost == pytest.approx(simulate(small_workload(links=slower), "laia").cost)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"links": (5.0, 0.0)}, "link of 0 Gbit/s"),
        ({"links": (5.0, float("nan"))}, "link of nan Gbit/s"),
        ({"cache_ratio": 0.0}, "cache of 0"),
        ({"batch": 1000}, "make 0 batches"),
        ({"warm_up": 10}, "more than the 10"),
        ({"eviction": "fifo"}, "unknown eviction 'fifo'"),
    ],
)
def test_a_workload_that_cannot_be_run_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small_workload(**changes)


def test_a_cache_that_cannot_hold_a_micro_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match="caches of 6 rows are too small"):
        simulate(small_workload(cache_ratio=0.02), "laia")


@pytest.mark.parametrize("text", ["5,5", "5,5,x,5", "5,5,5,0", "5,5,5,-1", "5,5,5,inf", "5,5,5,5/0", "5,5,5,5/x"])
def test_wrong_links_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="link"):
        parse_links(text, 4)


def test_no_links_are_equal_links() -> None:
    assert parse_links("", 3) == (LinkGbit(1.0, 1.0),) * 3


def test_links_may_have_slower_uplinks() -> None:
    assert parse_links("5,1/0.1", 2) == (LinkGbit(5.0, 5.0), LinkGbit(1.0, 0.1))
    with pytest.raises(ConfigError, match="one figure"):
        even_links(parse_links("5,1/0.1", 2))


def test_pushes_cost_the_uplinks_whether_decisions_know_them_or_not() -> None:
    plain = small_workload()
    skewed = replace(plain, uplinks_gbit=tuple(gbit / 10 for gbit in plain.links_gbit))
    before, blind, known = (simulate(each, "esd:1") for each in (plain, replace(skewed, knows_uplinks=False), skewed))
    assert (blind.miss_pull, blind.update_push) == (before.miss_pull, before.update_push)
    pulls = float(plain.row_cost_n @ np.array(before.miss_pull))
    assert blind.cost == pytest.approx(pulls + 10 * (before.cost - pulls))
    assert known.update_push != blind.update_push


@pytest.mark.parametrize("text", ["", "laia,", "laia,herald", "esd:1.5"])
def test_wrong_policies_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="policy cannot be built"):
        check_policies(text)


@pytest.mark.parametrize(("dataset", "fields"), [("criteo", 26), ("avazu", 18), ("movielens", 2)])
def test_only_the_columns_of_the_figures_count(dataset: str, fields: int) -> None:
    assert sparse_schema(dataset).fields == fields


def test_keys_of_a_file_are_those_of_its_categories(tmp_path: Path) -> None:
    file = tmp_path / "two.tsv"
    line = "\t".join(["1", *["3"] * 13, *["68fd1e64"] * 25])
    file.write_text(f"{line}\t\n{line}\tab\n")
    keys_KF = read_keys("criteo", file)
    assert keys_KF.shape == (2, 26)
    assert (keys_KF[0] == keys_KF[1]).tolist() == [True] * 25 + [False]
    assert np.unique(keys_KF[0]).size == 26


def test_a_data_set_without_its_file_is_refused() -> None:
    with pytest.raises(ConfigError, match="no file given for 'avazu'"):
        read_keys("avazu", None)


def test_savings_are_against_the_first() -> None:
    first = simulate(small_workload(), "round_robin")
    other = msgspec.structs.replace(first, cost=0.75 * first.cost, link_time=first.link_time / 3)
    assert (saving(other, first), speed_up(other, first)) == pytest.approx((0.25, 3.0))


@pytest.mark.parametrize(("dense", "shown"), [(0, False), (40, True)])
def test_the_table_shows_the_kinds_that_moved(dense: int, shown: bool) -> None:
    workload = small_workload(sizes=Sizes(dense=dense))
    table = dispatch_table(run_dispatch(workload, ["laia", "esd:1"]), workload)
    headers = [str(column.header) for column in table.columns]
    assert (headers[:2], "dense" in headers, "reduce" in headers) == (["policy", "cost"], shown, False)


def test_table_and_picture_know_every_kind_of_move() -> None:
    kinds = Megabytes.__struct_fields__
    assert tuple(field for field, _ in tables.KINDS) == tuple(field for field, *_ in plots.KINDS) == kinds


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    workload = small_workload()
    plot_dispatch(run_dispatch(workload, ["laia", "esd:1"]), workload, tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    output, plot = tmp_path / "out.json", tmp_path / "out.png"
    options = (
        "--format synthetic --samples 2000 --workers 4 --batch 16 --cache-ratio 0.5 --links 5,5,.5,.5 --eviction lru"
    )
    shown = CliRunner().invoke(
        app,
        ["bench", "dispatch", *options.split(), "--json", str(output), "--plot", str(plot), "--policies", "laia,esd:1"],
    )
    assert shown.exit_code == 0, shown.output
    assert "esd:1" in shown.output
    results = msgspec.json.decode(output.read_bytes(), type=list[DispatchResult])
    assert [(r.policy, r.steps, len(r.miss_pull)) for r in results] == [("laia", 21, 4), ("esd:1", 21, 4)]
    weights = (26 * 512 + 13) * 128 + 128 + 128 * 64 + 64 + 64 + 1 + 26  # the last: scales
    assert [r.megabytes.dense for r in results] == pytest.approx([21 * 4 * 2 * 4 * weights / 1e6] * 2)
    assert plot.stat().st_size > 1000
