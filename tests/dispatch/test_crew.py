"""Who is in a generation, who is dismissed and when, over real sockets."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import zmq

from dispatch.crew import FRAME_BYTES, Crew
from dispatch.errors import BadReport
from dispatch.protocol import (
    FROM_DISPATCHER,
    TO_DISPATCHER,
    Goodbye,
    Idle,
    Join,
    Leave,
    Report,
    ReportArrays,
    Saved,
    Welcome,
)
from dispatch.tally import NO_SECONDS, PhaseSeconds
from infra.wire import NO_ARRAYS, Arrays, Codec, Header, Refused, connect, receive, send

RUN = "test"
PATIENCE_MILLISECONDS = 30_000


class Person:
    """A worker's socket, driven by hand."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", crew: Crew, name: str, run: str = RUN) -> None:
        self.name, self.run, self.crew = name, run, crew
        self.socket = context.socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 0)
        connect(self.socket, crew.endpoint)

    def tell(self, kind: type[Header], arrays: Arrays = NO_ARRAYS, generation: int = 0, **fields: object) -> object:
        """Sends, and returns what the crew made of it."""
        self.send(kind, arrays, generation, **fields)
        return self.crew.listen(PATIENCE_MILLISECONDS / 1000)

    def send(self, kind: type[Header], arrays: Arrays = NO_ARRAYS, generation: int = 0, **fields: object) -> None:
        send(self.socket, Codec(*TO_DISPATCHER), kind(run=self.run, generation=generation, step=0, **fields), arrays)

    def join(self) -> None:
        self.tell(Join, worker=self.name, store=f"store of {self.name}")

    def leave(self) -> None:
        self.tell(Leave, worker=self.name)

    def report(self, worker: int, generation: int, seconds: PhaseSeconds = NO_SECONDS) -> object:
        common = {
            "phase": 0,
            "worker": worker,
            "seconds": seconds,
            "pulled_bytes": 0,
            "pushed_bytes": 0,
        }
        return self.tell(Report, ReportArrays(np.zeros(1, np.float32)), generation=generation, **common)

    def hear(self) -> object:
        assert self.socket.poll(PATIENCE_MILLISECONDS), f"{self.name} hears nothing"
        return receive(self.socket, Codec(*FROM_DISPATCHER))[0]

    def hear_last(self) -> object:
        """The message after which nothing is left to hear."""
        heard = self.hear()
        while self.socket.poll(100):
            heard = self.hear()
        return heard


@contextmanager
def crew_and(*names: str) -> Iterator[tuple[Crew, list[Person]]]:
    with zmq.Context() as context:
        crew = Crew(context, "tcp://127.0.0.1:*", RUN)
        people = [Person(context, crew, name) for name in names]
        try:
            yield crew, people
        finally:
            for person in people:
                person.socket.close()
            crew.close()


def in_generation(crew: Crew, *people: Person) -> None:
    """They join and are welcomed."""
    for person in people:
        person.join()
    crew.start_generation(0, 8)
    assert all(isinstance(person.hear(), Welcome) for person in people)


def names_of(crew: Crew) -> list[str]:
    return [member.name for member in crew.wanted]


def test_newcomers_come_by_name_behind_those_who_stay() -> None:
    with crew_and("m", "z", "a") as (crew, (m, z, a)):
        m.join()
        crew.start_generation(0, 8)
        z.join()
        a.join()
        assert names_of(crew) == ["m", "a", "z"]
        crew.start_generation(0, 8)
        welcome = a.hear()
        assert isinstance(welcome, Welcome)
        assert (welcome.worker, welcome.workers, welcome.store) == (1, 3, "store of m")


def test_the_only_member_stays_one_generation_more_to_hand_over() -> None:
    with crew_and("old", "new") as (crew, (old, new)):
        old.join()
        crew.start_generation(0, 8)
        old.leave()
        assert names_of(crew) == []
        new.join()
        assert names_of(crew) == ["old", "new"]
        crew.start_generation(0, 8)
        assert names_of(crew) == ["new"]
        crew.start_generation(0, 8)
        assert [type(old.hear()) for _ in range(3)] == [Welcome, Welcome, Goodbye]


def test_one_who_leaves_before_its_first_generation_is_gone_and_may_come_back() -> None:
    with crew_and("a", "a") as (crew, (first, second)):
        first.join()
        first.leave()
        assert crew.everyone == ()
        second.join()
        assert names_of(crew) == ["a"]


def test_a_second_process_of_one_name_is_refused() -> None:
    with crew_and("a", "a") as (crew, (first, second)):
        first.join()
        second.join()
        refusal = second.hear()
        assert isinstance(refusal, Refused)
        assert "has joined already" in refusal.reason
        assert len(crew.everyone) == crew.refused.total == 1


def test_a_worker_of_another_run_and_a_stranger_are_refused() -> None:
    with crew_and("a") as (crew, (a,)):
        a.run = "other"
        a.join()
        assert isinstance(a.hear(), Refused)
        a.socket.send_multipart([b"\xff", b"what"])
        assert crew.listen(30) is None
        assert isinstance(a.hear(), Refused)
        assert crew.everyone == ()


@pytest.mark.parametrize(("worker", "generation"), [(1, 1), (-1, 1), (7, 1), (0, 0), (0, 2)])
def test_a_members_report_of_another_number_or_generation_stops_the_run(worker: int, generation: int) -> None:
    with crew_and("a", "b") as (crew, (a, b)):
        in_generation(crew, a, b)
        assert a.report(0, 1) is not None
        with pytest.raises(BadReport, match="worker a sent a message that cannot be used"):
            a.report(worker, generation)
        assert isinstance(a.hear(), Refused)
        assert crew.refused.total == 1


def test_a_strangers_report_is_refused_and_changes_nothing() -> None:
    with crew_and("a", "b") as (crew, (a, stranger)):
        in_generation(crew, a)
        assert stranger.report(0, 1) is None
        refusal = stranger.hear()
        assert isinstance(refusal, Refused)
        assert "must join again" in refusal.reason
        assert crew.refused.by_type == {"Report": 1}
        assert a.report(0, 1) is not None


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan"), 2e9])
def test_seconds_that_are_no_duration_stop_the_run_and_name_the_worker(seconds: float) -> None:
    with crew_and("a") as (crew, (a,)):
        in_generation(crew, a)
        with pytest.raises(BadReport, match=r"worker a .*seconds\.forward"):
            a.report(0, 1, PhaseSeconds(0.0, 0.0, seconds, 0.0, 0.0, 0.0))


def test_a_message_too_large_for_any_report_never_arrives() -> None:
    with crew_and("a", "b") as (crew, (a, stranger)):
        in_generation(crew, a)
        stranger.socket.send_multipart([b"", bytes(FRAME_BYTES + 1)])
        assert a.report(0, 1) is not None
        assert crew.listen(0.2) is None
        assert crew.refused.total == 0


def test_no_more_workers_join_than_a_generation_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.crew.MOST_WORKERS", 1)
    with crew_and("a", "b") as (crew, (a, b)):
        a.join()
        b.join()
        assert isinstance(b.hear(), Refused)
        a.join()
        assert names_of(crew) == ["a"]


def test_everyone_is_kept_alive_members_or_not() -> None:
    with crew_and("a", "b") as (crew, (a, b)):
        a.join()
        crew.start_generation(0, 8)
        b.join()
        crew.keep_alive(0)
        assert isinstance(a.hear(), Welcome)
        assert isinstance(a.hear(), Idle)
        assert isinstance(b.hear(), Idle)


def test_others_are_dismissed_when_the_first_member_has_saved_the_dense_weights() -> None:
    with crew_and("a", "b") as (crew, (a, b)), ThreadPoolExecutor(1) as pool:
        in_generation(crew, a, b)
        ended = pool.submit(crew.dismiss_all, 0, PATIENCE_MILLISECONDS / 1000)
        assert a.hear() == Goodbye(run=RUN, generation=1, step=0, save_dense=True)
        b.send(Saved, generation=1)
        assert isinstance(b.hear(), Idle)  # listened to, and not taken for the first member's word
        assert not ended.done()
        a.send(Saved, generation=1)
        assert ended.result(PATIENCE_MILLISECONDS / 1000) is True
        assert b.hear_last() == Goodbye(run=RUN, generation=1, step=0, save_dense=False)


def test_others_are_dismissed_although_the_first_member_does_not_confirm() -> None:
    with crew_and("a", "b") as (crew, (a, b)):
        in_generation(crew, a, b)
        assert crew.dismiss_all(0, patience_seconds=0.1) is False
        assert b.hear_last() == Goodbye(run=RUN, generation=1, step=0, save_dense=False)
        assert crew.everyone == ()


def test_before_the_first_generation_there_is_nothing_to_save() -> None:
    with crew_and("a") as (crew, (a,)):
        a.join()
        assert crew.dismiss_all(0, patience_seconds=30) is True
        assert a.hear() == Goodbye(run=RUN, generation=0, step=0, save_dense=False)
