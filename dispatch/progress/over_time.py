"""Online quality over time: in windows of samples, by slice (the samples with one value of a field), and its
calibration curve. Test-then-train, as in ``prequential.py``, and a function of the batches alone: the same for any
number of workers.

Where samples have weights, every figure is by weight, except for numbers of samples and clicks. AUC is computed from
counts in bins of the logit that are 1/32 wide, with half a pair for a tie, which is within about 0.001 of sorting. Of a
field, the first KEPT_VALUES values that occur are followed; all others together are one slice. At most MOST_WINDOWS
closed windows are kept: then neighbours are merged, and windows are twice as long from there on. The AUC of merged
windows is the mean of theirs, weighted by their pairs of samples.

Legend: B samples, f all samples and the sliced fields, S slices (0: all samples), K bins of the logit, C bins of the
curve.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import log
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from dispatch.progress.prequential import auc_of, loss_and_prediction
from dispatch.progress.quality import OTHERS, CurveBin, QualityOverTime, QualityWindow, SliceQuality
from infra.base.kernels import kernel
from ingest.samples import Samples

BINS = 512
LIMIT = 8.0
"""Logits beyond ± this share the outermost bins."""
CURVE_BINS = 32
CURVE_SUMS = 4
KEPT_VALUES = 256
"""Values of a field that are followed; further ones count as OTHERS."""
MOST_WINDOWS = 64

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Found = TypeVar("Found")


class OverTimeState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that quality over time is computed from, at one moment."""

    window_samples: int
    windows: tuple[QualityWindow, ...]
    slices: tuple[tuple[str, str], ...]
    """Field and key of each slice; empty for the first one, of all samples."""
    closed: "SliceSums"
    """Sums of all closed windows."""
    open: "SliceSums"
    """Sums of the window that is not closed yet."""
    starts: tuple[int, int]
    """First step of the run and of the open window; 0: no step yet."""
    step: int
    before: int
    """Samples before the open window."""


class SliceSums(msgspec.Struct, frozen=True):
    """Sums over the samples of each slice."""

    loss_S: NDArray[np.float64]
    predicted_S: NDArray[np.float64]
    counts_S2: NDArray[np.int64]
    """Samples of each slice and class (0: no click, 1: click)."""
    weights_SK: NDArray[np.float64]
    """What the samples weigh, per slice, class and bin, in one row for each slice."""
    curve_C: NDArray[np.float64]
    """Samples, what they weigh, and by weight clicks and predictions, in each bin of the curve, one after the other."""


class SlicedField:
    """The values of one field that are followed, and the numbers of their slices."""

    def __init__(self, place: int) -> None:
        self.place = place
        self._keys = np.empty(0, np.uint64)
        """Sorted."""
        self._numbers = np.empty(0, np.int64)
        self.others = 0
        """Number of the slice of all other values; 0: there is none yet."""

    def enter(self, key: int, number: int) -> None:
        """Follows a value."""
        at = int(np.searchsorted(self._keys, np.uint64(key)))
        self._keys = np.insert(self._keys, at, np.uint64(key))
        self._numbers = np.insert(self._numbers, at, number)

    @property
    def is_full(self) -> bool:
        return len(self._keys) >= KEPT_VALUES

    def numbers_of(self, keys_B: NDArray[np.uint64]) -> I64:
        """The slice of each key; that of all others, 0 if there is none yet, for a value that is not followed."""
        if not len(self._keys):
            return np.zeros(len(keys_B), np.int64)
        at_B = np.minimum(np.searchsorted(self._keys, keys_B), len(self._keys) - 1)
        return np.where(self._keys[at_B] == keys_B, self._numbers[at_B], self.others)


class OverTime:
    """Accumulates scores in windows and slices."""

    def __init__(self, places: Mapping[str, int], values: int, window_samples: int) -> None:
        """places: where the keys of the sliced tables are in a sample; values: slices of a field that are shown."""
        self._fields = {name: SlicedField(place) for name, place in places.items()}
        self._values = values
        self._window_samples = window_samples
        self._windows: list[QualityWindow] = []
        self._slices: list[tuple[str, str]] = [("", "")]
        """Field and key of each slice."""
        self._closed = _no_sums()
        self._open = _no_sums()
        self._starts = (0, 0)
        self._step = 0
        self._before = 0

    def add(self, step: int, samples: Samples, logits_B: NDArray[np.float32]) -> None:
        """Adds a batch; logits that are not finite are left out."""
        finite_B = np.isfinite(logits_B)
        z_B = logits_B[finite_B].astype(np.float64)
        slices_fB = np.zeros((1 + len(self._fields), len(z_B)), np.int64)
        for row, (name, field) in enumerate(self._fields.items(), start=1):
            slices_fB[row] = self._slices_of(name, samples.keys_BF[finite_B, field.place])
        sums = self._open = _grown(self._open, len(self._slices))
        labels_B = samples.labels_B[finite_B].astype(np.float64)
        weights_B = None if samples.weights_B is None else samples.weights_B[finite_B].astype(np.float64)
        places = sums.loss_S, sums.predicted_S, sums.counts_S2, sums.weights_SK, sums.curve_C
        _add_up(*places, slices_fB, z_B, labels_B, weights_B)
        self._starts = self._starts[0] or step, self._starts[1] or step
        self._step = step
        if self._open.counts_S2[0].sum() >= self._window_samples:
            self._close()

    def report(self, is_whole: bool = False) -> QualityOverTime:
        """is_whole: with slices and curve of every window, not of the newest alone."""
        windows = self._windows
        if not is_whole:
            windows = [*(msgspec.structs.replace(each, slices=(), curve=()) for each in windows[:-1]), *windows[-1:]]
        run = self._window(_total(self._closed, self._open), self._starts[0], 0) if self._step else None
        return QualityOverTime(window_samples=self._window_samples, windows=tuple(windows), run=run)

    def save(self) -> OverTimeState:
        """The counterpart of ``load``."""
        return OverTimeState(
            window_samples=self._window_samples,
            windows=tuple(self._windows),
            slices=tuple(self._slices),
            closed=_grown(self._closed, 0),
            open=_grown(self._open, 0),
            starts=self._starts,
            step=self._step,
            before=self._before,
        )

    def load(self, state: OverTimeState) -> None:
        """Continues from a saved state; windows are as long as they were."""
        self._window_samples = max(self._window_samples, state.window_samples)
        self._windows = list(state.windows)
        self._slices = list(state.slices)
        for number, (name, key) in enumerate(state.slices):
            if name in self._fields and key == OTHERS:
                self._fields[name].others = number
            elif name in self._fields:
                self._fields[name].enter(int(key, 16), number)
        self._closed = _grown(state.closed, 0)
        self._open = _grown(state.open, 0)
        self._starts = state.starts
        self._step = state.step
        self._before = state.before

    def _slices_of(self, name: str, keys_B: NDArray[np.uint64]) -> I64:
        """The slice of each sample; a value that occurs for the first time gets one, as long as there is room."""
        field = self._fields[name]
        numbers_B = field.numbers_of(keys_B)
        if numbers_B.all():
            return numbers_B
        for key in dict.fromkeys(keys_B[numbers_B == 0].tolist()):
            if field.is_full:
                field.others = self._new_slice(name, OTHERS)
                break
            field.enter(key, self._new_slice(name, f"{key:016x}"))
        return field.numbers_of(keys_B)

    def _new_slice(self, name: str, key: str) -> int:
        self._slices.append((name, key))
        return len(self._slices) - 1

    def _close(self) -> None:
        """Closes the open window and begins the next one."""
        window = self._window(self._open, self._starts[1], self._before)
        self._windows.append(window)
        self._before += window.quality.samples
        self._closed = _total(self._closed, self._open)
        self._open = _no_sums()
        self._starts = self._starts[0], 0
        if len(self._windows) > MOST_WINDOWS:
            older, newest = self._windows[:MOST_WINDOWS], self._windows[MOST_WINDOWS:]
            pairs = zip(older[::2], older[1::2], strict=True)
            self._windows = [merge_windows(*pair, self._values) for pair in pairs] + newest
            self._window_samples *= 2

    def _window(self, sums: SliceSums, first_step: int, before: int) -> QualityWindow:
        samples_S = sums.counts_S2.sum(axis=1).tolist()
        shown = most_frequent(
            zip(self._slices[1:], samples_S[1:], range(1, len(samples_S)), strict=False), self._values
        )
        return QualityWindow(
            first_step=first_step,
            last_step=self._step,
            samples_before=before,
            quality=_measure(sums, 0),
            slices=tuple(_measure(sums, number, *self._slices[number]) for number in shown),
            curve=_curve(*sums.curve_C.reshape(CURVE_SUMS, CURVE_BINS).tolist()),
        )


def most_frequent(slices: Iterable[tuple[tuple[str, str], int, Found]], values: int) -> list[Found]:
    """Of slices given by name and samples, those of each field with most samples."""
    by_field: dict[str, list[tuple[int, str, Found]]] = {}
    for (name, key), samples, found in slices:
        if samples:
            by_field.setdefault(name, []).append((-samples, key, found))
    return [
        found for name in sorted(by_field) for *_, found in sorted(by_field[name], key=lambda each: each[:2])[:values]
    ]


def merge_windows(first: QualityWindow, last: QualityWindow, values: int) -> QualityWindow:
    """Two neighbours as one window. A value that only one of them shows counts with that one's samples."""
    by_slice: dict[tuple[str, str], list[SliceQuality]] = {}
    for each in (*first.slices, *last.slices):
        by_slice.setdefault((each.field, each.key), []).append(each)
    merged = {named: _merged(parts) for named, parts in by_slice.items()}
    bins: dict[int, list[CurveBin]] = {}
    for each_bin in (*first.curve, *last.curve):
        odds = log(each_bin.mean_prediction / (1.0 - each_bin.mean_prediction))
        bins.setdefault(_curve_bin(odds), []).append(each_bin)
    return QualityWindow(
        first_step=first.first_step,
        last_step=last.last_step,
        samples_before=first.samples_before,
        quality=_merged([first.quality, last.quality]),
        slices=tuple(most_frequent(((named, each.samples, each) for named, each in merged.items()), values)),
        curve=tuple(_merged_bin(bins[place]) for place in sorted(bins)),
    )


def _curve_bin(odds: float) -> int:
    """The bin of the curve that a mean prediction with these log-odds belongs to."""
    return min(max(int((odds + LIMIT) * (CURVE_BINS / (2 * LIMIT))), 0), CURVE_BINS - 1)


def _merged(parts: Sequence[SliceQuality]) -> SliceQuality:
    weight = sum(part.weight for part in parts)
    pairs = [(part.auc, part.clicks * (part.samples - part.clicks)) for part in parts if part.auc is not None]
    all_pairs = sum(count for _, count in pairs)

    def mean(name: str) -> float | None:
        weighed = [part for part in parts if part.weight]
        return float(sum(part.weight * getattr(part, name) for part in weighed)) / weight if weighed else None

    return SliceQuality(
        field=parts[0].field,
        key=parts[0].key,
        samples=sum(part.samples for part in parts),
        clicks=sum(part.clicks for part in parts),
        weight=weight,
        logloss=mean("logloss"),
        auc=sum(auc * count for auc, count in pairs) / all_pairs if all_pairs else None,
        mean_prediction=mean("mean_prediction"),
        click_rate=mean("click_rate"),
    )


def _merged_bin(parts: Sequence[CurveBin]) -> CurveBin:
    weight = sum(part.weight for part in parts)
    predicted = sum(part.weight * part.mean_prediction for part in parts)
    clicks = sum(part.weight * part.click_rate for part in parts)
    samples = sum(part.samples for part in parts)
    return CurveBin(samples=samples, weight=weight, mean_prediction=predicted / weight, click_rate=clicks / weight)


def _measure(sums: SliceSums, number: int, field: str = "", key: str = "") -> SliceQuality:
    weights_2K = sums.weights_SK[number].reshape(2, BINS)
    weight = float(weights_2K.sum())
    misses, clicks = sums.counts_S2[number].tolist()
    if not weight:
        return SliceQuality(field=field, key=key, samples=misses + clicks, clicks=clicks)
    return SliceQuality(
        field=field,
        key=key,
        samples=misses + clicks,
        clicks=clicks,
        weight=weight,
        logloss=float(sums.loss_S[number]) / weight,
        auc=auc_of(weights_2K),
        mean_prediction=float(sums.predicted_S[number]) / weight,
        click_rate=float(weights_2K[1].sum()) / weight,
    )


def _curve(
    samples_C: list[float], weights_C: list[float], clicks_C: list[float], predicted_C: list[float]
) -> tuple[CurveBin, ...]:
    return tuple(
        CurveBin(samples=int(samples), weight=weight, mean_prediction=predicted / weight, click_rate=clicks / weight)
        for samples, weight, clicks, predicted in zip(samples_C, weights_C, clicks_C, predicted_C, strict=True)
        if weight
    )


def _no_sums() -> SliceSums:
    return SliceSums(
        loss_S=np.zeros(1),
        predicted_S=np.zeros(1),
        counts_S2=np.zeros((1, 2), np.int64),
        weights_SK=np.zeros((1, 2 * BINS)),
        curve_C=np.zeros(CURVE_SUMS * CURVE_BINS),
    )


def _grown(sums: SliceSums, slices: int) -> SliceSums:
    """The sums with room for that many slices; a copy unless they had it."""
    known = len(sums.loss_S)
    if 0 < slices <= known:
        return sums
    more = max(slices, known) - known
    return SliceSums(
        np.pad(sums.loss_S, (0, more)),
        np.pad(sums.predicted_S, (0, more)),
        np.pad(sums.counts_S2, ((0, more), (0, 0))),
        np.pad(sums.weights_SK, ((0, more), (0, 0))),
        sums.curve_C.copy(),
    )


def _total(first: SliceSums, second: SliceSums) -> SliceSums:
    slices = max(len(first.loss_S), len(second.loss_S))
    first, second = _grown(first, slices), _grown(second, slices)
    return SliceSums(
        first.loss_S + second.loss_S,
        first.predicted_S + second.predicted_S,
        first.counts_S2 + second.counts_S2,
        first.weights_SK + second.weights_SK,
        first.curve_C + second.curve_C,
    )


@kernel
def _add_up(
    loss_S: F64,
    predicted_S: F64,
    counts_S2: I64,
    weights_SK: F64,
    curve_C: F64,
    slices_fB: I64,
    z_B: F64,
    labels_B: F64,
    weights_B: F64 | None,
) -> None:
    """Adds samples to the sums in place; each belongs to one slice of each field, and to the slice of all samples."""
    for sample in range(len(z_B)):
        z = z_B[sample]
        weight = 1.0 if weights_B is None else weights_B[sample]
        loss, predicted = loss_and_prediction(z, labels_B[sample])
        loss *= weight
        predicted *= weight
        of_class = int(labels_B[sample] > 0.5)
        share = min(max((z + LIMIT) / (2 * LIMIT), 0.0), 1.0 - 1e-12)
        bin_of_class = of_class * BINS + int(share * BINS)
        for field in range(len(slices_fB)):
            slice_ = slices_fB[field, sample]
            loss_S[slice_] += loss
            predicted_S[slice_] += predicted
            counts_S2[slice_, of_class] += 1
            weights_SK[slice_, bin_of_class] += weight
        at = int(share * CURVE_BINS)
        curve_C[at] += 1.0
        curve_C[CURVE_BINS + at] += weight
        curve_C[2 * CURVE_BINS + at] += weight * labels_B[sample]
        curve_C[3 * CURVE_BINS + at] += predicted
