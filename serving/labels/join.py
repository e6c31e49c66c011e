"""Joins labels to predictions by id, in memory: how a prediction, a label and the passing of time change the state.

A label counts if its event was appended within the window after the prediction. The label of a prediction is missing
once all events up to the end of its window have been read. A label may be read before its prediction is in the log,
because the log is written after the answer is sent; such a label is kept for a while.
"""

from itertools import islice

from serving.labels.predictions import Prediction
from serving.labels.state import EarlyLabel, JoinState, WaitingPrediction
from serving.labels.sums import MISSING, LabelSums, add_to_windows, score

MOST_WAITING = 250_000
"""Predictions in memory, labelled or not; above this number the oldest are forgotten."""
MOST_EARLY = 10_000
GRACE_MS = 30_000
"""How long a label waits for its prediction, and how long after its window a prediction still waits for a label."""


class LabelJoin:
    """Changes the state, and nothing else."""

    def __init__(
        self, state: JoinState, window_ms: int, most_waiting: int = MOST_WAITING, negative_weight: float = 1.0
    ) -> None:
        """negative_weight: what a label 0 counts, for those that are missing from the events."""
        self.state = state
        self._negative_weight = negative_weight
        self._window_ms = window_ms
        self._most = most_waiting

    def add_prediction(self, made: Prediction) -> None:
        state = self.state
        if made.id in state.waiting:
            state.counts.repeated += 1
            return
        state.counts.predictions += 1
        state.waiting[made.id] = WaitingPrediction(made.at_ms, made.probability, made.timeline, made.step)
        if (early := state.early.pop(made.id, None)) is not None:
            self.add_label(made.id, early.label, early.at_ms, early.seen_ms)
        for oldest in list(islice(state.waiting, max(0, len(state.waiting) - self._most))):
            state.counts.forgotten += not state.waiting.pop(oldest).is_labelled

    def add_label(self, name: str, label: int, at_ms: int, now_ms: int) -> None:
        """``at_ms`` is when the label's event was appended."""
        state = self.state
        found = self.state.waiting.get(name)
        if found is None and name not in state.early:
            state.early[name] = EarlyLabel(label, at_ms, now_ms)
            if len(state.early) > MOST_EARLY:
                self._drop_early(next(iter(state.early)))
        elif found is None or found.is_labelled:
            state.counts.duplicates += 1
        elif at_ms > found.at_ms + self._window_ms:
            state.counts.unknown += 1
        else:
            found.is_labelled = True
            self._add(found, score(found.probability, label, self._negative_weight))

    def pass_time(self, read_ms: int, now_ms: int) -> None:
        """Gives up labels and predictions that waited too long; all events up to ``read_ms`` have been read."""
        state = self.state
        while state.waiting:
            oldest, found = next(iter(state.waiting.items()))
            if found.at_ms + self._window_ms + GRACE_MS >= read_ms:
                break
            del state.waiting[oldest]
            if not found.is_labelled:
                self._add(found, MISSING)
        while state.early:
            first, early = next(iter(state.early.items()))
            if early.seen_ms + GRACE_MS >= now_ms:
                break
            self._drop_early(first)

    def _add(self, found: WaitingPrediction, sums: LabelSums) -> None:
        self.state.total = self.state.total.plus(sums)
        add_to_windows(self.state.windows, (found.timeline, found.step), sums)

    def _drop_early(self, name: str) -> None:
        del self.state.early[name]
        self.state.counts.unknown += 1
