"""Edges of utilities, given shapes, and how many new rows get chunks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.placement.arrays import I64
from dispatch.placement.rows.pruning import (
    LARGEST_RATIO,
    Pruner,
    PruneRound,
    PrunerState,
    PruneTerms,
    edge_of,
    edges,
    fit_ratios,
    profile_of,
    strongest,
)
from infra.base.errors import ConfigError

N = 12
COUNTS = st.lists(st.integers(0, 5), min_size=N, max_size=N).map(lambda counts: np.array(counts, np.int64))


def counts_of(*counts: I64, chunks: int = 2) -> I64:
    """[live, chunk number, bin] from pruned and live counts, one after the other; as many chunks of each number, as
    rows have.
    """
    counts_LKN = np.array(counts, np.int64).reshape(2, chunks, N)
    total_K = counts_LKN.sum(axis=(0, 2))
    counts_LKN[0, :, 0] += total_K.max() - total_K
    return counts_LKN


def after(counts_LKN: I64, terms: PruneTerms) -> I64:
    """Live chunks by chunk number and bin after a round."""
    evict_below, bring_from = edges(terms, counts_LKN)
    bins_N = np.arange(N)
    live_KN = counts_LKN[1] * (bins_N >= np.array(evict_below)[:, None])
    return np.asarray(live_KN + counts_LKN[0] * (bins_N >= np.array(bring_from)[:, None]))


@given(COUNTS, st.integers(0, 70))
def test_an_edge_lets_as_many_through_as_are_allowed_and_one_bin_lower_too_many(counts_N: I64, allowed: int) -> None:
    edge = edge_of(counts_N, allowed)
    assert counts_N[edge:].sum() <= allowed
    assert edge == 0 or counts_N[edge - 1 :].sum() > allowed


@given(COUNTS, COUNTS, COUNTS, COUNTS, st.integers(1, 120), st.sampled_from([0.0, 0.1, 1.0]), st.booleans())
def test_a_round_never_leaves_more_live_chunks_than_its_share_of_the_budget(
    a: I64, b: I64, c: I64, d: I64, budget: int, enforce: float, is_shaped: bool
) -> None:
    terms = PruneTerms(2, budget, enforce=enforce, profile=(1.0, 2.0) if is_shaped else ())
    assert after(counts_of(a, b, c, d), terms).sum() <= int(0.9 * budget)


@given(COUNTS, COUNTS, COUNTS, COUNTS, st.integers(1, 120))
def test_if_every_crossing_counts_the_best_chunks_are_live(a: I64, b: I64, c: I64, d: I64, budget: int) -> None:
    counts_LKN = counts_of(a, b, c, d)
    live_KN = after(counts_LKN, PruneTerms(2, budget, enforce=0.0))
    live_N, all_N = live_KN.sum(axis=0), counts_LKN.sum(axis=(0, 1))
    used = np.flatnonzero(live_N)
    assert (live_N[used] == all_N[used]).all()
    assert used.size == 0 or (all_N[used[0] :] == live_N[used[0] :]).all()


def test_few_crossings_prune_nothing_and_bring_back_what_fits() -> None:
    pruned_KN, live_KN = np.zeros((2, N), np.int64), np.full((2, N), 4, np.int64)
    pruned_KN[:, 10], pruned_KN[:, 11] = 1, 1
    counts_LKN = np.stack((pruned_KN, live_KN))
    terms = PruneTerms(2, budget=111, spare=0.1, enforce=0.5)
    assert terms.allowed(100) == 99 == 96 + 3
    assert edges(terms, counts_LKN) == ((0, 0), (11, 11)), "two of the four fit"
    evict_below, bring_from = edges(terms._replace(enforce=0.0), counts_LKN)
    assert evict_below == bring_from == (1, 1)


def test_a_share_is_pruned_of_all_chunks_however_many_there_are() -> None:
    live_KN = np.full((2, N), 10, np.int64)
    terms = PruneTerms(2, share=0.5, enforce=0.0)
    assert after(np.stack((np.zeros_like(live_KN), live_KN)), terms).sum() == 120


@pytest.mark.parametrize("mean", [0.0, 0.1, 0.5, 0.8, 0.93, 0.99])
@pytest.mark.parametrize("profile", [(1.0, 1.0), (1.0, 3.0), (0.1, 0.2, 5.0, 9.0), (0.0, 1.0)])
def test_ratios_have_the_mean_that_is_wanted_and_the_shape_below_the_largest(
    profile: tuple[float, ...], mean: float
) -> None:
    ratios = fit_ratios(profile, mean)
    if mean > LARGEST_RATIO:
        assert (ratios == mean).all()
        return
    assert ratios.max() <= LARGEST_RATIO
    assert ratios.mean() == pytest.approx(mean)
    uncut = (ratios < LARGEST_RATIO) & (np.array(profile) > 0)
    relations = ratios[uncut] * np.array(profile)[uncut].sum() - ratios[uncut].sum() * np.array(profile)[uncut]
    assert relations == pytest.approx(0, abs=1e-9)


def test_profiles_are_read_as_documented() -> None:
    assert profile_of("dynamic", 4) == ()
    assert profile_of("linear", 2) == (0.25, 0.75)
    assert profile_of("power:0.5", 4) == pytest.approx((0.125**0.5, 0.375**0.5, 0.625**0.5, 0.875**0.5))
    assert profile_of("1,2", 2) == (1.0, 2.0)


@pytest.mark.parametrize("shape", ["", "1", "1,2,3", "1,x", "-1,2", "0,0", "power:", "power:x", "inf,1", "power:-999"])
def test_other_profiles_are_refused(shape: str) -> None:
    with pytest.raises(ConfigError, match=r"memory\.prune_shape is .* for 2 chunks; expected 'dynamic'"):
        profile_of(shape, 2)


def test_new_rows_get_chunks_while_the_budget_has_room() -> None:
    pruner = Pruner(PruneTerms(2, budget=7))
    assert [pruner.admit(2), pruner.admit(2), pruner.admit(5)] == [2, 1, 0]
    assert pruner.state.live == 6
    pruner.forget(4)
    assert pruner.admit(9) == 2
    assert pruner.admit(3, chunked=3) == 3, "as recorded"


def test_without_a_budget_all_new_rows_get_chunks() -> None:
    pruner = Pruner(PruneTerms(2, share=0.5))
    assert pruner.admit(1000) == 1000
    assert Pruner(PruneTerms()).admit(10) == 10


def test_rounds_come_every_so_many_steps_and_only_if_there_is_something_to_prune() -> None:
    pruner = Pruner(PruneTerms(2, budget=100, every_steps=10))
    assert [step for step in range(25) if pruner.is_due(step)] == list(range(10, 25))
    done = pruner.plan(12, np.zeros((2, 2, N), np.int64))
    pruner.end_round(12, done, 50, 20, 5)
    assert (pruner.state.live, pruner.state.pruned, pruner.state.brought_back) == (35, 20, 5)
    assert not pruner.is_due(21)
    assert pruner.is_due(22)
    assert not Pruner(PruneTerms(2)).is_due(5000)


def test_the_strongest_columns_of_each_chunk_stay_and_of_equal_ones_the_first() -> None:
    weights_D = np.array([1.0, 9.0, 3.0, 2.0, 5.0, 5.0, 5.0, 5.0])
    assert strongest(PruneTerms(2, width=4, columns=0.5), weights_D) == (1, 2, 4, 5)
    assert strongest(PruneTerms(1, width=8, columns=0.3), weights_D) == (1, 4, 5)
    assert strongest(PruneTerms(2, width=4, columns=0.01), weights_D) == (1, 4), "one of each, at least"


def test_columns_are_dropped_in_the_first_round_alone_and_the_budget_grows_as_chunks_become_narrow() -> None:
    terms = PruneTerms(2, width=4, columns=0.5, budget=100, every_steps=10)
    pruner = Pruner(terms)
    done = pruner.plan(10, np.zeros((2, 2, N), np.int64), np.arange(8.0))
    assert done.columns == (2, 3, 6, 7)
    pruner.end_round(10, done, 50, 0, 0)
    assert pruner.terms.budget == 200
    assert pruner.plan(20, np.zeros((2, 2, N), np.int64)).columns == ()
    assert pruner.state.columns == (2, 3, 6, 7)
    resumed = Pruner(terms, pruner.state)
    assert (resumed.terms, resumed.terms.drops_columns) == (pruner.terms, False)


def test_columns_are_dropped_though_nothing_else_is_pruned_and_then_no_round_is_due() -> None:
    pruner = Pruner(PruneTerms(1, width=4, columns=0.5, every_steps=10))
    assert pruner.is_due(10)
    pruner.end_round(10, pruner.plan(10, np.zeros((2, 1, N), np.int64), np.arange(4.0)), 7, 0, 0)
    assert not pruner.is_due(1000)
    assert not Pruner(PruneTerms(1, width=4, columns=0.8)).terms.is_needed, "four of four stay"


def test_weights_double_every_half_life_and_begin_again_in_time() -> None:
    pruner = Pruner(PruneTerms(1, budget=1, half_life_steps=10))
    assert [pruner.weight(step) for step in (0, 10, 25)] == [1.0, 2.0, 2.0**2.5]
    assert pruner.halvings(319) == 0
    done = pruner.plan(325, np.zeros((2, 1, N), np.int64))
    assert done.halvings == 32
    pruner.end_round(325, done, 0, 0, 0)
    assert pruner.state == PrunerState(since=320, last_round=325)
    assert pruner.weight(330) == 2.0
    assert Pruner(PruneTerms()).weight(5) == 0.0


def test_weights_begin_again_also_if_nothing_is_pruned_or_seldom() -> None:
    for terms in (PruneTerms(2), PruneTerms(2, budget=9, every_steps=10**9)):
        pruner = Pruner(terms._replace(half_life_steps=10))
        assert [step for step in range(340) if pruner.is_due(step)] == list(range(320, 340))
        counts_LKN = np.zeros((2, 2, N), np.int64)
        counts_LKN[1, :, 3] = 2
        assert pruner.plan(320, counts_LKN) == PruneRound((0, 0), (0, 0), halvings=32), "all stay and come back"
    assert not Pruner(PruneTerms(0, half_life_steps=10)).is_due(10**6)
