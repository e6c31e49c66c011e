"""Which rows cost less as replicas: the rule against its words, and what a decider makes of it."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.placement.arrays import F64, I64
from dispatch.placement.decide import Decider, Decision
from dispatch.placement.policies.registry import parse_spec
from dispatch.placement.rows import two_fold
from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.index import Index
from dispatch.placement.rows.plan import RoundPlan
from dispatch.placement.rows.two_fold import (
    LEAST_STEPS,
    add_costs,
    is_worthwhile,
    on_demand_costs,
    overall,
    rho,
    ring_cost,
    users_cost,
    worthwhile,
)
from infra.base.distinct import number_keys
from ps.config import OptimizerName, RowConfig

ROW = st.tuples(st.floats(0, 100), st.floats(0, 100), st.booleans())


@given(rows=st.lists(ROW, max_size=30), entry=st.floats(0, 20))
def test_the_rule_decides_about_every_row_as_its_words_do(rows: list[tuple[float, float, bool]], entry: float) -> None:
    cost_R, ring_R = (np.array([row[column] for row in rows], np.float64) for column in (0, 1))
    stays, enters = worthwhile(cost_R, ring_R, entry, np.array([row[2] for row in rows], np.bool_))
    chosen = {number for number, (cost, ring, is_hot) in enumerate(rows) if is_worthwhile(cost, ring, entry, is_hot)}
    assert {*stays.tolist(), *enters.tolist()} == chosen
    gain = (cost_R - (1 + two_fold.MARGIN) * ring_R)[enters]
    assert (np.diff(gain) <= 1e-9).all()


@given(st.data())
def test_what_a_replica_would_cost_on_demand_is_what_its_users_would_move(data: st.DataObject) -> None:
    samples, fields, rows, workers = (data.draw(st.integers(1, most)) for most in (8, 3, 6, 4))
    local_BF = np.array(data.draw(st.lists(st.integers(0, rows - 1), min_size=samples * fields, max_size=24)), np.int32)
    local_BF = local_BF[: samples * fields].reshape(samples, fields)
    assignment_B = np.array(data.draw(st.lists(st.integers(0, workers - 1), min_size=samples, max_size=8)), np.int32)
    costs_n = np.arange(1.0, workers + 1)
    is_hot_U = np.arange(rows) % 2 == 0
    found_U = on_demand_costs(local_BF, assignment_B[:samples], is_hot_U, costs_n)
    expected = [users_cost(local_BF, assignment_B[:samples], u, costs_n) * is_hot_U[u] for u in range(rows)]
    assert found_U.tolist() == pytest.approx(expected)


@given(st.lists(st.integers(0, 9), max_size=40))
def test_costs_are_added_row_by_row(rows: list[int]) -> None:
    cost_R = np.zeros(10)
    add_costs(np.array(rows, np.int64), 0.5, cost_R)
    assert cost_R.tolist() == [0.5 * rows.count(row) for row in range(10)]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30))
def test_the_papers_curve_falls_while_a_row_saves_more_than_its_reduction_costs(uses: list[int]) -> None:
    uses_R = np.array(uses, np.int64)
    transfers = float(uses_R.sum())
    curve = overall(rho(uses_R), transfers, reduce_cost=10.0, transfer_cost=1.0)
    assert curve[0] == pytest.approx(transfers)
    assert curve.min() == pytest.approx(sum(min(10, count) for count in uses))
    assert len(curve) == len(uses) + 1


def decider_for(link_cost_n: F64, server_cost: float, policy: str = "esd:1:hot") -> Decider:
    spec, workers = parse_spec(policy), link_cost_n.size
    directory = Directory(np.full(workers, 400, np.int64), "emark", 2, spec.needs.synchronisation, 20)
    built = spec.build(1, "cpu")
    return Decider(Index(), directory, built, spec.needs, link_cost_n, value_share=0.5, server_cost=server_cost)


def decide(decider: Decider, step: int, common: int) -> Decision:
    """Sixteen samples that all use one key, and a rare one each."""
    rng = np.random.default_rng(step)
    keys_BF = np.stack((np.full(16, common), rng.integers(100, 10_000, 16)), axis=1).astype(np.uint64)
    return decider.decide(step, number_keys(keys_BF))


def hot_after(decider: Decider, steps: range, common: int) -> I64 | None:
    """What is replicated in the step after so many steps and a flush."""
    for step in steps[:-1]:
        assert decide(decider, step, common).hot is None
    decider.flush()
    return decide(decider, steps[-1], common).hot


FIRST = range(1, LEAST_STEPS + 2)
NEXT = range(LEAST_STEPS + 2, 2 * LEAST_STEPS + 2)
LAST = range(2 * LEAST_STEPS + 2, 3 * LEAST_STEPS + 2)


def test_a_row_that_all_use_is_replicated_behind_a_narrow_server_and_leaves_when_it_is_no_longer_used() -> None:
    decider = decider_for(np.ones(4), server_cost=1.0)
    chosen = hot_after(decider, FIRST, common=7)
    assert chosen is not None
    assert chosen.tolist() == [0]
    hot_after(decider, NEXT, common=8)
    left = hot_after(decider, LAST, common=8)
    assert left is not None
    assert 0 not in left.tolist()


def test_replicas_are_named_again_after_a_flush_that_comes_too_soon_to_choose() -> None:
    decider = decider_for(np.ones(4), server_cost=1.0)
    hot_after(decider, FIRST, common=7)
    again = hot_after(decider, NEXT[:4], common=7)
    assert again is not None
    assert again.tolist() == [0]


def test_a_replica_that_nobody_has_used_since_it_entered_leaves() -> None:
    decider = decider_for(np.ones(4), server_cost=1.0)
    for step in FIRST[:-1]:
        decide(decider, step, common=7)
    decider.flush()
    entered = decide(decider, FIRST[-1], common=8).hot
    left = hot_after(decider, NEXT, common=8)
    assert entered is not None
    assert 0 in entered.tolist()
    assert left is not None
    assert 0 not in left.tolist()


def test_replicas_leave_at_the_next_choice_once_none_are_allowed() -> None:
    decider = decider_for(np.ones(4), server_cost=1.0)
    hot_after(decider, FIRST, common=7)
    decider.may_replicate = False
    left = hot_after(decider, NEXT, common=7)
    assert left is not None
    assert not left.size
    decider.may_replicate = True
    again = hot_after(decider, LAST, common=7)
    assert again is not None
    assert again.tolist() == [0]


@pytest.mark.parametrize("policy", ["esd:1:hot", "joint:hot"])
def test_nothing_is_replicated_over_uneven_links(policy: str) -> None:
    decider = decider_for(np.array([1.0, 1.0, 10.0, 10.0]), server_cost=0.0, policy=policy)
    assert hot_after(decider, FIRST, common=7) is None


@pytest.mark.parametrize(("users", "pays"), [(3, False), (4, True)])
def test_with_equal_links_a_row_pays_if_all_workers_use_it(users: int, pays: bool) -> None:
    ring = ring_cost(np.ones(4), value_share=0.5)
    assert is_worthwhile(cost=2 * 0.5 * users, ring=ring, entry=0.0, is_hot=False) is pays


# ── over the hub ──────────────────────────────────────────────────────────────────────────────────────────────────────
def moved_rows(plan: RoundPlan, value_share: float) -> float:
    whole = sum(worker.push_owned.rows.size + worker.pull_full.rows.size for worker in plan.workers)
    return whole + value_share * sum(
        worker.push_parts.rows.size + worker.pull_values.rows.size for worker in plan.workers
    )


@pytest.mark.parametrize("optimizer", get_args(OptimizerName))
def test_the_value_of_a_row_is_half_of_it_at_least(optimizer: OptimizerName) -> None:
    assert RowConfig(optimizer=optimizer).shape().value_share >= 0.5


@given(st.data())
def test_summed_over_the_hub_rows_would_never_move_less_than_on_demand(data: st.DataObject) -> None:
    workers = data.draw(st.integers(2, 4))
    directory = Directory(np.full(workers, 16, np.int64), "lru", 2)
    index, on_demand, summed = Index(), 0.0, 0.0
    for step in range(1, data.draw(st.integers(2, 12))):
        keys_BF = np.array(data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=6)), np.uint64)[:, None]
        worker_B = np.array([data.draw(st.integers(0, workers - 1)) for _ in keys_BF], np.int32)
        rows = index.resolve(number_keys(keys_BF))
        on_demand += moved_rows(directory.plan(step, rows, worker_B), value_share=0.5)
        summed += rows.rows_U.size * 2 * workers * 0.5  # every worker pushes a gradient and pulls the sum
    on_demand += moved_rows(directory.flush(), value_share=0.5)
    assert on_demand <= summed
