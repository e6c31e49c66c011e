"""Answers the dispatcher's questions: how the served snapshot scores the newest samples.

The dispatcher judges the next snapshot by the answer (``dispatch/checkpoints/gate.py``). Samples arrive as keys and
dense inputs, without labels, which are not needed here. A question is scored by one copy of the model, which requests
read at the same time. It is scored in slices, so that its thread never keeps the interpreter lock for long.
"""

import time

import numpy as np
import structlog

from dispatch.feed.live_client import ScoredQuestion
from dispatch.feed.protocol import QuestionArrays
from infra.base.telemetry import Meter
from ingest.samples import Samples
from serving.copies import Copies
from serving.engine import predict_in_slices
from serving.errors import NothingServed

SLICE_SAMPLES = 256


class QuestionScorer:
    """Implements dispatch.feed.live_client.Scorer; used by one thread."""

    def __init__(self, copies: Copies, meter: Meter) -> None:
        self._copies = copies
        self._meter = meter
        self._log = structlog.get_logger()

    def __call__(self, samples: int, asked: QuestionArrays) -> ScoredQuestion | None:
        """None before the first snapshot, and if the samples do not fit this model or cannot be scored."""
        fields = self._copies.spec.fields
        dense = self._copies.spec.dense
        shares = sum(pool.values for pool in self._copies.spec.pools)
        sizes = asked.keys.size, asked.dense.size, asked.shares.size
        if not samples or sizes != (samples * fields, samples * dense, samples * shares):
            found = {"samples": samples, "keys": sizes[0], "dense": sizes[1], "shares": sizes[2]}
            self._log.warning("samples of another schema are not scored; serve with the settings of the run", **found)
            return None
        question = Samples(
            labels_B=np.zeros(samples, np.float32),
            dense_BN=asked.dense.reshape(samples, dense),
            keys_BF=asked.keys.reshape(samples, fields),
            times_B=np.zeros(samples),
            shares_BP=asked.shares.reshape(samples, shares) if shares else None,
        )
        began = time.perf_counter()
        try:
            with self._copies.reading() as (copy, manifest):
                probabilities_B = predict_in_slices(copy, question, SLICE_SAMPLES)[:, 0]
        except NothingServed:
            return None
        except (RuntimeError, MemoryError) as error:  # torch raises RuntimeError, for example without memory
            self._log.warning("samples could not be scored", reason=str(error))
            return None
        self._meter.observe("serving_score", time.perf_counter() - began)
        return ScoredQuestion(probabilities_B, manifest.timeline, manifest.step, manifest.number)
