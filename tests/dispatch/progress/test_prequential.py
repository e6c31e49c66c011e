import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dispatch.errors import BadScores
from dispatch.progress.prequential import Prequential, auc_reference

Floats = NDArray[np.float64]


def draw_scores(seed: int, samples: int, spread: float = 1.0) -> tuple[Floats, Floats]:
    """Logits and labels drawn from them, so that the scores are calibrated."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(-1.0, spread, samples)
    return logits, (rng.random(samples) < 1 / (1 + np.exp(-logits))).astype(float)


def scored(logits: Floats, labels: Floats, **options: int) -> Prequential:
    quality = Prequential(**options)
    quality.add(logits, labels)
    return quality


@given(st.integers(0, 10_000), st.sampled_from([0.01, 0.3, 1.0, 4.0]))
@settings(max_examples=20, deadline=None)
def test_auc_equals_comparing_all_pairs(seed: int, spread: float) -> None:
    logits, labels = draw_scores(seed, 2000, spread)
    assert scored(logits, labels).overall().auc == pytest.approx(auc_reference(logits, labels), abs=1e-3)


def test_auc_of_many_scores_is_close_to_exact() -> None:
    logits, labels = draw_scores(1, 8000)
    assert scored(logits, labels).overall().auc == pytest.approx(auc_reference(logits, labels), abs=2e-5)


@pytest.mark.parametrize(("labels", "auc"), [([0, 0, 1, 1], 1.0), ([1, 1, 0, 0], 0.0), ([0, 1, 0, 1], 0.75)])
def test_auc_of_ordered_scores_is_exact(labels: list[float], auc: float) -> None:
    assert scored(np.array([-3.0, -1.0, 0.5, 2.0]), np.array(labels, float)).overall().auc == auc


def test_tied_scores_count_half() -> None:
    assert scored(np.zeros(10), np.array([1.0] * 3 + [0.0] * 7)).overall().auc == 0.5


def test_logloss_and_calibration_equal_their_definitions() -> None:
    logits, labels = draw_scores(2, 5000)
    p = 1 / (1 + np.exp(-logits))
    got = scored(logits, labels).overall()
    loss = -np.mean(labels * np.log(p) + (1 - labels) * np.log1p(-p))
    assert got.logloss == pytest.approx(loss, rel=1e-12)
    assert got.calibration == pytest.approx(p.mean() / labels.mean(), rel=1e-12)


def test_accuracy_is_the_share_on_the_right_side_of_a_half() -> None:
    got = scored(np.array([-30.0, -1e-9, 0.0, 2.0, 2.0]), np.array([0.0, 1.0, 1.0, 1.0, 0.0])).overall()
    assert got.accuracy == 3 / 5
    assert scored(np.empty(0), np.empty(0)).overall().accuracy is None


def test_predicting_the_rate_has_normalized_entropy_1() -> None:
    labels = np.array([1.0] * 20 + [0.0] * 80)
    got = scored(np.full(100, np.log(0.2 / 0.8)), labels).overall()
    assert got.normalized_entropy == pytest.approx(1.0)
    assert got.calibration == pytest.approx(1.0)


def test_extreme_logits_give_finite_figures() -> None:
    got = scored(np.array([-1e4, 1e4, 800.0]), np.array([0.0, 1.0, 0.0])).overall()
    assert got.logloss == pytest.approx(800 / 3)
    assert got.auc == pytest.approx(0.75)


def test_batches_add_up_to_the_whole() -> None:
    logits, labels = draw_scores(3, 1000)
    quality = Prequential()
    for part in np.array_split(np.arange(1000), 7):
        quality.add(logits[part].astype(np.float32), labels[part].astype(np.float32))
    whole = scored(logits.astype(np.float32).astype(float), labels).overall()
    assert quality.overall().logloss == pytest.approx(whole.logloss, rel=1e-12)
    assert (quality.overall().auc, quality.overall().samples) == (whole.auc, 1000)


def test_since_a_mark_covers_what_came_after_it() -> None:
    first, second = draw_scores(4, 700), draw_scores(5, 900, spread=2.0)
    quality = scored(*first)
    mark = quality.mark()
    quality.add(*second)
    expected, got = scored(*second).overall(), quality.since(mark)
    assert (got.samples, got.clicks, got.auc) == (expected.samples, expected.clicks, expected.auc)
    assert got.logloss == pytest.approx(expected.logloss, rel=1e-9)


def test_since_the_present_moment_covers_nothing() -> None:
    quality = scored(*draw_scores(6, 50))
    got = quality.since(quality.mark())
    assert (got.samples, got.logloss, got.auc, got.calibration) == (0, None, None, None)


@pytest.mark.parametrize("sizes", [[30, 30, 30, 30], [500], [100, 100], [64, 1]])
def test_recent_covers_exactly_the_latest_samples(sizes: list[int]) -> None:
    logits, labels = draw_scores(7, sum(sizes))
    quality = Prequential(recent_samples=100)
    for part in np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]):
        quality.add(logits[part], labels[part])
    expected = scored(logits[-100:], labels[-100:]).overall()
    assert quality.recent().samples == expected.samples
    assert quality.recent().auc == expected.auc
    assert quality.recent().logloss == pytest.approx(expected.logloss, rel=1e-12)


def test_logits_that_are_not_finite_are_counted_and_left_out() -> None:
    got = scored(np.array([np.nan, 0.0, np.inf, 1.0]), np.array([1.0, 0.0, 0.0, 1.0])).overall()
    assert (got.samples, got.not_finite, got.auc) == (2, 2, 1.0)


def test_one_class_leaves_undefined_figures_out() -> None:
    got = scored(np.array([0.1, 0.2]), np.zeros(2)).overall()
    assert (got.auc, got.normalized_entropy, got.calibration) == (None, None, None)
    assert got.logloss is not None


@pytest.mark.parametrize(
    ("logits", "labels"), [([0.1, 0.2], [1.0]), ([0.1], [0.5]), ([0.1], [float("nan")]), ([[0.1]], [[1.0]])]
)
def test_scores_and_labels_that_do_not_belong_together_are_refused(logits: list[float], labels: list[float]) -> None:
    with pytest.raises(BadScores, match="scores cannot be added"):
        scored(np.array(logits), np.array(labels))


def test_a_weight_counts_as_so_many_equal_samples() -> None:
    logits, labels = draw_scores(9, 300)
    times = np.random.default_rng(9).integers(0, 4, 300)
    weighed, repeated = Prequential(), scored(np.repeat(logits, times), np.repeat(labels, times))
    weighed.add(logits[:200], labels[:200], times[:200].astype(float))
    mark = weighed.mark()
    restored = Prequential()
    restored.load(weighed.save())
    restored.add(logits[200:], labels[200:], times[200:].astype(float))
    for got, expected in [(restored.overall(), repeated.overall()), (restored.recent(), repeated.overall())]:
        for name in ("logloss", "auc", "accuracy", "normalized_entropy", "calibration", "predicted_clicks"):
            assert getattr(got, name) == pytest.approx(getattr(expected, name), rel=1e-12)
        assert got.weights is not None
        assert (got.samples, got.weights.total, got.weights.clicks) == (300, expected.samples, expected.clicks)
    since = restored.since(mark).weights
    assert since is not None
    assert since.total == times[200:].sum()
