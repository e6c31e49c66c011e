"""The prediction to compare a model with: the click rate of the events before."""

import numpy as np
from numpy.typing import NDArray

from dispatch.progress.quality import Quality

FIRST_CLICKS = 0.5
"""Clicks and non-clicks that are assumed before the first event, so that no prediction is 0 or 1."""


def constant_quality(labels_B: NDArray[np.float32], later: int) -> tuple[Quality, Quality]:
    """The quality of predicting the rate so far, over all events and from ``later`` on; it ranks nothing."""
    counts_B = np.arange(len(labels_B))
    clicks_B = np.cumsum(labels_B, dtype=np.float64) - labels_B
    rates_B = (clicks_B + FIRST_CLICKS) / (counts_B + 2 * FIRST_CLICKS)
    losses_B = -np.where(labels_B > 0, np.log(rates_B), np.log1p(-rates_B))
    return _quality(labels_B, losses_B, rates_B), _quality(labels_B[later:], losses_B[later:], rates_B[later:])


def _quality(labels_B: NDArray[np.float32], losses_B: NDArray[np.float64], rates_B: NDArray[np.float64]) -> Quality:
    if not len(labels_B):
        return Quality()
    predicted = float(rates_B.sum())
    return Quality(
        samples=len(labels_B),
        clicks=int(labels_B.sum()),
        logloss=float(losses_B.mean()),
        predicted_clicks=predicted,
        calibration=predicted / max(float(labels_B.sum()), 1.0),
    )
