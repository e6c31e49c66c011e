"""Connections over a shaped link, on real sockets, by a clock that the tests wind."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from signal import SIGKILL
from subprocess import PIPE, Popen
from typing import Any

import pytest
import zmq

from infra.base.errors import ConfigError
from infra.base.link import Link
from infra.base.relay import Carried, Lane, Relay
from infra.base.wire import Curve, SocketOptions, bind, guarded, load_curve, write_curve

PATIENCE_MILLISECONDS = 30_000
KILOBYTE_A_SECOND = 8e-6
"""Gbit/s: by a clock that stands still nothing larger than nothing passes"""

Socket = zmq.Socket[bytes]


class HandClock:
    """Time that passes only when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.sleeps: list[float] = []
        self._reads = 0
        self._was_read = threading.Condition()

    def read(self) -> float:
        with self._was_read:
            self._reads += 1
            self._was_read.notify_all()
            return self.now

    def wind(self, seconds: float, relay: Relay) -> None:
        """Returns when the relay has passed on what is due by then: each time it is woken it looks at least twice."""
        with self._was_read:
            self.now += seconds
            self._reads = 0
            for reads in (2, 4):
                relay.wake()
                while self._reads < reads:
                    assert self._was_read.wait(30), "the relay sleeps"

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


class Bench:
    """A link, a peer that listens, and as many connections to it as a test opens."""

    def __init__(self, link: Link, clock: HandClock, curve: Curve | None = None) -> None:
        self.link, self.clock = link, clock
        self.context: zmq.Context[Socket] = zmq.Context()
        self.peer = self.context.socket(zmq.ROUTER)
        self.peer.set(zmq.SNDHWM, 0)
        self.endpoint = bind(self.peer, "tcp://127.0.0.1:*", curve)
        self.sockets: list[Socket] = []

    def connect(self, name: bytes, curve: Curve | None = None, linger: int = 0) -> Socket:
        options: SocketOptions = {zmq.ROUTING_ID: name, zmq.LINGER: linger}
        self.sockets.append(self.link.connect(self.context, self.endpoint, curve, options))
        return self.sockets[-1]

    def wind(self, seconds: float) -> None:
        assert self.link._relay is not None
        self.clock.wind(seconds, self.link._relay)

    def close(self) -> None:
        for socket in self.sockets:
            socket.close()
        self.link.close()
        self.peer.close(linger=0)
        self.context.term()


@contextmanager
def bench(gbit: float | None = KILOBYTE_A_SECOND, curve: Curve | None = None) -> Iterator[Bench]:
    clock = HandClock()
    link = Link(gbit, burst_bytes=0, clock=clock.read, sleep=clock.sleep)
    with closing(Bench(link, clock, curve)) as opened:
        yield opened


def heard(socket: Socket) -> list[bytes]:
    assert socket.poll(PATIENCE_MILLISECONDS), "nothing arrived"
    return socket.recv_multipart()


def relays() -> int:
    return sum(thread.name == "link" for thread in threading.enumerate())


def until_taken_in(monkeypatch: pytest.MonkeyPatch, messages: int) -> threading.Event:
    """An event that is set once relays have taken in so many messages."""
    taken, event, take_in = list[Any](), threading.Event(), Lane.take_in

    def note(lane: Lane, *sockets: Any) -> None:
        take_in(lane, *sockets)
        taken.append(sockets)
        if len(taken) == messages:
            event.set()

    monkeypatch.setattr(Lane, "take_in", note)
    return event


def test_unshaped_connection_is_the_socket_itself_and_needs_no_thread() -> None:
    with bench(gbit=None) as opened:
        before = threading.active_count()
        socket = opened.connect(b"direct", linger=7)
        assert socket.type == zmq.DEALER
        assert socket.get(zmq.LINGER) == 7
        assert (threading.active_count(), relays()) == (before, 0)
        socket.send(b"hello")
        assert heard(opened.peer) == [b"direct", b"hello"]


def test_messages_of_many_frames_cross_whole_and_in_order_both_ways() -> None:
    with closing(Bench(Link(1000.0), HandClock())) as opened:  # so fast that a test need not wait
        socket = opened.connect(b"relayed")
        sent = [[b"%d" % number, bytes(number * 1000), b""] for number in range(100)]
        for message in sent:
            socket.send_multipart(message)
        assert [heard(opened.peer)[1:] for _ in sent] == sent
        for message in sent:
            opened.peer.send_multipart([b"relayed", *message])
        assert [heard(socket) for _ in sent] == sent


def test_message_passes_when_the_link_has_carried_all_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench() as opened:
        taken_in = until_taken_in(monkeypatch, 2)
        socket = opened.connect(b"a")
        socket.send_multipart([bytes(4000), bytes(6000)])
        socket.send(b"")
        assert taken_in.wait(30)
        opened.wind(9.5)
        assert not opened.peer.poll(0)
        opened.wind(0.5)
        assert [len(frame) for frame in heard(opened.peer)] == [1, 4000, 6000]
        assert heard(opened.peer) == [b"a", b""]


def test_both_directions_carry_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench() as opened:
        socket = opened.connect(b"a")
        socket.send(b"")
        assert heard(opened.peer) == [b"a", b""]
        taken_in = until_taken_in(monkeypatch, 2)
        socket.send(bytes(10_000))
        opened.peer.send_multipart([b"a", bytes(10_000)])
        assert taken_in.wait(30)
        opened.wind(10.0)
        assert len(heard(socket)[0]) == len(heard(opened.peer)[1]) == 10_000


def test_connections_share_the_link_and_small_messages_wait_for_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench() as opened:
        large, small = opened.connect(b"large"), opened.connect(b"small")
        first, both = until_taken_in(monkeypatch, 1), until_taken_in(monkeypatch, 2)
        large.send(bytes(10_000))
        assert first.wait(30)
        small.send(bytes(500))
        assert both.wait(30)
        opened.wind(10.0)
        assert heard(opened.peer)[0] == b"large"
        assert not opened.peer.poll(0)
        opened.wind(0.5)
        assert heard(opened.peer)[0] == b"small"
        assert relays() == 1


def test_ring_transfer_waits_for_messages_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench() as opened:
        taken_in = until_taken_in(monkeypatch, 1)
        opened.connect(b"a").send(bytes(10_000))
        assert taken_in.wait(30)
        opened.link.exchange(1000)
        assert opened.clock.sleeps == [pytest.approx(11.0)]


def test_closing_delivers_what_was_sent_and_ends_the_thread() -> None:
    with bench() as opened:
        socket = opened.connect(b"a", linger=PATIENCE_MILLISECONDS)
        for number in range(3):
            socket.send(b"%d" % number + bytes(999))
        socket.close()
        assert not opened.peer.poll(0)
        opened.link.close()
        assert [heard(opened.peer)[1][:1] for _ in range(3)] == [b"0", b"1", b"2"]
        assert opened.clock.now == pytest.approx(103.0)
        assert relays() == 0


def test_closing_waits_no_longer_than_the_socket_lingers() -> None:
    with bench() as opened:
        socket = opened.connect(b"a", linger=1500)
        for number in range(3):
            socket.send(b"%d" % number + bytes(999))
        socket.close()
        opened.link.close()
        assert heard(opened.peer)[1][:1] == b"0"
        assert not opened.peer.poll(0)
        assert opened.clock.now == pytest.approx(101.0)


def test_closed_link_connects_again() -> None:
    with bench() as opened:
        for name in (b"first", b"second"):
            socket = opened.connect(name)
            socket.send(b"")
            assert heard(opened.peer) == [name, b""]
            socket.close()
            opened.link.close()


def test_message_for_a_connection_its_user_has_closed_is_dropped() -> None:
    with bench() as opened:
        closed, other = opened.connect(b"closed"), opened.connect(b"other")
        closed.send(b"")
        assert heard(opened.peer) == [b"closed", b""]
        closed.close()
        opened.peer.send_multipart([b"closed", b""])
        for answer in (b"", b""):
            other.send(answer)
            assert heard(opened.peer) == [b"other", b""]


SHARD = """
import zmq
socket = zmq.Context().socket(zmq.ROUTER)
socket.bind("tcp://127.0.0.1:*")
print(socket.last_endpoint.decode(), flush=True)
while True:
    print(socket.recv_multipart()[1].decode(), flush=True)
"""


def test_a_connection_that_is_dropped_leaves_no_socket_and_the_others_go_on() -> None:
    with bench(gbit=1.0) as it:
        gone, stays = it.connect(b"gone"), it.connect(b"stays")
        relay = it.link._relay
        assert relay is not None
        it.link.disconnect(gone)
        it.sockets.remove(gone)
        stays.send(b"here")
        while len(relay._carrier._connections) != 1:
            it.clock.wind(1.0, relay)
        assert it.peer.poll(PATIENCE_MILLISECONDS)
        assert it.peer.recv_multipart() == [b"stays", b"here"]


def test_relay_outlives_a_killed_peer_and_meets_the_next_one() -> None:
    with bench() as opened, Popen([sys.executable, "-c", SHARD], stdout=PIPE, text=True) as killed:
        assert killed.stdout is not None
        opened.endpoint = killed.stdout.readline().strip()
        socket = opened.connect(b"a")
        socket.send(b"")
        assert killed.stdout.readline() == "\n"
        killed.kill()
        assert killed.wait() == -SIGKILL
        for _ in range(2000):  # more than a socket holds unless told otherwise
            socket.send(b"")
        with opened.context.socket(zmq.ROUTER) as peer:
            bind(peer, opened.endpoint)
            while not peer.poll(10):  # what the killed one did not read is lost
                socket.send(b"")
            assert heard(peer) == [b"a", b""]


def test_keys_are_used_on_the_real_connection(tmp_path: Path) -> None:
    write_curve(tmp_path, ["server", "client"])
    server, client = load_curve(tmp_path, "server"), load_curve(tmp_path, "client")
    with bench(curve=server) as opened, guarded(opened.context, server):
        opened.connect(b"bare").send(b"")
        socket = opened.connect(b"known", client)
        socket.send(b"")
        assert heard(opened.peer) == [b"known", b""]
        opened.peer.send_multipart([b"known", b""])
        assert heard(socket) == [b""]
        assert not opened.peer.poll(0)


def test_message_for_a_connection_that_was_refused_for_good_is_dropped() -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as nowhere:
        message = Carried(0.0, nowhere, [zmq.Frame(b"")])
        message.deliver()
        assert not nowhere.poll(0, zmq.POLLOUT)
    message.deliver()


def test_error_on_the_thread_is_raised_by_every_later_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError("no room for a message")

    with bench() as opened:
        socket = opened.connect(b"a")
        monkeypatch.setattr(Lane, "take_in", fail)
        relay = opened.link._relay
        assert relay is not None
        socket.send(b"")
        relay._thread.join(30)
        while socket.poll(0, zmq.POLLOUT):  # ZeroMQ closes in the background
            time.sleep(0.001)
        with pytest.raises(zmq.Again):
            socket.send(b"")
        for use in (lambda: opened.connect(b"b"), lambda: opened.link.exchange(1), opened.link.close):
            with pytest.raises(MemoryError, match="no room"):
                use()


@pytest.mark.parametrize("destroys", [False, True])
def test_terminated_context_ends_the_relay(destroys: bool) -> None:
    clock = HandClock()
    link = Link(KILOBYTE_A_SECOND, burst_bytes=0, clock=clock.read, sleep=clock.sleep)
    context: zmq.Context[Socket] = zmq.Context()
    socket = link.connect(context, "tcp://127.0.0.1:1", None, {zmq.LINGER: 0})
    socket.send(bytes(10_000))
    socket.close()
    (context.destroy if destroys else context.term)()
    link.close()
    assert relays() == 0


def test_endpoint_that_is_none_is_refused_and_leaves_nothing_open() -> None:
    with bench() as opened, pytest.raises(ConfigError, match="cannot connect to 'nowhere'"):
        opened.link.connect(opened.context, "nowhere")


def test_fuzzed_messages_arrive_whole_and_in_order_on_every_connection(fuzz_rounds: int) -> None:
    random = Random(7)
    with closing(Bench(Link(2.0), HandClock())) as opened:
        sockets = {b"%d" % number: opened.connect(b"%d" % number) for number in range(3)}
        sent: dict[bytes, list[list[bytes]]] = {name: [] for name in sockets}
        for _ in range(300 * fuzz_rounds):
            name = random.choice(list(sockets))
            frames = [random.randbytes(random.choice([0, 1, 40, 9000])) for _ in range(random.randint(1, 4))]
            sockets[name].send_multipart(frames)
            sent[name].append(frames)
        for _ in range(300 * fuzz_rounds):
            opened.peer.send_multipart(heard(opened.peer))
        assert {name: [heard(sockets[name]) for _ in sent[name]] for name in sockets} == sent
