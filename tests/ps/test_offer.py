"""A shard's connection to the dispatcher, when either of them was away for long."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

import ps.main
from infra.base.wire import Codec, bind, send
from ps.config import PsConfig, RowConfig
from ps.main import OFFER_SECONDS, UNANSWERED_SECONDS, Offer, offered_at
from ps.protocol import Heard, Serve, Terms
from tests.ps.doubles import RUN, shard_job

SOON_MILLISECONDS = 10_000


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class Dispatcher:
    """Receives offers, and counts the connections they came through."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]") -> None:
        self._codec = Codec(Heard)
        self._offers = Codec(Serve)
        self.socket = context.socket(zmq.ROUTER)
        self._events = self.socket.get_monitor_socket(zmq.EVENT_ACCEPTED)
        self.endpoint = bind(self.socket, "tcp://127.0.0.1:*")

    def take_offer(self) -> bytes:
        """The sender of the next offer."""
        assert self.socket.poll(SOON_MILLISECONDS), "no offer came"
        sender, *frames = self.socket.recv_multipart(copy=False)
        self._offers.decode(frames)
        return sender.bytes

    def answer(self, sender: bytes) -> None:
        send(self.socket, self._codec, Heard(run=RUN, generation=0, step=0), to=sender)

    def is_connected_to(self, wait_milliseconds: int = 0) -> bool:
        """Whether somebody has connected since this was last asked."""
        connections = 0
        while self._events.poll(0 if connections else wait_milliseconds):
            recv_monitor_message(self._events)
            connections += 1
        return connections > 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(100.0)
    monkeypatch.setattr(ps.main, "monotonic", clock)
    return clock


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    with zmq.Context() as context:
        dispatcher = Dispatcher(context)
        yield dispatcher
        context.destroy(linger=0)


@pytest.fixture
def offer(clock: Clock, dispatcher: Dispatcher) -> Iterator[Offer]:
    """One that the dispatcher has heard once, and not answered."""
    with zmq.Context() as context:
        job = shard_job(0, RowConfig(dim=3), PsConfig(), dispatcher_endpoint=dispatcher.endpoint)
        offer = Offer(context, job, offered_at("tcp://127.0.0.1:1", RUN, Terms(0, 1, {})))
        offer.renew()
        assert dispatcher.is_connected_to(SOON_MILLISECONDS)
        yield offer
        offer.close()


def test_a_shard_that_was_answered_while_it_was_busy_keeps_its_connection(
    clock: Clock, dispatcher: Dispatcher, offer: Offer
) -> None:
    dispatcher.answer(dispatcher.take_offer())
    assert offer._socket is not None
    assert offer._socket.poll(SOON_MILLISECONDS), "the answer did not arrive"
    clock.now += UNANSWERED_SECONDS + OFFER_SECONDS  # while it went back to a checkpoint
    assert offer.renew(), "the answer was not read"
    dispatcher.take_offer()
    assert not dispatcher.is_connected_to()


def test_a_shard_that_nobody_answers_connects_again(clock: Clock, dispatcher: Dispatcher, offer: Offer) -> None:
    clock.now += UNANSWERED_SECONDS
    offer.renew()
    assert not dispatcher.is_connected_to()
    clock.now += OFFER_SECONDS
    assert not offer.renew()
    assert dispatcher.is_connected_to(SOON_MILLISECONDS)
