"""The process of one PS shard.

It owns rows, optimizer state and the step that last changed each row, and a range of the dense weights. One thread
handles one message at a time, so messages are carried out in order of arrival; ps/shard.py says in which order a round
is applied. A crash costs the rows in memory, and everyone returns to the last checkpoint (ps/checkpoints/taker.py).

No message ends the process: one that cannot be read, or does not fit, is refused before it has changed anything.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from time import monotonic
from typing import Any
from uuid import uuid4

import numpy as np
import structlog
import zmq

from infra.base.agreement import Agreement
from infra.base.errors import ConfigError, WireError
from infra.base.faults import reach
from infra.base.kernels import compile_ahead
from infra.base.process import NameClaim, Stop
from infra.base.storage import Storage
from infra.base.telemetry import Meter, Refusals
from infra.base.trace import span
from infra.base.wire import (
    NO_ARRAYS,
    Arrays,
    Codec,
    Curve,
    Header,
    Refused,
    SocketOptions,
    bind,
    connected,
    guarded,
    receive,
    send,
    send_frames,
)
from ps.bins import BINS
from ps.checkpoints.digest import digest_store
from ps.checkpoints.gather import RowCopy
from ps.checkpoints.publication import FilePublisher
from ps.checkpoints.restore import ModelSettings
from ps.checkpoints.taker import CheckpointTaker
from ps.config import CheckpointConfig, DenseRule, PsConfig, RowConfig
from ps.errors import Displaced
from ps.fingerprints import fingerprint
from ps.packed import Packing
from ps.phases import TRAIN
from ps.protocol import (
    DISPLACED,
    FROM_SHARD,
    TAKEN,
    TO_SHARD,
    Announce,
    AnnounceArrays,
    Heard,
    Open,
    Pull,
    PullArrays,
    Push,
    PushArrays,
    Serve,
    Terms,
)
from ps.pruned_store import PrunedStore
from ps.pruning import count_chunks, prune, weigh_columns
from ps.rounds import Received
from ps.shard import Reply, Shard
from ps.utilities import all_live

FRAME_BYTES = 1 << 34
"""Largest array of a message, in bytes: all rows of a worker's cache. If a peer sends more, its
connection is closed.
"""
POLL_MILLISECONDS = 100
"""How late a request to stop may be noticed."""
OFFER_SECONDS = 1.0
"""Time between two offers to the dispatcher."""
UNANSWERED_SECONDS = 5.0
"""Time without an answer to any offer after which the connection is made again."""
LINGER_MILLISECONDS = 1000
"""How long a stopping shard waits for replies that are still on their way."""


@dataclass(frozen=True)
class ShardJob:
    """One shard of one run, with everything that was read from files and the environment."""

    number: int
    """Number of this shard, from 0."""
    config: PsConfig
    rows: RowConfig
    run: str
    seed: int
    endpoint: str
    """Where to listen; the port * means any free port."""
    dispatcher_endpoint: str = ""
    """The dispatcher to which the shard offers itself; empty: none."""
    dense: DenseRule = field(default_factory=DenseRule)
    curve: Curve | None = None
    agreement: Agreement = field(default_factory=Agreement)
    """The settings that it must share with the dispatcher and the workers."""
    storage: str = ""
    """Where checkpoints are: a folder or a URL; empty: no checkpoints can be taken."""
    checkpoints: CheckpointConfig = field(default_factory=CheckpointConfig)
    publisher_endpoint: str = ""
    """Where to publish the files of checkpoints for servers; empty: at any free port of the address
    that it listens on.
    """
    is_supervised: bool = False
    """Whether a supervisor would only restart it if it gave up because another process serves as this shard."""
    waits_until_heard: bool = False
    """Whether it is ready only once the dispatcher has accepted its offer. A shard started by hand may be the second of
    its number, and must not register in the run's folder before that.
    """


def run_shard(job: ShardJob, stop: Stop, on_ready: Callable[[str], None], meter: Meter | None = None) -> None:
    """Serves one shard until a stop is requested. ``on_ready`` gets the real endpoint once messages are accepted, or,
    if the job says so, once the dispatcher knows the shard.
    """
    log = structlog.get_logger().bind(process="ps", shard=job.number, run=job.run)
    requests = Codec(*TO_SHARD, float_dtype=job.rows.float_dtype)
    replies = Codec(*FROM_SHARD, float_dtype=job.rows.float_dtype)
    terms = Terms(job.number, job.config.shards, dict(job.agreement.shards))
    refused = Refusals(meter)
    model = ModelSettings(job.rows, job.seed, job.config.chunk_rows, job.dense)
    checkpoints = CheckpointTaker(Storage.at(job.storage) if job.storage else None, job.number, job.checkpoints.deltas)
    state = Shard(model, job.run, job.config.held_bytes, refused, terms, checkpoints)
    if not compile_ahead(lambda: warm_up(job.rows, job.dense), ["ps"], lambda: stop.requested):
        log.info("stopped before it was ready", reason=stop.reason)
        return
    with ExitStack() as resources:
        context = resources.enter_context(zmq.Context())
        resources.enter_context(guarded(context, job.curve))
        socket = resources.enter_context(open_socket(context))
        endpoint = bind(socket, job.endpoint, job.curve)
        checkpoints.publisher = FilePublisher(context, job.publisher_endpoint or beside(job.endpoint), job.curve)
        resources.callback(checkpoints.publisher.close)
        if not job.waits_until_heard:
            on_ready(endpoint)
        log.info("ready", endpoint=endpoint, shards=job.config.shards, row_floats=state.store.shape.total)
        offered = offered_at(endpoint, job.run, terms, checkpoints.publisher.endpoint)
        offer = resources.enter_context(closing(Offer(context, job, offered)))
        resources.callback(checkpoints.close)
        while not stop.requested:
            if offer.renew() and job.waits_until_heard:
                on_ready(endpoint)
            was_awaited = not int(socket.get(zmq.EVENTS)) & zmq.POLLIN
            if socket.poll(checkpoints.patience(POLL_MILLISECONDS)):
                sender, *frames = socket.recv_multipart(copy=False)
                for reply in answer(state, requests, sender.bytes, frames, was_awaited):
                    with span("send"):
                        transmit(socket, replies, reply)
                if not int(socket.get(zmq.EVENTS)) & zmq.POLLIN:
                    for reply in state.answer_dense():
                        with span("send"):
                            transmit(socket, replies, reply)
                observe(meter, state)
            else:
                reach("idle")
            for reply in state.go_on():
                transmit(socket, replies, reply)
        log.info("stopped", reason=stop.reason, rows=len(state.store), refused=dict(refused.by_type))


def beside(endpoint: str) -> str:
    """Any free port of the same address."""
    return f"{endpoint.rpartition(':')[0]}:*" if endpoint.startswith("tcp://") else f"{endpoint}-files"


def offered_at(endpoint: str, run: str, terms: Terms, publisher: str = "") -> Serve:
    return Serve(run=run, generation=-1, step=0, endpoint=endpoint, terms=terms, publisher=publisher)


class Offer:
    """The shard's connection to the dispatcher: offers the shard every second, so that a new dispatcher learns of it,
    too.

    Another program may have the dispatcher's port for a while and refuse the connection permanently: then it is made
    again. ZeroMQ usually, but not always, refuses to send after that, so silence counts as well.
    """

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", job: ShardJob, offered: Serve) -> None:
        self._context = context
        self._endpoint = job.dispatcher_endpoint
        self._curve = job.curve
        self._offered = offered
        self._options: SocketOptions = {zmq.ROUTING_ID: f"shard-{job.number}/{uuid4().hex}".encode()}
        self._codec = Codec(Serve)
        self._answers = Codec(Heard, Refused)
        self._claim = NameClaim(job.is_supervised)
        self._renewed = 0.0
        self._is_heard = False
        self._answered = monotonic()
        """When the dispatcher last answered, or the connection was made."""
        self._socket = self._connected() if self._endpoint else None

    def renew(self) -> bool:
        """Offers the shard if it is time to; returns whether the dispatcher has accepted an offer for the first time.

        Raises ConfigError or Displaced if the dispatcher does not want the shard.
        """
        if self._socket is None or monotonic() - self._renewed < OFFER_SECONDS:
            return False
        self._renewed = monotonic()
        was_heard = self._is_heard
        self._read_answers()  # first: a shard that was busy for long has been answered meanwhile
        is_sent = send(self._socket, self._codec, self._offered)
        if not is_sent or self._renewed - self._answered > UNANSWERED_SECONDS:
            self._socket.close()
            self._socket = self._connected()
            self._answered = self._renewed
        return self._is_heard and not was_heard

    def _read_answers(self) -> None:
        assert self._socket is not None
        while self._socket.poll(0):
            answer, _ = receive(self._socket, self._answers)
            self._answered = self._renewed
            if isinstance(answer, Refused):
                self._be_refused(answer)
            else:
                self._is_heard = True

    def _be_refused(self, refused: Refused) -> None:
        reason = f"the dispatcher at {self._endpoint} refused this shard: {refused.reason}"
        if refused.what == TAKEN:
            self._claim.refuse(reason)
        else:
            raise (Displaced if refused.what == DISPLACED else ConfigError)(reason)

    def _connected(self) -> "zmq.Socket[bytes]":
        return connected(self._context, self._endpoint, self._curve, self._options)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def observe(meter: Meter | None, shard: Shard) -> None:
    """Adds one message to the metrics of the process."""
    if meter is not None:
        meter.count("ps_messages")
        meter.gauge("ps_rows", len(shard.store))


def open_socket(context: "zmq.Context[zmq.Socket[bytes]]") -> "zmq.Socket[bytes]":
    """A ROUTER that drops nothing: what is in flight is bounded by rounds, not by the number of messages."""
    socket = context.socket(zmq.ROUTER)
    socket.set(zmq.SNDHWM, 0)
    socket.set(zmq.RCVHWM, 0)
    socket.set(zmq.MAXMSGSIZE, FRAME_BYTES)
    socket.set(zmq.ROUTER_HANDOVER, 1)  # a dispatcher that connects again is still the one that opened the generation
    socket.set(zmq.LINGER, LINGER_MILLISECONDS)
    return socket


def answer(
    shard: Shard, codec: Codec, sender: bytes, frames: Sequence[Any], was_awaited: bool = False
) -> Iterator[Reply]:
    """Decodes and carries out one message; one that cannot be read is refused. was_awaited: see Received."""
    try:
        header, arrays = codec.decode(frames)
    except WireError as error:
        yield shard.refuse(Received(sender, None, NO_ARRAYS), error)
        return
    with span(type(header).__name__, header.step):
        yield from shard.receive(Received(sender, header, arrays, was_awaited=was_awaited))


def transmit(socket: "zmq.Socket[bytes]", codec: Codec, reply: Reply) -> None:
    """Sends long arrays straight from the reply's buffer, which is reused only when they have left."""
    frames: list[Any] = [reply.to]
    trackers = []
    for frame in codec.encode(reply.header, reply.arrays):
        if isinstance(frame, memoryview):
            lent = zmq.Frame(frame, copy=False, track=True)
            trackers.append(lent.tracker)
            frames.append(lent)
        else:
            frames.append(frame)
    send_frames(socket, frames)
    if reply.buffer is not None:
        reply.buffer.sent([tracker for tracker in trackers if tracker is not None])


def warm_up(rows: RowConfig, dense: DenseRule) -> None:
    """Runs every kernel once on a separate shard, so that the first real round does not wait for the compiler."""
    shard = Shard(ModelSettings(rows, 0, 1, dense), "warm-up")
    shape = rows.shape()
    one = np.zeros(1, np.int64)
    row_1T = np.zeros((1, shape.total), rows.float_dtype)
    if shape.chunks:
        row_1T[:, -1] = all_live(shape.chunks)
    packing = Packing(rows)
    masks = packing.masks_of(row_1T)
    gradient = np.zeros(shape.part, rows.float_dtype)
    created = AnnounceArrays(
        new_numbers=one,
        new_keys=one.astype(np.uint64),
        settled=one,
        changed=one,
        changed_steps=one,
        pushed=np.array([fingerprint(one, one)], np.uint64),
    )
    pushed = PushArrays(one, packing.pack(row_1T, masks), one, gradient, masks)
    common: dict[str, Any] = {"run": "warm-up", "generation": 0, "step": 0}
    messages: list[tuple[Header, Arrays]] = [
        (Open(**common, workers=1), NO_ARRAYS),
        (Announce(**common, phase=TRAIN, pushers=[0]), created),
        (Push(**common, phase=TRAIN, worker=0), pushed),
        (Pull(**common, phase=TRAIN, worker=0), PullArrays(full_numbers=one)),
    ]
    for header, arrays in messages:
        for _ in shard.receive(Received(b"", header, arrays)):
            pass
    shard.dense.put(np.zeros(1 if dense.optimizer == "sgd" else 4, rows.float_dtype))
    shard.dense.add(0, np.zeros(1, rows.float_dtype), is_first=True)
    shard.dense.add(0, np.zeros(1, rows.float_dtype), is_first=False)
    shard.dense.apply(0)
    copy = RowCopy(shard.store, 0, 0, 1)
    copy.keep(one)
    copy.go_on()
    packing.warm_up_reading(with_state=True)
    digest_store(shard.store, 0, 1)
    if isinstance(shard.store, PrunedStore):
        count_chunks(shard.store)
        everything = [BINS] * shape.chunks
        prune(shard.store, evict_below=everything, bring_from=everything, halvings=1)
        if rows.optimizer == "adagrad":
            weigh_columns(shard.store)
            shard.store.drop_columns(tuple(range(0, rows.dim, rows.dim // rows.chunks)))
