"""What samples say about labels and models, with bounds by chance: pure functions of arrays.

Samples with weights count by them, but as no more samples than would tell as much if all weighed the same: a few heavy
ones are no more certain than a few others.

Legend: B samples.
"""

from math import log, sqrt
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]

LEAST_PROBABILITY = 1e-6
"""Least distance of predictions from 0 and 1: served predictions are rounded to single precision."""
LARGEST_CHANGE = 20.0
"""Largest sudden change of the click rate that counts as real."""
LARGEST_CHANGE_IN_A_RUN = 3.0
"""The same if all newest labels are equal: a mistaken hold ends with the next label that differs."""
FEWEST = 10.0
"""Clicks that must be expected before their absence is more than chance."""
IMPOSSIBLE = 9.0
"""Natural logarithm of the odds against what counts as impossible."""
EVIDENCE = LARGEST_CHANGE * FEWEST
"""Clicks, and samples without a click, that are expected among the samples by which labels are judged."""


class ScoredSamples(msgspec.Struct, frozen=True):
    """Samples in the order of training, with the click probabilities that two models gave them."""

    clicked_B: Bools
    model_B: Floats
    """Probabilities by the model in training, before it learnt from the sample."""
    reference_B: Floats
    """Probabilities by the snapshot that was served."""
    weights_B: Floats | None = None
    """None: all weigh 1."""

    def __len__(self) -> int:
        return len(self.clicked_B)

    @property
    def counts_B(self) -> NDArray[np.float64]:  # noqa: N802 (shape letters)
        """As how many samples of equal weight each one counts."""
        if self.weights_B is None or not self.weights_B.any():
            return np.ones(len(self))
        weights_B = self.weights_B.astype(np.float64)
        counts_B: NDArray[np.float64] = weights_B * (weights_B.sum() / np.square(weights_B).sum())
        return counts_B

    def newest(self, samples: int) -> "ScoredSamples":
        start = max(0, len(self) - samples)
        weights_B = None if self.weights_B is None else self.weights_B[start:]
        return ScoredSamples(self.clicked_B[start:], self.model_B[start:], self.reference_B[start:], weights_B)

    def followed_by(self, newer: "ScoredSamples") -> "ScoredSamples":
        has_weights = self.weights_B is not None or newer.weights_B is not None
        parts = [np.ones(len(each), np.float32) if each.weights_B is None else each.weights_B for each in (self, newer)]
        return ScoredSamples(
            np.concatenate([self.clicked_B, newer.clicked_B]),
            np.concatenate([self.model_B, newer.model_B]),
            np.concatenate([self.reference_B, newer.reference_B]),
            np.concatenate(parts) if has_weights else None,
        )


def no_scores() -> ScoredSamples:
    return ScoredSamples(np.empty(0, np.bool_), np.empty(0, np.float32), np.empty(0, np.float32))


def scored(clicked_B: Bools, model_B: Floats, reference_B: Floats, weights_B: Floats | None = None) -> ScoredSamples:
    """The samples whose predictions are finite, limited so that none is certain."""
    is_finite_B = np.isfinite(model_B) & np.isfinite(reference_B)
    least = np.float32(LEAST_PROBABILITY)
    model, reference = (np.clip(each[is_finite_B], least, 1 - least) for each in (model_B, reference_B))
    weights = None if weights_B is None else weights_B[is_finite_B]
    return ScoredSamples(clicked_B[is_finite_B], model, reference, weights)


class Auc(NamedTuple):
    """Share of pairs of a click and another sample that a model has in the right order."""

    value: float
    deviation: float
    """Standard deviation by chance."""


class Comparison(NamedTuple):
    """How two models did on the same samples."""

    samples: int
    clicks: int
    expected: float
    """Clicks expected by the reference."""
    predicted: float
    """Clicks predicted by the model."""
    reference_auc: Auc | None
    """AUC of the reference; None: all samples are clicks, or none is."""
    model_auc: Auc | None
    reference_loss: float
    """Mean logloss of the reference."""
    excess: float
    """Mean logloss of the model minus that of the reference."""
    excess_deviation: float


def compare(samples: ScoredSamples) -> Comparison:
    """Compares the two models on at least one sample."""
    clicked_B = samples.clicked_B
    model_B = samples.model_B.astype(np.float64)
    reference_B = samples.reference_B.astype(np.float64)
    counts_B = samples.counts_B
    total = float(counts_B.sum())
    reference_loss_B = _losses(clicked_B, reference_B)
    excess_B = _losses(clicked_B, model_B) - reference_loss_B
    excess = float((counts_B * excess_B).sum()) / total
    return Comparison(
        samples=max(1, round(total)),
        clicks=round(float(counts_B[clicked_B].sum())),
        expected=float((counts_B * reference_B).sum()),
        predicted=float((counts_B * model_B).sum()),
        reference_auc=measure_auc(reference_B, clicked_B, counts_B),
        model_auc=measure_auc(model_B, clicked_B, counts_B),
        reference_loss=float((counts_B * reference_loss_B).sum()) / total,
        excess=excess,
        excess_deviation=sqrt(float((counts_B * np.square(excess_B - excess)).sum()) / total) / sqrt(total),
    )


def telling_samples(samples: ScoredSamples) -> int | None:
    """How many of the newest samples are enough to judge labels by; None: all of them are not enough."""
    counts_B = samples.counts_B[::-1]
    clicks_B = np.cumsum(counts_B * samples.reference_B[::-1])
    others_B = np.cumsum(counts_B) - clicks_B
    found = int(np.searchsorted(np.minimum(clicks_B, others_B), EVIDENCE))
    return found + 1 if found < len(samples) else None


class EqualLabels(NamedTuple):
    """The newest samples whose labels are all equal."""

    samples: int
    are_clicks: bool
    expected: float
    """Expected samples with the other label."""

    @property
    def is_impossible(self) -> bool:
        return is_impossible(0, self.expected / LARGEST_CHANGE_IN_A_RUN)


def newest_run(samples: ScoredSamples, usual_rate: float | None) -> EqualLabels:
    """The run at the end of at least one sample; expected by the reference, or by the usual click rate if that is more.

    If clicks are rare, snapshots are published before a run is certain, and the reference learns from it.
    """
    are_clicks = bool(samples.clicked_B[-1])
    others = np.flatnonzero(samples.clicked_B != are_clicks)
    first = int(others[-1]) + 1 if others.size else 0
    counts_B = samples.counts_B[first:]
    length = float(counts_B.sum())
    rates = float((counts_B * samples.reference_B[first:]).sum()) / length if length else 0.0, usual_rate
    others_expected = [length * (1 - rate if are_clicks else rate) for rate in rates if rate is not None]
    return EqualLabels(len(samples) - first, are_clicks, max(others_expected))


def measure_auc(
    scores_B: NDArray[np.floating], clicked_B: Bools, counts_B: NDArray[np.float64] | None = None
) -> Auc | None:
    """The AUC, by comparing ranks; None: there is only one class. counts_B: as how many samples each one counts."""
    counts_B = np.ones(len(scores_B)) if counts_B is None else counts_B
    clicks = scores_B[clicked_B]
    others = scores_B[~clicked_B]
    order = np.argsort(others)
    others = others[order]
    click_counts = counts_B[clicked_B]
    below = np.concatenate([[0.0], np.cumsum(counts_B[~clicked_B][order])])
    clicked = float(click_counts.sum())
    if not clicked or not below[-1]:
        return None
    lower = below[np.searchsorted(others, clicks, "left")] + below[np.searchsorted(others, clicks, "right")]
    value = float((click_counts * lower).sum()) / clicked / (2 * float(below[-1]))
    return Auc(value, auc_deviation(value, clicked, float(below[-1])))


def auc_deviation(auc: float, clicks: float, others: float) -> float:
    """The standard deviation after Hanley and McNeil, 1982."""
    both_clicks = auc / (2 - auc) - auc**2
    both_others = 2 * auc**2 / (1 + auc) - auc**2
    variance = auc * (1 - auc) + (clicks - 1) * both_clicks + (others - 1) * both_others
    return sqrt(max(0.0, variance) / (clicks * others))


def fewest_possible(expected: float) -> float:
    """The average number if the rate has changed as much as may be real; expected: the number expected without a
    change.

    A few expected ones are enough to notice that they are missing: then a smaller change of the rate counts as real.
    """
    return max(expected / LARGEST_CHANGE, min(expected / 2, FEWEST))


def is_impossible(seen: float, average: float) -> bool:
    """Whether chance does not explain so few, by Chernoff's bound for counts with this average."""
    if seen >= average:
        return False
    return average - seen + (seen * log(seen / average) if seen else 0.0) >= IMPOSSIBLE


def _losses(clicked_B: Bools, probabilities_B: NDArray[np.float64]) -> NDArray[np.float64]:
    return -np.log(np.where(clicked_B, probabilities_B, 1 - probabilities_B))
