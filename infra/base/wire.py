"""Framing of every message between processes.

A message is one ZeroMQ multipart. Its first frame is a msgspec header (msgpack, tagged by type). A message with arrays
has a second one, its body: a table with the form and the length of each array, then the short arrays, one after the
other. Each long array follows in a frame of its own, sent without a copy. A frame costs about as much as copying 50 kB,
and most arrays of most messages are short or empty.

The arrays of a message type are the fields of one NamedTuple, which the header's ``ARRAYS`` names; both ends build and
read them by name. An array is sent as it is, or in the narrowest of the forms that its field allows
(infra/base/packing.py). Every header carries run, generation and step, so that a process that wakes up in an old
generation is refused and never half understood. Nothing here can run code: no pickle.

Messages may come from anyone. A message is accepted only if its header is short and flat, has exactly the fields of its
type, each within the bounds annotated there, and its arrays have allowed forms and fit each other; otherwise WireError
is raised, and nothing has happened yet.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, get_type_hints

import msgspec
import numpy as np
import zmq
from msgspec import Meta
from numpy.typing import DTypeLike, NDArray
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

from infra.base.errors import ConfigError, WireError
from infra.base.nesting import is_nested_deeper
from infra.base.packing import Forms, forms_of

SMALL_BYTES = 64 * 1024
"""Below this size a copy is cheaper than ZeroMQ's bookkeeping for a frame that it must not copy."""
ENTRY = struct.Struct("<BI")
"""An array's entry in the table of a body: the number of its form, and its length in bytes."""
OWN_FRAME = (1 << 32) - 1
"""Stands for the length of an array that has a frame of its own."""
ALIGNED_BYTES = 8
"""Arrays in a body begin at multiples of it, so that they can be used in place."""
PADDING = tuple(bytes(-length % ALIGNED_BYTES) for length in range(ALIGNED_BYTES))
"""What follows an array in a body, by its length modulo ALIGNED_BYTES."""

HEADER_BYTES = 64 * 1024
"""Bytes of the longest header."""
DEEPEST = 16
"""Most nested maps and lists in a header; ours have two, and the decoder would recurse into any number."""
MOST_SECONDS = 1e9
"""Longest duration in a message; a longer one is not a measurement."""
MOST_BYTES = 1 << 62
REASON_CHARACTERS = 4000

Number = Annotated[int, Meta(ge=0, lt=1 << 62)]
Step = Annotated[int, Meta(ge=-1, lt=1 << 62)]
"""Step number; -1: outside of any step."""
Bytes = Annotated[int, Meta(ge=0, lt=MOST_BYTES)]
Seconds = Annotated[float, Meta(ge=0, le=MOST_SECONDS)]
Name = Annotated[str, Meta(max_length=200)]
"""Name of a run, a worker or an address."""

RUN_FLOAT = "*"
"""Represents the run's floating-point type, which each codec is given."""

I64 = Annotated[NDArray[np.int64], "i8"]
U64 = Annotated[NDArray[np.uint64], "u8"]
U8 = Annotated[NDArray[np.uint8], "u1"]
F32 = Annotated[NDArray[np.float32], "f4"]
F64 = Annotated[NDArray[np.float64], "f8"]
Float = Annotated[NDArray[Any], RUN_FLOAT]

NO_I32 = np.empty(0, np.int32)
NO_I64 = np.empty(0, np.int64)
NO_U64 = np.empty(0, np.uint64)
NO_U8 = np.empty(0, np.uint8)
NO_F32 = np.empty(0, np.float32)
NO_F64 = np.empty(0, np.float64)

Arrays = tuple[NDArray[Any], ...]
"""The base of every message's NamedTuple of arrays."""

SocketOptions = Mapping[int, int | bytes]

NO_WAIT, MORE = int(zmq.NOBLOCK), int(zmq.SNDMORE)


class NoArrays(NamedTuple):
    """The arrays of a message that consists of a header only."""


NO_ARRAYS = NoArrays()
EMPTY = 0, NO_U8
"""Form and bytes of any array without elements."""


class Header(msgspec.Struct, frozen=True, kw_only=True, tag=True, forbid_unknown_fields=True):
    """What every message carries."""

    ARRAYS: ClassVar[type[Arrays]] = NoArrays
    """The NamedTuple of this message's arrays; they are sent in its order, as flat arrays in the annotated forms."""
    EQUALLY_LONG: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Groups of arrays that must have equally many elements."""

    run: Name
    generation: Step
    """Generation; -1: before the first."""
    step: Step


class Refused(Header, frozen=True):
    """The answer to a message that was refused; generation and step are that message's."""

    reason: Annotated[str, Meta(max_length=REASON_CHARACTERS)]
    current: Step = -1
    """The generation of the process that refused it."""
    what: Name = ""
    """Type of that message, or of the error, if it matters to the sender."""


def truncate_reason(reason: str) -> str:
    """A reason, shortened to what a refusal can carry."""
    return reason if len(reason) <= REASON_CHARACTERS else reason[: REASON_CHARACTERS - 1] + "…"


class Codec:
    """Encodes and decodes one closed set of message types."""

    def __init__(self, *types: type[Header], float_dtype: DTypeLike = np.float32) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(_union(types))
        self._forms = {kind: _forms_of(kind, np.dtype(float_dtype)) for kind in types}

    def encode(self, header: Header, arrays: Arrays = NO_ARRAYS) -> list[bytes | memoryview]:
        name = type(header).__name__
        assert type(arrays) is header.ARRAYS, f"{name} takes {header.ARRAYS.__name__}, not {type(arrays).__name__}"
        frames: list[bytes | memoryview] = [self._encoder.encode(header)]
        if not arrays:
            return frames
        numbers, packed = [], []
        for array, forms in zip(arrays, self._forms[type(header)], strict=True):
            fits = array.dtype == forms.dtype or not array.size  # an empty one has no bytes to take for another type's
            assert fits, f"{name}: {array.dtype} where {forms.dtype} was declared"
            number, narrow = forms.pack(np.ascontiguousarray(array).reshape(-1)) if array.size else EMPTY
            numbers.append(number)
            packed.append(narrow.data)
        return frames + lay_out(numbers, packed)

    def decode(self, frames: Sequence[zmq.Frame | bytes]) -> tuple[Any, Any]:
        """The header and its NamedTuple of flat, aligned arrays, which share memory with the frames if possible."""
        try:
            header = self._decoder.decode(_checked_header(frames[0]))
            arrays = header.ARRAYS(*_unpacked(frames[1:], self._forms[type(header)]))
            _check_lengths(header, arrays)
        except (msgspec.DecodeError, ValueError, IndexError, KeyError) as error:
            raise WireError(
                f"cannot read a message of {len(frames)} frames: {error}; expected one of "
                f"{', '.join(kind.__name__ for kind in self._forms)}; run one version of Freshet in all processes"
            ) from error
        return header, arrays


class _NoMessage(Header, frozen=True):
    """Never sent: it makes a union of any set of types, since a single type would also be read without its tag."""


def _union(types: Sequence[type[Header]]) -> Any:
    union: Any = _NoMessage
    for kind in types:
        union = union | kind
    return union


@cache
def _forms_of(kind: type[Header], run_float: np.dtype[Any]) -> tuple[Forms, ...]:
    hints = get_type_hints(kind.ARRAYS, include_extras=True)
    return tuple(
        Forms(run_float) if hint.__metadata__ == (RUN_FLOAT,) else forms_of(hint.__metadata__)
        for hint in hints.values()
    )


def lay_out(numbers: Sequence[int], arrays: Sequence[memoryview]) -> list[bytes | memoryview]:
    """The frames of arrays, given the numbers of their forms: a body, and those that have frames of their own."""
    table = bytearray()
    short: list[bytes | memoryview] = [b""]
    long: list[bytes | memoryview] = []
    for number, array in zip(numbers, arrays, strict=True):
        nbytes = array.nbytes
        if nbytes < SMALL_BYTES:
            table += ENTRY.pack(number, nbytes)
            short += array, PADDING[nbytes % ALIGNED_BYTES]
        else:
            table += ENTRY.pack(number, OWN_FRAME)
            long.append(array)
    short[0] = bytes(table) + PADDING[len(table) % ALIGNED_BYTES]
    return [b"".join(short), *long]


def _unpacked(frames: Sequence[zmq.Frame | bytes], forms: Sequence[Forms]) -> list[NDArray[Any]]:
    """The arrays of a message; raises ValueError if a form is not one of its field's, or bytes are missing or left."""
    if not forms:
        if frames:
            raise ValueError("it has arrays; expected a header alone")
        return []
    body = _buffer(frames[0])
    table_bytes = len(forms) * ENTRY.size
    at = table_bytes + len(PADDING[table_bytes % ALIGNED_BYTES])
    if len(body) < at:
        raise ValueError(f"its body has {len(body)} bytes; expected a table of {table_bytes}")
    arrays = []
    own = 1
    for each, (number, nbytes) in zip(forms, ENTRY.iter_unpack(body[:table_bytes]), strict=True):
        if nbytes == OWN_FRAME:
            arrays.append(each.unpack(number, _buffer(frames[own])))
            own += 1
        elif nbytes:
            arrays.append(each.unpack(number, body[at : at + nbytes]))
            at += nbytes + -nbytes % ALIGNED_BYTES
        else:
            arrays.append(each.without_elements(number))
    if (at, own) != (len(body), len(frames)):
        raise ValueError(
            f"its body has {len(body)} bytes and {len(frames) - 1} arrays follow; expected {at}, {own - 1}"
        )
    return arrays


def _checked_header(frame: zmq.Frame | bytes) -> bytes:
    """The bytes of a header that is short and flat enough to be decoded."""
    header = frame.bytes if isinstance(frame, zmq.Frame) else bytes(frame)
    if len(header) > HEADER_BYTES:
        raise ValueError(f"its header has {len(header)} bytes; expected {HEADER_BYTES} at most")
    if is_nested_deeper(header, DEEPEST):
        raise ValueError(f"its header is nested more than {DEEPEST} deep")
    return header


def _check_lengths(header: Header, arrays: Arrays) -> None:
    for names in header.EQUALLY_LONG:
        lengths = [len(getattr(arrays, name)) for name in names]
        if len(set(lengths)) > 1:
            found = ", ".join(f"{length} {name}" for name, length in zip(names, lengths, strict=True))
            raise ValueError(f"{type(header).__name__} brought {found}; expected as many of each")


def _buffer(frame: zmq.Frame | bytes) -> memoryview:
    return frame.buffer if isinstance(frame, zmq.Frame) else memoryview(frame)


def send(
    socket: "zmq.Socket[bytes]", codec: Codec, header: Header, arrays: Arrays = NO_ARRAYS, to: bytes | None = None
) -> int:
    """Sends one message and returns its size in bytes; 0: it was not sent. Never waits.

    A message is not sent if too many are waiting, or if the other end has refused the connection permanently: ZeroMQ
    does not reconnect then, and a send that waited would never return, whatever signal came. Arrays must stay unchanged
    until they are delivered.
    """
    frames = codec.encode(header, arrays)
    try:
        send_frames(socket, frames if to is None else [to, *frames], NO_WAIT)
    except zmq.Again:
        return 0
    return sum(len(f) if isinstance(f, bytes) else f.nbytes for f in frames)


def send_frames(socket: "zmq.Socket[bytes]", frames: Sequence[bytes | memoryview | zmq.Frame], flags: int = 0) -> None:
    """Sends one message; copies bytes, but not what a long array or a lent frame holds.

    Flags are plain integers: combining ZeroMQ's own, as ``send_multipart`` does, takes as long as sending a frame.
    """
    for frame in frames[:-1]:
        socket.send(frame, flags | MORE, copy=isinstance(frame, bytes))
    socket.send(frames[-1], flags, copy=isinstance(frames[-1], bytes))


def receive(socket: "zmq.Socket[bytes]", codec: Codec) -> tuple[Any, Any]:
    """Receives one message on a DEALER socket: its header and its arrays."""
    return codec.decode(socket.recv_multipart(copy=False))


class Curve(msgspec.Struct, frozen=True):
    """CurveZMQ keys of this process, the server's public key that clients must know, and the clients that a server
    knows.
    """

    public: bytes
    secret: bytes
    server: bytes
    allowed: frozenset[bytes] = frozenset()


def write_curve(folder: Path, names: Sequence[str]) -> None:
    """Creates a pair of keys for each name, in a folder that only its owner can read."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name in names:
        secret_file = folder / f"{name}.secret"
        public, secret = zmq.curve_keypair()
        secret_file.touch(mode=0o600, exist_ok=False)
        secret_file.write_text(f"{public.decode()}\n{secret.decode()}\n")
        (folder / f"{name}.public").write_text(f"{public.decode()}\n")


def load_curve(folder: Path, name: str) -> Curve:
    """Reads ``NAME.secret`` and every ``.public`` as ``write_curve`` makes them."""
    try:
        public, secret = (folder / f"{name}.secret").read_bytes().split()
        known = {path.stem: path.read_bytes().strip() for path in folder.glob("*.public")}
        for key in (public, secret, *known.values()):
            z85.decode(key)
        return Curve(public, secret, known["server"], frozenset(known.values()))
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise ConfigError(
            f"no usable CURVE keys for {name!r} in {folder}: {error}; expected {name}.secret and server.public; "
            "make them with 'freshet keys'"
        ) from error


class _KnownClients:
    """The callback of ZeroMQ's authenticator: whether a client's public key is one of those allowed."""

    def __init__(self, allowed: frozenset[bytes]) -> None:
        self._allowed = allowed

    def callback(self, _domain: str, key: bytes) -> bool:
        return key in self._allowed


@contextmanager
def guarded(context: "zmq.Context[zmq.Socket[bytes]]", curve: Curve | None) -> Iterator[None]:
    """Inside, servers of this context admit only clients whose public key is in their key folder."""
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
    """Binds and returns the real endpoint (a port of * or 0 becomes the one chosen); a failure closes the socket."""
    if curve is None:
        check_local(endpoint)
    else:
        socket.curve_publickey = curve.public
        socket.curve_secretkey = curve.secret
        socket.curve_server = True
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        socket.close()
        raise ConfigError(
            f"cannot listen on {endpoint!r}: {error}; expected an address of this machine and a port not in use; "
            "choose a free tcp://HOST:PORT"
        ) from error
    return bytes(socket.get(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode()


def check_local(endpoint: str) -> None:
    """Raises ConfigError for an address that needs keys, because other machines can reach it."""
    if not _is_local(endpoint):
        raise ConfigError(
            f"{endpoint!r} can be reached from other machines, and connections would not be encrypted; expected a "
            "loopback address, or keys: make them with 'freshet keys' and set curve_folder"
        )


def _is_local(endpoint: str) -> bool:
    """Whether only this machine can reach the endpoint."""
    transport, _, address = endpoint.partition("://")
    host = address.rpartition(":")[0]
    return transport != "tcp" or host in ("localhost", "[::1]") or host.startswith("127.")


def connected(
    context: "zmq.Context[zmq.Socket[bytes]]",
    endpoint: str,
    curve: Curve | None = None,
    options: SocketOptions | None = None,
) -> "zmq.Socket[bytes]":
    """A connected DEALER socket with these options; what it could not deliver is dropped when it is closed."""
    socket = context.socket(zmq.DEALER)
    try:
        for option, value in ({zmq.LINGER: 0} | dict(options or {})).items():
            socket.set(option, value)
        connect(socket, endpoint, curve)
    except ConfigError:
        socket.close()
        raise
    return socket


def connect(socket: "zmq.Socket[bytes]", endpoint: str, curve: Curve | None = None) -> None:
    _check_enterable(endpoint)
    if curve is not None:
        socket.curve_publickey = curve.public
        socket.curve_secretkey = curve.secret
        socket.curve_serverkey = curve.server
    try:
        socket.connect(endpoint)
    except zmq.ZMQError as error:
        raise ConfigError(
            f"cannot connect to {endpoint!r}: {error}; expected tcp://HOST:PORT; correct the endpoint"
        ) from error


def _check_enterable(endpoint: str) -> None:
    """Raises ConfigError for a Unix socket in a folder that is not on this machine, or not accessible to this user.

    ZeroMQ would silently try to connect again and again. The socket itself may not exist yet.
    """
    transport, _, address = endpoint.partition("://")
    if transport != "ipc" or address.startswith("@"):
        return
    path = Path(address)
    try:
        path.parent.stat()
        with suppress(FileNotFoundError):
            path.stat()
    except OSError as error:
        raise ConfigError(
            f"cannot connect to {endpoint!r}: {error.strerror}; expected the user and the machine of a run that is "
            "under way; from another user, machine or container a run is reached only where "
            "dispatch.control_endpoint and dispatch.feed_endpoint are tcp://HOST:PORT, with keys"
        ) from error
