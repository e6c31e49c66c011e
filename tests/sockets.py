"""What tests do with bare sockets."""

from typing import Any

import zmq

from infra.wire import Codec


def receive_from(socket: "zmq.Socket[bytes]", codec: Codec) -> tuple[bytes, Any, Any]:
    """Receives one message on a ROUTER socket, with its sender's name."""
    sender, *frames = socket.recv_multipart(copy=False)
    header, arrays = codec.decode(frames)
    return sender.bytes, header, arrays
