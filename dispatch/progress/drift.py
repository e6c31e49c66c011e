"""Drift of the stream: whether its click rate has jumped, and how much each field's values differ between windows.

The click rate is watched by the test of Page and Hinkley, in both directions: E. S. Page, "Continuous inspection
schemes", Biometrika 41 (1954), and D. V. Hinkley, "Inference about the change-point from cumulative sum tests",
Biometrika 58 (1971). It sums by how much labels exceed their mean so far, less a tolerance, and raises an alarm when
the sum has risen far above its lowest value. Tolerance and threshold follow from the rate: half of the relative change
that is to be found, and as many deviations as chance reaches about once in e^20 excursions. After an alarm it starts
anew.

Values of a field are counted in buckets of their keys, window by window. The drift is the Jensen-Shannon distance of a
window from the one before it: 0 if they are equal, 1 if they have no bucket in common; what chance explains is
subtracted. Both are functions of the batches alone: the same for any number of workers, and part of a checkpoint.

Legend: B samples, T tables, K buckets.
"""

from dataclasses import dataclass
from math import inf, log, sqrt

import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray

from dispatch.progress.quality import DriftAlarm, DriftStatus
from ingest.samples import Samples
from ingest.schema import Schema

BUCKET_BITS = 6
BUCKETS = 1 << BUCKET_BITS
SHIFT = np.uint64(64 - BUCKET_BITS)
CHANCE = 20.0
"""Logarithm of how rarely an excursion reaches the threshold by chance."""
FEWEST_SAMPLES = 1000
"""Samples after which an alarm may be raised: before, the rate is hardly known."""
KEPT_ALARMS = 32
LABEL = "label"

I64 = NDArray[np.int64]


class Excursion(msgspec.Struct, frozen=True):
    """How far labels have exceeded their mean in one direction, since they did so least."""

    sum: float = 0.0
    """Above its lowest value; 0: it is there."""
    samples: int = 0
    """Samples since then: those after a change, if there was one."""
    clicks: float = 0.0
    """Clicks among them."""


class DriftState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that drift is computed from, at one moment."""

    status: DriftStatus
    seen: int
    """Samples of the run."""
    samples: int
    """Samples since the last alarm of the click rate."""
    clicks: float
    rise: Excursion
    fall: Excursion
    counts_TK: NDArray[np.int64]
    """Of the open window."""
    before_TK: NDArray[np.int64]
    """Of the window before."""
    window: int
    """Samples of the open window."""


@dataclass(frozen=True)
class DriftTerms:
    """Which changes raise an alarm."""

    label_change: float
    """Relative change of the click rate; 0: none does."""
    field_change: float
    """Distance of two windows of a field; 0: none does."""
    window_samples: int


class Drift:
    """Watches the batches of a run."""

    def __init__(self, terms: DriftTerms, schema: Schema) -> None:
        self._terms = terms
        self._tables = tuple(table.name for table in schema.tables)
        widths = [table.values for table in schema.tables]
        self._offsets_E = (np.repeat(np.arange(len(widths)), widths) * BUCKETS).astype(np.int64)
        self.status = DriftStatus()
        self._seen = 0
        self._samples = 0
        self._clicks = 0.0
        self._rise = Excursion()
        self._fall = Excursion()
        self._counts_TK = np.zeros((len(widths), BUCKETS), np.int64)
        self._before_TK = np.zeros_like(self._counts_TK)
        self._window = 0

    def add(self, step: int, samples: Samples) -> None:
        """Adds a batch."""
        self._add_labels(step, samples.labels_B.astype(np.float64))
        self._seen += len(samples)
        singles = len(self._offsets_E)
        places_BE = (samples.keys_BF[:, :singles] >> SHIFT).view(np.int64) + self._offsets_E
        counted = np.bincount(places_BE.reshape(-1), minlength=self._counts_TK.size)
        self._counts_TK += counted.reshape(self._counts_TK.shape)
        self._window += len(samples)
        if self._window >= self._terms.window_samples:
            self._close(step)

    def save(self) -> DriftState:
        """The counterpart of ``load``."""
        return DriftState(
            status=self.status,
            seen=self._seen,
            samples=self._samples,
            clicks=self._clicks,
            rise=self._rise,
            fall=self._fall,
            counts_TK=self._counts_TK.copy(),
            before_TK=self._before_TK.copy(),
            window=self._window,
        )

    def load(self, state: DriftState) -> None:
        """Continues from a saved state."""
        self.status = state.status
        self._seen = state.seen
        self._samples = state.samples
        self._clicks = state.clicks
        self._rise = state.rise
        self._fall = state.fall
        self._counts_TK = state.counts_TK.copy()
        self._before_TK = state.before_TK.copy()
        self._window = state.window

    def _add_labels(self, step: int, labels_B: NDArray[np.float64]) -> None:
        """Adds the labels of a batch, and starts anew after each alarm."""
        at = 0
        while self._terms.label_change and at < len(labels_B):
            at += self._add_until_alarm(step, at, labels_B[at:])

    def _add_until_alarm(self, step: int, before: int, labels_B: NDArray[np.float64]) -> int:
        """Adds labels up to the first alarm; returns how many. before: labels of the batch before them."""
        counts_B = self._samples + np.arange(1, len(labels_B) + 1)
        means_B = (self._clicks + np.cumsum(labels_B)) / counts_B
        rate = (self._clicks + 1.0) / (self._samples + 2.0)
        tolerance = self._terms.label_change / 2 * min(rate, 1.0 - rate)
        threshold = CHANCE * rate * (1.0 - rate) / (2.0 * tolerance)
        excess_B = labels_B - means_B
        rises_B = heights(self._rise.sum, excess_B - tolerance)
        falls_B = heights(self._fall.sum, -excess_B - tolerance)
        for excursion, heights_B in ((self._rise, rises_B), (self._fall, falls_B)):
            if heights_B.max() > threshold:
                is_alarm_B = (heights_B > threshold) & (counts_B >= FEWEST_SAMPLES)
                if is_alarm_B.any():
                    added = int(is_alarm_B.argmax()) + 1
                    changed = extended(excursion, heights_B[:added], labels_B[:added])
                    self._alarm_of_labels(step, before + added, changed)
                    return added
        self._rise = extended(self._rise, rises_B, labels_B)
        self._fall = extended(self._fall, falls_B, labels_B)
        self._samples += len(labels_B)
        self._clicks += float(labels_B.sum())
        return len(labels_B)

    def _alarm_of_labels(self, step: int, added: int, changed: Excursion) -> None:
        """Records an alarm, and starts anew with the samples since the change."""
        rate = self._clicks / max(1, self._samples)
        alarm = DriftAlarm(
            what=LABEL, step=step, sample=self._seen + added, before=rate, after=changed.clicks / changed.samples
        )
        self._record([alarm], label=1)
        structlog.get_logger().warning(
            f"the click rate has changed from {alarm.before:.4f} to {alarm.after:.4f}; expected less than "
            f"{self._terms.label_change:.0%} of change; see whether labels or traffic have changed, or raise "
            "quality.label_change",
            step=step,
            sample=alarm.sample,
        )
        self._samples = 0
        self._clicks = 0.0
        self._rise = Excursion()
        self._fall = Excursion()

    def _close(self, step: int) -> None:
        """Compares the open window with the one before, and begins the next one."""
        if self._before_TK.any():
            found = [distance(*pair) for pair in zip(self._counts_TK, self._before_TK, strict=True)]
            drifts = dict(zip(self._tables, found, strict=True))
            least = self._terms.field_change or inf
            known = self.status.fields
            changed = [name for name, drift in drifts.items() if drift > least and known.get(name, 0.0) <= least]
            self.status = msgspec.structs.replace(self.status, fields=drifts)
            self._alarm_of_fields(step, {name: drifts[name] for name in changed})
        self._before_TK = self._counts_TK
        self._counts_TK = np.zeros_like(self._before_TK)
        self._window = 0

    def _alarm_of_fields(self, step: int, changed: dict[str, float]) -> None:
        if not changed:
            return
        least = self._terms.field_change
        self._record(
            [
                DriftAlarm(what=name, step=step, sample=self._seen, before=least, after=drift)
                for name, drift in changed.items()
            ],
            field=len(changed),
        )
        found = ", ".join(f"{name} ({drift:.2f})" for name, drift in changed.items())
        structlog.get_logger().warning(
            f"values of {found} differ from those of the window before; expected a distance of at most {least:g}; see "
            "whether a producer has changed, or raise quality.field_change",
            step=step,
        )

    def _record(self, alarms: list[DriftAlarm], label: int = 0, field: int = 0) -> None:
        known = self.status
        self.status = msgspec.structs.replace(
            known,
            alarms=(*known.alarms, *alarms)[-KEPT_ALARMS:],
            label_alarms=known.label_alarms + label,
            field_alarms=known.field_alarms + field,
        )


def heights(height: float, increments_B: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far a sum of increments is above its lowest value so far, after each of them; height: before the first."""
    sums_B = height + np.cumsum(increments_B)
    return sums_B - np.minimum(np.minimum.accumulate(sums_B), 0.0)


def extended(excursion: Excursion, heights_B: NDArray[np.float64], labels_B: NDArray[np.float64]) -> Excursion:
    """The excursion after these labels: it begins after the last of them with a height of 0, if there is one."""
    lowest = np.flatnonzero(heights_B <= 0.0)
    if not len(lowest):
        clicks = excursion.clicks + float(labels_B.sum())
        return Excursion(float(heights_B[-1]), excursion.samples + len(labels_B), clicks)
    since_B = labels_B[lowest[-1] + 1 :]
    return Excursion(float(heights_B[-1]), len(since_B), float(since_B.sum()))


def distance(counts_K: I64, before_K: I64) -> float:
    """Jensen-Shannon distance of two counted distributions, to base 2, without what chance explains."""
    used_K = (counts_K + before_K) > 0
    total, total_before = int(counts_K.sum()), int(before_K.sum())
    p_K = counts_K[used_K] / total
    q_K = before_K[used_K] / total_before
    middle_K = (p_K + q_K) / 2
    divergence = (_relative_entropy(p_K, middle_K) + _relative_entropy(q_K, middle_K)) / 2
    chance = (int(used_K.sum()) - 1) / 8 * (1 / total + 1 / total_before)
    return sqrt(max(divergence - chance, 0.0) / log(2))


def _relative_entropy(p_K: NDArray[np.float64], q_K: NDArray[np.float64]) -> float:
    """In nats; q is above 0 wherever p is."""
    is_used_K = p_K > 0
    return float((p_K[is_used_K] * np.log(p_K[is_used_K] / q_K[is_used_K])).sum())
