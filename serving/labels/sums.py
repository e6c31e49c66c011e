"""The quality of served predictions: sums over those whose label has arrived, in total and by snapshot."""

import math
from bisect import bisect_left

import msgspec

LEAST_PROBABILITY = 2.0**-24
"""Probabilities are clipped to this distance from 0 and 1: float32 cannot resolve less, and the loss must be finite."""
MOST_WINDOWS = 64
TimelineStep = tuple[int, int]
"""(timeline, step) of a snapshot: the parts of its id that are stored with sums."""


class LabelSums(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over some predictions."""

    labels: int = 0
    """Number of joined labels."""
    clicks: int = 0
    """Number of labels that are 1."""
    loss: float = 0.0
    """Sum of the logloss, by weight."""
    predicted: float = 0.0
    """Sum of the probabilities, by weight."""
    missing: int = 0
    """Predictions whose label has not arrived in time."""
    not_finite: int = 0
    """Predictions that were not finite; the other sums leave them out."""
    extra: float = 0.0
    """What labels weigh in addition to 1 each, because they count for negatives that are missing from the events."""

    def plus(self, other: "LabelSums") -> "LabelSums":
        both = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return LabelSums(**dict(zip(self.__struct_fields__, (a + b for a, b in both), strict=True)))

    @property
    def logloss(self) -> float | None:
        return self.loss / (self.labels + self.extra) if self.labels else None

    @property
    def calibration(self) -> float | None:
        """Predicted clicks divided by clicks; 1 is ideal."""
        return self.predicted / self.clicks if self.clicks else None


MISSING = LabelSums(missing=1)


def score(probability: float, label: int, negative_weight: float = 1.0) -> LabelSums:
    """The sums of one prediction whose label has arrived; negative_weight: what a label 0 counts."""
    if not math.isfinite(probability):
        return LabelSums(not_finite=1)
    clipped = min(max(probability, LEAST_PROBABILITY), 1 - LEAST_PROBABILITY)
    loss = -math.log(clipped) if label else -math.log1p(-clipped)
    weight = 1.0 if label else negative_weight
    return LabelSums(labels=1, clicks=label, loss=weight * loss, predicted=weight * probability, extra=weight - 1)


class SnapshotWindow(msgspec.Struct, frozen=True):
    """Predictions of consecutive snapshots."""

    first: TimelineStep
    last: TimelineStep
    sums: LabelSums


def add_to_windows(windows: list[SnapshotWindow], snapshot: TimelineStep, sums: LabelSums) -> None:
    """Adds to the window of a snapshot, or adds a window; above the limit, merges the two neighbours with the fewest.

    Windows are sorted by snapshot, and do not overlap.
    """
    at = bisect_left(windows, snapshot, key=lambda window: window.last)
    if at < len(windows) and windows[at].first <= snapshot:
        found = windows[at]
        windows[at] = SnapshotWindow(found.first, found.last, found.sums.plus(sums))
        return
    windows.insert(at, SnapshotWindow(snapshot, snapshot, sums))
    if len(windows) > MOST_WINDOWS:
        sizes = [window.sums.labels + window.sums.missing for window in windows[:-1]]  # the newest one is never merged
        left = min(range(len(sizes) - 1), key=lambda place: sizes[place] + sizes[place + 1])
        one, two = windows[left : left + 2]
        windows[left : left + 2] = [SnapshotWindow(one.first, two.last, one.sums.plus(two.sums))]
