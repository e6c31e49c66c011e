"""Compiles what adds up quality and drift, before a step waits for it."""

import numpy as np

from dispatch.progress.drift import Drift, DriftTerms
from dispatch.progress.over_time import OverTime
from dispatch.progress.prequential import Prequential
from ingest.samples import Samples
from ingest.schema import KeyTable, Schema

SCHEMA = Schema(name="made-up", tables=(KeyTable(name="key"),))


def warm_up_quality() -> None:
    """Adds a sample without a weight, and one with a weight."""
    one = np.ones(1, np.float32)
    for weights_B in (None, one):
        samples = Samples(one, np.empty((1, 0), np.float32), np.ones((1, 1), np.uint64), np.zeros(1), weights_B)
        Prequential().add(one, one, weights_B)
        OverTime({}, 0, 1).add(1, samples, one)
        Drift(DriftTerms(label_change=1.0, field_change=0.0, window_samples=2), SCHEMA).add(1, samples)
