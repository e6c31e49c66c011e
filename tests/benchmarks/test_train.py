"""Policies side by side in real runs, and what is made of their summaries."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from benchmarks.simulated.dispatch import simulate
from benchmarks.simulated.workload import make_workload
from benchmarks.tables import train_table
from benchmarks.train import (
    Experiment,
    TrainResult,
    check_losses,
    compare,
    default_links,
    parse_variants,
    run_train,
)
from benchmarks.visits import Visits
from dispatch.placement.traffic import WorkerTraffic
from dispatch.progress.quality import Quality
from dispatch.progress.status import SinceMark, Status, Summary, WorkerStatus, summarize
from dispatch.tally import PhaseSeconds
from infra.base.errors import ConfigError, FreshetError
from infra.base.link_gbit import LinkGbit
from infra.base.process import Stop
from infra.run.display import Display
from ingest.schema import load_schema
from tests.end_to_end.processes import run
from tests.infra.run.allowed import NEEDED, can_make_namespaces

EXPERIMENT = Experiment((5.0, 0.5), batch=8, steps=4, warm_up=2, seed=0, dataset="avazu", file=None)
ONE_WORKER = replace(EXPERIMENT, links_gbit=(1.0,))
FAST = PhaseSeconds(push=0.01, pull=0.02, forward=0.03, backward=0.04, rows=0.05, reduce=0.3)
SLOW = PhaseSeconds(push=0.2, pull=0.1, forward=0.03, backward=0.04, rows=0.05, reduce=0.03)


def summary(seconds: float, logloss: float = 0.5) -> Summary:
    measured = SinceMark(
        quality=Quality(),
        steps=10,
        samples=40,
        seconds=seconds,
        decide_ms_p50=1,
        decide_ms_p99=2,
        deadline_misses=0,
        workers=(
            WorkerStatus(name="a", traffic=WorkerTraffic(samples=30, order_bytes=9_900_000), seconds=FAST),
            WorkerStatus(name="b", traffic=WorkerTraffic(samples=10), seconds=SLOW),
        ),
    )
    return summarize(Status(run="r", quality=Quality(logloss=logloss), since_mark=measured), "finished")


def results() -> list[TrainResult]:
    return compare({"laia": [summary(10), summary(20), summary(5)], "joint": [summary(5), summary(5), summary(4)]})


def test_policies_run_over_the_same_events_and_train_the_same_model(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    size = ("--workers", "2", "--batch", "16", "--steps", "8", "--warm-up", "3", "--dim", "4", "--links", "1,0.1")
    wide = ("--set", "rows.float_dtype=float64", "--set", "ps.shards=1")
    # Chosen by the model of the links: by the clock the choice would depend on how busy this machine is.
    elastic = "joint:elastic@dispatch.choose=model"
    ended = run("bench", "train", "--policies", f"laia,{elastic}", *size, *wide, "--json", output)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    first, second = json.loads(output.read_text())
    assert (first["policy"], second["policy"]) == ("laia", elastic)
    assert first["logloss"] == pytest.approx(second["logloss"], abs=1e-6)
    assert first["samples"] == [80, 80]
    assert second["samples"] == [160, 0]
    assert "steps/s" in ended.stdout


@pytest.mark.skipif(not can_make_namespaces(), reason=NEEDED)
def test_workers_train_behind_real_links(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    size = ("--workers", "2", "--batch", "16", "--steps", "5", "--warm-up", "2", "--dim", "4", "--links", "1,0.1")
    ended = run("bench", "train", "--network", "namespaces", "--policies", "laia", *size, "--json", output)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (only,) = json.loads(output.read_text())
    assert only["samples"] == [48, 48]
    assert min(only["order_bytes"] + only["report_bytes"]) > 4 * 48
    assert all(0 < dense < moved for dense, moved in zip(only["dense_bytes"], only["moved_bytes"], strict=True))
    assert "links 1,0.1 Gbit/s (namespaces)" in " ".join(ended.stdout.split())


def test_the_median_run_counts_and_ratios_are_taken_within_a_repeat() -> None:
    laia, joint = results()
    assert (laia.steps_per_second, laia.repeats, laia.speed_up) == (1.0, [1.0, 0.5, 2.0], 1.0)
    assert (joint.steps_per_second, joint.speed_up) == (2.0, 2.0)


def test_the_slowest_worker_is_the_one_that_waits_least() -> None:
    laia, _ = results()
    assert laia.slowest == "b"
    assert laia.slowest_seconds.compute == pytest.approx(0.12)
    assert laia.slowest_seconds.wait == pytest.approx(1.0 - 0.2 - 0.1 - 0.12)


def test_the_table_shows_policies_side_by_side() -> None:
    console = Console(file=io.StringIO(), width=120, record=True)
    console.print(train_table(results(), EXPERIMENT))
    text = console.export_text()
    for part in ("laia", "joint", "1.00 0.50 2.00", "2.00×", "75%/25%", "0.500000", "megabytes of orders", "9.9"):
        assert part in text


def test_losses_that_differ_are_an_error() -> None:
    with pytest.raises(FreshetError, match=r"losses differ: laia 0\.5.*joint 0\.6"):
        check_losses(compare({"laia": [summary(1)], "joint": [summary(1, 0.6)]}))
    with pytest.raises(FreshetError, match="losses differ"):
        check_losses(compare({"laia": [summary(1), summary(1)], "joint": [summary(1), summary(1, float("nan"))]}))
    check_losses(results())


@pytest.mark.parametrize(
    ("experiment", "policies", "wrong"),
    [
        (replace(ONE_WORKER, steps=2), "laia", "make 2 batches"),
        (replace(ONE_WORKER, overrides=("dispatch.cache_rows=9",)), "laia", "laia on 1 × 8 samples cannot be run"),
        (replace(EXPERIMENT, overrides=("dispatch.cache_rows=300",)), "laia,laia@1", "laia@1 on 1 × 16 .* 464 rows"),
        (replace(EXPERIMENT, batch=3, links_gbit=(1.0,) * 3), "laia,laia@2", "asks for 2 of 3 workers"),
        (replace(EXPERIMENT, overrides=("trainer.reduce=hub",)), "laia,fae", "fae.* cannot be run: policy fae"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(
    tmp_path: Path, experiment: Experiment, policies: str, wrong: str
) -> None:
    with pytest.raises(ConfigError, match=wrong):
        run_train(tmp_path, experiment, parse_variants(policies), 1, Stop(), Display(Console(file=io.StringIO())))
    assert not list(tmp_path.glob("0-*"))


def test_a_stop_gives_no_result(tmp_path: Path) -> None:
    stop = Stop()
    stop.request("SIGINT")
    with pytest.raises(FreshetError, match="no result: stopped by SIGINT"):
        run_train(tmp_path, EXPERIMENT, parse_variants("laia"), 1, stop, Display(Console(file=io.StringIO())))


def test_half_of_the_links_are_ten_times_slower() -> None:
    assert default_links(5) == (LinkGbit(0.2, 0.2),) * 3 + (LinkGbit(0.02, 0.02),) * 2


def test_synthetic_visits_give_policies_something_to_gain() -> None:
    keys_KF = np.concatenate([part.keys_BF for part in Visits(load_schema("avazu"), 0).samples(6000)])
    again_KF = np.concatenate([part.keys_BF for part in Visits(load_schema("avazu"), 0).samples(6000)])
    workload = make_workload(keys_KF, (5.0, 0.5), 64, cache_ratio=0.3)
    assert np.array_equal(keys_KF, again_KF)
    assert simulate(workload, "esd:1").cost < 0.9 * simulate(workload, "laia").cost


def test_runs_are_told_the_uplinks_where_they_differ() -> None:
    skewed = EXPERIMENT.with_links([LinkGbit(0.2, 0.2)] * EXPERIMENT.workers)
    assert skewed.link_settings == [f"dispatch.links_gbit={','.join(['0.2'] * EXPERIMENT.workers)}"]
    uneven = replace(EXPERIMENT, links_gbit=(0.2, 0.1), uplinks_gbit=(0.02, 0.1))
    assert uneven.link_settings == ["dispatch.links_gbit=0.2,0.1", "dispatch.uplinks_gbit=0.02,0.1"]
    assert parse_variants("laia@1")[0].on(uneven).links == (LinkGbit(0.2, 0.02),)
    assert replace(uneven, is_told_links=False).link_settings == []


def test_a_variant_differs_from_the_others_in_its_marks() -> None:
    plain, marked = parse_variants("laia, laia:parts@ring@2@dispatch.lookahead=0")
    four = replace(EXPERIMENT, links_gbit=(4.0, 3.0, 2.0, 1.0), overrides=("rows.dim=4",))
    assert plain.on(four) == four
    own = marked.on(four)
    assert (marked.text, marked.policy) == ("laia:parts@ring@2@dispatch.lookahead=0", "laia:parts")
    assert (own.links_gbit, own.batch, own.whole_batch) == ((4.0, 3.0), 16, four.whole_batch)
    assert own.overrides == ("rows.dim=4", "trainer.reduce=ring", "dispatch.lookahead=0")


@pytest.mark.parametrize("text", ["laia@", "laia@0", "laia@both"])
def test_a_mark_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected ring, hub, a number of workers"):
        parse_variants(text)


@pytest.mark.parametrize(("workers", "links"), [(3, (1.0, 1.0)), (2, (1.0, 1.0, 1.0))])
def test_a_variant_on_workers_that_there_are_not_is_refused(workers: int, links: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match=rf"asks for {workers} of {len(links)} workers"):
        parse_variants(f"laia@{workers}")[0].on(replace(EXPERIMENT, links_gbit=links, batch=3))
