"""n workers under any policy equal one process on whole batches; the same run twice is equal bit for bit."""

from itertools import cycle, product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from dispatch.dense import Reduce
from dispatch.journal.log import read_records
from dispatch.journal.records import SetChosen
from dispatch.placement.capacity.choice import MeasuredChoice
from dispatch.placement.capacity.participation import SetChange
from dispatch.placement.capacity.room import hot_rows
from dispatch.placement.capacity.step_model import StepModel
from dispatch.placement.decide import Decider, Decision, relative_row_costs
from dispatch.placement.policies.registry import parse_spec
from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.index import Index
from dispatch.placement.rows.plan import RoundPlan
from dispatch.placement.rows.states import REPLICATED
from dispatch.placement.traffic import ring_moved
from dispatch.progress.accounts import Accounts
from dispatch.progress.prequential import Prequential
from dispatch.training import Training
from infra.base.distinct import number_keys
from infra.base.link import Link
from ps.config import RowConfig
from ps.phases import EARLY, EVICT, FLUSH, TRAIN
from tests.end_to_end.clock import ThreadClock, told_rate
from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.interrupting import golden
from tests.end_to_end.threads import (
    SEED,
    SMALL_MODEL,
    Plan,
    Result,
    batches,
    model_of,
    new_reference,
    train,
    train_reference,
)
from trainer.reference import Reference
from trainer.worker import Worker

STEPS, BATCH = 14, 64
EVICTING_ROWS = {1: 700, 2: 350, 4: 180}
"""slots of a cache, by the number of workers, that so many steps fill more than once"""
# With one worker a policy has no choice; it only matters then whether updates are pushed on demand or always.
POLICIES = ["random", "round_robin", "laia", "laia_adaptive", "het", "esd:0", "esd:0.5", "esd:1"]
FAE = "fae:0.15:4"
ALWAYS_PUSHED = ("het", FAE)
"""policies under which a row that is evicted has been pushed already"""
OPTIMIZERS = ["sgd", "adagrad", "rowwise_adagrad"]
WAYS: list[tuple[Reduce, str]] = [*(("auto", optimizer) for optimizer in OPTIMIZERS), ("ring", "adagrad")]
EVERY_WAY = [(1, "esd:1"), (1, "het"), (1, FAE), *product([2, 4], ["esd:1", "het"])]
ONE_WAY = [case for case in product([2, 4], POLICIES) if case not in EVERY_WAY]
"""policies that differ in who trains a sample alone, and not in how rows are trained and moved then"""
CASES = [*product(EVERY_WAY, WAYS), *zip(ONE_WAY, cycle(WAYS), strict=False)]


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


@pytest.mark.parametrize(("workers", "policy", "reduce", "optimizer"), [(*who, *how) for who, how in CASES])
def test_any_workers_policy_and_optimizer_equal_one_process(
    write_topic: WriteTopic, workers: int, policy: str, reduce: Reduce, optimizer: str
) -> None:
    topic, cache_rows = write_topic(STEPS * BATCH), EVICTING_ROWS[workers]
    plan = Plan(topic, workers, policy, cache_rows=cache_rows, rows=rows_of(optimizer), reduce=reduce)
    result = train(plan)
    assert result.status.samples == STEPS * BATCH
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)
    assert policy in ALWAYS_PUSHED or sum(w.traffic.evict_pushes for w in result.status.workers) > 0
    assert workers == 1 or sum(w.traffic.update_pushes for w in result.status.workers) > 0


@pytest.mark.parametrize(("reduce", "tolerance"), [("hub", 1e-11), ("ring", 1e-11)])
@pytest.mark.parametrize("dense_optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("workers", [1, 4])
def test_any_dense_optimizer_equals_one_process_wherever_it_is_applied(
    write_topic: WriteTopic, workers: int, dense_optimizer: str, reduce: Reduce, tolerance: float
) -> None:
    model = SMALL_MODEL.model_copy(update={"dense_optimizer": dense_optimizer, "dense_rate": 0.01})
    rows = rows_of("adagrad", "float64")
    plan = Plan(write_topic(STEPS * BATCH), workers, cache_rows=600, rows=rows, model=model, reduce=reduce, shards=3)
    result = train(plan)
    expect_equal(result, train_reference(plan, result.manifests), tolerance)


@pytest.mark.parametrize(("workers", "reduce"), [(1, "hub"), (3, "hub"), (3, "ring")])
def test_dense_bytes_told_are_those_that_the_shards_saw(write_topic: WriteTopic, workers: int, reduce: Reduce) -> None:
    steps, batch = 20, 4  # less than two samples a worker, so that some have none
    plan = Plan(write_topic(steps * batch), workers, policy="random", batch=batch, reduce=reduce)
    result = train(plan)
    seen = np.zeros((workers, 2), np.int64)
    np.add.at(seen, result.ledger[:, 3], result.ledger[:, 7:] * 4)
    told = [[w.traffic.dense_up_bytes, w.traffic.dense_down_bytes] for w in result.status.workers]
    weights = sum(w.size for name, w in result.dense.items() if name.startswith("weight/"))
    if reduce == "ring":
        whole = sum(w.size for w in result.dense.values())
        assert 4 * whole <= seen.sum() == seen[0, 0] < 5 * whole, "weights and state, at the flush"
        assert min(told[0]) >= ring_moved(workers, 4 * weights) * steps
        return
    assert told == seen.tolist()
    if workers == 1:
        assert told[0][0] > 3 * 4 * weights, "weights and state, once"
        assert told[0][1] == 0
    else:
        users = sum(np.count_nonzero(decided.samples) for decided in replay(plan, result)[1])
        bare = told[1][1] // np.count_nonzero([decided.samples[1] for decided in replay(plan, result)[1][:-1]])
        assert told[1][0] == told[1][1], "a gradient for all weights that were pulled"
        assert 4 * weights <= bare < 5 * weights
        assert sum(down for _, down in told) == users * bare < workers * steps * bare


@pytest.mark.parametrize("policy", ["joint", "joint:2:elastic", "esd:1:elastic"])
def test_batches_split_as_a_whole_or_unevenly_equal_one_process(write_topic: WriteTopic, policy: str) -> None:
    plan = Plan(write_topic(STEPS * BATCH), 3, policy=policy, batch=BATCH, cache_rows=700)
    result = train(plan)
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)
    assert sum(worker.traffic.samples for worker in result.status.workers) == STEPS * BATCH


@pytest.mark.parametrize("policy", ["joint:4:elastic", "esd:1"])
def test_decisions_shortened_short_are_counted_and_change_nothing(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr("dispatch.progress.feedback.Feedback.busy_seconds", 1e-6)
    plan = Plan(
        write_topic(STEPS * BATCH), 3, policy=policy, batch=BATCH, cache_rows=700, deadline=True, largest_share=2.0
    )
    registry = CollectorRegistry()
    result = train(plan, registry=registry)
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)
    assert result.status.decisions.cut_short >= STEPS - 1
    assert result.status.decisions.deadline_misses == STEPS
    assert registry.get_sample_value("freshet_decisions_shortened_total") == result.status.decisions.cut_short
    assert registry.get_sample_value("freshet_deadline_misses_total") == STEPS


@pytest.mark.parametrize("reduce", ["hub", "ring"])
def test_messages_that_shaped_links_hold_back_change_nothing(write_topic: WriteTopic, reduce: Reduce) -> None:
    topic, links = write_topic(STEPS * BATCH), (5.0, 1.0, 0.2)
    plan = Plan(topic, workers=3, cache_rows=300, links=links, rows=rows_of("adagrad"), reduce=reduce)
    result = train(plan)
    assert [worker.link_gbit for worker in result.status.workers] == list(links)
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)


@pytest.mark.parametrize("reduce", ["hub", "ring"])
def test_links_with_slow_uplinks_change_nothing(write_topic: WriteTopic, reduce: Reduce) -> None:
    topic, rows = write_topic(STEPS * BATCH), rows_of("adagrad")
    links: dict[str, Any] = {"links": (5.0, 1.0, 1.0), "uplinks": (5.0, 0.1, 2.0)}
    plan = Plan(topic, 3, "joint:2:elastic", batch=BATCH, cache_rows=700, rows=rows, reduce=reduce, **links)
    result = train(plan)
    assert [worker.link_gbit for worker in result.status.workers] == [5.0, 1.0, 1.0]
    assert [worker.uplink_gbit for worker in result.status.workers] == [None, 0.1, 2.0]
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)


def test_a_slow_uplink_that_nobody_told_is_found_out(write_topic: WriteTopic) -> None:
    links: dict[str, Any] = {"links": (0.2, 0.2), "uplinks": (0.2, 0.01), "link_costs": "measured"}
    rows = RowConfig(dim=64, optimizer="adagrad")
    plan = Plan(write_topic(16 * BATCH), 2, "esd:1", batch=BATCH, cache_rows=700, rows=rows, reduce="hub", **links)
    result = train(plan)
    even, slow = (worker.measured_uplink_gbit or 0.0 for worker in result.status.workers)
    assert 0.005 < slow < 0.02
    assert even > 2 * slow
    assert (result.status.workers[1].measured_gbit or 0.0) > 2 * slow
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)


def test_slow_links_that_nobody_told_are_found_out_and_spared(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    ThreadClock().replace_clocks(monkeypatch)
    links = {"links": (5.0, 0.02), "link_costs": "measured"}
    rows = RowConfig(dim=64, optimizer="adagrad")
    plan = Plan(write_topic(20 * BATCH), 2, "joint:2:elastic", batch=BATCH, cache_rows=700, rows=rows, **links)  # type: ignore[arg-type]
    result = train(plan)
    fast, slow = result.status.workers
    assert fast.measured_gbit == pytest.approx(5.0, rel=0.2)
    assert slow.measured_gbit == pytest.approx(0.02, rel=0.2)
    assert slow.traffic.samples < 0.8 * fast.traffic.samples
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)


def test_a_worker_that_is_parked_and_comes_back_changes_nothing(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, ...]] = []
    for name in ("SETTLING_STEPS", "LEAST_WAIT", "MOST_WAIT"):
        monkeypatch.setattr(f"dispatch.placement.capacity.participation.{name}", 8)
    set_parked = Accounts.set_parked

    def note(accounts: Accounts, workers: tuple[str, ...]) -> None:
        seen.append(workers)
        set_parked(accounts, workers)

    def rate(link: Link) -> float:
        """Links have their speeds until somebody has been parked, and are all fast from then on."""
        return max(told_rate(link), 5e9 / 8 if any(seen) else 0.0)

    ThreadClock().replace_clocks(monkeypatch, rate)
    monkeypatch.setattr(Accounts, "set_parked", note)
    links = {"links": (5.0, 5.0, 0.02), "link_costs": "measured", "dense_bytes": 100_000, "largest_share": 2.0}
    rows = RowConfig(dim=64, optimizer="adagrad")
    plan = Plan(write_topic(36 * BATCH), 3, "joint:2:elastic", batch=BATCH, cache_rows=700, rows=rows, **links)  # type: ignore[arg-type]
    registry = CollectorRegistry()
    with capture_logs() as logged:
        result = train(plan, registry=registry)
    assert seen == [(), ("worker-2",), ()]
    told = [entry for entry in logged if entry["event"] == "other workers take part"]
    assert [entry["parked"] for entry in told] == seen[1:]
    assert all(entry["step_seconds"] < entry["step_seconds_before"] for entry in told)
    assert not any(worker.is_parked for worker in result.status.workers)
    assert registry.get_sample_value("freshet_worker_parked", {"worker": "worker-2"}) == 0
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)


@pytest.mark.parametrize("dense_optimizer", ["adam", "sgd"])
def test_a_worker_that_trains_alone_owns_the_dense_weights_until_others_are_tried(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch, dense_optimizer: str
) -> None:
    for name in ("SETTLING_STEPS", "LEAST_WAIT", "MOST_WAIT"):
        monkeypatch.setattr(f"dispatch.placement.capacity.participation.{name}", 4)
    decided: list[Decision] = []
    ordered = Training.ordered

    def note(training: Training, step: int, decision: Decision) -> None:
        decided.append(decision)
        ordered(training, step, decision)

    monkeypatch.setattr(Training, "ordered", note)
    model = SMALL_MODEL.model_copy(update={"dense_optimizer": dense_optimizer, "dense_rate": 0.01})
    named: dict[str, Any] = {"model": model, "rows": rows_of("adagrad", "float64"), "dense_bytes": 10_000_000}
    result = train(plan := Plan(write_topic(40 * BATCH), 3, "joint:elastic", batch=BATCH, cache_rows=2048, **named))
    alone = [decision.sole for decision in decided]
    assert {*alone} >= {None, 0}
    assert None in alone[alone.index(0) :], "others were tried, and the owner gave everything back"
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-9)
    seen = np.zeros((plan.workers, 2), np.int64)
    np.add.at(seen, result.ledger[:, 3], result.ledger[:, 7:] * 8)
    assert [[w.traffic.dense_up_bytes, w.traffic.dense_down_bytes] for w in result.status.workers] == seen.tolist()


class Restless(MeasuredChoice):
    """Other workers take part every few steps, whatever is faster: one alone, some, all."""

    changes = 0

    def may_skip(self, step: int) -> bool:
        return False

    def choose(self, model: StepModel, step: int = 0) -> SetChange | None:
        if step % 3:
            return None
        Restless.changes += 1
        members_n = np.array([True] * 3 + [False] * 3)[Restless.changes % 3 :][:3]
        self.taking_part_n = np.roll(members_n, Restless.changes)
        return SetChange(~self.taking_part_n, model, 1.0, 2.0, "for a change")


@pytest.mark.parametrize("dense_optimizer", ["adam", "sgd"])
def test_sets_that_change_every_few_steps_change_nothing_and_are_replayed(
    write_topic: WriteTopic, monkeypatch: pytest.MonkeyPatch, dense_optimizer: str
) -> None:
    monkeypatch.setattr("dispatch.training.MeasuredChoice", Restless)
    monkeypatch.setattr(Restless, "changes", 0)
    model = SMALL_MODEL.model_copy(update={"dense_optimizer": dense_optimizer, "dense_rate": 0.01})
    named: dict[str, Any] = {"model": model, "rows": rows_of("adagrad", "float64"), "choose": "clock"}
    plan = Plan(write_topic(40 * BATCH), 3, "joint:2:elastic", batch=BATCH, cache_rows=2048, **named)
    result = train(plan)
    records = [record for record in read_records(plan.folder / "journal") if isinstance(record, SetChosen)]
    assert {len(record.members) for record in records} == {1, 2, 3}
    assert len(records) == Restless.changes > 10
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-9)
    assert model_of(train(golden(plan))) == model_of(result)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("policy", ["esd:1", FAE])
def test_in_float64_the_error_is_rounding_alone(write_topic: WriteTopic, policy: str, optimizer: str) -> None:
    rows = rows_of(optimizer, "float64")
    plan = Plan(write_topic(STEPS * BATCH), workers=4, policy=policy, cache_rows=700, rows=rows)
    result = train(plan)
    assert policy != FAE or min(w.traffic.all_reduces for w in result.status.workers) > 0
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-11)


@pytest.mark.parametrize("eviction", ["lru", "lfu", "emark"])
def test_with_caches_that_evict_every_step_nothing_changes(write_topic: WriteTopic, eviction: str) -> None:
    plan = Plan(write_topic(STEPS * BATCH), workers=4, cache_rows=160, eviction=eviction, rows=rows_of("adagrad"))
    result = train(plan)
    assert sum(w.traffic.evict_pushes for w in result.status.workers) > 100
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)


@pytest.mark.parametrize(("workers", "cache_rows"), [(1, 640), (3, 220)])
def test_a_hot_set_beside_rows_that_are_evicted_changes_nothing(
    write_topic: WriteTopic, workers: int, cache_rows: int
) -> None:
    plan = Plan(write_topic(20 * BATCH), workers, "fae:0.1:2", cache_rows=cache_rows, rows=rows_of("adagrad"))
    result = train(plan)
    _, steps = replay(plan, result)
    for number in range(workers):
        moves = [m for step in steps for m in (step.workers[number].pull_full, step.workers[number].pull_values)]
        assert len({row for move in moves for row in move.rows.tolist()}) > 1.5 * cache_rows
    assert sum(step.traffic.reduced for step in steps) > 0
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)


@pytest.mark.parametrize(
    ("policy", "reduce"), [("random", "hub"), (FAE, "auto"), ("esd:1", "hub"), ("esd:1", "ring"), ("joint", "hub")]
)
def test_the_same_run_twice_is_equal_bit_for_bit(write_topic: WriteTopic, policy: str, reduce: Reduce) -> None:
    first, second = (
        train(Plan(write_topic(STEPS * BATCH, name), workers=4, policy=policy, cache_rows=300, reduce=reduce))
        for name in ("a", "b")
    )
    assert first.rows_RT.tobytes() == second.rows_RT.tobytes()
    assert first.last_steps_R.tobytes() == second.last_steps_R.tobytes()
    assert {name: w.tobytes() for name, w in first.dense.items()} == {n: w.tobytes() for n, w in second.dense.items()}
    assert first.manifests == second.manifests
    assert first.status.quality == second.status.quality


def replay(plan: Plan, result: Result) -> tuple[Directory, list[RoundPlan]]:
    """The directory after the run's last flush, and what it decided for each step and for the flush."""
    spec = parse_spec(plan.policy)
    slots = np.full(plan.workers, plan.cache_rows), plan.eviction, plan.shards
    hot = hot_rows(spec.needs.hot_share, plan.cache_rows)
    directory = Directory(*slots, spec.needs.synchronisation, hot, plan.write_behind)
    costs = relative_row_costs([0.0] * plan.workers)
    share = plan.rows.shape().value_share
    decider = Decider(Index(), directory, spec.build(SEED, "cpu"), spec.needs, costs, value_share=share)
    steps = zip(result.manifests, batches(plan, result.manifests), strict=True)
    decided = [decider.decide(manifest.step, number_keys(samples.keys_BF)).plan for manifest, samples in steps]
    return directory, [*decided, decider.flush()]


@pytest.mark.parametrize(("policy", "write_behind"), [("esd:0.5", 0.0), ("esd:0.5", 0.2), (FAE, 0.0)])
def test_what_the_shards_saw_is_what_the_directory_predicted(
    write_topic: WriteTopic, policy: str, write_behind: float
) -> None:
    caches: dict[str, Any] = {"cache_rows": 300, "write_behind": write_behind}
    plan = Plan(write_topic(STEPS * BATCH), workers=3, shards=2, policy=policy, deadline=False, **caches)
    result = train(plan)
    _, (*steps, flush) = replay(plan, result)
    for manifest, decided in zip(result.manifests, steps, strict=True):
        traffic = decided.traffic
        seen = np.sum([seen_in(result, manifest.step, phase, plan.workers) for phase in (EARLY, TRAIN, EVICT)], axis=0)
        np.testing.assert_array_equal(seen[:, 0], traffic.miss_pull)
        np.testing.assert_array_equal(seen[:, 1], traffic.owned_push)
        np.testing.assert_array_equal(seen[:, 2], traffic.pushes - traffic.owned_push)
    flushed = seen_in(result, result.manifests[-1].step, FLUSH, plan.workers)
    assert flushed[:, 1:].sum() == flush.traffic.flush_push.sum() > 0
    reduced = sum(decided.traffic.all_reduce for decided in steps)
    assert [w.traffic.all_reduces for w in result.status.workers] == np.asarray(reduced).tolist()
    row_bytes = plan.rows.shape().value * 4
    sent = sum(ring_moved(plan.workers, decided.traffic.reduced * row_bytes) for decided in steps)
    assert [w.traffic.reduced_bytes for w in result.status.workers] == [sent] * plan.workers
    assert (sent > 0) is (policy == FAE)


@pytest.mark.parametrize("policy", ["esd:1", FAE])
def test_after_a_flush_every_cached_row_equals_the_row_of_the_shards(
    write_topic: WriteTopic, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # one sample in the last batch: two workers train nothing in it, but their replicas must change
    plan = Plan(write_topic(20 * BATCH + 1), workers=3, policy=policy, cache_rows=300, rows=rows_of("adagrad"))
    workers, close = dict[int, Worker](), Worker.close

    def keep(worker: Worker) -> None:
        workers[worker._number] = worker
        close(worker)

    monkeypatch.setattr(Worker, "close", keep)
    result = train(plan)
    directory, _ = replay(plan, result)
    compared = 0
    for number, worker in workers.items():
        for row, slot in directory.cached(number).items():
            state, holders = directory.holders(row)
            if number in holders:
                columns = result.rows_RT.shape[1] if state == REPLICATED else plan.rows.shape().value
                held = worker.cache.take_full(np.array([slot], np.int32))[0]
                np.testing.assert_array_equal(held[:columns], result.rows_RT[row, :columns])
                compared += 1
    assert (len(workers), compared > 100) == (3, True)


def seen_in(result: Result, step: int, phase: int, workers: int) -> NDArray[np.int64]:
    """Per worker, over all shards: rows pulled, owned rows pushed, parts pushed."""
    lines = result.ledger[(result.ledger[:, 1] == step) & (result.ledger[:, 2] == phase)]
    totals = np.zeros((workers, 3), np.int64)
    np.add.at(totals, lines[:, 3], lines[:, 4:7])
    return totals


@pytest.mark.parametrize("policy", ["esd:1", FAE])
def test_rows_know_the_step_that_last_changed_them(write_topic: WriteTopic, policy: str) -> None:
    plan = Plan(write_topic(20 * BATCH), workers=2, policy=policy)
    result = train(plan)
    index, expected = Index(), np.zeros(len(result.last_steps_R), np.int64)
    for manifest, samples in zip(result.manifests, batches(plan, result.manifests), strict=True):
        expected[index.resolve(number_keys(samples.keys_BF)).rows_U] = manifest.step
    np.testing.assert_array_equal(result.last_steps_R, expected)


def test_the_quality_told_is_that_of_one_process(write_topic: WriteTopic) -> None:
    plan = Plan(write_topic(20 * BATCH), workers=3, policy="random", model=SMALL_MODEL)
    result, expected = train(plan), Prequential()
    reference = new_reference(plan)
    for samples in batches(plan, result.manifests):
        expected.add(reference.step(samples.keys_BF, samples.dense_BN, samples.labels_B), samples.labels_B)
    assert result.status.quality.logloss == pytest.approx(expected.overall().logloss, rel=1e-5)
    assert result.status.quality.auc == pytest.approx(expected.overall().auc, rel=1e-4)


@pytest.mark.parametrize("policy", ["laia:full", "esd:1:full", "fae:0.15:4:literal"])
def test_published_forms_equal_one_process(write_topic: WriteTopic, policy: str) -> None:
    plan = Plan(write_topic(20 * BATCH), 3, policy, cache_rows=700, rows=rows_of("adagrad"))
    result = train(plan)
    expect_equal(result, train_reference(plan, result.manifests), tolerance=1e-4)
    assert sum(w.traffic.update_pushes for w in result.status.workers) > 0
