"""How long a worker computes for so many samples: measured here, or given.

What is measured is the plain training loop (trainer/reference.py) on the sample's own batches, on the device that the
settings name: forward, backward, and the change of rows and dense weights.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dispatch.rows.index import Index
from infra.run.cluster import threads_of
from infra.run.figures import count
from infra.run.settings import Settings
from ingest.samples import Samples
from trainer.reference import Reference
from trainer.worker import choose_device

WARM_BATCHES, TIMED_BATCHES = 2, 8


@dataclass(frozen=True)
class ComputeCurve:
    """Seconds of compute by number of samples; between two numbers a straight line."""

    samples: tuple[int, ...]
    """ascending, from 0"""
    seconds: tuple[float, ...]
    where: str
    """what was measured, or that it was given"""

    def of(self, samples: int) -> float:
        """Beyond the largest number as much a sample as up to there."""
        if samples > self.samples[-1]:
            return self.seconds[-1] * samples / self.samples[-1]
        return float(np.interp(samples, self.samples, self.seconds)) if samples else 0.0


def given_compute(ms_per_1000: float) -> ComputeCurve:
    """In proportion to the samples."""
    return ComputeCurve((0, 1000), (0.0, ms_per_1000 / 1000), f"{ms_per_1000:g} ms per 1,000 samples, as given")


def measure_compute(settings: Settings, batches: Sequence[Samples], sizes: Sequence[int]) -> ComputeCurve:
    """The fastest of a few batches of each size, cut out of the sample's batches: others of this machine disturb it."""
    device, threads = choose_device(settings.trainer), threads_of(settings)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        times = [_measure(settings, batches, size, device) for size in sorted(set(sizes))]
    finally:
        torch.set_num_threads(before)
    on = f"measured here on {device.type}" + (f", {count(threads, 'thread')}" if device.type == "cpu" else "")
    return ComputeCurve((0, *sorted(set(sizes))), (_fixed_part(sorted(set(sizes)), times), *times), on)


def _fixed_part(sizes: Sequence[int], times: Sequence[float]) -> float:
    """Where the line through the two smallest sizes begins; 0 for a single size."""
    if len(sizes) < 2:
        return 0.0
    slope = max(0.0, (times[1] - times[0]) / (sizes[1] - sizes[0]))
    return max(0.0, times[0] - slope * sizes[0])


def _measure(settings: Settings, batches: Sequence[Samples], size: int, device: torch.device) -> float:
    schema = settings.event_schema
    reference = Reference(settings.scaled_rows, settings.model, schema.fields, schema.dense, settings.seed, device)
    index, times = Index(), []
    for batch in batches[: WARM_BATCHES + TIMED_BATCHES]:
        part = batch.slice(0, size)
        rows = index.resolve(np.ascontiguousarray(part.keys_BF))
        reference.grow(np.ascontiguousarray(rows.new_keys))
        rows_BF = torch.from_numpy(rows.rows_U[rows.local_BF]).to(device)
        dense_BN, labels_B = (torch.from_numpy(array.copy()).to(device) for array in (part.dense_BN, part.labels_B))
        dtype = torch.float64 if settings.rows.float_dtype == "float64" else torch.float32
        began = time.perf_counter()
        reference.train(rows_BF, dense_BN.to(dtype), labels_B.to(dtype))  # its logits are copied, which waits for it
        times.append(time.perf_counter() - began)
    return min(times[WARM_BATCHES:] or times)
