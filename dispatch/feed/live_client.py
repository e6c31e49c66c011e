"""Tells a dispatcher what a server serves, and hears of new snapshots, for as long as the server runs."""

from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

import numpy as np
import structlog
import zmq
from numpy.typing import NDArray

from dispatch.feed.protocol import (
    FEED,
    MOST_QUESTION_BYTES,
    Live,
    Newest,
    QuestionArrays,
    ScoreArrays,
    Scores,
)
from infra.base.errors import ConfigError, WireError
from infra.base.wire import Codec, Curve, Refused, connected, receive, send

ANSWER_SECONDS = 3.0
"""longer than the dispatcher keeps a server waiting that knows the newest snapshot"""


class ScoredQuestion(NamedTuple):
    """The answer to a question, and by which snapshot."""

    probabilities_B: NDArray[np.float32]
    timeline: int
    step: int
    checkpoint: int


Scorer = Callable[[int, QuestionArrays], ScoredQuestion | None]
"""Scores so many samples; None: it cannot."""


class LiveClient:
    """One server's connection to the dispatcher of a run; not to be used by two threads at a time.

    A dispatcher that is restarted is found again, at another endpoint once ``move`` says so: after each missing answer
    the connection is made anew, so that no late answer is taken for that to a later message.
    """

    def __init__(self, endpoint: str, run: str, curve: Curve | None, name: str, score: Scorer | None = None) -> None:
        """score: answers the dispatcher's questions; None: they go to other servers."""
        self._endpoint = endpoint
        self._run = run
        self._curve = curve
        self.name = name
        self._score = score
        self._requests = Codec(*FEED.requests)
        self._answers = Codec(*FEED.answers)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None
        self._told = ""
        """the last refusal that was logged"""

    def live(self, timeline: int, step: int, checkpoint: int, at_seconds: float, known: int = 0) -> Live:
        """What this server serves, and since when; known: the newest checkpoint that it has heard of."""
        at: dict[str, Any] = {"run": self._run, "generation": -1, "step": step}
        at |= {"at_seconds": at_seconds, "name": self.name, "known": known, "can_score": self._score is not None}
        return Live(**at, timeline=timeline, checkpoint=checkpoint)

    def report(self, live: Live, timeout_seconds: float = ANSWER_SECONDS) -> Newest | None:
        """Sends what is served; returns the newest snapshot once it is newer than what the server knows.

        The dispatcher answers within a second in any case. None: it did not answer, or refused. A question that comes
        with its answer is answered first.
        """
        deadline = monotonic() + timeout_seconds
        try:
            socket = self._socket = self._socket or self._connect()
        except ConfigError as error:
            self._log(str(error))
            return None
        if send(socket, self._requests, live) and socket.poll(int(1000 * max(0.0, deadline - monotonic()))):
            try:
                answer, arrays = receive(socket, self._answers)
            except WireError as error:
                self._log(str(error))
            else:
                if isinstance(answer, Newest):
                    self._answer(socket, answer, arrays)
                    return answer
                self._log(answer.reason if isinstance(answer, Refused) else type(answer).__name__)
        self._disconnect()
        return None

    def move(self, endpoint: str) -> None:
        """The dispatcher is to be found there from now on."""
        if endpoint != self._endpoint:
            self._endpoint = endpoint
            self._disconnect()

    def close(self) -> None:
        self._disconnect()
        self._context.term()

    def _answer(self, socket: "zmq.Socket[bytes]", newest: Newest, asked: QuestionArrays) -> None:
        if not newest.question or self._score is None or (scored := self._score(newest.samples, asked)) is None:
            return
        at: dict[str, Any] = {"run": self._run, "generation": -1, "step": scored.step}
        scores = Scores(
            **at, question=newest.question, timeline=scored.timeline, checkpoint=scored.checkpoint, name=self.name
        )
        send(
            socket, self._requests, scores, ScoreArrays(scored.probabilities_B)
        )  # one that is not sent is not waited for

    def _connect(self) -> "zmq.Socket[bytes]":
        return connected(self._context, self._endpoint, self._curve, {zmq.MAXMSGSIZE: MOST_QUESTION_BYTES})

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _log(self, reason: str) -> None:
        if reason != self._told:
            self._told = reason
            hint = "the dispatcher does not take what this server says"
            structlog.get_logger().warning(hint, endpoint=self._endpoint, reason=reason)
