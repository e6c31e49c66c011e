"""Which set of workers a plan finds fastest, and that its rows are those of the live directory."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.clicks import made_up_samples
from benchmarks.simulated.dispatch import simulate
from benchmarks.simulated.sizes import Sizes
from benchmarks.simulated.workload import Workload
from dispatch.placement.capacity.bounds import ShareBounds
from dispatch.placement.errors import CacheTooSmall
from infra.plan.compute import ComputeCurve, given_compute
from infra.plan.plan import make_plan, mean_seconds, speed_up_map
from infra.plan.report import plan_lines
from infra.plan.simulate import PlanJob, simulate_set
from ingest.schema import load_schema

BATCH, STEPS = 64, 12
SIZES = Sizes(row=136, value=68, dense=300_000)
FREE = ShareBounds()
ENDLESS = 1e9


def job(**changed: object) -> PlanJob:
    keys_KF = np.concatenate([part.keys_BF for part in made_up_samples(load_schema("movielens"), BATCH * STEPS)])
    usual = PlanJob(
        keys=[keys_KF[start : start + BATCH] for start in range(0, len(keys_KF), BATCH)],
        cache_rows=4096,
        eviction="emark",
        shards=2,
        sizes=SIZES,
        compute=given_compute(1.0),
        devices=8,
    )
    return replace(usual, **changed)  # type: ignore[arg-type]


def test_rows_are_those_that_the_simulator_counts_for_the_same_workers() -> None:
    links, size = (1.0, 1.0, 0.1), 63  # three equal parts
    whole_KF = np.concatenate(job().keys)[: size * STEPS]
    even = job(keys=[whole_KF[start : start + size] for start in range(0, len(whole_KF), size)])
    load, looked_at = simulate_set(even, links, "laia", FREE)
    workload = Workload(whole_KF, links, size // 3, even.cache_rows, warm_up=looked_at // 2, sizes=SIZES)
    found = simulate(workload, "laia")
    rows_bytes = load.moved_bytes_S.sum() - 2 * load.dense_bytes_Sn.sum()
    assert load.pulled_Sn.shape == (found.steps, 3)
    assert rows_bytes == pytest.approx(
        sum(map(sum, (found.miss_pull, found.update_push, found.evict_push))) * SIZES.row
    )


def test_several_workers_win_where_compute_is_what_a_step_waits_for() -> None:
    made = make_plan(job(compute=given_compute(20_000)), (10.0,) * 4, "joint:elastic", FREE, ENDLESS)
    assert made.result.fastest == 4
    assert made.result.speed_up is not None
    assert made.result.speed_up > 3
    assert made.result.candidates[-1].limited_by == "compute"
    assert "the 4 workers with the fastest links are fastest here" in next(plan_lines(made.result))


def test_one_worker_wins_where_dense_weights_are_and_the_plan_says_so() -> None:
    heavy = replace(SIZES, dense=50_000_000)  # seconds, where everything else takes milliseconds
    result = make_plan(job(sizes=heavy), (0.02, 0.2, 0.02, 0.2), "joint:elastic", FREE, ENDLESS).result
    assert (result.fastest, result.speed_up, result.links_gbit) == (1, 1.0, [0.2, 0.2, 0.02, 0.02])
    assert [each.workers for each in result.candidates] == [1, 2, 4]
    assert {each.limited_by for each in result.candidates[1:]} == {"dense"}
    first, own = plan_lines(result)
    assert first.startswith("one worker alone is fastest here; 2 workers would take")
    assert "more workers bring no speed here" in first
    assert own.startswith("joint:elastic, given these times, lets")


def test_workers_that_share_a_device_compute_in_turn() -> None:
    apart, shared = (
        simulate_set(job(compute=given_compute(100), devices=devices), (1.0, 1.0), "round_robin", FREE)[0]
        for devices in (2, 1)
    )
    assert shared.compute_seconds_Sn == pytest.approx(2 * apart.compute_seconds_Sn)


def test_a_plan_counts_what_workers_move_together() -> None:
    wide, narrow = (
        simulate_set(job(server_gbit=gbit), (1.0,) * 4, "round_robin", FREE)[0].parts() for gbit in (4.0, 0.1)
    )
    assert narrow.dense == pytest.approx(4 * 10 * wide.dense)
    assert (narrow.early_rows + narrow.late_rows > 10 * (wide.early_rows + wide.late_rows)).all()


def test_a_set_whose_caches_cannot_hold_the_batch_is_named_with_its_reason() -> None:
    half = job(cache_rows=BATCH)  # 2 keys a sample
    made = make_plan(half, (1.0, 1.0), "esd:1", FREE, ENDLESS)
    alone, both = made.result.candidates
    assert (alone.ms, both.ms is not None, made.result.fastest, made.result.speed_up) == (None, True, 2, None)
    assert "cannot hold a micro-batch" in [*plan_lines(made.result)][-1]
    with pytest.raises(CacheTooSmall):
        make_plan(replace(half, cache_rows=9), (1.0, 1.0), "esd:1", FREE, ENDLESS)


def test_the_map_has_the_plans_own_speed_up_in_its_middle_and_one_where_compute_is_free() -> None:
    made = make_plan(job(compute=given_compute(20_000)), (10.0,) * 2, "esd:1", FREE, ENDLESS)
    faster_YX = speed_up_map(made.loads, np.array([0.0, 1.0]), np.array([1e-3, 1.0]))
    assert faster_YX[1, 1] == pytest.approx(made.result.speed_up)
    assert faster_YX[0, 0] == 1.0
    assert mean_seconds(made.loads[1], compute=2.0) == pytest.approx(2 * mean_seconds(made.loads[1]), rel=1e-3)


def test_fewer_batches_are_looked_at_if_there_is_no_time() -> None:
    made = make_plan(job(), (1.0, 1.0), "esd:1", FREE, 0.0)
    assert made.result.batches == 4


def test_compute_lies_on_lines_between_what_was_measured() -> None:
    times = ComputeCurve((0, 100, 200), (1.0, 2.0, 4.0), "measured")
    assert [times.of(samples) for samples in (0, 50, 150, 400)] == [0.0, 1.5, 3.0, 8.0]
    assert given_compute(5.0).of(2000) == pytest.approx(0.01)
