import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.placement.assign.cost import MOST_ROWS, cost_matrix, cost_matrix_reference
from dispatch.placement.assign.situation import Situation
from dispatch.placement.errors import BadCost
from dispatch.placement.rows.holders import held_by
from dispatch.placement.rows.states import CLEAN, OWNED, SPLIT
from tests.dispatch.placement.assign.situations import draw_situation, with_sizes, with_uplinks

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
    for u in set(situation.local_BF[sample].tolist()):
        is_split = situation.state_U[u] == SPLIT
        having = set(np.flatnonzero(held_Un[u]).tolist())
        holders = having if situation.parts_hold or not is_split else set()
        pushers = set() if situation.state_U[u] == CLEAN else having - (holders & {worker})
        size = 1.0 if situation.size_U is None else situation.size_U[u]
        cost += 0.0 if worker in holders else size * situation.row_cost_n[worker]
        cost += (situation.value_share if is_split else size) * sum(situation.push_cost_n[other] for other in pushers)
    return cost


def test_clean_row_costs_a_pull_where_it_is_not_held() -> None:
    assert cost_matrix(one_row(CLEAN, 0b101)).tolist() == [[0.0, 2.0, 0.0]]


def test_new_row_costs_a_pull_everywhere() -> None:
    assert cost_matrix(one_row(CLEAN, 0)).tolist() == [[1.0, 2.0, 10.0]]


def test_owned_row_costs_others_its_push_and_their_pull() -> None:
    assert cost_matrix(one_row(OWNED, 0b100)).tolist() == [[11.0, 12.0, 0.0]]


def test_split_row_costs_the_pushes_of_all_other_part_holders() -> None:
    assert cost_matrix(one_row(SPLIT, 0b101)).tolist() == [[10.0, 13.0, 1.0]]


def test_a_part_costs_the_bytes_of_its_value() -> None:
    situation = dataclasses.replace(one_row(SPLIT, 0b101), value_share=0.5)
    assert cost_matrix(situation).tolist() == [[5.0, 7.5, 0.5]]


def test_a_split_row_may_count_as_held_by_nobody() -> None:
    situation = dataclasses.replace(one_row(SPLIT, 0b101), value_share=0.5, parts_hold=False)
    assert cost_matrix(situation).tolist() == [[6.5, 7.5, 15.5]]
    owned = dataclasses.replace(one_row(OWNED, 0b100), parts_hold=False)
    assert cost_matrix(owned).tolist() == cost_matrix(one_row(OWNED, 0b100)).tolist()


def test_a_row_that_a_sample_names_twice_counts_once() -> None:
    situation = draw_situation(3, samples=20)
    twice = dataclasses.replace(situation, local_BF=np.repeat(situation.local_BF, 2, axis=1))
    assert np.array_equal(cost_matrix(twice), cost_matrix(situation))


def test_key_used_by_several_samples_is_counted_for_each() -> None:
    situation = draw_situation(0, samples=1, fields=3)
    twice = Situation(**{**situation.__dict__, "local_BF": np.repeat(situation.local_BF, 2, axis=0)})
    assert np.array_equal(cost_matrix(twice), np.repeat(cost_matrix(situation), 2, axis=0))


@given(st.integers(0, 10_000), st.sampled_from([1, 2, 3, 8, 63, 64, 65, 128]), st.floats(0.1, 1), st.booleans())
@settings(max_examples=40, deadline=None)
def test_kernel_equals_reference(seed: int, workers: int, value_share: float, parts_hold: bool) -> None:
    drawn = draw_situation(seed, samples=20, workers=workers)
    situation = dataclasses.replace(drawn, value_share=value_share, parts_hold=parts_hold)
    for whole in (situation, with_uplinks(situation, seed)):
        for case in (whole, with_sizes(whole, seed)):
            assert cost_matrix(case) == pytest.approx(cost_matrix_reference(case))


@given(st.integers(0, 10_000), st.sampled_from([1, 2, 3, 8, 63, 64, 65, 128]), st.floats(0.1, 1), st.booleans())
@settings(max_examples=40, deadline=None)
def test_sizes_of_one_give_the_same_bits_as_none(seed: int, workers: int, value_share: float, parts_hold: bool) -> None:
    drawn = draw_situation(seed, samples=20, workers=workers)
    links = np.random.default_rng(seed).random(workers) + 0.1
    situation = dataclasses.replace(drawn, value_share=value_share, parts_hold=parts_hold, row_cost_n=links)
    for whole in (situation, with_uplinks(situation, seed)):
        sized = dataclasses.replace(whole, size_U=np.ones(situation.state_U.size))
        assert np.array_equal(cost_matrix(sized), cost_matrix(whole))


def test_pushes_cost_the_uplinks_of_their_workers() -> None:
    uplinks = np.array([4.0, 2.0, 30.0])
    owned = dataclasses.replace(one_row(OWNED, 0b100), up_cost_n=uplinks)
    assert cost_matrix(owned).tolist() == [[31.0, 32.0, 0.0]]
    split = dataclasses.replace(one_row(SPLIT, 0b101), up_cost_n=uplinks, value_share=0.5)
    assert cost_matrix(split).tolist() == [[15.0, 19.0, 2.0]]
    clean = dataclasses.replace(one_row(CLEAN, 0b101), up_cost_n=uplinks)
    assert cost_matrix(clean).tolist() == cost_matrix(one_row(CLEAN, 0b101)).tolist()


def test_uplinks_that_are_told_to_be_equal_give_the_same_bits_as_none() -> None:
    for seed, workers in enumerate((1, 2, 8, 64, 65)):
        drawn = draw_situation(seed, samples=40, workers=workers)
        costs = 2.0 ** (np.random.default_rng(seed).integers(0, 20, workers) / 4)
        situation = dataclasses.replace(drawn, value_share=17 / 19, row_cost_n=costs, parts_hold=bool(seed % 2))
        for case in (situation, with_sizes(situation, seed)):
            told = dataclasses.replace(case, up_cost_n=costs.copy())
            assert np.array_equal(cost_matrix(told), cost_matrix(case))


def test_more_keys_than_can_be_counted_are_refused() -> None:
    situation = dataclasses.replace(one_row(CLEAN, 0), local_BF=np.zeros((1, MOST_ROWS + 1), np.int32))
    with pytest.raises(BadCost, match="keys each"):
        cost_matrix(situation)


def test_a_smaller_row_costs_less_and_its_parts_as_much() -> None:
    def costs(state: int, holders: int) -> list[list[float]]:
        half = dataclasses.replace(one_row(state, holders), size_U=np.array([0.5]), value_share=0.5)
        return [*cost_matrix(half).tolist()]

    assert costs(OWNED, 0b100) == [[5.5, 6.0, 0.0]]
    assert costs(CLEAN, 0b101) == [[0.0, 1.0, 0.0]]
    assert costs(SPLIT, 0b101) == [[5.0, 6.5, 0.5]]


@pytest.mark.parametrize("workers", [3, 70])
@pytest.mark.parametrize("parts_hold", [True, False])
def test_every_cost_equals_the_definition(workers: int, parts_hold: bool) -> None:
    drawn = draw_situation(9, samples=6, workers=workers)
    whole = dataclasses.replace(drawn, value_share=0.6, parts_hold=parts_hold)
    skewed = with_uplinks(whole, seed=9)
    for situation in (whole, with_sizes(whole, seed=9), skewed, with_sizes(skewed, seed=9)):
        expected = [[literal_cost(situation, i, j) for j in range(workers)] for i in range(6)]
        assert cost_matrix(situation) == pytest.approx(np.array(expected))
