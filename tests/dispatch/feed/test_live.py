"""Servers of the model and the dispatcher, over real sockets."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import zmq

from dispatch.commands.server import ControlSocket
from dispatch.feed import audience as audience_module
from dispatch.feed import server as feed_server
from dispatch.feed.audience import Audience
from dispatch.feed.client import read_feed
from dispatch.feed.live_client import LiveClient
from dispatch.feed.protocol import FEED, Live
from dispatch.feed.server import FeedServer
from dispatch.journal.run import RunJournal
from infra.base.wire import Curve, guarded, load_curve, write_curve
from tests.dispatch.journal.test_run import begun_in, job_in
from tests.ports import free_port

RUN = "r"


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[RunJournal]:
    with closing(RunJournal(job_in(tmp_path))) as made:
        begun_in(made)
        yield made


@contextmanager
def serving(
    journal: RunJournal, audience: Audience, endpoint: str = "tcp://127.0.0.1:*", curve: Curve | None = None
) -> Iterator[str]:
    with zmq.Context() as context, guarded(context, curve):
        socket = ControlSocket(context, endpoint, RUN, curve, exchange=FEED)
        with closing(FeedServer(socket, journal, audience)):
            yield socket.endpoint


@contextmanager
def client(endpoint: str, run: str = RUN, curve: Curve | None = None, name: str = "a") -> Iterator[LiveClient]:
    with closing(LiveClient(endpoint, run, curve, name)) as made:
        yield made


def waited(poll: Callable[[], list[Live]]) -> list[Live]:
    while not (found := poll()):
        time.sleep(0.001)
    return found


def test_server_is_heard_and_hears_of_the_newest_snapshot(journal: RunJournal) -> None:
    audience = Audience()
    audience.announce(7, 1, 40)
    audience.publish_at(["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"])
    with serving(journal, audience) as endpoint, client(endpoint) as served:
        told = served.report(served.live(1, 30, 6, 1e9, known=6))
        assert told is not None
        assert (told.checkpoint, told.timeline, told.step, len(told.publishers)) == (7, 1, 40, 2)
        assert read_feed(endpoint, RUN, 0).records
    live = waited(audience.take_reports)[0]
    assert (live.timeline, live.step, live.checkpoint, live.at_seconds, live.name) == (1, 30, 6, 1e9, "a")
    assert audience.servers == 1


def test_server_that_knows_the_newest_snapshot_hears_of_the_next_as_soon_as_it_exists(
    journal: RunJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_server, "HOLD_SECONDS", 60.0)
    audience, told = Audience(), []
    with serving(journal, audience) as endpoint, client(endpoint) as served:
        asking = threading.Thread(target=lambda: told.append(served.report(served.live(0, -1, 0, 0.0), 60.0)))
        asking.start()
        waited(audience.take_reports)
        assert told == []
        audience.announce(1, 0, 5)
        asking.join(60)
    assert [(newest.checkpoint, newest.step) for newest in told if newest is not None] == [(1, 5)]


def test_server_that_knows_the_newest_snapshot_is_answered_after_a_while(
    journal: RunJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_server, "HOLD_SECONDS", 0.01)
    with serving(journal, Audience()) as endpoint, client(endpoint) as served:
        told = served.report(served.live(0, -1, 0, 0.0))
    assert told is not None
    assert (told.checkpoint, told.publishers) == (0, ())


def test_server_survives_a_dispatcher_that_is_away_and_comes_back(journal: RunJournal) -> None:
    endpoint, audience = f"tcp://127.0.0.1:{free_port()}", Audience()
    audience.announce(1, 0, 5)
    with client(endpoint) as served:
        assert served.report(served.live(0, -1, 0, 0.0), 0.01) is None
        for checkpoint in (2, 3):
            with serving(journal, audience, endpoint):
                audience.announce(checkpoint, 0, 5 * checkpoint)
                while (told := served.report(served.live(0, 5, 1, 0.0, known=checkpoint - 1), 0.2)) is None:
                    pass
                assert told.checkpoint == checkpoint
            assert served.report(served.live(0, 5, 1, 0.0), 0.01) is None


def test_server_of_another_run_is_refused_and_not_counted(journal: RunJournal) -> None:
    audience = Audience()
    with serving(journal, audience) as endpoint, client(endpoint, run="other") as served:
        assert served.report(served.live(0, 3, 1, 0.0)) is None
    assert audience.take_reports() == []


def test_server_with_strange_keys_is_not_heard(tmp_path: Path, journal: RunJournal) -> None:
    for folder in ("keys", "others"):
        write_curve(tmp_path / folder, ["server"])
    server, stranger = load_curve(tmp_path / "keys", "server"), load_curve(tmp_path / "others", "server")
    audience = Audience()
    with serving(journal, audience, curve=server) as endpoint:
        with client(endpoint, curve=stranger) as served:
            assert served.report(served.live(0, 3, 1, 0.0), 0.2) is None
        with client(endpoint, curve=server, name="known") as served:
            assert served.report(served.live(0, 3, 1, 0.0)) is not None
    assert [live.name for live in audience.take_reports()] == ["known"]


def test_servers_are_forgotten_after_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(audience_module, "monotonic", lambda: now[0])
    audience = Audience()
    for name in ("a", "b"):
        audience.hear(Live(run=RUN, generation=-1, step=1, timeline=0, checkpoint=1, at_seconds=0.0, name=name))
    audience.take_reports()
    now[0] = 9.0
    audience.hear(Live(run=RUN, generation=-1, step=1, timeline=0, checkpoint=1, at_seconds=0.0, name="b"))
    audience.take_reports()
    assert audience.servers == 2
    now[0] = 11.0
    audience.take_reports()
    assert audience.servers == 1


def test_announcements_never_go_back() -> None:
    audience = Audience()
    audience.announce(4, 0, 20)
    audience.announce(5, 0, 15)
    assert audience.newest == (4, 0, 20)
    audience.withdraw(1)
    assert audience.newest.checkpoint == 0
    audience.announce(6, 0, 30)
    assert audience.newest.checkpoint == 0
    audience.announce(7, 1, 12)
    assert audience.newest == (7, 1, 12)
