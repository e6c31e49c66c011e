"""A worker's connection to the dispatcher, which a test plays."""

from collections.abc import Iterator

import pytest
import zmq

from dispatch.protocol import FROM_DISPATCHER, Abort, Posted, Welcome
from infra.base.process import Stop
from infra.base.wire import Codec, Header, bind, send
from trainer.dispatcher import Dispatcher

RUN, WORKER = "test", b"worker-0/1"
Played = tuple[Dispatcher, "zmq.Socket[bytes]"]


@pytest.fixture
def played() -> Iterator[Played]:
    """The connection, and the socket of the dispatcher, which knows it."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.set(zmq.LINGER, 0)
        dispatcher = Dispatcher(context, bind(socket, "tcp://127.0.0.1:*"), "worker-0", RUN, WORKER)
        dispatcher.join({}, None)
        assert socket.poll(10_000)
        socket.recv_multipart()
        yield dispatcher, socket
        dispatcher.close()


def tell(socket: "zmq.Socket[bytes]", *headers: Header) -> None:
    for header in headers:
        send(socket, Codec(*FROM_DISPATCHER), header, to=WORKER)


def welcome(generation: int) -> Welcome:
    told = {"worker": 0, "names": ("worker-0", "worker-1"), "cache_rows": 8}
    return Welcome(run=RUN, generation=generation, step=0, **told)  # type: ignore[arg-type]


def posted(generation: int, key: str) -> Posted:
    return Posted(run=RUN, generation=generation, step=0, key=key, value=b"there")


def test_a_post_that_comes_before_the_worker_asks_for_it_is_not_lost(played: Played) -> None:
    dispatcher, socket = played
    tell(socket, posted(0, "device/0"), welcome(1), posted(1, "device/1"))
    message, _ = next(dispatcher.messages(Stop(), 60.0))
    assert isinstance(message, Welcome)
    dispatcher.upcoming()  # takes in whatever has arrived
    assert dispatcher.next_post(10.0) == ("device/1", b"there")
    assert dispatcher.next_post(0.0) is None


def test_nobody_waits_for_a_post_when_the_generation_is_over(played: Played) -> None:
    dispatcher, socket = played
    tell(socket, welcome(1), Abort(run=RUN, generation=1, step=0))
    next(dispatcher.messages(Stop(), 60.0))
    assert dispatcher.next_post(60.0) is None
