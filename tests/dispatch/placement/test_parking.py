"""Who takes part in a step: whole decisions over made-up keys, where no time is measured unless a test gives one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.placement.arrays import F64, U64
from dispatch.placement.capacity.bounds import ShareBounds
from dispatch.placement.capacity.elastic import ElasticTerms
from dispatch.placement.capacity.participation import LEAST_WAIT, TRY_STEPS
from dispatch.placement.capacity.step_model import DenseLoad, rows_of_dense
from dispatch.placement.decide import Decider, Decision
from dispatch.placement.policies.registry import parse_spec
from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.index import Index
from infra.base.distinct import number_keys

BATCH, FIELDS = 64, 4
COSTS = np.array([1.0, 1.0, 10.0, 10.0])
HEAVY, MODERATE, LIGHT = 2000.0, 30.0, 2.0
"""dense weights, in rows"""
ROW_SECONDS = 1e-4
ONE_MAY, TWO_AT_LEAST = ShareBounds(), ShareBounds(largest=(2.0,))
"""bounds under which one worker can hold a batch of four, and under which it takes two"""


def batches(steps: int) -> list[U64]:
    """Keys of which a few are used often."""
    random = np.random.default_rng(5)
    return [(random.random((BATCH, FIELDS)) ** 3 * 400).astype(np.uint64) for _ in range(steps)]


def decider(
    dense_rows: float, policy: str = "joint:2:elastic", costs: F64 = COSTS, shares: ShareBounds = TWO_AT_LEAST
) -> Decider:
    spec, n = parse_spec(policy), costs.size
    directory = Directory(np.full(n, 300), "lru", 1, spec.needs.synchronisation)
    dense = DenseLoad(dense_rows, 3 * dense_rows)
    return Decider(Index(), directory, spec.build(0, "cpu"), spec.needs, costs, ElasticTerms(shares, dense))


def samples_of(decision: Decision, workers: int = 4) -> list[int]:
    return list(map(int, np.bincount(decision.assignment_B, minlength=workers)))


def run(decider: Decider, steps: int) -> list[Decision]:
    return [decider.decide(step, number_keys(keys)) for step, keys in enumerate(batches(steps), 1)]


def test_slow_workers_are_parked_where_the_dense_part_is_heavy() -> None:
    decisions = run(decider(HEAVY), 40)
    (changed,) = [step for step, decision in enumerate(decisions, 1) if decision.change is not None]
    assert changed == 1
    change = decisions[changed - 1].change
    assert change is not None
    assert change.parked("abcd") == ("c", "d")
    assert change.time < change.time_before
    for decision in decisions[changed - 1 :]:
        assert samples_of(decision)[2:] == [0, 0]
        assert sum(samples_of(decision)) == BATCH


def test_slow_workers_are_used_where_rows_are_wide_and_the_dense_part_is_light() -> None:
    decisions = run(decider(LIGHT), 40)
    assert all(decision.change is None for decision in decisions)
    assert np.sum([samples_of(decision) for decision in decisions], axis=0)[2:].min() > 20


@pytest.mark.parametrize(
    ("policy", "shares"),
    [("joint:2:elastic", ShareBounds((0.1,))), ("joint:2", ShareBounds()), ("esd:1", ShareBounds())],
)
def test_nobody_is_parked_under_a_lower_bound_or_equal_capacities(policy: str, shares: ShareBounds) -> None:
    decisions = run(decider(HEAVY, policy, shares=shares), 30)
    assert all(decision.change is None for decision in decisions)
    assert all(min(samples_of(decision)) > 0 for decision in decisions)


def test_parked_workers_push_what_they_own_when_others_need_it() -> None:
    chosen, keys = decider(HEAVY, costs=np.ones(4)), batches(60)
    for step in range(1, 31):
        chosen.decide(step, number_keys(keys[step - 1]))
    chosen.charge(COSTS)
    parked = [chosen.decide(step, number_keys(keys[step - 1])) for step in range(31, 61)]
    assert parked[0].change is not None
    assert np.sum([samples_of(decision) for decision in parked], axis=0)[2:].tolist() == [0, 0]
    moves = [decision.plan.workers[2] for decision in parked]
    assert sum(move.push_owned.rows.size for move in moves) > 10
    assert sum(move.pull_full.rows.size + move.pull_values.rows.size for move in moves) == 0


def test_parked_workers_are_tried_now_and_then() -> None:
    decisions = run(decider(HEAVY, costs=np.array([1.0, 1.0, 2.0, 2.0])), 300)
    trained = [samples_of(decision)[2] > 0 for decision in decisions]
    assert sum(trained) == TRY_STEPS
    first = trained.index(True)
    assert first >= LEAST_WAIT
    assert trained[first : first + TRY_STEPS + 1] == [True] * TRY_STEPS + [False]
    tried = samples_of(decisions[first])
    assert (tried[2:], sum(tried)) == ([BATCH // 16] * 2, BATCH)


def test_a_parked_worker_comes_back_when_its_link_improves() -> None:
    chosen, keys = decider(MODERATE), batches(80)
    before = [chosen.decide(step, number_keys(keys[step - 1])) for step in range(1, 41)]
    assert samples_of(before[-1])[2:] == [0, 0]
    chosen.charge(np.array([1.0, 1.0, 1.0, 10.0]))
    later = [chosen.decide(step, number_keys(keys[step - 1])) for step in range(41, 81)]
    assert samples_of(later[-1])[3] == 0
    assert min(samples_of(later[-1])[:3]) > BATCH // 6


def test_a_worker_parked_for_its_slow_processor_comes_back_when_a_try_shows_it_faster() -> None:
    chosen, keys = decider(0.0, costs=np.ones(3)), batches(600)
    parked = []
    for step, keys_BF in enumerate(keys, 1):
        decision = chosen.decide(step, number_keys(keys_BF))
        if decision.change is not None:
            parked.append((step, decision.change.parked("abc")))
        for worker, samples in enumerate(samples_of(decision, 3)):
            fixed = 0.03 if worker == 2 and step < 60 else 0.0
            chosen.measure(worker, samples, fixed + 2e-4 * samples, ROW_SECONDS)
    assert [names for _, names in parked] == [("c",), ()]
    assert parked[0][0] < 60 < parked[1][0]


def test_the_same_batches_get_the_same_decisions() -> None:
    first, second = (run(decider(HEAVY, costs=np.array([1.0, 1.0, 2.0, 2.0])), 250) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.assignment_B, other.assignment_B)
        assert (one.change is None) is (other.change is None)
    assert any(decision.change is not None for decision in first)


@pytest.mark.parametrize(
    "policy", ["esd:0:elastic", "esd:0.5:elastic", "esd:0.5:mean:literal:elastic", "joint:elastic"]
)
def test_every_elastic_policy_keeps_to_workers_without_places(policy: str) -> None:
    decisions = run(decider(HEAVY, policy), 30)
    assert samples_of(decisions[-1])[2:] == [0, 0]


def test_a_batch_that_those_who_take_part_cannot_hold_is_shared_by_all() -> None:
    chosen, keys = decider(HEAVY), np.arange(BATCH * FIELDS, dtype=np.uint64).reshape(BATCH, FIELDS) + np.uint64(10_000)
    small = [np.zeros((BATCH, FIELDS), np.uint64)] * 30
    for step, keys_BF in enumerate(small, 1):
        decision = chosen.decide(step, number_keys(keys_BF))
    assert samples_of(decision)[2:] == [0, 0]
    many = np.concatenate((keys, keys + np.uint64(1000), keys + np.uint64(2000), keys + np.uint64(3000)))
    assert len(many) * FIELDS > 2 * 300
    assert min(samples_of(chosen.decide(31, number_keys(many)))) > 0


def test_one_worker_is_sole_where_the_dense_part_is_heavier_than_a_batch_of_rows() -> None:
    decisions = run(decider(HEAVY, shares=ONE_MAY), 40)
    (changed,) = [step for step, decision in enumerate(decisions, 1) if decision.change is not None]
    sole = decisions[changed - 1].sole
    assert sole in (0, 1)
    for decision in decisions[changed - 1 :]:
        assert decision.sole == sole
        assert samples_of(decision)[sole] == BATCH
    assert all(decision.sole is None for decision in decisions[: changed - 1])


def test_a_sole_worker_is_interrupted_while_others_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.placement.capacity.participation.Participation.try_cost", 0.5)
    decisions = run(decider(200.0, costs=np.ones(4), shares=ONE_MAY), 200)
    soles = [decision.sole for decision in decisions]
    (sole,) = {sole for sole in soles if sole is not None}
    has_tries = [sum(samples_of(decision)) > samples_of(decision)[sole] for decision in decisions]
    assert [sole is None for sole in soles] == has_tries
    assert sum(has_tries[soles.index(sole) :]) % TRY_STEPS == 0
    assert sum(has_tries[soles.index(sole) :]) > 0


def test_a_worker_that_happens_to_get_all_samples_is_not_sole() -> None:
    chosen = decider(LIGHT)
    decisions = [chosen.decide(step, number_keys(keys[:1])) for step, keys in enumerate(batches(5), 1)]
    assert all(max(samples_of(decision)) == 1 for decision in decisions)
    assert all(decision.sole is None for decision in decisions)


def test_a_worker_is_not_sole_in_a_step_in_which_others_must_help_it_out() -> None:
    chosen = decider(HEAVY, shares=ONE_MAY)
    decisions = [chosen.decide(step, number_keys(np.zeros((BATCH, FIELDS), np.uint64))) for step in range(1, 31)]
    assert decisions[-1].sole is not None
    apart = np.arange(2 * BATCH * FIELDS, dtype=np.uint64).reshape(2 * BATCH, FIELDS)
    helped = chosen.decide(31, number_keys(apart))
    assert (min(samples_of(helped)) > 0, helped.sole) == (True, None)


@pytest.mark.parametrize("policy", ["joint:2:elastic", "joint:2", "laia", "random"])
def test_a_generation_of_one_has_a_sole_worker_under_any_policy(policy: str) -> None:
    assert [decision.sole for decision in run(decider(0.0, policy, np.ones(1), ShareBounds()), 3)] == [0, 0, 0]


@pytest.mark.parametrize("policy", ["joint:2", "laia"])
def test_nobody_is_sole_where_capacities_are_equal(policy: str) -> None:
    assert all(decision.sole is None for decision in run(decider(HEAVY, policy), 5))


@pytest.mark.parametrize(
    ("dense_bytes", "sample_seconds", "taking_part"),
    [(2_600_000, 1e-4, 1), (2_600_000, 1e-3, 2), (20_000, 1e-4, 4)],
    ids=["rows and compute are light", "compute is heavy", "the dense part is light"],
)
def test_over_real_links_as_many_take_part_as_the_dense_part_allows(
    dense_bytes: int, sample_seconds: float, taking_part: int
) -> None:
    """Links of 0.2 and 0.02 Gbit/s, rows of 1 kB, Adam on the dense weights, 26 keys a sample."""
    row_bytes, batch, costs = 1024, 256, np.array([1.0, 1.0, 10.0, 10.0])
    spec, dense = parse_spec("esd:0:elastic"), rows_of_dense(dense_bytes, row_bytes, state_copies=2)
    directory = Directory(np.full(4, 8000), "lru", 1, spec.needs.synchronisation)
    chosen = Decider(Index(), directory, spec.build(0, "cpu"), spec.needs, costs, ElasticTerms(dense=dense))
    random, trained = np.random.default_rng(7), np.zeros(4, np.int64)
    for step in range(1, 61):
        keys = (random.random((batch, 26)) ** 4 * 20_000).astype(np.uint64)
        decision = chosen.decide(step, number_keys(keys))
        trained = np.array(samples_of(decision))
        for worker in np.flatnonzero(trained):
            compute = 5e-3 + sample_seconds * float(trained[worker])
            chosen.measure(int(worker), int(trained[worker]), compute, row_bytes * 8 / 0.2e9)
    assert np.flatnonzero(trained).size == taking_part
    assert taking_part == 4 or not trained[2:].any()
    assert (decision.sole is not None) == (taking_part == 1)


@given(
    dense_rows=st.floats(0.0, 5000.0),
    costs=st.lists(st.floats(1.0, 50.0), min_size=1, max_size=5),
    least=st.sampled_from([0.0, 0.0, 0.5]),
    sizes=st.lists(st.integers(0, BATCH), min_size=20, max_size=40),
)
@settings(max_examples=25, deadline=None)
def test_whatever_is_parked_every_sample_has_a_place(
    dense_rows: float, costs: list[float], least: float, sizes: list[int]
) -> None:
    chosen = decider(dense_rows, "esd:0:elastic", np.array(costs), ShareBounds((least,)))
    for step, (keys, size) in enumerate(zip(batches(len(sizes)), sizes, strict=True), 1):
        decision = chosen.decide(step, number_keys(keys[:size]))
        samples = samples_of(decision, len(costs))
        assert sum(samples) == size
        assert decision.sole is None or samples[decision.sole] == size
