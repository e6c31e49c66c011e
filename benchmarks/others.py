"""One pass of another program over the samples of a file, predict-then-train, to compare with: what you might use
instead.

It gets the keys that Freshet's samples have, without those of crosses, and the dense floats.
"""

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.clicks import read_samples
from benchmarks.quality import QualityResult
from dispatch.progress.prequential import Prequential
from dispatch.progress.quality import Quality
from dispatch.progress.status import KeyCounts
from infra.base.process import Stop
from ingest.samples import Samples
from ingest.schema import load_schema, without_crosses

Learn = Callable[[Samples], NDArray[np.float32]]
"""Learns from samples one after the other; returns the logit of each, predicted before it was learnt from."""
LEAST = 1e-9
"""Probabilities are kept that far from 0 and 1."""


class Other(NamedTuple):
    """Another program, ready to learn."""

    name: str
    learn: Learn


class LearntPass(NamedTuple):
    """The quality of one pass."""

    whole: Quality
    later: Quality
    """Of the samples from a certain one on."""
    seconds: float


def run_other(other: Other, file: Path, dataset: str, last: int, stop: Stop) -> QualityResult:
    """Trains once on the file. last: how many samples count as the second half, which begins with a batch of the run
    that it is compared with.
    """
    parts = list(read_samples(dataset, file, without_crosses(load_schema(dataset))))
    learnt = learn_pass(parts, sum(map(len, parts)) - last, other.learn, stop)
    return QualityResult(
        file=file.name,
        samples=learnt.whole.samples,
        batch=1,
        workers=1,
        model=other.name,
        policy="-",
        seconds=learnt.seconds,
        samples_per_second=learnt.whole.samples / learnt.seconds,
        keys=KeyCounts(),
        overall=learnt.whole,
        second_half=learnt.later,
    )


def learn_pass(parts: Iterable[Samples], later: int, learn: Learn, stop: Stop) -> LearntPass:
    """Trains once on samples without crosses. later: the first sample that counts as later."""
    whole = Prequential()
    rest = Prequential()
    began = time.monotonic()
    seen = 0
    for part in parts:
        if stop.requested:
            break
        logits_B = learn(part)
        half = min(max(later - seen, 0), len(part))
        whole.add(logits_B, part.labels_B)
        rest.add(logits_B[half:], part.labels_B[half:])
        seen += len(part)
    return LearntPass(whole.overall(), rest.overall(), time.monotonic() - began)


def logit_of(probability: float) -> float:
    kept = min(max(probability, LEAST), 1 - LEAST)
    return math.log(kept / (1 - kept))
