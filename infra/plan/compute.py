"""How long a worker computes for a number of samples: measured here, or given.

The measurement runs the plain training loop (trainer/reference.py) on the sample's own batches, on the device that the
settings name: forward, backward, and the update of rows and dense weights.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from dispatch.placement.rows.index import Index
from infra.base.distinct import number_keys
from infra.run.figures import count
from infra.run.plain_loop import reference_of
from infra.run.settings import Settings, threads_of
from ingest.samples import Samples
from trainer.rows import float_type
from trainer.worker import choose_device

WARM_ROUNDS = 2
LEAST_ROUNDS = 4
MOST_ROUNDS = 40
MEASURED_SECONDS = 2.0
"""Time after which no further round begins."""


@dataclass(frozen=True)
class ComputeCurve:
    """Seconds of compute by number of samples, with linear interpolation."""

    samples: tuple[int, ...]
    """Numbers of samples, ascending, from 0."""
    seconds: tuple[float, ...]
    where: str
    """What was measured, or that it was given."""

    def of(self, samples: int) -> float:
        """Beyond the largest number the time per sample stays the same."""
        if samples > self.samples[-1]:
            return self.seconds[-1] * samples / self.samples[-1]
        return float(np.interp(samples, self.samples, self.seconds)) if samples else 0.0


def given_compute(ms_per_1000: float) -> ComputeCurve:
    """Compute in proportion to the samples."""
    return ComputeCurve((0, 1000), (0.0, ms_per_1000 / 1000), f"{ms_per_1000:g} ms per 1,000 samples, as given")


def measure_compute(settings: Settings, batches: Sequence[Samples], sizes: Sequence[int]) -> ComputeCurve:
    """The fastest of some batches of each size, taken from the sample's: anything else that runs here only slows them
    down.

    Sizes take turns, so that a busy moment affects all of them.
    """
    device = choose_device(settings.trainer)
    threads = threads_of(settings)
    wanted = sorted(set(sizes))
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rounds = [*_timed_rounds(_Loop(settings, device), batches, wanted)]
    finally:
        torch.set_num_threads(before)
    times = [min(each) for each in zip(*(rounds[WARM_ROUNDS:] or rounds), strict=True)]
    on = f"measured here on {device.type}" + (f", {count(threads, 'thread')}" if device.type == "cpu" else "")
    return ComputeCurve((0, *wanted), (_fixed_part(wanted, times), *times), on)


def _timed_rounds(loop: "_Loop", batches: Sequence[Samples], sizes: Sequence[int]) -> Iterator[list[float]]:
    """Seconds of each size, round after round, as long as there is time."""
    began = time.perf_counter()
    for number in range(MOST_ROUNDS):
        batch = batches[number % len(batches)]
        yield [loop.time(batch.slice(0, size)) for size in sizes]
        if number >= LEAST_ROUNDS and time.perf_counter() - began > MEASURED_SECONDS:
            return


class _Loop:
    """The plain training loop, timed."""

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self._reference = reference_of(settings, device)
        self._index = Index()
        self._device = device
        self._dtype = float_type(settings.scaled_rows)

    def time(self, part: Samples) -> float:
        """Seconds of one step on these samples, without creating rows that are seen for the first time."""
        rows = self._index.resolve(number_keys(np.ascontiguousarray(part.keys_BF)))
        self._reference.grow(np.ascontiguousarray(rows.new_keys))
        rows_BF = torch.from_numpy(rows.rows_U[rows.local_BF]).to(self._device)
        dense_BN = self._tensor(part.dense_BN)
        labels_B = self._tensor(part.labels_B)
        optional = [
            None if array is None else self._tensor(array)
            for array in (part.weights_B, part.shares_BP, part.more_labels_BL)
        ]
        began = time.perf_counter()
        # ends with a copy of the logits, which waits for a GPU
        self._reference.train(rows_BF, dense_BN, labels_B, *optional)
        return time.perf_counter() - began

    def _tensor(self, array: NDArray[np.float32]) -> torch.Tensor:
        return torch.from_numpy(array.copy()).to(self._device, self._dtype)


def _fixed_part(sizes: Sequence[int], times: Sequence[float]) -> float:
    """The intercept of the line through the two smallest sizes; 0 for a single size."""
    if len(sizes) < 2:
        return 0.0
    slope = max(0.0, (times[1] - times[0]) / (sizes[1] - sizes[0]))
    return max(0.0, times[0] - slope * sizes[0])
