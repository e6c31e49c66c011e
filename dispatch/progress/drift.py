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

Legend: B samples, F keys of a sample, E those that are not of crosses, T tables, K buckets.
"""

from dataclasses import dataclass
from math import inf, log

import msgspec
import numpy as np
import structlog
from numpy.typing import NDArray

from dispatch.progress.quality import DriftAlarm, DriftStatus
from infra.base.kernels import kernel
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
        self._tables_E = np.repeat(np.arange(len(widths)), widths)
        """The table of each key of a sample, without crosses."""
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
        _count(samples.keys_BF, self._tables_E, self._counts_TK)
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
        rate = (self._clicks + 1.0) / (self._samples + 2.0)
        tolerance = self._terms.label_change / 2 * min(rate, 1.0 - rate)
        threshold = CHANCE * rate * (1.0 - rate) / (2.0 * tolerance)
        excursions = msgspec.structs.astuple(self._rise), msgspec.structs.astuple(self._fall)
        added, clicks, rise, fall = _watch(labels_B, self._samples, self._clicks, tolerance, threshold, *excursions)
        self._rise, self._fall = Excursion(*rise), Excursion(*fall)
        changed = max(self._rise, self._fall, key=lambda each: each.sum)
        if self._samples + added >= FEWEST_SAMPLES and changed.sum > threshold:
            self._alarm_of_labels(step, before + added, changed)
        else:
            self._samples += added
            self._clicks = clicks
        return added

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
            drifts = dict(zip(self._tables, distances(self._counts_TK, self._before_TK), strict=True))
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


@kernel
def _count(keys_BF: NDArray[np.uint64], tables_E: I64, counts_TK: I64) -> None:
    """Counts the keys of a batch in place."""
    for sample in range(len(keys_BF)):
        for place in range(len(tables_E)):
            counts_TK[tables_E[place], keys_BF[sample, place] >> SHIFT] += 1


@kernel
def _watch(
    labels_B: NDArray[np.float64],
    samples: int,
    clicks: float,
    tolerance: float,
    threshold: float,
    rise: tuple[float, int, float],
    fall: tuple[float, int, float],
) -> tuple[int, float, tuple[float, int, float], tuple[float, int, float]]:
    """Adds labels up to the first alarm; returns how many, and with them: clicks, and excursions as in Excursion.

    samples and clicks: before these labels.
    """
    for place in range(len(labels_B)):
        label = labels_B[place]
        clicks += label
        count = samples + place + 1
        excess = label - clicks / count
        rise = _further(rise, excess - tolerance, label)
        fall = _further(fall, -excess - tolerance, label)
        if count >= FEWEST_SAMPLES and max(rise[0], fall[0]) > threshold:
            return place + 1, clicks, rise, fall
    return len(labels_B), clicks, rise, fall


@kernel
def _further(excursion: tuple[float, int, float], increment: float, label: float) -> tuple[float, int, float]:
    """The excursion after one more label: it begins after the last label with a sum of 0."""
    total = excursion[0] + increment
    return (total, excursion[1] + 1, excursion[2] + label) if total > 0.0 else (0.0, 0, 0.0)


def distances(counts_TK: I64, before_TK: I64) -> list[float]:
    """Jensen-Shannon distance of each table's counted distributions, to base 2, without what chance explains."""
    used_TK = (counts_TK + before_TK) > 0
    totals_T, before_T = counts_TK.sum(axis=1), before_TK.sum(axis=1)
    p_TK = counts_TK / totals_T[:, None]
    q_TK = before_TK / before_T[:, None]
    middle_TK = np.where(used_TK, (p_TK + q_TK) / 2, 1.0)
    divergence_T = (_relative_entropy(p_TK, middle_TK) + _relative_entropy(q_TK, middle_TK)) / 2
    chance_T = (used_TK.sum(axis=1) - 1) / 8 * (1 / totals_T + 1 / before_T)
    return np.sqrt(np.maximum(divergence_T - chance_T, 0.0) / log(2)).tolist()  # type: ignore[no-any-return]


def _relative_entropy(p_TK: NDArray[np.float64], q_TK: NDArray[np.float64]) -> NDArray[np.float64]:
    """In nats; q is above 0 wherever p is."""
    ratio_TK = np.where(p_TK > 0, p_TK, q_TK) / q_TK
    return (p_TK * np.log(ratio_TK)).sum(axis=1)  # type: ignore[no-any-return]
