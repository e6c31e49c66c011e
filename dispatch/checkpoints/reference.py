"""Scores of the reference while a server is asked for them: a checkpoint waits for the answer for a short time."""

from concurrent.futures import Future
from time import monotonic
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatch.checkpoints.evidence import scored
from dispatch.checkpoints.gate import ReferenceScores
from dispatch.progress.newest import TrainedSamples

ANSWER_SECONDS = 0.5
"""How long a checkpoint waits at most."""


class ReferenceAnswer(NamedTuple):
    """The answer of one server about all requested samples."""

    checkpoint: int
    """The checkpoint that it serves."""
    step: int
    probabilities_B: NDArray[np.float32]


class PendingScores:
    """A question to servers that is under way."""

    def __init__(self, asked: TrainedSamples, answer: "Future[ReferenceAnswer]") -> None:
        self._asked = asked
        self._answer = answer
        self._until = monotonic() + ANSWER_SECONDS

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self._answer.done() or monotonic() >= self._until

    def scores(self) -> ReferenceScores | None:
        """The scores; None: nobody has answered."""
        if not self._answer.done():
            return None
        answer = self._answer.result()
        logits_B = self._asked.logits_B
        with np.errstate(over="ignore"):
            model_B = (1 / (1 + np.exp(-logits_B))).astype(np.float32)
        clicked_B = self._asked.samples.labels_B > 0.5
        scores = scored(clicked_B, model_B, answer.probabilities_B, self._asked.samples.weights_B)
        return ReferenceScores(scores, answer.checkpoint, answer.step)
