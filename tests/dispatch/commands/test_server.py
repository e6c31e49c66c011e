"""Commands over real sockets: each is answered or refused, and nothing that cannot be read has an effect."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import zmq

from dispatch.commands.client import ask, ask_members, command
from dispatch.commands.protocol import CONTROL, Command, CommandAnswered, ListedMember, Members, Outcome
from dispatch.commands.server import Asked, ControlSocket
from dispatch.errors import CommandOutdated, CommandRefused, NoAnswer
from infra.base.telemetry import Refusals
from infra.base.wire import Codec, Refused, connect, guarded, load_curve, receive, write_curve
from tests.malformed import spoiled_messages, valid_message

RUN = "r"
PATIENCE_MILLISECONDS = 30_000
COMMON: dict[str, Any] = {"run": RUN, "generation": 3, "step": 70}
Answering = Callable[[ControlSocket, Asked], None]


@pytest.fixture
def context() -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    with zmq.Context() as context:
        yield context


@pytest.fixture
def control(context: "zmq.Context[zmq.Socket[bytes]]") -> Iterator[ControlSocket]:
    with closing(ControlSocket(context, "tcp://127.0.0.1:*", RUN)) as control:
        yield control


def accept(control: ControlSocket, asked: Asked) -> None:
    answer(control, asked, "accepted", f"{asked.message.verb} {asked.message.worker}")


def answer(control: ControlSocket, asked: Asked, outcome: Outcome, text: str) -> None:
    control.answer(asked, CommandAnswered(**COMMON, id=asked.message.id, outcome=outcome, text=text, cursor=9))


def serve(control: ControlSocket, answering: Answering, requests: int = 1) -> tuple[threading.Thread, list[Command]]:
    """Answers so many requests, in a thread of its own."""
    asked: list[Command] = []

    def loop() -> None:
        while len(asked) < requests:
            if (found := control.next()) is not None:
                asked.append(found.message)
                answering(control, found)

    thread = threading.Thread(target=loop)
    thread.start()
    return thread, asked


def test_a_command_is_carried_out_and_answered(control: ControlSocket) -> None:
    thread, asked = serve(control, accept)
    told = command(control.endpoint, RUN, "drain", "worker-1", key="k1")
    thread.join()
    assert (asked[0].id, asked[0].verb, asked[0].worker) == ("k1", "drain", "worker-1")
    assert told == CommandAnswered(**COMMON, id="k1", outcome="accepted", text="drain worker-1", cursor=9)


def test_every_command_has_an_id_of_its_own(control: ControlSocket) -> None:
    thread, asked = serve(control, accept, requests=2)
    for _ in range(2):
        command(control.endpoint, RUN, "pause")
    thread.join()
    assert asked[0].id != asked[1].id


def test_members_are_listed(control: ControlSocket) -> None:
    member = ListedMember(name="worker-0", state="parked", number=0, link_gbit=0.5)

    def tell(control: ControlSocket, asked: Asked) -> None:
        control.answer(asked, Members(**COMMON, is_paused=True, members=(member,)))

    thread, _ = serve(control, tell)
    listed = ask_members(control.endpoint, RUN)
    thread.join()
    assert listed.members == (member,)


@pytest.mark.parametrize(("outcome", "error"), [("refused", CommandRefused), ("outdated", CommandOutdated)])
def test_an_outcome_other_than_accepted_is_an_error_with_its_reason(
    control: ControlSocket, outcome: Outcome, error: type[CommandRefused]
) -> None:
    thread, _ = serve(control, lambda control, asked: answer(control, asked, outcome, "accepted: only by its text"))
    with pytest.raises(error, match="accepted: only by its text"):
        command(control.endpoint, RUN, "drain", "worker-0")
    thread.join()


def test_a_request_that_is_refused_unread_is_an_error_with_its_reason(control: ControlSocket) -> None:
    thread, _ = serve(control, lambda control, asked: control.refuse(asked, "not for this socket", 3))
    with pytest.raises(CommandRefused, match="not for this socket"):
        command(control.endpoint, RUN, "drain", "worker-0")
    thread.join()
    assert control.refused.by_type == {"Command": 1}


def test_nobody_there_is_an_error_in_time() -> None:
    with pytest.raises(NoAnswer, match=r"nobody answers at tcp://127\.0\.0\.1:9 within 0\.05 seconds"):
        ask_members("tcp://127.0.0.1:9", RUN, timeout_seconds=0.05)


def test_a_command_that_was_not_read_is_sent_again_with_its_id(control: ControlSocket) -> None:
    seen: list[str] = []

    def answer_the_second(control: ControlSocket, asked: Asked) -> None:
        seen.append(asked.message.id)
        if len(seen) == 2:
            accept(control, asked)

    thread, _ = serve(control, answer_the_second, requests=2)
    asked = Command(run=RUN, generation=-1, step=-1, id="k", verb="checkpoint")
    assert ask(control.endpoint, asked, CONTROL, again_seconds=0.05).id == "k"
    thread.join()
    assert seen == ["k", "k"]


def test_a_command_to_another_run_is_refused_without_effect(control: ControlSocket) -> None:
    done = threading.Event()
    taken: list[Asked] = []

    def listen() -> None:
        while not done.is_set():
            if (asked := control.next()) is not None:
                taken.append(asked)

    thread = threading.Thread(target=listen)
    thread.start()
    with pytest.raises(CommandRefused, match="a command to run 'other' reached run 'r'"):
        command(control.endpoint, "other", "pause")
    done.set()
    thread.join()
    assert taken == []


def test_what_cannot_be_read_is_refused_and_the_next_command_is_taken(
    context: "zmq.Context[zmq.Socket[bytes]]", control: ControlSocket, fuzz_rounds: int
) -> None:
    rng, answers = random.Random(5), Codec(*CONTROL.answers)
    with closing(context.socket(zmq.DEALER)) as socket:
        socket.set(zmq.RCVTIMEO, PATIENCE_MILLISECONDS)
        connect(socket, control.endpoint)
        small = [m for _ in range(fuzz_rounds) for m in spoiled_messages(valid_message(Command, run=RUN), rng)]
        small = [message for message in small if message.how != "too many bytes"]
        for message in small:
            socket.send_multipart(message.frames)
            poll_until_refused(control, socket)
            assert isinstance(receive(socket, answers)[0], Refused), message
        assert control.refused.by_type == {Refusals.UNREADABLE: len(small)}
        socket.send_multipart(valid_message(Command, run=RUN, verb="pause").frames)
        assert take(control).message.verb == "pause"


def poll_until_refused(control: ControlSocket, socket: "zmq.Socket[bytes]") -> None:
    while not socket.poll(1):
        assert control.next() is None


def take(control: ControlSocket) -> Asked:
    while (asked := control.next()) is None:
        pass
    return asked


def test_with_keys_a_stranger_is_not_heard(context: "zmq.Context[zmq.Socket[bytes]]", tmp_path: Path) -> None:
    write_curve(tmp_path / "keys", ["server"])
    write_curve(tmp_path / "others", ["server"])
    server, stranger = load_curve(tmp_path / "keys", "server"), load_curve(tmp_path / "others", "server")
    with guarded(context, server), closing(ControlSocket(context, "tcp://127.0.0.1:*", RUN, server)) as control:
        with pytest.raises(NoAnswer):
            command(control.endpoint, RUN, "pause", curve=stranger, timeout_seconds=0.2)
        assert control.next() is None
        thread, asked = serve(control, accept)
        command(control.endpoint, RUN, "resume", curve=server)
        thread.join()
    assert [found.verb for found in asked] == ["resume"]
