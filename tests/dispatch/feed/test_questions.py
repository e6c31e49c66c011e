"""Questions to servers, over real sockets and on a clock of the test."""

import threading
from concurrent.futures import Future

import numpy as np
import pytest

from dispatch.checkpoints.reference import ReferenceAnswer
from dispatch.feed import questions as questions_module
from dispatch.feed.audience import Audience
from dispatch.feed.live_client import LiveClient, ScoredQuestion
from dispatch.feed.protocol import Live, QuestionArrays, Scores
from dispatch.feed.questions import IGNORED_SECONDS, NEXT_SECONDS, OpenQuestion, Questions
from dispatch.journal.run import RunJournal
from ingest.samples import Samples
from tests.dispatch.feed.test_live import RUN, journal, serving

__all__ = ["journal"]
SAMPLES = Samples(
    labels_B=np.zeros(3, np.float32),
    dense_BN=np.arange(6, dtype=np.float32).reshape(3, 2),
    keys_BF=np.arange(12, dtype=np.uint64).reshape(3, 4),
    times_B=np.zeros(3),
)


def live(name: str, checkpoint: int = 4, can_score: bool = True) -> Live:
    at = {"run": RUN, "generation": -1, "step": 20}
    return Live(**at, timeline=0, checkpoint=checkpoint, at_seconds=0.0, name=name, can_score=can_score)  # type: ignore[arg-type]


def scores(question: int) -> Scores:
    return Scores(run=RUN, generation=-1, step=20, question=question, timeline=0, checkpoint=4, name="a")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr(questions_module, "monotonic", lambda: clock[0])
    return clock


def test_a_server_that_waits_is_asked_and_says_which_snapshot_has_scored(journal: RunJournal) -> None:
    asked: list[tuple[int, QuestionArrays]] = []

    def score(samples: int, arrays: QuestionArrays) -> ScoredQuestion:
        asked.append((samples, arrays))
        return ScoredQuestion(np.array([0.1, 0.2, 0.3], np.float32), timeline=0, step=20, checkpoint=4)

    audience, is_over = Audience(), threading.Event()
    with serving(journal, audience) as endpoint:
        client = LiveClient(endpoint, RUN, None, "a", score)

        def follow() -> None:
            while not is_over.is_set():
                client.report(client.live(0, 20, 4, 0.0))

        thread = threading.Thread(target=follow)
        thread.start()
        while not audience.take_reports():
            pass
        answer = audience.questions.ask(SAMPLES)
        assert answer is not None
        found = answer.result(60)
        is_over.set()
        thread.join()
        client.close()
    assert (found.checkpoint, found.step, found.probabilities_B.tolist()) == (4, 20, pytest.approx([0.1, 0.2, 0.3]))
    ((samples, arrays),) = asked
    assert samples == 3
    assert arrays.keys.tolist() == list(range(12))
    assert arrays.dense.tolist() == list(range(6))


def asked_of_a(questions: Questions) -> "tuple[Future[ReferenceAnswer], OpenQuestion]":
    """A question that server a has, and its answer."""
    questions.hear(live("a"))
    answer, question = questions.ask(SAMPLES), questions.take_question(live("a"))
    assert answer is not None
    assert question is not None
    return answer, question


@pytest.mark.parametrize("told", [None, live("a", checkpoint=0), live("a", can_score=False)])
def test_nobody_is_asked_where_nobody_can_answer(told: Live | None) -> None:
    questions = Questions()
    if told is not None:
        questions.hear(told)
        assert questions.take_question(told) is None
    assert questions.ask(SAMPLES) is None


def test_a_question_goes_to_one_server_and_to_the_next_if_that_is_silent(now: list[float]) -> None:
    questions = Questions()
    for name in ("a", "b"):
        questions.hear(live(name))
    answer = questions.ask(SAMPLES)
    first = questions.take_question(live("a"))
    assert first is not None
    assert questions.take_question(live("a")) is None
    assert questions.take_question(live("b")) is None
    now[0] += NEXT_SECONDS
    second = questions.take_question(live("b"))
    assert second is first
    assert questions.answer(scores(first.number), np.full(3, 0.5, np.float32)) is None
    assert answer is not None
    assert answer.result(0).checkpoint == 4
    assert questions.take_question(live("c")) is None


def test_a_server_that_has_not_answered_is_left_alone_for_a_while(now: list[float]) -> None:
    questions = Questions()
    unanswered, late = asked_of_a(questions)
    assert questions.ask(SAMPLES) is None
    questions.answer(scores(late.number), np.full(3, 0.5, np.float32))
    assert not unanswered.done()
    now[0] += IGNORED_SECONDS + 0.1
    asked_of_a(questions)


@pytest.mark.parametrize("values", [[0.5, 0.5], [0.5, 0.5, 1.5], [0.5, 0.5, np.nan]])
def test_an_answer_that_is_none_is_refused_with_its_reason(values: list[float]) -> None:
    questions = Questions()
    answer, question = asked_of_a(questions)
    reason = questions.answer(scores(question.number), np.array(values, np.float32))
    assert reason is not None
    assert "from server 'a'; expected 3, each from 0 to 1" in reason
    assert not answer.done()


def test_an_answer_to_an_earlier_dispatcher_fits_no_question() -> None:
    assert len({asked_of_a(Questions())[1].number for _ in range(3)}) == 3
