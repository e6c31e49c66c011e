import numpy as np
import pytest

from dispatch.checkpoints.evidence import (
    LEAST_PROBABILITY,
    auc_deviation,
    compare,
    fewest_possible,
    is_impossible,
    measure_auc,
    newest_run,
    scored,
    telling_samples,
)
from dispatch.progress.prequential import auc_reference

DRAW = np.random.default_rng(11)


def test_auc_is_that_of_comparing_all_pairs_and_ties_count_half() -> None:
    scores_B = DRAW.integers(0, 20, 300).astype(np.float64)
    clicked_B = DRAW.random(300) < 0.3
    found = measure_auc(scores_B, clicked_B)
    assert found is not None
    assert found.value == pytest.approx(auc_reference(scores_B, clicked_B.astype(np.float64)))
    assert measure_auc(scores_B, np.zeros(300, np.bool_)) is None
    assert measure_auc(scores_B, np.ones(300, np.bool_)) is None


def test_deviation_of_auc_covers_what_chance_does() -> None:
    found = [
        measure_auc(np.concatenate([DRAW.normal(1.0, 1.0, 100), DRAW.normal(0.0, 1.0, 300)]), np.arange(400) < 100)
        for _ in range(300)
    ]
    values = [auc.value for auc in found if auc is not None]
    assert auc_deviation(float(np.mean(values)), 100, 300) == pytest.approx(np.std(values), rel=0.25)


def test_counts_far_below_what_can_be_are_impossible_and_others_are_not() -> None:
    assert fewest_possible(400) == 20
    assert fewest_possible(60) == 10
    assert fewest_possible(8) == 4
    assert is_impossible(0, 10)
    assert not is_impossible(0, 8)
    assert not is_impossible(5, 10)
    assert not is_impossible(12, 10)
    assert is_impossible(20, 60)


def test_scores_that_are_not_finite_are_left_out_and_none_is_certain() -> None:
    model_B = np.array([0.0, 1.0, np.nan, 0.5], np.float32)
    samples = scored(np.array([True, False, True, True]), model_B, np.array([0.5, 0.5, 0.5, np.inf], np.float32))
    assert samples.model_B.tolist() == pytest.approx([LEAST_PROBABILITY, 1 - LEAST_PROBABILITY], abs=1e-7)
    compared = compare(samples)
    assert compared.samples == 2
    assert np.isfinite(compared.excess)


def test_the_newest_run_ends_at_the_last_other_label() -> None:
    clicked_B = np.array([True, False, True, False, False, False])
    samples = scored(clicked_B, np.full(6, 0.5, np.float32), np.full(6, 0.25, np.float32))
    run = newest_run(samples, None)
    assert (run.samples, run.are_clicks) == (3, False)
    assert run.expected == pytest.approx(0.75)
    assert newest_run(samples, 0.5).expected == pytest.approx(1.5)
    assert newest_run(samples.newest(2), None).samples == 2


def test_as_many_samples_are_telling_as_hold_enough_of_both_labels() -> None:
    def of(rate: float, count: int) -> int | None:
        values_B = np.full(count, rate, np.float32)
        return telling_samples(scored(np.zeros(count, np.bool_), values_B, values_B))

    assert of(0.25, 4000) == 800
    assert of(0.75, 4000) == 800
    assert of(0.01, 4000) is None


def test_samples_of_equal_weights_tell_as_much_as_without_and_a_few_heavy_ones_tell_little() -> None:
    clicked_B = DRAW.random(400) < 0.3
    model_B, reference_B = (DRAW.random(400).astype(np.float32) for _ in range(2))
    plain = compare(scored(clicked_B, model_B, reference_B))
    equal = compare(scored(clicked_B, model_B, reference_B, np.full(400, 7, np.float32)))
    assert equal.samples == plain.samples == 400
    assert equal.expected == pytest.approx(plain.expected)
    assert equal.excess_deviation == pytest.approx(plain.excess_deviation)
    heavy_B = np.where(np.arange(400) < 4, np.float32(1e5), np.float32(1))
    few = compare(scored(clicked_B, model_B, reference_B, heavy_B))
    assert few.samples == 4
    assert few.excess_deviation > 4 * plain.excess_deviation
