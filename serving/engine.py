"""Answers requests in batches: the requests that arrive while a batch is computed form the next one.

One thread computes. If no request is waiting, a new one is answered at once, so an idle server adds no delay; under
load, requests are combined, up to ``batch_samples``. A larger request is answered alone, in slices, from one snapshot.
"""

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from infra.base.telemetry import Meter
from ingest.samples import Samples, join_samples
from ps.checkpoints.manifest import CheckpointManifest
from serving.copies import Copies, ModelCopy


class Predicted(NamedTuple):
    """The answer to one request."""

    probabilities_BM: NDArray[np.float32]
    """The probability of each label for each sample."""
    manifest: CheckpointManifest
    """Manifest of the checkpoint that answered."""

    @property
    def probabilities_B(self) -> NDArray[np.float32]:  # noqa: N802 (shape letters)
        """Those of the main label."""
        return self.probabilities_BM[:, 0]


class WaitingRequest(NamedTuple):
    """A request that has not been answered yet."""

    samples: Samples
    answered: "Future[Predicted]"


class Engine:
    """The thread that computes predictions."""

    def __init__(self, copies: Copies, batch_samples: int, meter: Meter) -> None:
        self._copies = copies
        self._most = batch_samples
        self._meter = meter
        self._waiting: deque[WaitingRequest] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="predict", daemon=True)
        self._thread.start()

    def submit(self, samples: Samples) -> "Future[Predicted]":
        """Queues a request; its future fails with NothingServed before the first snapshot."""
        asked = WaitingRequest(samples, Future())
        with self._changed:
            self._waiting.append(asked)
            self._changed.notify()
        return asked.answered

    def close(self) -> None:
        """Answers all waiting requests, and ends the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while batch := self._next_requests():
            self._answer([asked for asked in batch if asked.answered.set_running_or_notify_cancel()])

    def _next_requests(self) -> list[WaitingRequest]:
        """Waits for requests, and returns those to be answered together; empty when the thread should end."""
        batch: list[WaitingRequest] = []
        room = self._most
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            while self._waiting and (not batch or len(self._waiting[0].samples) <= room):
                batch.append(self._waiting.popleft())
                room -= len(batch[-1].samples)
        return batch

    def _answer(self, batch: Sequence[WaitingRequest]) -> None:
        if not batch:
            return
        try:
            samples = join_samples([asked.samples for asked in batch])
            with self._copies.reading() as (copy, manifest):
                probabilities_BM = predict_in_slices(copy, samples, self._most)
        except Exception as error:  # the edge of the thread: the error goes to whoever waits for the answer
            for asked in batch:
                asked.answered.set_exception(error)
            return
        start = 0
        for asked in batch:
            end = start + len(asked.samples)
            asked.answered.set_result(Predicted(probabilities_BM[start:end], manifest))
            start = end
        self._meter.count("serving_predictions", len(samples))
        self._meter.count("serving_batches")


def predict_in_slices(copy: ModelCopy, samples: Samples, most: int) -> NDArray[np.float32]:
    """The probability of each label for each sample, computed in slices of at most ``most`` samples."""
    if len(samples) <= most:
        return copy.predict_labels(samples)
    starts = range(0, len(samples), most)
    return np.concatenate([copy.predict_labels(samples.slice(at, at + most)) for at in starts])
