"""Online quality, test-then-train: every sample is scored before the model learns from it.

Logloss, base rate and calibration are exact sums in float64. AUC is streaming: scores are counted in fine bins of the
logit, and two scores in one bin count half, as ties do; with bins 0.0005 wide that is within about 1e-5 of sorting. The
counts are whole numbers, so figures since a mark are exact, too. Logits that are NaN or infinite are excluded from
every figure and counted. Where samples have weights, every figure is by weight, except for numbers of samples and
clicks. A figure that is not defined yet (no samples, only one class) is None.
"""

from dataclasses import dataclass, replace
from math import nan
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from dispatch.errors import BadScores
from dispatch.progress.quality import Quality, WeightFigures
from infra.base.kernels import kernel

BINS = 1 << 16
HALF = BINS // 2
"""The bin that begins at a prediction of a half."""
LOGIT_LIMIT = 16.0
"""Scores beyond ± this share the outermost bins."""
RECENT_SAMPLES = 16_384
"""Samples that recent() covers."""


@dataclass(frozen=True)
class ScoreSums:
    """Sums over scored samples up to one moment; every figure follows from them."""

    loss: float
    predicted: float
    not_finite: int
    counts_2K: NDArray[np.int64]
    """Counts per class (0: no click, 1: click) and bin."""
    weights_2K: NDArray[np.float64] | None = None
    """The same by weight; None: every sample weighs 1."""
    squares: float = 0.0
    """Sum of squared weights."""

    def since(self, earlier: "ScoreSums") -> "ScoreSums":
        both = self.weights_2K, earlier.weights_2K
        return ScoreSums(
            self.loss - earlier.loss,
            self.predicted - earlier.predicted,
            self.not_finite - earlier.not_finite,
            self.counts_2K - earlier.counts_2K,
            both[0] if both[0] is None or both[1] is None else both[0] - both[1],
            self.squares - earlier.squares,
        )

    def copy(self) -> "ScoreSums":
        weights_2K = None if self.weights_2K is None else self.weights_2K.copy()
        return replace(self, counts_2K=self.counts_2K.copy(), weights_2K=weights_2K)


class PrequentialState(msgspec.Struct, frozen=True):
    """Everything that quality is computed from, at one moment."""

    sums: ScoreSums
    logits: NDArray[np.float64]
    """The latest logits, in a ring."""
    labels: NDArray[np.float64]
    seen: int
    """Samples ever added."""
    weights: NDArray[np.float64] | None = None
    """None: every sample weighs 1."""


class Prequential:
    """Accumulates scores and labels; reports on all samples, the latest ones, or those since a mark."""

    def __init__(self, recent_samples: int = RECENT_SAMPLES) -> None:
        self._sums = _nothing()
        self._latest = _nothing()
        """Room for the sums of the latest samples."""
        self._logits = np.zeros(recent_samples)
        self._labels = np.zeros(recent_samples)
        self._weights: NDArray[np.float64] | None = None
        self._seen = 0

    def add(
        self,
        logits_B: NDArray[np.floating],
        labels_B: NDArray[np.floating],
        weights_B: NDArray[np.floating] | None = None,
    ) -> float:
        """Adds a batch and returns its logloss, by weight, times its samples; NaN if a logit is not finite.

        The last bits of float sums depend on the order of samples: add batches as they were formed. weights_B: how much
        each sample counts; None: 1.
        """
        logits, labels = _checked(logits_B, labels_B)
        weights = None if weights_B is None else np.asarray(weights_B, np.float64)
        before, self._sums = self._sums, _add_up(self._sums, logits, labels, weights)
        self._remember(logits, labels, weights)
        if self._sums.not_finite != before.not_finite:
            return nan
        loss = self._sums.loss - before.loss
        total = len(logits) if weights is None else float(weights.sum())
        return loss if total == len(logits) else loss * len(logits) / total if total else 0.0

    @property
    def not_finite(self) -> int:
        """Samples excluded because their logit was NaN or infinite."""
        return self._sums.not_finite

    def overall(self) -> Quality:
        """Over every sample so far."""
        return measure(self._sums)

    def recent(self) -> Quality:
        """Over the latest samples, as many as are kept."""
        filled = min(self._seen, len(self._logits))
        weights = None if self._weights is None else self._weights[:filled]
        self._latest.counts_2K[:] = 0
        return measure(_add_up(self._latest, self._logits[:filled], self._labels[:filled], weights))

    def mark(self) -> ScoreSums:
        """The sums up to now, for since()."""
        return self._sums.copy()

    def since(self, mark: ScoreSums) -> Quality:
        """Over the samples added after the mark was taken."""
        return measure(self._sums.since(mark))

    def save(self) -> PrequentialState:
        """The counterpart of ``load``."""
        weights = None if self._weights is None else self._weights.copy()
        return PrequentialState(self.mark(), self._logits.copy(), self._labels.copy(), self._seen, weights)

    def load(self, state: PrequentialState) -> None:
        """Continues from a saved state, as if there had been no interruption."""
        self._sums = state.sums.copy()
        self._logits = state.logits.copy()
        self._labels = state.labels.copy()
        self._weights = None if state.weights is None else state.weights.copy()
        self._seen = state.seen

    def _remember(
        self, logits: NDArray[np.float64], labels: NDArray[np.float64], weights: NDArray[np.float64] | None
    ) -> None:
        self._seen += len(logits)
        _keep(self._logits, logits, self._seen)
        _keep(self._labels, labels, self._seen)
        if weights is not None:
            if self._weights is None:
                self._weights = np.ones(len(self._logits))
            _keep(self._weights, weights, self._seen)


def _keep(ring: NDArray[np.float64], values: NDArray[np.float64], end: int) -> None:
    """Puts values into a ring, the last one just before place ``end``; only the latest are kept if there are more."""
    kept = values[max(0, len(values) - len(ring)) :]
    first = (end - len(kept)) % len(ring)
    fitting = len(ring) - first
    ring[first : first + len(kept)] = kept[:fitting]
    ring[: len(kept[fitting:])] = kept[fitting:]


def recent_quality(state: PrequentialState, samples: int) -> Quality:
    """Quality over the latest samples, at most that many and no more than are kept."""
    size = len(state.logits)
    at = (state.seen - 1 - np.arange(min(samples, state.seen, size))) % size
    weights = None if state.weights is None else state.weights[at]
    return measure(_add_up(_nothing(), state.logits[at], state.labels[at], weights))


def measure(sums: ScoreSums) -> Quality:
    """The quality computed from the sums."""
    seen = of_counts = _figures(sums.counts_2K)
    if sums.weights_2K is not None:
        seen = _figures(sums.weights_2K)
    total = seen.misses + seen.clicks
    logloss = sums.loss / total if total else None
    entropy = _entropy(seen.clicks / total) if total else 0.0
    return Quality(
        samples=int(of_counts.misses + of_counts.clicks),
        clicks=int(of_counts.clicks),
        logloss=logloss,
        auc=seen.auc,
        accuracy=seen.rightly_sided / total if total else None,
        normalized_entropy=logloss / entropy if logloss is not None and entropy > 0 else None,
        calibration=sums.predicted / seen.clicks if seen.clicks else None,
        predicted_clicks=sums.predicted,
        not_finite=sums.not_finite,
        weights=None if sums.weights_2K is None else _weight_figures(total, seen.clicks, sums.squares),
    )


def _weight_figures(total: float, clicks: float, squares: float) -> WeightFigures:
    return WeightFigures(total=total, clicks=clicks, effective_samples=total**2 / squares if squares else 0.0)


class Figures(NamedTuple):
    """What follows from counts, or weights, per class and bin."""

    misses: float
    clicks: float
    rightly_sided: float
    """Samples without a click below a half, and with one from there on."""
    right_pairs: float
    """(click, no click) pairs in the right order, pairs of one bin counting half."""

    @property
    def auc(self) -> float | None:
        """Share of the pairs in the right order."""
        pairs = self.misses * self.clicks
        return self.right_pairs / pairs if pairs else None


def _figures(counts_2K: NDArray[np.int64] | NDArray[np.float64]) -> Figures:
    return Figures(*_pass(counts_2K))


@kernel
def _pass(counts_2K: NDArray[np.int64] | NDArray[np.float64]) -> tuple[float, float, float, float]:
    """One pass over all bins: many statuses a second are made of them."""
    misses = clicks = rightly_sided = right_pairs = 0.0
    for k in range(counts_2K.shape[1]):
        missed = float(counts_2K[0, k])
        clicked = float(counts_2K[1, k])
        right_pairs += clicked * (misses + 0.5 * missed)
        misses += missed
        clicks += clicked
        rightly_sided += missed if k < HALF else clicked
    return misses, clicks, rightly_sided, right_pairs


def auc_of(counts_2K: NDArray[np.int64] | NDArray[np.float64]) -> float | None:
    """Share of (click, no click) pairs in the right order, pairs of one bin counting half."""
    return _figures(counts_2K).auc


def auc_reference(logits_B: NDArray[np.floating], labels_B: NDArray[np.floating]) -> float:
    """The exact AUC, by comparing every click with every other sample."""
    clicked = logits_B[labels_B > 0.5]
    other = logits_B[labels_B <= 0.5]
    right = (clicked[:, None] > other).sum() + 0.5 * (clicked[:, None] == other).sum()
    return float(right / (len(clicked) * len(other)))


def _checked(
    logits_B: NDArray[np.floating], labels_B: NDArray[np.floating]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    logits = np.asarray(logits_B, np.float64)
    labels = np.asarray(labels_B, np.float64)
    if logits.ndim != 1 or logits.shape != labels.shape or not _are_binary(labels):
        raise BadScores(
            f"scores cannot be added: logits have shape {logits.shape}, labels {labels.shape} with values "
            f"{np.unique(labels)[:4].tolist()}; expected two flat arrays of one length, labels 0 or 1; pass one logit "
            "per sample of the batch"
        )
    return logits, labels


@kernel
def _are_binary(labels_B: NDArray[np.float64]) -> bool:
    others = 0
    for label in labels_B:
        others += (label != 0.0) & (label != 1.0)
    return others == 0


def _nothing() -> ScoreSums:
    return ScoreSums(0.0, 0.0, 0, np.zeros((2, BINS), np.int64))


def _add_up(
    sums: ScoreSums,
    logits: NDArray[np.float64],
    labels: NDArray[np.float64],
    weights: NDArray[np.float64] | None,
) -> ScoreSums:
    """The sums with these samples added; the counts are added in place, because they are large."""
    weights_2K = sums.weights_2K
    if weights is not None and weights_2K is None:
        weights_2K = np.zeros((2, BINS))
    loss, predicted, squares, not_finite = _count(logits, labels, weights, sums.counts_2K, weights_2K)
    return ScoreSums(
        sums.loss + loss,
        sums.predicted + predicted,
        sums.not_finite + not_finite,
        sums.counts_2K,
        weights_2K,
        sums.squares + squares,
    )


@kernel
def _count(
    logits_B: NDArray[np.float64],
    labels_B: NDArray[np.float64],
    weights_B: NDArray[np.float64] | None,
    counts_2K: NDArray[np.int64],
    weights_2K: NDArray[np.float64] | None,
) -> tuple[float, float, float, int]:
    """Counts samples in place; returns sums of losses, predictions and squared weights, and how many are not finite."""
    loss_sum = predicted_sum = squares = 0.0
    not_finite = 0
    for sample in range(len(logits_B)):
        z = logits_B[sample]
        if not np.isfinite(z):
            not_finite += 1
            continue
        loss, predicted = loss_and_prediction(z, labels_B[sample])
        of_class = int(labels_B[sample] > 0.5)
        scaled = (min(max(z, -LOGIT_LIMIT), LOGIT_LIMIT) + LOGIT_LIMIT) * (BINS / (2 * LOGIT_LIMIT))
        at = min(int(scaled), BINS - 1)
        counts_2K[of_class, at] += 1
        if weights_B is not None and weights_2K is not None:
            weight = weights_B[sample]
            weights_2K[of_class, at] += weight
            loss *= weight
            predicted *= weight
            squares += weight * weight
        loss_sum += loss
        predicted_sum += predicted
    return loss_sum, predicted_sum, squares, not_finite


@kernel
def loss_and_prediction(z: float, label: float) -> tuple[float, float]:
    """Logloss of a logit, and the prediction that it stands for."""
    tail = np.exp(-abs(z))
    return max(z, 0.0) - label * z + np.log1p(tail), (1.0 if z >= 0 else tail) / (1.0 + tail)


def _entropy(rate: float) -> float:
    if rate in (0.0, 1.0):
        return 0.0
    return float(-rate * np.log(rate) - (1 - rate) * np.log1p(-rate))
