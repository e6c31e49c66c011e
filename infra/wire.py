"""Framing of every message between processes.

A message is one ZeroMQ multipart: a msgspec header (msgpack, tagged by type), then the bulk arrays it announces, each a
frame of its own, sent without a copy. Every header carries run, generation and step, so that a process that wakes
up in an old generation is refused and never half understood. Nothing here can run code: no pickle.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import zmq
from numpy.typing import DTypeLike, NDArray
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

from infra.errors import ConfigError, WireError

SMALL_BYTES = 64 * 1024
"""Below this a copy is cheaper than ZeroMQ's bookkeeping for a frame it must not copy."""


class Header(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What every message carries."""

    BULK: ClassVar[tuple[str, ...]] = ()
    """dtype of each bulk array, in order; '*' stands for the run's floating point type."""

    run: str
    generation: int
    step: int


class Refused(Header, frozen=True):
    """The answer to a message that was not carried out."""

    reason: str


Bulk = list[NDArray[Any]]


class Codec:
    """Encodes and decodes one closed set of message types."""

    def __init__(self, *types: type[Header], float_dtype: DTypeLike = np.float32) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(_union(types))
        self._float = np.dtype(float_dtype)

    def encode(self, header: Header, bulk: Sequence[NDArray[Any]] = ()) -> list[bytes | memoryview]:
        assert len(bulk) == len(header.BULK), f"{type(header).__name__} takes {len(header.BULK)} arrays"
        frames: list[bytes | memoryview] = [self._encoder.encode(header)]
        for name, array in zip(header.BULK, bulk, strict=True):
            assert array.dtype == self._dtype(name), f"{type(header).__name__}: {array.dtype} where {name} was declared"
            frames.append(np.ascontiguousarray(array).reshape(-1).data)
        return frames

    def decode(self, frames: Sequence[zmq.Frame | bytes]) -> tuple[Any, Bulk]:
        """Header and flat arrays that share memory with the received frames."""
        try:
            header = self._decoder.decode(_buffer(frames[0]))
            bulk = [np.frombuffer(_buffer(f), self._dtype(n)) for f, n in zip(frames[1:], header.BULK, strict=True)]
        except (msgspec.DecodeError, ValueError, IndexError) as error:
            raise WireError(
                f"cannot read a message of {len(frames)} frames: {error}; are all processes one version?"
            ) from error
        return header, bulk

    def _dtype(self, name: str) -> np.dtype[Any]:
        return self._float if name == "*" else np.dtype(name)


def _union(types: Sequence[type[Header]]) -> Any:
    union: Any = types[0]
    for kind in types[1:]:
        union = union | kind
    return union


def _buffer(frame: zmq.Frame | bytes) -> Any:
    return frame.buffer if isinstance(frame, zmq.Frame) else frame


def send(
    socket: "zmq.Socket[bytes]", codec: Codec, header: Header, *bulk: NDArray[Any], to: bytes | None = None
) -> int:
    """Sends one message and returns its bulk bytes. Arrays must stay unchanged until they are delivered."""
    frames = codec.encode(header, bulk)
    total = sum(len(f) if isinstance(f, bytes) else f.nbytes for f in frames)
    envelope: list[bytes | memoryview] = [to] if to is not None else []
    socket.send_multipart([*envelope, *frames], copy=total < SMALL_BYTES)
    return total


def receive(socket: "zmq.Socket[bytes]", codec: Codec) -> tuple[Any, Bulk]:
    """Receives one message on a DEALER socket."""
    return codec.decode(socket.recv_multipart(copy=False))


class Curve(msgspec.Struct, frozen=True):
    """CurveZMQ keys of this process, the server's public key its clients must know, and the clients a server knows."""

    public: bytes
    secret: bytes
    server: bytes
    allowed: frozenset[bytes] = frozenset()


def load_curve(folder: Path, name: str) -> Curve:
    """Reads ``NAME.secret`` and every ``.public`` as written by ``freshet keys``."""
    try:
        public, secret = (folder / f"{name}.secret").read_bytes().split()
        known = {path.stem: path.read_bytes().strip() for path in folder.glob("*.public")}
        for key in (public, secret, *known.values()):
            z85.decode(key)
        return Curve(public, secret, known["server"], frozenset(known.values()))
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise ConfigError(
            f"no usable CURVE keys for {name!r} in {folder}: {error}; make them with 'freshet keys'"
        ) from error


class _KnownClients:
    """Tells ZeroMQ's authenticator whether it knows a client's public key."""

    def __init__(self, allowed: frozenset[bytes]) -> None:
        self._allowed = allowed

    def callback(self, _domain: str, key: bytes) -> bool:
        return key in self._allowed


@contextmanager
def guarded(context: "zmq.Context[zmq.Socket[bytes]]", curve: Curve | None) -> Iterator[None]:
    """Inside, servers of this context admit only clients whose public key lies in their key folder."""
    if curve is None:
        yield
        return
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback("*", _KnownClients(curve.allowed))
    try:
        yield
    finally:
        authenticator.stop()


def bind(socket: "zmq.Socket[bytes]", endpoint: str, curve: Curve | None = None) -> str:
    """Binds and returns the real endpoint (a port of * or 0 becomes the one chosen)."""
    if curve is None and not _stays_here(endpoint):
        raise ConfigError(
            f"{endpoint!r} can be reached from other machines, and connections would not be encrypted; expected a "
            "loopback address, or keys: make them with 'freshet keys' and set curve_folder"
        )
    if curve is not None:
        socket.curve_publickey, socket.curve_secretkey = curve.public, curve.secret
        socket.curve_server = True
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(f"cannot listen on {endpoint!r}: {error}; choose a free tcp://HOST:PORT") from error
    return bytes(socket.get(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()


def _stays_here(endpoint: str) -> bool:
    """Whether only this machine can reach the endpoint."""
    transport, _, address = endpoint.partition("://")
    host = address.rpartition(":")[0]
    return transport != "tcp" or host in ("localhost", "[::1]") or host.startswith("127.")


def connect(socket: "zmq.Socket[bytes]", endpoint: str, curve: Curve | None = None) -> None:
    if curve is not None:
        socket.curve_publickey, socket.curve_secretkey = curve.public, curve.secret
        socket.curve_serverkey = curve.server
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(f"cannot connect to {endpoint!r}: {error}; expected tcp://HOST:PORT") from error
