"""Reports to a dispatcher what a server serves, and receives news of snapshots, as long as the server runs."""

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
"""How long to wait for an answer; longer than the dispatcher holds a server that knows the newest snapshot."""


class ScoredQuestion(NamedTuple):
    """The answer to a question, and the snapshot that produced it."""

    probabilities_B: NDArray[np.float32]
    timeline: int
    step: int
    checkpoint: int


Scorer = Callable[[int, QuestionArrays], ScoredQuestion | None]
"""Scores this many samples; returns None if it cannot."""


class LiveClient:
    """One server's connection to the dispatcher of a run; not for use by two threads at a time.

    It finds a restarted dispatcher again, at another endpoint after a call of ``move``. After each missing answer it
    reconnects, so that no late answer is taken for the answer to a later message.
    """

    def __init__(self, endpoint: str, run: str, curve: Curve | None, name: str, score: Scorer | None = None) -> None:
        """score: answers the dispatcher's questions; None: other servers are asked."""
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
        """The last refusal that was logged."""

    def live(self, timeline: int, step: int, checkpoint: int, at_seconds: float, known: int = 0) -> Live:
        """Builds the message that says what this server serves, and since when.

        known: the newest checkpoint that it has heard of.
        """
        at: dict[str, Any] = {"run": self._run, "generation": -1, "step": step}
        at |= {"at_seconds": at_seconds, "name": self.name, "known": known, "can_score": self._score is not None}
        return Live(**at, timeline=timeline, checkpoint=checkpoint)

    def report(self, live: Live, timeout_seconds: float = ANSWER_SECONDS) -> Newest | None:
        """Sends what is served; returns the newest snapshot as soon as it is newer than what the server knows.

        The dispatcher answers within a second in any case. None: it did not answer, or refused. If its answer contains
        a question, that is answered first.
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
        """Sets a new endpoint of the dispatcher."""
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
        # The result of send is not used: if the answer cannot be sent, the dispatcher asks another server.
        send(socket, self._requests, scores, ScoreArrays(scored.probabilities_B))

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
