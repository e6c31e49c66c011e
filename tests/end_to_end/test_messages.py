"""Bytes of orders and reports in the status are those that crossed the sockets."""

from collections import Counter
from typing import Any

import msgspec
import pytest
import zmq

from tests.end_to_end.conftest import WriteTopic
from tests.end_to_end.threads import Plan, train

COUNTED = ("Order", "Report")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """Bytes of the frames that any socket received, by worker and type of message, without routing."""
    counted: Counter[tuple[str, str]] = Counter()
    receive = zmq.Socket.recv_multipart

    def counting(socket: Any, *arguments: Any, **named: Any) -> Any:
        frames = receive(socket, *arguments, **named)
        is_server = socket.type == zmq.ROUTER
        peer = bytes(frames[0]) if is_server else socket.get(zmq.ROUTING_ID)
        message = frames[1:] if is_server else frames
        kind = msgspec.msgpack.decode(bytes(message[0]))["type"]
        if kind in COUNTED:
            counted[peer.decode().partition("/")[0], kind] += sum(len(bytes(frame)) for frame in message)
        return frames

    monkeypatch.setattr(zmq.Socket, "recv_multipart", counting)
    return counted


@pytest.mark.parametrize("workers", [1, 3])
def test_bytes_of_orders_and_reports_are_those_on_the_sockets(
    write_topic: WriteTopic, seen: Counter[tuple[str, str]], workers: int
) -> None:
    samples, batch = 320, 32
    status = train(Plan(write_topic(samples), workers, batch=batch)).status
    moved = {worker.name: (worker.traffic.order_bytes, worker.traffic.report_bytes) for worker in status.workers}
    assert moved == {name: (seen[name, "Order"], seen[name, "Report"]) for name in moved}
    assert len(moved) == workers
    assert min(min(both) for both in moved.values()) > 4 * samples // workers, "logits and positions take more"
