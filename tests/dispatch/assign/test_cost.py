import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.assign.cost import cost_matrix, cost_matrix_reference
from dispatch.assign.situation import Situation
from dispatch.rows.holders import held_by
from dispatch.rows.states import CLEAN, OWNED, SPLIT
from tests.dispatch.assign.situations import draw_situation

LINKS = np.array([1.0, 2.0, 10.0])


def one_row(state: int, holders: int) -> Situation:
    """One sample with one key, three workers with links 1, 2 and 10."""
    return Situation(
        step=0,
        local_BF=np.zeros((1, 1), np.int32),
        state_U=np.array([state], np.uint8),
        holders_UQ=np.array([[holders]], np.uint64),
        row_cost_n=LINKS,
        capacity_n=np.ones(3, np.int64),
    )


def literal_cost(situation: Situation, sample: int, worker: int) -> float:
    """The definition, word for word."""
    cost = 0.0
    held_Un = held_by(situation.holders_UQ, situation.workers)
    for u in situation.local_BF[sample]:
        holders = set(np.flatnonzero(held_Un[u]).tolist())
        pushers = set() if situation.state_U[u] == CLEAN else holders - {worker}
        cost += 0.0 if worker in holders else situation.row_cost_n[worker]
        cost += sum(situation.row_cost_n[other] for other in pushers)
    return cost


def test_clean_row_costs_a_pull_where_it_is_not_held() -> None:
    assert cost_matrix(one_row(CLEAN, 0b101)).tolist() == [[0.0, 2.0, 0.0]]


def test_new_row_costs_a_pull_everywhere() -> None:
    assert cost_matrix(one_row(CLEAN, 0)).tolist() == [[1.0, 2.0, 10.0]]


def test_owned_row_costs_others_its_push_and_their_pull() -> None:
    assert cost_matrix(one_row(OWNED, 0b100)).tolist() == [[11.0, 12.0, 0.0]]


def test_split_row_costs_the_pushes_of_all_other_part_holders() -> None:
    assert cost_matrix(one_row(SPLIT, 0b101)).tolist() == [[10.0, 13.0, 1.0]]


def test_key_used_by_several_samples_is_counted_for_each() -> None:
    situation = draw_situation(0, samples=1, fields=3)
    twice = Situation(**{**situation.__dict__, "local_BF": np.repeat(situation.local_BF, 2, axis=0)})
    assert np.array_equal(cost_matrix(twice), np.repeat(cost_matrix(situation), 2, axis=0))


@given(st.integers(0, 10_000), st.sampled_from([1, 2, 3, 8, 63, 64, 65, 128]))
@settings(max_examples=40, deadline=None)
def test_kernel_equals_reference(seed: int, workers: int) -> None:
    situation = draw_situation(seed, samples=20, workers=workers)
    assert cost_matrix(situation) == pytest.approx(cost_matrix_reference(situation))


@pytest.mark.parametrize("workers", [3, 70])
def test_every_cost_equals_the_definition(workers: int) -> None:
    situation = draw_situation(9, samples=6, workers=workers)
    expected = [[literal_cost(situation, i, j) for j in range(workers)] for i in range(6)]
    assert cost_matrix(situation) == pytest.approx(np.array(expected))
