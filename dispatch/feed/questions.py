"""Questions to servers: the newest samples, for a server to score with the snapshot that it serves.

Two threads meet here: the dispatcher's loop asks, one question at a time; the socket's thread passes the question to a
waiting server and receives the answer. A server that does not answer is not asked again for a while, and a second
server is asked early enough for its answer to be in time.
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
from infra.base.wire import NO_F32
from ingest.samples import Samples

NEXT_SECONDS = 0.2
"""Time after which another server is asked as well."""
IGNORED_SECONDS = 5.0
"""Time for which a server that did not answer is not asked again."""
ABLE_SECONDS = 10.0
"""Time after its last message for which a server counts as able to answer."""
MOST_SERVERS = 4096
"""Most servers that are remembered by name."""


class OpenQuestion(NamedTuple):
    """One question."""

    number: int
    samples: int
    arrays: QuestionArrays
    answer: "Future[ReferenceAnswer]"
    asked: dict[str, float]
    """Servers that were asked, and when, by the monotonic clock."""


class Questions:
    """The open question, and the servers that can answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The first number is random, so that an answer meant for an earlier dispatcher matches no question.
        self._number = random.getrandbits(60)
        self._open: OpenQuestion | None = None
        self._able: dict[str, float] = {}
        """Servers that have a snapshot, and when each was last heard from."""
        self._ignored: dict[str, float] = {}
        """Servers that have not answered, and until when they are not asked."""

    # ── in the loop ───────────────────────────────────────────────────────────────────────────────────────────────────
    def ask(self, samples: Samples) -> "Future[ReferenceAnswer] | None":
        """Opens a question in place of the one before; returns None if no server can answer."""
        with self._lock:
            now = monotonic()
            self._give_up(now)
            self._able = {name: heard for name, heard in self._able.items() if now - heard <= ABLE_SECONDS}
            self._ignored = {name: until for name, until in self._ignored.items() if until > now}
            if not self._able.keys() - self._ignored.keys():
                return None
            self._number += 1
            shares = NO_F32 if samples.shares_BP is None else samples.shares_BP.reshape(-1)
            arrays = QuestionArrays(samples.keys_BF.reshape(-1), samples.dense_BN.reshape(-1), shares)
            self._open = OpenQuestion(self._number, len(samples), arrays, Future(), {})
            return self._open.answer

    def _give_up(self, now: float) -> None:
        if self._open is not None and not self._open.answer.done():
            self._ignored.update(dict.fromkeys(self._open.asked, now + IGNORED_SECONDS))
        self._open = None

    # ── on the socket's thread ────────────────────────────────────────────────────────────────────────────────────────
    def hear(self, live: Live) -> None:
        """Notes that a server has reported what it serves."""
        with self._lock:
            if live.can_score and live.checkpoint and (live.name in self._able or len(self._able) < MOST_SERVERS):
                self._able[live.name] = monotonic()

    def take_question(self, live: Live) -> OpenQuestion | None:
        """Returns the question that this server is to answer, once per server; None if there is none."""
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
        """Accepts an answer; returns the reason if it is invalid. A late or second answer is simply ignored."""
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
