"""What tests do with bare sockets."""

from typing import Any

import zmq

from infra.wire import Bulk, Codec


def receive_from(socket: "zmq.Socket[bytes]", codec: Codec) -> tuple[bytes, Any, Bulk]:
    """Receives one message on a ROUTER socket, with its sender's name."""
    sender, *frames = socket.recv_multipart(copy=False)
    header, bulk = codec.decode(frames)
    return sender.bytes, header, bulk
