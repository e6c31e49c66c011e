"""Codec, fencing and CURVE on real sockets."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple

import msgspec
import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from infra.base.errors import ConfigError, WireError
from infra.base.packing import BITS
from infra.base.wire import (
    ALIGNED_BYTES,
    ENTRY,
    HEADER_BYTES,
    I64,
    NO_ARRAYS,
    NO_F32,
    NO_I64,
    OWN_FRAME,
    SMALL_BYTES,
    Codec,
    Curve,
    Float,
    Header,
    Refused,
    bind,
    connect,
    connected,
    guarded,
    load_curve,
    receive,
    send,
    truncate_reason,
)
from tests.sockets import RefusingStranger, entries_of, receive_from


class PingArrays(NamedTuple):
    rows: I64
    values: Float


class Ping(Header, frozen=True):
    """A message with arrays, as real ones have."""

    ARRAYS: ClassVar = PingArrays

    note: str


class PairArrays(NamedTuple):
    rows: I64
    slots: I64


class Pair(Header, frozen=True):
    """A message whose arrays belong together."""

    ARRAYS: ClassVar = PairArrays
    EQUALLY_LONG: ClassVar = (("rows", "slots"),)


class SampleArrays(NamedTuple):
    numbers: Annotated[NDArray[np.int64], "u1", "u4", "i8"]
    values: Float
    labels: Annotated[NDArray[np.float32], BITS, "f4"]


class Sampled(Header, frozen=True):
    """A message whose arrays have several forms, but for one."""

    ARRAYS: ClassVar = SampleArrays


PING = Ping(run="r", generation=2, step=7, note="hello")
NOTHING = PingArrays(NO_I64, NO_F32)
CODEC = Codec(Ping, Refused)
NO_BODY = bytes(16)
"""The body of a message with two arrays that are empty."""


Sockets = Callable[[int], Any]


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    """Makes sockets of a kind, and closes them after the test."""
    with ExitStack() as stack:
        context = stack.enter_context(zmq.Context())

        def make(kind: int) -> Any:
            socket = stack.enter_context(context.socket(kind))
            socket.setsockopt(zmq.LINGER, 0)
            return socket

        yield make


def make_keys() -> tuple[Curve, Curve]:
    """A server and a client that know each other."""
    server_public, server_secret = zmq.curve_keypair()
    public, secret = zmq.curve_keypair()
    return Curve(server_public, server_secret, server_public), Curve(public, secret, server_public)


def pair(sockets: Sockets, server: Curve | None, client: Curve | None) -> tuple[Any, Any]:
    listener, caller = sockets(zmq.ROUTER), sockets(zmq.DEALER)
    endpoint = bind(listener, "tcp://127.0.0.1:*", server)
    connect(caller, endpoint, client)
    return listener, caller


@given(
    arrays(np.int64, st.integers(0, 50)),
    arrays(np.float32, st.integers(0, 50), elements=st.floats(width=32)),
    st.text(),
    st.integers(0, 2**62 - 1),
)
def test_any_message_comes_back_equal(rows: NDArray[Any], values: NDArray[Any], note: str, step: int) -> None:
    sent = Ping(run="r", generation=0, step=step, note=note)
    header, arrays = CODEC.decode([bytes(frame) for frame in CODEC.encode(sent, PingArrays(rows, values))])
    assert header == sent
    assert arrays.rows.tobytes() == rows.tobytes()
    assert arrays.values.tobytes() == values.tobytes()


def test_double_precision_run_carries_float64() -> None:
    codec = Codec(Ping, float_dtype=np.float64)
    sent = PingArrays(rows=np.zeros(1, np.int64), values=np.array([[1 / 3]]))
    _, arrays = codec.decode([bytes(frame) for frame in codec.encode(PING, sent)])
    assert arrays.values[0] == 1 / 3


def test_message_without_arrays_is_its_header_alone() -> None:
    refused = Refused(run="r", generation=0, step=0, reason="no")
    (frame,) = CODEC.encode(refused)
    assert CODEC.decode([bytes(frame)]) == (refused, NO_ARRAYS)


def test_arrays_with_several_forms_take_few_bytes_and_come_back_equal() -> None:
    codec, sent = Codec(Sampled, float_dtype=np.float64), Sampled(run="r", generation=0, step=0)
    arrays = SampleArrays(np.array([7, 300]), np.array([0.1]), np.array([1, 0, 0, 1], np.float32))
    frames = [bytes(frame) for frame in codec.encode(sent, arrays)]
    assert entries_of(frames, SampleArrays) == [(1, 8), (0, 8), (0, 1)]
    header, received = codec.decode(frames)
    assert header == sent
    assert [array.tolist() for array in received] == [array.tolist() for array in arrays]
    assert [array.dtype for array in received] == [array.dtype for array in arrays]


def test_short_arrays_share_a_frame_and_a_long_one_has_its_own() -> None:
    rows, values = np.arange(4), np.ones(SMALL_BYTES // 4, np.float32)
    header, body, long = CODEC.encode(PING, PingArrays(rows, values))
    assert np.shares_memory(np.frombuffer(long, np.float32), values), "it is sent without a copy"
    assert entries_of([header, body], PingArrays) == [(0, 32), (0, OWN_FRAME)]
    assert len(CODEC.encode(PING, PingArrays(rows, values[:-1]))) == 2


def test_body_at_an_odd_address_gives_aligned_arrays() -> None:
    header, body = CODEC.encode(PING, PingArrays(np.arange(4), np.ones(2, np.float32)))
    odd = memoryview(b"\0" + bytes(body))[1:]
    assert not np.frombuffer(odd, np.uint64, 1).flags.aligned
    _, arrays = CODEC.decode([bytes(header), odd])  # type: ignore[list-item]
    assert arrays.rows.flags.aligned
    assert arrays.rows.tolist() == [0, 1, 2, 3]


def test_decoded_arrays_share_memory_with_the_frame() -> None:
    frames = [bytes(frame) for frame in CODEC.encode(PING, PingArrays(np.arange(4), np.ones(2, np.float32)))]
    _, arrays = CODEC.decode(frames)
    assert np.shares_memory(arrays.rows, np.frombuffer(frames[1], np.uint8))
    assert np.shares_memory(arrays.values, np.frombuffer(frames[1], np.uint8))


def body_of(*entries: tuple[int, int], rest: bytes = b"") -> bytes:
    """A body with any table."""
    table = b"".join(itertools.starmap(ENTRY.pack, entries))
    return table + bytes(-len(table) % ALIGNED_BYTES) + rest


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"\xc1not msgpack"],
        [msgspec.msgpack.encode({"type": "Stranger", "run": "r", "generation": 0, "step": 0}), NO_BODY],
        [msgspec.msgpack.encode({"type": "Ping", "run": "r", "generation": "x", "step": 0, "note": ""}), NO_BODY],
        [msgspec.msgpack.encode(PING)],
        [msgspec.msgpack.encode(PING), NO_BODY, b""],
        [msgspec.msgpack.encode(PING), NO_BODY[:5]],
        [msgspec.msgpack.encode(PING), NO_BODY + bytes(8)],
        [msgspec.msgpack.encode(PING), body_of((0, 7), (0, 0), rest=bytes(8))],
        [msgspec.msgpack.encode(PING), body_of((0, 16), (0, 0), rest=bytes(8))],
        [msgspec.msgpack.encode(PING), body_of((1, 8), (0, 0), rest=bytes(8))],
        [msgspec.msgpack.encode(PING), body_of((1, 0), (0, 0))],
        [msgspec.msgpack.encode(PING), body_of((0, OWN_FRAME), (0, 0))],
        [msgspec.msgpack.encode(PING), body_of((0, OWN_FRAME), (0, 0)), bytes(7)],
    ],
    ids=[
        *("no frame", "empty", "garbage", "unknown type", "wrong field", "no body", "too many", "short table"),
        *("bytes left", "torn array", "missing bytes", "unknown form", "form of nothing", "missing frame"),
        "torn frame",
    ],
)
def test_wrong_frames_raise_wire_error(frames: list[bytes]) -> None:
    with pytest.raises(WireError, match="one version"):
        CODEC.decode(frames)


FIELDS = {"type": "Ping", "run": "r", "generation": 0, "step": 0, "note": ""}
NESTED = b"\x91" * 1_000


@pytest.mark.parametrize(
    "header",
    [
        b"\x81\xa1x" + NESTED + b"\xc0",
        b"\x85\xa1x" + NESTED + msgspec.msgpack.encode(FIELDS)[1:],
        b"\x86" + msgspec.msgpack.encode(FIELDS)[1:] + b"\xa1x" + NESTED + b"\xc0",
        msgspec.msgpack.encode(FIELDS | {"surplus": 1}),
        msgspec.msgpack.encode(FIELDS | {"note": "x" * HEADER_BYTES}),
        msgspec.msgpack.encode(FIELDS | {"run": "r" * 201}),
        msgspec.msgpack.encode(FIELDS | {"generation": -2}),
        msgspec.msgpack.encode(FIELDS | {"step": 1 << 62}),
    ],
    ids=["no type", "before the type", "behind", "surplus field", "too long", "long name", "generation", "step"],
)
def test_header_out_of_bounds_raises_wire_error(header: bytes) -> None:
    with pytest.raises(WireError, match="one version"):
        CODEC.decode([header, NO_BODY])


def test_text_that_looks_nested_is_read() -> None:
    sent = Ping(run="r", generation=0, step=0, note="\u0440\u0431" * 100)
    assert CODEC.decode([bytes(frame) for frame in CODEC.encode(sent, NOTHING)])[0] == sent


def test_arrays_that_belong_together_and_differ_in_length_raise_wire_error() -> None:
    header = msgspec.msgpack.encode(Pair(run="r", generation=0, step=0))
    with pytest.raises(WireError, match="1 rows, 2 slots; expected as many of each"):
        Codec(Pair).decode([header, body_of((0, 8), (0, 16), rest=bytes(24))])


def test_long_reason_is_truncated_to_what_a_refusal_carries() -> None:
    codec = Codec(Refused)
    refused = Refused(run="r", generation=0, step=0, reason=truncate_reason("no" * 10_000))
    assert codec.decode([bytes(frame) for frame in codec.encode(refused)])[0] == refused


def test_wrong_dtype_is_caught_before_sending() -> None:
    with pytest.raises(AssertionError, match="float64"):
        CODEC.encode(PING, PingArrays(np.zeros(1, np.int64), np.zeros(1, np.float64)))


def test_arrays_of_another_message_are_caught_before_sending() -> None:
    with pytest.raises(AssertionError, match="Ping takes PingArrays, not NoArrays"):
        CODEC.encode(PING)


@pytest.mark.parametrize("values", [3, 100_000])
def test_message_crosses_tcp_and_is_answered(sockets: Sockets, values: int) -> None:
    listener, caller = pair(sockets, None, None)
    rows, floats = np.arange(5), np.linspace(0, 1, values, dtype=np.float32)
    assert send(caller, CODEC, PING, PingArrays(rows, floats)) > floats.nbytes
    sender, header, arrays = receive_from(listener, CODEC)
    assert header == PING
    assert np.array_equal(arrays.values, floats)
    send(listener, CODEC, Refused(run="r", generation=2, step=7, reason="no"), to=sender)
    assert receive(caller, CODEC)[0].reason == "no"


def test_right_curve_key_passes(sockets: Sockets) -> None:
    listener, caller = pair(sockets, *make_keys())
    send(caller, CODEC, PING, NOTHING)
    assert listener.poll(10_000)
    assert receive_from(listener, CODEC)[1] == PING


@pytest.mark.parametrize("impostor", [True, False], ids=["another server's key", "no key"])
def test_wrong_curve_key_gets_nothing(sockets: Sockets, impostor: bool) -> None:
    server, right = make_keys()
    listener, caller = pair(sockets, server, make_keys()[1] if impostor else None)
    caller.set(zmq.SNDTIMEO, 1000)
    with suppress(zmq.Again):  # a connection that was refused already takes nothing
        send(caller, CODEC, PING, NOTHING)
    honest = sockets(zmq.DEALER)
    connect(honest, bytes(listener.get(zmq.LAST_ENDPOINT)).rstrip(b"\0").decode(), right)
    send(honest, CODEC, Ping(run="r", generation=0, step=0, note="honest"), NOTHING)
    assert receive_from(listener, CODEC)[1].note == "honest"
    assert not listener.poll(300)


def test_port_in_use_is_a_config_error(sockets: Sockets) -> None:
    endpoint = bind(sockets(zmq.ROUTER), "tcp://127.0.0.1:*")
    with pytest.raises(ConfigError, match="choose a free"):
        bind(sockets(zmq.ROUTER), endpoint)


def test_address_without_port_is_a_config_error(sockets: Sockets) -> None:
    with pytest.raises(ConfigError, match="expected tcp://HOST:PORT"):
        connect(sockets(zmq.DEALER), "tcp://nowhere")


def test_key_files_are_read_as_written(tmp_path: Path) -> None:
    server, client = make_keys()
    (tmp_path / "server.public").write_text(server.public.decode() + "\n")
    (tmp_path / "worker.secret").write_text(f"{client.public.decode()}\n{client.secret.decode()}\n")
    (tmp_path / "worker.public").write_text(client.public.decode() + "\n")
    read = load_curve(tmp_path, "worker")
    assert (read.public, read.secret, read.server) == (client.public, client.secret, server.public)
    assert read.allowed == {server.public, client.public}


def test_garbage_in_a_key_file_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "server.public").write_text("not a key")
    (tmp_path / "worker.secret").write_text("not keys")
    with pytest.raises(ConfigError, match="freshet keys"):
        load_curve(tmp_path, "worker")


def test_a_client_the_server_does_not_know_gets_nothing(sockets: Sockets) -> None:
    server, known = make_keys()
    stranger = Curve(*zmq.curve_keypair(), server.public)
    server = Curve(server.public, server.secret, server.public, frozenset({known.public}))
    listener, caller = sockets(zmq.ROUTER), sockets(zmq.DEALER)
    with guarded(listener.context, server):
        endpoint = bind(listener, "tcp://127.0.0.1:*", server)
        connect(caller, endpoint, stranger)
        send(caller, CODEC, PING, NOTHING)
        honest = sockets(zmq.DEALER)
        connect(honest, endpoint, known)
        send(honest, CODEC, Ping(run="r", generation=0, step=0, note="honest"), NOTHING)
        assert listener.poll(10_000)
        assert receive_from(listener, CODEC)[1].note == "honest"
        assert not listener.poll(300)


@pytest.mark.parametrize("endpoint", ["tcp://0.0.0.0:*", "tcp://*:*", "tcp://10.1.2.3:5600", "tcp://[::]:*"])
def test_an_address_others_can_reach_needs_keys(sockets: Sockets, endpoint: str) -> None:
    with pytest.raises(ConfigError, match="would not be encrypted"):
        bind(sockets(zmq.ROUTER), endpoint)


def test_missing_key_files_say_how_to_make_them(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="freshet keys"):
        load_curve(tmp_path, "worker")


def test_send_says_that_nobody_takes_more_and_does_not_wait() -> None:
    with zmq.Context() as context, connected(context, "tcp://127.0.0.1:1", options={zmq.SNDHWM: 2}) as socket:
        sizes = [send(socket, CODEC, PING, NOTHING) for _ in range(4)]
        assert sizes[0] == sizes[1] > 0
        assert sizes[2:] == [0, 0]


def test_send_over_a_connection_that_was_refused_for_good_does_not_wait() -> None:
    with RefusingStranger() as stranger, zmq.Context() as context, connected(context, stranger.endpoint) as socket:
        deadline = time.monotonic() + 60
        while send(socket, CODEC, PING, NOTHING):
            assert time.monotonic() < deadline, "the connection was not refused"
            time.sleep(0.01)
        assert send(socket, CODEC, PING, NOTHING) == 0


def test_a_socket_in_a_folder_that_is_not_here_cannot_be_connected_to(tmp_path: Path) -> None:
    with zmq.Context() as context:
        with pytest.raises(ConfigError, match=r"No such file or directory; expected the user and the machine of a run"):
            connected(context, f"ipc://{tmp_path}/elsewhere/control")
        connected(context, f"ipc://{tmp_path}/not-yet").close()


def test_a_socket_that_cannot_listen_is_closed() -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as first:
        endpoint = bind(first, "tcp://127.0.0.1:*")
        second = context.socket(zmq.ROUTER)
        with pytest.raises(ConfigError, match="cannot listen"):
            bind(second, endpoint)
        assert second.closed
