"""n workers under any policy equal one process on whole batches; the same run twice is equal bit for bit."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from dispatch.decide import Decider, relative_row_costs
from dispatch.directory import Directory
from dispatch.index import Index
from dispatch.policies.registry import build_policy
from dispatch.prequential import Prequential
from dispatch.protocol import FLUSH, TRAIN
from ps.config import RowConfig
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.threads import SEED, SMALL_MODEL, Plan, Result, batches, train, train_reference
from trainer.reference import Reference

STEPS, BATCH = 50, 64
POLICIES = ["random", "round_robin", "laia", "laia_adaptive", "het", "esd:0", "esd:0.5", "esd:1"]
OPTIMIZERS = ["sgd", "adagrad", "rowwise_adagrad"]


def largest_error(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    """Largest difference, relative to the size of the expected values."""
    return float(np.max(np.abs(actual - expected)) / max(np.max(np.abs(expected)), 1e-12))


def expect_equal(result: Result, reference: Reference, tolerance: float) -> None:
    width = result.rows_RT.shape[1]
    for column in range(width):
        assert largest_error(result.rows_RT[:, column], reference.rows()[:, column]) < tolerance, f"column {column}"
    for name, expected in reference.dense_weights().items():
        assert largest_error(result.dense[f"weight/{name}"], expected) < tolerance, name


def rows_of(optimizer: str, float_dtype: str = "float32") -> RowConfig:
    rates: dict[str, float] = {"rate": 0.5, "wide_rate": 0.5} if optimizer == "sgd" else {}
    return RowConfig.model_validate({"dim": 8, "optimizer": optimizer, "float_dtype": float_dtype, **rates})


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_workers_policy_and_optimizer_equal_one_process(
    write_topic: WriteTopic, workers: int, policy: str, optimizer: str
) -> None:
    folder = write_topic(STEPS * BATCH)
    plan = Plan(folder, workers=workers, policy=policy, batch=BATCH, cache_rows=700, rows=rows_of(optimizer))
    result = train(plan)
    assert result.status.samples == STEPS * BATCH
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)
    assert workers == 1 or sum(w.update_pushes for w in result.status.workers) > 0


@pytest.mark.parametrize("policy", ["joint", "joint:2:elastic", "esd:1:elastic"])
def test_batches_split_as_a_whole_or_unevenly_equal_one_process(write_topic: WriteTopic, policy: str) -> None:
    plan = Plan(write_topic(STEPS * BATCH), 3, policy=policy, batch=BATCH, cache_rows=700)
    result = train(plan)
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)
    assert sum(worker.samples for worker in result.status.workers) == STEPS * BATCH


@pytest.mark.parametrize("policy", ["joint:4:elastic", "esd:1"])
def test_decisions_cut_short_are_counted_and_change_nothing(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr("dispatch.accounts.Accounts.budget_seconds", 1e-6)
    plan = Plan(write_topic(STEPS * BATCH), 3, policy=policy, batch=BATCH, cache_rows=700, deadline=True)
    registry = CollectorRegistry()
    result = train(plan, registry=registry)
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)
    assert result.status.decisions_cut >= STEPS - 1
    assert result.status.deadline_misses == STEPS
    assert registry.get_sample_value("freshet_decisions_cut_total") == result.status.decisions_cut
    assert registry.get_sample_value("freshet_deadline_misses_total") == STEPS


def test_slow_links_that_nobody_told_are_found_out_and_spared(write_topic: WriteTopic) -> None:
    links = {"links": (5.0, 0.02), "link_costs": "measured"}
    rows = RowConfig(dim=256, optimizer="adagrad")
    plan = Plan(write_topic(20 * BATCH), 2, "joint:2:elastic", batch=BATCH, cache_rows=700, rows=rows, **links)  # type: ignore[arg-type]
    result = train(plan)
    fast, slow = result.status.workers
    assert fast.measured_gbit is not None
    assert slow.measured_gbit is not None
    assert slow.measured_gbit < 0.5 * fast.measured_gbit
    assert slow.samples < 0.8 * fast.samples
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_in_float64_the_error_is_rounding_alone(write_topic: WriteTopic, optimizer: str) -> None:
    plan = Plan(write_topic(STEPS * BATCH), workers=4, cache_rows=700, rows=rows_of(optimizer, "float64"))
    result = train(plan)
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-11)


@pytest.mark.parametrize("eviction", ["lru", "lfu", "emark"])
def test_with_caches_that_evict_every_step_nothing_changes(write_topic: WriteTopic, eviction: str) -> None:
    plan = Plan(write_topic(STEPS * BATCH), workers=4, cache_rows=160, eviction=eviction, rows=rows_of("adagrad"))
    result = train(plan)
    assert sum(w.evict_pushes for w in result.status.workers) > 100
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)


@pytest.mark.parametrize("policy", ["random", "esd:1", "joint"])
def test_the_same_run_twice_is_equal_bit_for_bit(write_topic: WriteTopic, policy: str) -> None:
    first, second = (
        train(Plan(write_topic(STEPS * BATCH, name), workers=4, policy=policy, cache_rows=300, deadline=False))
        for name in ("a", "b")
    )
    assert first.rows_RT.tobytes() == second.rows_RT.tobytes()
    assert first.versions_R.tobytes() == second.versions_R.tobytes()
    assert {name: w.tobytes() for name, w in first.dense.items()} == {n: w.tobytes() for n, w in second.dense.items()}
    assert first.manifests == second.manifests
    assert (first.status.logloss, first.status.auc) == (second.status.logloss, second.status.auc)


def test_what_the_shards_saw_is_what_the_directory_predicted(write_topic: WriteTopic) -> None:
    plan = Plan(write_topic(STEPS * BATCH), workers=3, shards=2, policy="esd:0.5", cache_rows=300, deadline=False)
    result = train(plan)
    directory = Directory(np.full(plan.workers, plan.cache_rows), plan.eviction, plan.shards)
    decider = Decider(Index(), directory, build_policy(plan.policy, SEED), relative_row_costs([0.0] * plan.workers))
    for manifest, samples in zip(result.manifests, batches(plan, result.manifests), strict=True):
        traffic = decider.decide(manifest.step, samples.keys_BF).plan.traffic
        seen = seen_in(result, manifest.step, TRAIN, plan.workers)
        np.testing.assert_array_equal(seen[:, 0], traffic.miss_pull)
        np.testing.assert_array_equal(seen[:, 1], traffic.owned_push)
        np.testing.assert_array_equal(seen[:, 2], traffic.pushes - traffic.owned_push)
    flushed = seen_in(result, result.manifests[-1].step, FLUSH, plan.workers)
    assert flushed[:, 1:].sum() == decider.flush().traffic.flush_push.sum() > 0


def seen_in(result: Result, step: int, phase: int, workers: int) -> NDArray[np.int64]:
    """Per worker, over all shards: rows pulled, owned rows pushed, parts pushed."""
    lines = result.ledger[(result.ledger[:, 1] == step) & (result.ledger[:, 2] == phase)]
    totals = np.zeros((workers, 3), np.int64)
    np.add.at(totals, lines[:, 3], lines[:, 4:])
    return totals


def test_rows_know_the_step_that_last_changed_them(write_topic: WriteTopic) -> None:
    plan = Plan(write_topic(20 * BATCH), workers=2)
    result = train(plan)
    index, expected = Index(), np.zeros(len(result.versions_R), np.int64)
    for manifest, samples in zip(result.manifests, batches(plan, result.manifests), strict=True):
        expected[index.resolve(samples.keys_BF).rows_U] = manifest.step
    np.testing.assert_array_equal(result.versions_R, expected)


def test_the_quality_told_is_that_of_one_process(write_topic: WriteTopic) -> None:
    plan = Plan(write_topic(20 * BATCH), workers=3, policy="random", model=SMALL_MODEL)
    result, schema, expected = train(plan), plan.schema, Prequential()
    reference = Reference(plan.scaled_rows, plan.model, schema.fields, schema.dense, SEED)
    for samples in batches(plan, result.manifests):
        expected.add(reference.step(samples.keys_BF, samples.dense_BN, samples.labels_B), samples.labels_B)
    assert result.status.logloss == pytest.approx(expected.overall().logloss, rel=1e-5)
    assert result.status.auc == pytest.approx(expected.overall().auc, rel=1e-4)
