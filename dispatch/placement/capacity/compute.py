"""How long workers compute: a fixed part of every step, and a part per sample.

The two are separated if a worker's samples vary from step to step: a line is fitted to the latest steps, in which older
ones count less and less. While samples hardly vary, the fixed part keeps its last known share of the whole; it is 0 at
first.

Legend: n workers.
"""

from collections import deque
from statistics import median

import numpy as np

from dispatch.placement.arrays import F64

DAMPING = 0.2
"""Weight of the newest step."""
FAR_SLOWER = 3.0
"""A worker that takes this many times its fastest step, alone and lately, has lost a part of its processor."""
RECENT_ALONE = 5
"""Steps of a worker alone, since its fastest one, of which the median counts as lately: single steps take many times as
long as others, and the first ones take longer than those after them.
"""
VARIED = 0.25
"""Standard deviation of a worker's samples, as a share of their mean, above which the line is trusted."""


class ComputeTimes:
    """Seconds of compute by worker; all 0 until they are measured."""

    def __init__(self, workers: int) -> None:
        self._samples_n = np.zeros(workers)
        self._seconds_n = np.zeros(workers)
        self._variance_n = np.zeros(workers)
        self._covariance_n = np.zeros(workers)
        self._fixed_share_n = np.zeros(workers)
        self._least_sample_n = np.full(workers, np.inf)
        self._alone_samples = [deque[float](maxlen=RECENT_ALONE) for _ in range(workers)]

    def add(self, worker: int, samples: int, seconds: float, is_alone: bool = False) -> None:
        """Adds one step of a worker that had samples. is_alone: no other one had."""
        if not self._samples_n[worker]:
            self._samples_n[worker], self._seconds_n[worker] = samples, seconds
            return  # the first step takes longer than others
        more = samples - self._samples_n[worker]
        longer = seconds - self._seconds_n[worker]
        self._samples_n[worker] += DAMPING * more
        self._seconds_n[worker] += DAMPING * longer
        self._variance_n[worker] = (1 - DAMPING) * (self._variance_n[worker] + DAMPING * more**2)
        self._covariance_n[worker] = (1 - DAMPING) * (self._covariance_n[worker] + DAMPING * more * longer)
        self._separate(worker)
        if seconds / samples < self._least_sample_n[worker]:
            self._least_sample_n[worker] = seconds / samples
            self._alone_samples[worker].clear()
        elif is_alone:
            self._alone_samples[worker].append(seconds / samples)

    def _separate(self, worker: int) -> None:
        mean = self._samples_n[worker]
        total = self._seconds_n[worker]
        if self._variance_n[worker] > (VARIED * mean) ** 2 and total > 0.0:
            slope = self._covariance_n[worker] / self._variance_n[worker]
            share = min(max(1 - slope * mean / total, 0.0), 1.0)
            self._fixed_share_n[worker] += DAMPING * (share - self._fixed_share_n[worker])

    @property
    def fixed_n(self) -> F64:
        """Seconds of a step that do not depend on its samples."""
        return self._fixed_share_n * self._seconds_n

    @property
    def sample_n(self) -> F64:
        """Seconds that a further sample adds; a worker that has not been measured is assumed to be like the others."""
        known_n = self._samples_n > 0
        sample_n = (1 - self._fixed_share_n) * self._seconds_n / np.where(known_n, self._samples_n, 1.0)
        return np.where(known_n, sample_n, sample_n.sum() / max(1, int(known_n.sum())))

    @property
    def undisturbed_sample_n(self) -> F64:
        """Seconds per sample of a worker alone, including its share of the fixed part: as in its fastest step so far,
        unless it was alone lately and took far longer.

        Workers that share a processor or a GPU slow each other down, so this is a better estimate for one of them
        alone.
        """
        known_n = np.isfinite(self._least_sample_n)
        least = float(self._least_sample_n.min(initial=np.inf))
        fastest_n = np.where(known_n, self._least_sample_n, least if np.isfinite(least) else self.sample_n)
        lately_n = np.array([median(some) if len(some) == RECENT_ALONE else 0.0 for some in self._alone_samples])
        return np.where(lately_n > FAR_SLOWER * fastest_n, lately_n, fastest_n)
