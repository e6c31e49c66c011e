"""Quality in windows and slices, and the calibration curve, against sums over the same samples at once."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from dispatch.progress import over_time
from dispatch.progress.over_time import OverTime
from dispatch.progress.prequential import Prequential, auc_reference
from dispatch.progress.quality import OTHERS, QualityOverTime
from ingest.samples import Samples

BATCH = 250
STEPS = 12
PLACES = {"site": 1}


def made_up(seed: int = 0, values: int = 5) -> tuple[list[Samples], list[np.ndarray]]:
    draw = np.random.default_rng(seed)
    batches, logits = [], []
    for step in range(STEPS):
        z_B = draw.normal(-1, 1.5, BATCH).astype(np.float32)
        labels_B = (draw.random(BATCH) < 1 / (1 + np.exp(-z_B))).astype(np.float32)
        keys_BF = draw.integers(0, [9, values], (BATCH, 2)).astype(np.uint64)
        batches.append(Samples(labels_B, np.empty((BATCH, 0), np.float32), keys_BF, np.full(BATCH, float(step))))
        logits.append(z_B)
    return batches, logits


def measured(window: int = 1000, values: int = 3, given: OverTime | None = None, first: int = 0) -> OverTime:
    found = given or OverTime(PLACES, values, window)
    for step, (samples, logits_B) in enumerate(zip(*made_up(), strict=True), 1):
        if step > first:
            found.add(step, samples, logits_B)
    return found


def test_a_window_has_the_quality_of_its_samples() -> None:
    batches, logits = made_up()
    windows = measured().report().windows
    assert [(each.first_step, each.last_step, each.samples_before) for each in windows] == [
        (1, 4, 0),
        (5, 8, 1000),
        (9, 12, 2000),
    ]
    exact = Prequential()
    exact.add(np.concatenate(logits[4:8]), np.concatenate([batch.labels_B for batch in batches[4:8]]))
    expected, found = exact.overall(), windows[1].quality
    assert (found.samples, found.clicks) == (expected.samples, expected.clicks)
    assert found.logloss == pytest.approx(expected.logloss)
    assert found.auc == pytest.approx(expected.auc, abs=0.001)
    assert found.mean_prediction == pytest.approx(expected.predicted_clicks / expected.samples)


def test_a_slice_has_the_samples_with_its_value() -> None:
    batches, logits = made_up()
    keys_B = np.concatenate([batch.keys_BF[:, 1] for batch in batches])
    labels_B = np.concatenate([batch.labels_B for batch in batches])
    run = measured().report().run
    assert run is not None
    assert [each.samples for each in run.slices] == sorted(np.bincount(keys_B.astype(int)), reverse=True)[:3]
    found = run.slices[0]
    chosen_B = keys_B == int(found.key, 16)
    assert (found.field, found.clicks) == ("site", labels_B[chosen_B].sum())
    assert found.auc == pytest.approx(auc_reference(np.concatenate(logits)[chosen_B], labels_B[chosen_B]), abs=0.001)


def test_the_curve_of_a_calibrated_model_is_the_diagonal() -> None:
    run = measured().report().run
    assert run is not None
    assert sum(each.samples for each in run.curve) == STEPS * BATCH
    assert sum(each.samples * each.click_rate for each in run.curve) == pytest.approx(run.quality.clicks)
    for each in run.curve:
        error = np.sqrt(each.mean_prediction * (1 - each.mean_prediction) / each.samples)
        assert abs(each.click_rate - each.mean_prediction) < 5 * error


def test_a_saved_state_continues_as_if_nothing_had_happened() -> None:
    before = OverTime(PLACES, 3, 1000)
    for step, (samples, logits_B) in enumerate(list(zip(*made_up(), strict=True))[:5], 1):
        before.add(step, samples, logits_B)
    after = OverTime(PLACES, 3, 1000)
    after.load(before.save())
    others, logits = made_up(seed=1)
    before.add(99, others[0], logits[0])  # a saved state does not change with its origin
    assert measured(given=after, first=5).report(is_whole=True) == measured().report(is_whole=True)


def test_too_many_windows_are_merged_in_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_time, "MOST_WINDOWS", 4)
    found = measured(window=250).report(is_whole=True)
    whole = measured(window=10_000).report().run
    assert whole is not None
    assert len(found.windows) <= 4
    assert found.window_samples > 250
    newest = found.windows[-1]
    assert sum(each.quality.samples for each in found.windows) == newest.samples_before + newest.quality.samples
    assert sum(bin_.samples for each in found.windows for bin_ in each.curve) == 250 * newest.last_step
    assert found.run is not None
    assert (found.run.quality.clicks, found.run.quality.auc) == (whole.quality.clicks, whole.quality.auc)
    steps = [(each.first_step, each.last_step) for each in found.windows]
    assert all(last + 1 == first for (_, last), (first, _) in pairwise(steps))


def test_values_beyond_those_followed_are_one_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_time, "KEPT_VALUES", 2)
    run = measured(values=9).report().run
    assert run is not None
    assert [each.key for each in run.slices].count(OTHERS) == 1
    assert (len(run.slices), sum(each.samples for each in run.slices)) == (3, STEPS * BATCH)


def test_logits_that_are_not_finite_are_left_out() -> None:
    batches, logits = made_up()
    logits[0][:3] = [np.nan, np.inf, -np.inf]
    found = OverTime(PLACES, 3, 1000)
    found.add(1, batches[0], logits[0])
    run = found.report().run
    assert run is not None
    assert run.quality.samples == BATCH - 3


def test_only_the_newest_window_of_a_status_has_slices() -> None:
    shown = measured().report()
    assert [bool(each.slices and each.curve) for each in shown.windows] == [False, False, True]
    assert msgspec.json.decode(msgspec.json.encode(shown), type=QualityOverTime) == shown


def test_a_sample_of_weight_two_counts_as_two_samples() -> None:
    weighed, repeated = (OverTime(PLACES, 3, 1000) for _ in range(2))
    for step, (samples, logits_B) in enumerate(zip(*made_up(), strict=True), 1):
        weights_B = np.where(np.arange(len(samples)) % 3 == 0, 2, 1).astype(np.float32)
        weighed.add(step, replace(samples, weights_B=weights_B), logits_B)
        twice_B = np.arange(len(samples)).repeat(weights_B.astype(np.int64))
        repeated.add(step, samples.each(partial(np.take, indices=twice_B, axis=0)), logits_B[twice_B])
    found, expected = (each.report().run for each in (weighed, repeated))
    assert found is not None
    assert expected is not None
    for ours, theirs in zip((found.quality, *found.slices), (expected.quality, *expected.slices), strict=True):
        assert ours.weight == theirs.samples > ours.samples
        for name in ("logloss", "auc", "mean_prediction", "click_rate"):
            assert getattr(ours, name) == pytest.approx(getattr(theirs, name))
    rates = [[(each.weight, each.click_rate) for each in run.curve] for run in (found, expected)]
    assert np.array(rates[0]) == pytest.approx(np.array(rates[1]))
