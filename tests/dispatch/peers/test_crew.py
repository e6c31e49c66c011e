"""Who is in a generation, who is dismissed and when, over real sockets."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import sleep
from typing import Any

import numpy as np
import pytest
import zmq
from structlog.testing import capture_logs

from dispatch.errors import BadReport, CrewFailed
from dispatch.peers.crew import Crew
from dispatch.peers.dismissal import dismiss_first, dismiss_others
from dispatch.peers.providers import Providers
from dispatch.peers.roster import Roster
from dispatch.peers.wiring import FRAME_BYTES
from dispatch.placement.rows.directory import Directory
from dispatch.progress.underway import OrderedRound, RoundsUnderway
from dispatch.protocol import (
    FROM_DISPATCHER,
    TO_DISPATCHER,
    Abort,
    Admitted,
    GaveUp,
    Goodbye,
    Idle,
    Join,
    Leave,
    Order,
    OrderArrays,
    Post,
    Posted,
    Probe,
    Probed,
    Ready,
    Report,
    ReportArrays,
    Saved,
    Welcome,
)
from dispatch.tally import NO_SECONDS, PhaseSeconds
from infra.base.wire import NO_ARRAYS, Arrays, Codec, Header, Refused, connect, receive, send
from ps.phases import FLUSH
from ps.protocol import DISPLACED, TAKEN, Heard, Serve, Terms

RUN = "test"
PATIENCE_MILLISECONDS = 30_000


class Person:
    """A worker's socket, driven by hand."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", crew: Crew, name: str, run: str = RUN) -> None:
        self.name, self.run, self.crew = name, run, crew
        self.settings: dict[str, str] = {}
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
        """Joins, is admitted, and confirms it."""
        self.offer()
        assert isinstance(self.hear(), Admitted)
        self.tell(Ready)

    def offer(self, settings: dict[str, str] | None = None) -> None:
        """The first half of joining."""
        self.tell(Join, worker=self.name, settings=settings or self.settings)

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
def crew_and(*names: str, **options: Any) -> Iterator[tuple[Crew, list[Person]]]:
    with zmq.Context() as context:
        crew = Crew(context, "tcp://127.0.0.1:*", RUN, **options)
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
    crew.start_generation(crew.generation + 1, 0, {"cache_rows": 8})
    assert all(isinstance(person.hear(), Welcome) for person in people)


def names_of(crew: Crew) -> list[str]:
    return [member.name for member in crew.roster.wanted]


def test_newcomers_come_by_name_behind_those_who_stay() -> None:
    with crew_and("m", "z", "a") as (crew, (m, z, a)):
        m.join()
        crew.start_generation(crew.generation + 1, 0, {"cache_rows": 8})
        z.join()
        a.join()
        assert names_of(crew) == ["m", "a", "z"]
        crew.start_generation(crew.generation + 1, 0, {"cache_rows": 8})
        welcome = a.hear()
        assert isinstance(welcome, Welcome)
        assert (welcome.worker, welcome.names) == (1, ("m", "a", "z"))


def test_the_only_member_stays_one_generation_more_to_hand_over() -> None:
    with crew_and("old", "new") as (crew, (old, new)):
        old.join()
        crew.start_generation(crew.generation + 1, 0, {"cache_rows": 8})
        old.leave()
        assert names_of(crew) == []
        new.join()
        assert names_of(crew) == ["old", "new"]
        crew.start_generation(crew.generation + 1, 0, {"cache_rows": 8})
        assert names_of(crew) == ["new"]
        crew.start_generation(crew.generation + 1, 0, {"cache_rows": 8})
        assert [type(old.hear()) for _ in range(3)] == [Welcome, Welcome, Goodbye]


def test_one_who_leaves_before_its_first_generation_is_gone_and_may_come_back() -> None:
    with crew_and("a", "a") as (crew, (first, second)):
        first.join()
        first.leave()
        assert crew.roster.everyone == ()
        second.join()
        assert names_of(crew) == ["a"]


def test_a_second_process_of_a_name_is_refused_while_the_first_can_be_reached() -> None:
    with crew_and("a", "a") as (crew, (first, second)):
        in_generation(crew, first)
        for _ in range(2):
            second.offer()
            refusal = second.hear()
            assert isinstance(refusal, Refused)
            assert refusal.what == TAKEN
            assert "another process is worker 'a', and is alive; expected one of each" in refusal.reason
        crew.check()
        assert first.report(0, 1) is not None
        first.socket.close()
        until_refused_no_more(crew, second)
        with pytest.raises(CrewFailed, match="lost worker a"):
            crew.check()


def until_refused_no_more(crew: Crew, person: Person) -> None:
    """Offers itself until it is admitted."""
    person.offer()
    while isinstance(person.hear(), Refused):
        crew.listen(0.01)
        person.offer()


def test_a_second_shard_of_a_number_is_refused_while_the_first_can_be_reached() -> None:
    with crew_and("first", "second", providers=Providers(1, {})) as (crew, (first, second)):
        offer: dict[str, Any] = {"endpoint": "tcp://127.0.0.1:1", "terms": Terms(0, 1, {})}
        for shard, answer in ((first, Heard), (second, Refused), (first, Heard)):
            shard.tell(Serve, **offer)
            shard.tell(Serve, **offer)
            assert isinstance(shard.hear_last(), answer)
        crew.providers.drop(crew.providers.everyone[0])  # out of reach
        second.tell(Serve, **offer)
        assert isinstance(second.hear_last(), Heard)
        first.tell(Serve, **offer)
        refusal = first.hear_last()
        assert isinstance(refusal, Refused)
        assert (refusal.what, "a newer process serves as shard 0" in refusal.reason) == (DISPLACED, True)


def test_one_that_was_displaced_is_refused_when_it_comes_back() -> None:
    with crew_and("a", "a") as (crew, (stopped, newer)):
        stopped.join()
        crew.roster.drop(crew.roster.everyone[0])
        newer.join()
        stopped.offer()
        refusal = stopped.hear()
        assert isinstance(refusal, Refused)
        assert refusal.what == DISPLACED
        assert "a newer worker named 'a' has joined" in refusal.reason
        crew.start_generation(1, 0, {"cache_rows": 8})
        assert isinstance(newer.hear(), Welcome)


def test_a_process_that_is_refused_displaces_nobody() -> None:
    with crew_and("a", "a", roster=Roster({"seed": "0"}, may_sum=True)) as (crew, (a, odd)):
        a.settings = {"seed": "0"}
        in_generation(crew, a)
        odd.offer()
        refusal = odd.hear()
        assert isinstance(refusal, Refused)
        assert "seed" in refusal.reason  # rather than that its name is taken
        crew.check()
        assert a.report(0, 1) is not None


def test_a_member_that_offers_itself_again_stays_what_it_is() -> None:
    with crew_and("a") as (crew, (a,)):
        in_generation(crew, a)
        a.offer()
        assert isinstance(a.hear(), Idle)
        crew.check()
        assert a.report(0, 1) is not None


def test_a_worker_of_another_run_and_a_stranger_are_refused() -> None:
    with crew_and("a") as (crew, (a,)):
        a.run = "other"
        a.offer()
        assert isinstance(a.hear(), Refused)
        a.socket.send_multipart([b"\xff", b"what"])
        assert crew.listen(30) is None
        assert isinstance(a.hear(), Refused)
        assert crew.roster.everyone == ()


def test_a_report_of_an_older_generation_is_refused_and_proves_nothing() -> None:
    with crew_and("a", "b") as (crew, (a, b)):
        in_generation(crew, a, b)
        assert a.report(0, 0) is None
        refusal = a.hear()
        assert isinstance(refusal, Refused)
        assert (refusal.generation, refusal.current) == (0, 1)
        assert a.report(0, 1) is not None


def test_after_an_abort_everyone_must_confirm_and_old_reports_count_for_nothing() -> None:
    with crew_and("a", "b") as (crew, (a, b)):
        in_generation(crew, a, b)
        crew.abort(0)
        assert names_of(crew) == []
        assert [a.hear(), b.hear()] == [Abort(run=RUN, generation=1, step=0)] * 2
        assert a.report(0, 1) is None
        assert isinstance(a.hear(), Refused)
        a.tell(Ready)
        assert names_of(crew) == ["a"]


@pytest.mark.parametrize(("worker", "generation"), [(1, 1), (-1, 1), (7, 1), (0, 2)])
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
    monkeypatch.setattr("dispatch.peers.roster.MOST_WORKERS", 1)
    with crew_and("a", "b") as (crew, (a, b)):
        a.join()
        b.offer()
        assert isinstance(b.hear(), Refused)
        a.offer()
        assert isinstance(a.hear(), Idle)
        assert names_of(crew) == ["a"]


def test_everyone_is_kept_alive_members_or_not() -> None:
    with crew_and("a", "b") as (crew, (a, b)):
        a.join()
        crew.start_generation(crew.generation + 1, 0, {"cache_rows": 8})
        b.join()
        crew.keep_alive(0)
        assert isinstance(a.hear(), Welcome)
        assert isinstance(a.hear(), Idle)
        assert isinstance(b.hear(), Idle)


def test_others_are_dismissed_when_the_first_member_has_saved_the_dense_weights() -> None:
    with crew_and("a", "b") as (crew, (a, b)), ThreadPoolExecutor(1) as pool:
        in_generation(crew, a, b)
        ended = pool.submit(dismiss_first, crew, 0, PATIENCE_MILLISECONDS / 1000)
        assert a.hear() == Goodbye(run=RUN, generation=1, step=0, save_dense=True)
        b.send(Saved, generation=1)
        assert isinstance(b.hear(), Idle)  # listened to, and not taken for the first member's word
        assert not ended.done()
        a.send(Saved, generation=1)
        assert ended.result(PATIENCE_MILLISECONDS / 1000) is True
        dismiss_others(crew, 0)
        assert b.hear_last() == Goodbye(run=RUN, generation=1, step=0, save_dense=False)


def test_others_are_dismissed_although_the_first_member_does_not_confirm() -> None:
    with crew_and("a", "b") as (crew, (a, b)):
        in_generation(crew, a, b)
        assert dismiss_first(crew, 0, patience_seconds=0.1) is False
        dismiss_others(crew, 0)
        assert b.hear_last() == Goodbye(run=RUN, generation=1, step=0, save_dense=False)
        assert crew.roster.everyone == ()


def test_a_first_member_that_is_lost_before_it_has_saved_the_dense_weights_is_named() -> None:
    with crew_and("a", "b") as (crew, (a, b)), ThreadPoolExecutor(1) as pool:
        in_generation(crew, a, b)
        ended = pool.submit(dismiss_first, crew, 0, PATIENCE_MILLISECONDS / 1000)
        assert isinstance(a.hear(), Goodbye)
        a.socket.close()
        with pytest.raises(CrewFailed, match="lost worker a"):
            ended.result(PATIENCE_MILLISECONDS / 1000)


def test_one_whose_wish_to_join_was_not_read_yet_is_dismissed() -> None:
    with crew_and("a") as (crew, (a,)):
        a.send(Join, worker=a.name, settings={})
        assert crew.socket._socket.poll(PATIENCE_MILLISECONDS)
        dismiss_others(crew, 0)
        assert a.hear_last() == Goodbye(run=RUN, generation=0, step=0, save_dense=False)


def test_before_the_first_generation_there_is_nothing_to_save() -> None:
    with crew_and("a") as (crew, (a,)):
        a.join()
        assert dismiss_first(crew, 0, patience_seconds=30) is True
        dismiss_others(crew, 0)
        assert a.hear() == Goodbye(run=RUN, generation=0, step=0, save_dense=False)


def test_a_worker_with_other_settings_is_refused_by_name_and_value() -> None:
    with crew_and("a", roster=Roster({"rows.rate": "0.05", "seed": "0"}, may_sum=True)) as (crew, (a,)):
        a.offer({"rows.rate": "0.5", "seed": "0"})
        refusal = a.hear()
        assert isinstance(refusal, Refused)
        assert "rows.rate is 0.05 in the dispatcher and 0.5 in worker 'a'" in refusal.reason
        assert crew.roster.everyone == ()


def test_a_worker_counts_only_when_it_has_confirmed() -> None:
    with crew_and("a", "b") as (crew, (a, b)):
        a.join()
        b.offer()
        assert names_of(crew) == ["a"]
        assert isinstance(b.hear(), Admitted)
        b.tell(Ready)
        assert names_of(crew) == ["a", "b"]


def test_a_worker_that_joins_and_is_silent_is_dropped_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.peers.roster.CONFIRM_SECONDS", 0.0)
    with crew_and("a", "mute") as (crew, (a, mute)), capture_logs() as logs:
        a.join()
        mute.offer()
        assert isinstance(mute.hear(), Admitted)
        crew.keep_alive(0)
        assert [member.name for member in crew.roster.everyone] == names_of(crew) == ["a"]
        assert [line["worker"] for line in logs if "worker" in line] == ["mute"]
        assert "did not confirm" in str(mute.hear())


def test_a_worker_whose_answer_nobody_has_read_yet_is_not_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.peers.roster.CONFIRM_SECONDS", 0.05)
    with crew_and("a") as (crew, (a,)):
        a.offer()
        assert isinstance(a.hear(), Admitted)
        a.send(Ready)
        assert crew.socket._socket.poll(PATIENCE_MILLISECONDS)
        sleep(0.1)  # the dispatcher waits for shards that load a checkpoint
        crew.keep_alive(0)
        crew.listen(0.0)
        assert names_of(crew) == ["a"]


def test_one_who_goes_without_a_word_before_its_first_generation_is_dropped() -> None:
    with crew_and("a", "b") as (crew, (a, b)), capture_logs() as logs:
        a.join()
        b.join()
        b.socket.close()
        until_unreachable(crew, b.name)
        assert names_of(crew) == ["a"]
        assert [line["worker"] for line in logs] == ["b"]


def until_unreachable(crew: Crew, name: str) -> None:
    """Returns once the crew knows that it cannot reach a worker."""
    while name not in crew.losses and name in [member.name for member in crew.roster.everyone]:
        crew.keep_alive(0)


def test_a_member_that_ends_without_a_word_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.peers.losses.LOST_SECONDS", 0.0)
    with crew_and("a", "b") as (crew, (a, b)):
        in_generation(crew, a, b)
        crew.check()
        b.socket.close()
        until_unreachable(crew, b.name)
        with pytest.raises(CrewFailed, match="lost worker b: it ended"):
            crew.check()


def test_one_that_waited_in_vain_is_not_named_with_the_one_it_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.peers.losses.LOST_SECONDS", 0.0)
    with crew_and("a", "b") as (crew, (a, b)):
        in_generation(crew, a, b)
        a.tell(GaveUp, generation=1, worker=0)
        for person in (a, b):
            person.socket.close()
            until_unreachable(crew, person.name)
        with pytest.raises(CrewFailed, match="lost worker b:"):
            crew.check()


def test_one_that_waited_in_vain_tells_for_whom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.peers.losses.LOST_SECONDS", 0.0)
    with crew_and("a", "b") as (crew, (a, b)):
        in_generation(crew, a, b)
        a.tell(GaveUp, generation=1, worker=0)
        a.socket.close()
        until_unreachable(crew, a.name)
        with pytest.raises(CrewFailed, match="worker a waited in vain for worker b;"):
            crew.check()


def round_of(*workers: int) -> OrderedRound:
    """A flush that these were ordered to take part in."""
    plan = Directory(np.full(3, 8, np.int64), "lru", 1).flush()
    return OrderedRound(1, FLUSH, plan, order_bytes=dict.fromkeys(workers, 100))


def test_a_member_without_an_order_is_not_named_as_one_that_was_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.peers.losses.LOST_SECONDS", 0.0)
    underway = RoundsUnderway()
    underway.add(round_of(0, 1))
    with crew_and("a", "b", "c") as (crew, (a, b, c)):
        in_generation(crew, a, b, c)
        crew.check(underway)
        a.tell(GaveUp, generation=1, worker=0)
        a.socket.close()
        until_unreachable(crew, a.name)
        with pytest.raises(CrewFailed, match="worker a waited in vain for worker b;"):
            crew.check(underway)


def test_orders_reach_those_whom_they_are_for_and_nobody_else() -> None:
    sizes: dict[str, Any] = {"phase": FLUSH, "samples": 0, "batch": 0, "alone": 0}
    with crew_and("a", "b", "c") as (crew, (a, b, c)):
        in_generation(crew, a, b, c)
        sent = crew.order({1: (Order(**crew.at(1), **sizes), OrderArrays())})
        crew.keep_alive(1)
        assert [isinstance(person.hear(), Order) for person in (a, b, c)] == [False, True, False]
        assert (list(sent), sent[1] > 0) == ([1], True)


def test_of_those_that_do_not_report_the_ones_that_were_never_heard_are_blamed() -> None:
    with crew_and("a", "b", "c") as (crew, people):
        in_generation(crew, *people)
        people[0].report(0, generation=1)
        people[2].tell(Post, generation=1, worker=2, key="address/2", value=b"here")
        assert crew.losses.blamed([0, 1, 2]) == [1]
        assert crew.losses.blamed([0, 2]) == [0, 2]


def test_a_post_reaches_every_other_member_once() -> None:
    with crew_and("a", "b", "c") as (crew, (a, b, c)):
        in_generation(crew, a, b, c)
        b.tell(Post, generation=1, worker=1, key="address/1", value=b"\x00here")
        crew.keep_alive(0)
        posted = Posted(run=RUN, generation=1, step=0, key="address/1", value=b"\x00here")
        assert [a.hear(), c.hear()] == [posted, posted]
        assert all(isinstance(person.hear(), Idle) for person in (a, b, c))


def test_a_post_that_is_too_large_is_refused() -> None:
    with crew_and("a", "b") as (crew, (a, b)):
        in_generation(crew, a, b)
        with pytest.raises(BadReport, match="worker a sent a message that cannot be used"):
            a.tell(Post, generation=1, worker=0, key="address/0", value=bytes((1 << 14) + 1))
        crew.keep_alive(0)
        assert isinstance(b.hear(), Idle)


def test_a_post_of_an_older_generation_reaches_nobody() -> None:
    with crew_and("a", "b") as (crew, (a, b)):
        in_generation(crew, a, b)
        b.tell(Post, generation=0, worker=1, key="address", value=b"")
        assert isinstance(b.hear(), Refused)
        crew.keep_alive(0)
        assert isinstance(a.hear(), Idle)


@pytest.mark.parametrize(("worker", "generation"), [(0, 1), (1, 2)])
def test_a_post_of_another_number_or_generation_is_refused(worker: int, generation: int) -> None:
    with crew_and("a", "b") as (crew, (a, b)):
        in_generation(crew, a, b)
        with pytest.raises(BadReport, match="a Post of step 0 names worker number"):
            b.tell(Post, generation=generation, worker=worker, key="address", value=b"")


def test_with_keys_a_second_worker_is_refused_unless_the_settings_allow_sums() -> None:
    with crew_and("a", "b", roster=Roster({}, may_sum=False)) as (crew, (a, b)):
        a.join()
        b.offer()
        assert "trainer.unencrypted_reduce = true" in str(b.hear())
        assert names_of(crew) == ["a"]


def test_a_member_that_is_asked_measures_its_link_and_others_are_not_asked() -> None:
    with crew_and("a", "b") as (crew, (a, b)):
        in_generation(crew, a, b)
        crew.probe({"b"}, 3, 4096)
        assert b.hear() == Probe(run=RUN, generation=1, step=3, link_bytes=4096)
        assert not a.socket.poll(100)
        b.send(Probed, generation=1, worker=1, link_bytes=4096, link_seconds=0.5)
        crew.listen(PATIENCE_MILLISECONDS / 1000)
        assert crew.probed == [Probed(run=RUN, generation=1, step=0, worker=1, link_bytes=4096, link_seconds=0.5)]
        with pytest.raises(BadReport):
            b.tell(Probed, generation=1, worker=0, link_bytes=4096, link_seconds=0.5)
        crew.start_generation(2, 0, {"cache_rows": 8})
        assert crew.probed == [], "what was asked in an earlier generation is over"
