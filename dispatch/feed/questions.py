"""Questions to servers: the newest samples, for one of them to score with the snapshot that it serves.

Two threads meet here: the dispatcher's loop asks, one question at a time; that of the socket hands a question to a
server that waits, and takes the answer. A server that does not answer is left alone for a while, and a second one is
asked before the answer is too late.
"""

import random
import threading
from concurrent.futures import Future
from time import monotonic
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatch.checkpoints.reference import ReferenceAnswer
from dispatch.feed.protocol import Live, QuestionArrays, Scores
from ingest.samples import Samples

NEXT_SECONDS = 0.2
"""after which another server is asked, too"""
IGNORED_SECONDS = 5.0
"""for which a server is not asked that has not answered"""
ABLE_SECONDS = 10.0
"""after its last message, that a server counts as able to answer"""
MOST_SERVERS = 4096
"""that are remembered by name"""


class OpenQuestion(NamedTuple):
    """One question."""

    number: int
    samples: int
    arrays: QuestionArrays
    answer: "Future[ReferenceAnswer]"
    asked: dict[str, float]
    """servers that have it, and since when, by the monotonic clock"""


class Questions:
    """The question that is open, and who can answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = random.getrandbits(60)  # an answer to a dispatcher that was here before fits no question
        self._open: OpenQuestion | None = None
        self._able: dict[str, float] = {}
        """servers that have a snapshot, and when each was last heard"""
        self._ignored: dict[str, float] = {}
        """servers that have not answered, and until when they are not asked"""

    # ── in the loop ───────────────────────────────────────────────────────────────────────────────────────────────────
    def ask(self, samples: Samples) -> "Future[ReferenceAnswer] | None":
        """Opens a question in place of the one before; None: nobody can answer."""
        with self._lock:
            now = monotonic()
            self._give_up(now)
            self._able = {name: heard for name, heard in self._able.items() if now - heard <= ABLE_SECONDS}
            self._ignored = {name: until for name, until in self._ignored.items() if until > now}
            if not self._able.keys() - self._ignored.keys():
                return None
            self._number += 1
            arrays = QuestionArrays(samples.keys_BF.reshape(-1), samples.dense_BN.reshape(-1))
            self._open = OpenQuestion(self._number, len(samples), arrays, Future(), {})
            return self._open.answer

    def _give_up(self, now: float) -> None:
        if self._open is not None and not self._open.answer.done():
            self._ignored.update(dict.fromkeys(self._open.asked, now + IGNORED_SECONDS))
        self._open = None

    # ── on the socket's thread ────────────────────────────────────────────────────────────────────────────────────────
    def hear(self, live: Live) -> None:
        """A server says what it serves."""
        with self._lock:
            if live.can_score and live.checkpoint and (live.name in self._able or len(self._able) < MOST_SERVERS):
                self._able[live.name] = monotonic()

    def take_question(self, live: Live) -> OpenQuestion | None:
        """The question that this server is to answer; it is handed out once."""
        with self._lock:
            question = self._open
            now = monotonic()
            if question is None or question.answer.done() or not (live.can_score and live.checkpoint):
                return None
            is_late = all(now - since >= NEXT_SECONDS for since in question.asked.values())
            if live.name in question.asked or not is_late or self._ignored.get(live.name, 0.0) > now:
                return None
            question.asked[live.name] = now
            return question

    def answer(self, scores: Scores, probabilities_B: NDArray[np.float32]) -> str | None:
        """Takes an answer; returns why not. One that comes too late, or second, is nobody's fault."""
        with self._lock:
            question = self._open
            if question is None or scores.question != question.number or question.answer.done():
                return None
            if len(probabilities_B) != question.samples or not _are_probabilities(probabilities_B):
                return (
                    f"{len(probabilities_B)} scores from server {scores.name!r}; expected {question.samples}, each "
                    "from 0 to 1; serve with the settings of the run"
                )
            question.answer.set_result(ReferenceAnswer(scores.checkpoint, scores.step, probabilities_B.copy()))
            return None


def _are_probabilities(values_B: NDArray[np.float32]) -> bool:
    return bool(((values_B >= 0) & (values_B <= 1)).all())
