"""Batches that grow with the samples seen: any workers equal one process, and an interruption changes no size."""

from typing import Any

import pytest

from dispatch.dense import Reduce
from ingest.batches.job import LoaderJob
from ps.config import CheckpointConfig, RowConfig
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.crashing import Strike, check_run, train_struck
from tests.end_to_end.interrupting import golden, interrupt
from tests.end_to_end.test_exactness import expect_equal, rows_of
from tests.end_to_end.threads import Plan, Result, model_of, train, train_reference

EVENTS, BATCH = 1200, 96
GROWING: dict[str, Any] = {"batch": BATCH, "first_batch": 16, "batch_growth": 8, "silence_seconds": 20.0}


def expect_grown(plan: Plan, result: Result) -> None:
    """Every batch but the last has the size that follows from the samples before it."""
    sizes = [manifest.samples for manifest in result.manifests]
    rule = LoaderJob(plan.schema, plan.batch, first_batch=plan.first_batch, batch_growth=plan.batch_growth)
    assert sizes[:-1] == [rule.batch_after(sum(sizes[:place])) for place in range(len(sizes) - 1)]
    assert (sizes[0], max(sizes), sum(sizes)) == (16, BATCH, EVENTS)


@pytest.mark.parametrize(
    ("workers", "policy", "reduce"),
    [
        (1, "esd:1", "hub"),
        (2, "esd:1", "hub"),
        (4, "esd:1", "ring"),
        (4, "joint:2:elastic", "hub"),
        (3, "laia", "ring"),
        (3, "het", "hub"),
        (3, "fae:0.15:4", "ring"),
    ],
)
def test_growing_batches_of_any_workers_equal_one_process(
    write_topic: WriteTopic, workers: int, policy: str, reduce: Reduce
) -> None:
    rows = rows_of("adagrad", "float64")
    plan = Plan(write_topic(EVENTS), workers, policy, cache_rows=1800, rows=rows, reduce=reduce, **GROWING)
    result = train(plan)
    expect_grown(plan, result)
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-9)


def test_a_sample_moves_a_row_as_far_in_a_small_batch_as_in_a_full_one(write_topic: WriteTopic) -> None:
    """Two runs on one small batch each; of one of them, full batches are four times as large."""
    one = train(Plan(write_topic(16, "one"), 1, batch=16, rows=rows_of("sgd", "float64")))
    four = train(Plan(write_topic(16, "four"), 1, batch=64, rows=rows_of("sgd", "float64")))
    moved = one.rows_RT[:, -1], four.rows_RT[:, -1]  # wide weights, which start at 0
    assert abs(moved[0]).max() > 0
    assert moved[0] == pytest.approx(4 * moved[1])


def test_a_run_killed_while_batches_grow_forms_the_batches_it_would_have_formed(write_topic: WriteTopic) -> None:
    common: dict[str, Any] = {"policy": "random", "cache_rows": 700, "rows": RowConfig(dim=5), **GROWING}
    undisturbed = Plan(write_topic(EVENTS, "whole"), **common)
    expected = train(undisturbed)
    killed = Plan(write_topic(EVENTS, "killed"), **common)
    for step in (3, 9, 17):
        interrupt(killed, step)
    result = train(killed)
    expect_grown(killed, result)
    assert [m.ranges for m in result.manifests] == [m.ranges for m in expected.manifests]
    assert model_of(result) == model_of(expected)
    replayed = train(golden(killed))
    assert model_of(replayed) == model_of(result)
    assert replayed.status.quality == result.status.quality


def test_crashes_while_batches_grow_cost_time_and_no_bit(write_topic: WriteTopic) -> None:
    often = CheckpointConfig(seconds=0.02, kept=1000)
    plan = Plan(write_topic(EVENTS, poison=0.05), rows=RowConfig(dim=4), checkpoints=often, **GROWING)
    strikes = Strike("backward", 4), Strike("journalled", 9), Strike("push_half_applied", 15)
    result = train_struck(plan, *strikes)
    check_run(plan, result, EVENTS)
    assert len({manifest.samples for manifest in result.manifests}) > 5
