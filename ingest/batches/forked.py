"""A loader in a process of its own: forming batches and deciding about them then never wait for each other's Python.

The process is forked before anything is opened or any thread started, and opens the source itself. Batches come back in
shared memory (``ingest.batches.slots``). It ends when the connection is closed, and is killed when its parent dies;
then the batches that were not taken are formed again by the next one.
"""

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NoReturn

import msgspec
import numpy as np
import setproctitle
import structlog

from infra.base.errors import FreshetError, ProcessFailed
from infra.base.kernels import threads, use_threads
from infra.base.process import die_with
from ingest.batches.batch import Batch
from ingest.batches.job import LoaderJob
from ingest.batches.loader import Loader
from ingest.batches.slots import Extent, Slots, WrittenBatch, read_batch, slot_bytes
from ingest.schema import Schema
from ingest.streams.position import Position, Range
from ingest.streams.source import Source

REPORT_SECONDS = 0.25
"""How often the process says how much is waiting, if that has changed, while no batch is formed."""
LIFE_SECONDS = 1.0
"""How often it says so even if nothing has changed."""
SILENT_SECONDS = 10.0
"""Without a word from it for so long, it hangs or was stopped."""
CLOSE_SECONDS = 10.0
"""How long a loader may take to end: a broker that does not answer keeps it from committing."""
IN_USE = 4
"""Batches that the taker may keep besides those that wait for it."""
NO_SLOT = -1


class Begin(msgspec.Struct, frozen=True, tag=True):
    """The first message to the process."""

    job: LoaderJob
    threads: int
    """Among how many its kernels divide their work."""


class Taken(msgspec.Struct, frozen=True, tag=True):
    """A batch was handed out, and these slots are free again."""

    freed: list[int]


class SkipAbove(msgspec.Struct, frozen=True, tag=True):
    events: int | None


class Formed(msgspec.Struct, frozen=True, tag=True):
    """The next batch; without a slot its bytes are the next message."""

    slot: int
    extent: Extent


class Progressed(msgspec.Struct, frozen=True, tag=True):
    """What the loader says besides batches."""

    known: int
    start: dict[int, Position] | None
    clock: str


class Over(msgspec.Struct, frozen=True, tag=True):
    """There are no more batches."""

    error: str = ""
    """Why, if that is not the end of the stream."""
    kind: str = ""
    """Name of the error's class."""


NOTHING_KNOWN = Progressed(known=0, start=None, clock="")


class ForkedLoader:
    """The taker's side. Implements BatchLoader; only one thread may use it."""

    def __init__(
        self, open_source: Callable[[], Source], schema: Schema, batch: int, prefetch: int, title: str
    ) -> None:
        """Forks at once. open_source: called in the new process; batch, prefetch: the largest of its job; title: under
        which the process is listed.
        """
        self._slots = Slots(prefetch + IN_USE, slot_bytes(schema, batch))
        self._connection, theirs = Pipe()
        parent = os.getpid()
        self._pid: int | None = os.fork()
        if not self._pid:
            _run(parent, title, self._connection, theirs, self._slots, open_source)
        theirs.close()
        self._decoder = msgspec.msgpack.Decoder(Formed | Progressed | Over)
        self._formed: deque[Batch] = deque()
        self._returned: deque[int] = deque()
        """Slots of which nobody has a part any more."""
        self._report = NOTHING_KNOWN
        self._over: Over | None = None
        self._handed = 0
        self._heard_at: float | None = None
        """When something was received last; None: it has not opened its source yet, which may take long."""
        self.ended = False

    def begin(self, job: LoaderJob) -> "ForkedLoader":
        """Starts to read, with half as many threads as this process has."""
        self._send(Begin(job, max(1, threads() // 2)))
        return self

    @property
    def start(self) -> dict[int, Position] | None:
        self._receive_all()
        is_known = self._report.start is not None or self._over is None
        return self._report.start if is_known else {}

    @property
    def clock(self) -> str:
        return self._report.clock

    def next(self, timeout: float | None = None) -> Batch | None:
        until = None if timeout is None else time.monotonic() + timeout
        while not self._formed and self._over is None:
            if not self._connection.poll(None if until is None else max(0.0, until - time.monotonic())):
                self._check_life()
                return None
            self._receive()
        if self._formed:
            batch = self._formed.popleft()
            self._handed += batch.events
            self._send(Taken([self._returned.popleft() for _ in range(len(self._returned))]))
            return batch
        self.ended = True
        if self._over is not None and self._over.error:
            raise _error_of(self._over)
        return None

    def skip_above(self, events: int | None) -> None:
        self._send(SkipAbove(events))

    def lag(self) -> int:
        self._receive_all()
        self._check_life()
        return self._report.known - self._handed

    def close(self) -> None:
        self._over = self._over or Over()
        self._formed.clear()
        self._connection.close()
        self._reap(CLOSE_SECONDS)

    # ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────────
    def _send(self, message: Begin | Taken | SkipAbove) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it has ended; what it said last tells why
            self._connection.send_bytes(msgspec.msgpack.encode(message))

    def _receive_all(self) -> None:
        while self._over is None and self._connection.poll():
            self._receive()

    def _check_life(self) -> None:
        """Ends a process that has not said anything for too long; next() tells."""
        if self._over is None and self._heard_at is not None and time.monotonic() - self._heard_at > SILENT_SECONDS:
            self._reap(0.0)
            reason = f"the process of the loader gave no sign of life for {SILENT_SECONDS:g} seconds and was killed"
            self._over = Over(reason, ProcessFailed.__name__)

    def _receive(self) -> None:
        self._heard_at = time.monotonic()
        try:
            message = self._decoder.decode(self._connection.recv_bytes())
            if isinstance(message, Formed):
                self._formed.append(self._read(message))
            elif isinstance(message, Progressed):
                self._report = message
            else:
                self._over = message
        except (EOFError, ConnectionResetError):
            status = self._reap(CLOSE_SECONDS)
            reason = f"the process of the loader ended with status {status}; expected it to go on; see the log"
            self._over = Over(reason, ProcessFailed.__name__)

    def _read(self, formed: Formed) -> Batch:
        if formed.slot == NO_SLOT:
            memory = np.frombuffer(bytearray(self._connection.recv_bytes()), np.uint8)
        else:
            memory = self._slots.lend(formed.slot, self._returned)
        return read_batch(memory, formed.extent)

    def _reap(self, patience_seconds: float) -> int | None:
        """Waits for its end, and ends it if that takes too long; returns its status, None if that was told before."""
        if self._pid is None:
            return None
        pid, self._pid = self._pid, None
        until = time.monotonic() + patience_seconds
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > until:
                os.kill(pid, signal.SIGKILL)
                until = float("inf")
            time.sleep(0.002)


# ── in the process ────────────────────────────────────────────────────────────────────────────────────────────────────
class _LoaderSide:
    """The process's end of the connection: one thread sends, the other one listens."""

    def __init__(self, connection: Connection, slots: Slots, loader: Loader, prefetch: int) -> None:
        self._connection = connection
        self._slots = slots
        self._free = deque(range(slots.count))
        self._loader = loader
        self._room = threading.Semaphore(prefetch)
        """How many more batches may wait for the taker."""
        self._sent: deque[tuple[tuple[Range, ...], int]] = deque()
        """Ranges and events of batches that were not taken yet."""
        self._report = NOTHING_KNOWN
        self._told_at = 0.0
        self._closed = threading.Event()

    def serve(self) -> None:
        """Sends batches until the taker closes the connection or is gone."""
        sender = threading.Thread(target=self._send_all, name="sender", daemon=True)
        sender.start()
        decoder = msgspec.msgpack.Decoder(Taken | SkipAbove)
        with suppress(EOFError, ConnectionResetError):
            while True:
                message = decoder.decode(self._connection.recv_bytes())
                if isinstance(message, SkipAbove):
                    self._loader.skip_above(message.events)
                    continue
                self._free.extend(message.freed)
                self._loader.hand_out(*self._sent.popleft())
                self._room.release()
        self._closed.set()
        self._room.release()
        self._loader.close()
        sender.join()

    def _send_all(self) -> None:
        over: Over | None = None
        with suppress(BrokenPipeError, ConnectionResetError):
            while not self._closed.is_set() and over is None:
                if self._room.acquire(timeout=REPORT_SECONDS):
                    over = self._send_next()
                self._tell()
            if over is not None:
                _send(self._connection, over)

    def _send_next(self) -> Over | None:
        """Sends a batch if one comes soon, or returns the end."""
        try:
            batch = self._loader.ready(REPORT_SECONDS)
        except Exception as error:  # whatever a source of another package raises
            return _over_by(error)
        if batch is None:
            self._room.release()
            return Over() if self._loader.ended else None
        self._sent.append((batch.ranges, batch.events))
        self._tell()
        written = WrittenBatch(batch)
        if written.extent.all <= self._slots.nbytes and self._free:
            slot = self._free.popleft()
            written.write(self._slots.slot(slot))
            _send(self._connection, Formed(slot, written.extent))
        else:
            memory = np.empty(written.extent.all, np.uint8)
            written.write(memory)
            _send(self._connection, Formed(NO_SLOT, written.extent))
            self._connection.send_bytes(memory.data)
        return None

    def _tell(self) -> None:
        """Sends a report if it says something else than the one before, or if that was long ago."""
        loader = self._loader
        report = Progressed(known=loader.known, start=loader.start, clock=loader.clock)
        now = time.monotonic()
        if report != self._report or now - self._told_at > LIFE_SECONDS:
            self._report, self._told_at = report, now
            _send(self._connection, report)


def _become(parent: int, title: str) -> None:
    """Ends with the parent, and not with signals that are for the parent or for all processes of its terminal."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    die_with(parent)
    setproctitle.setproctitle(title)


def _run(
    parent: int, title: str, taker: Connection, connection: Connection, slots: Slots, opening: Callable[[], Source]
) -> NoReturn:
    """Loads, and ends this process whatever happens: nothing above this frame belongs to it."""
    status = 1
    try:
        taker.close()
        _become(parent, title)
        with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the taker needs no more
            begin = msgspec.msgpack.decode(connection.recv_bytes(), type=Begin)
            use_threads(begin.threads)
            try:
                _load(connection, slots, opening, begin.job)
            except Exception as error:  # whatever a source of another package raises
                _send(connection, _over_by(error))
        status = 0
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _load(connection: Connection, slots: Slots, opening: Callable[[], Source], job: LoaderJob) -> None:
    with closing(opening()) as source:
        _LoaderSide(connection, slots, Loader(source, replace(job, prefetch=1)), job.prefetch).serve()


def _over_by(error: Exception) -> Over:
    if isinstance(error, FreshetError):
        return Over(str(error), type(error).__name__)
    structlog.get_logger().exception("the loader failed", error=repr(error), exc_info=error)
    return Over(f"the loader failed: {error!r}; see the log", ProcessFailed.__name__)


def _send(connection: Connection, message: Formed | Progressed | Over) -> None:
    connection.send_bytes(msgspec.msgpack.encode(message))


def _error_of(over: Over) -> FreshetError:
    """The error again, of the class that it had."""
    return _kinds().get(over.kind, ProcessFailed)(over.error)


def _kinds() -> Mapping[str, type[FreshetError]]:
    found: dict[str, type[FreshetError]] = {}
    left: list[type[FreshetError]] = [FreshetError]
    while left:
        kind = left.pop()
        found[kind.__name__] = kind
        left += kind.__subclasses__()
    return found
