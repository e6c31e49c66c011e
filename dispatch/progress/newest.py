"""The newest trained samples, with the predictions made before training: what a server is asked to score.

Legend: B samples.
"""

from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ingest.samples import Samples, join_samples

MOST_ASKED = 1024
"""Samples of one question: a quarter of a megabyte with 26 keys and 13 dense inputs each."""


class TrainedSamples(NamedTuple):
    """Samples in the order of training."""

    samples: Samples
    logits_B: NDArray[np.float32]
    """Logits of the model before it learnt from them."""


class NewestSamples:
    """Samples trained since the last call of take_all, at most as many as a question holds."""

    def __init__(self) -> None:
        self._parts: deque[TrainedSamples] = deque()
        self._count = 0

    def add(self, samples: Samples, logits_B: NDArray[np.float32]) -> None:
        """Adds a completed step."""
        self._parts.append(TrainedSamples(samples, logits_B))
        self._count += len(samples)
        while self._count - len(self._parts[0].samples) >= MOST_ASKED:
            self._count -= len(self._parts.popleft().samples)

    def take_all(self) -> TrainedSamples | None:
        """Returns them once; None: there are none."""
        if not self._count:
            return None
        samples = join_samples([part.samples for part in self._parts])
        logits_B = np.concatenate([part.logits_B for part in self._parts])
        first = max(0, len(samples) - MOST_ASKED)
        self._parts.clear()
        self._count = 0
        return TrainedSamples(samples.slice(first, len(samples)), logits_B[first:])
