"""What a checkpoint costs a shard: how long it does not answer, what it writes relative to what changed, and how long
it takes.

A shard in a separate process, as a run starts it, holds all rows. Per checkpoint a share of them is pushed, and then,
in turn: the shard is asked for one row repeatedly while nothing happens, which shows the noise of the machine itself;
it is asked in the same way while it takes the checkpoint; and as many bytes are written and synced by a plain loop. The
longest answer during a checkpoint is the pause that training experiences. The first checkpoint holds every row and is
measured separately. In the end the shard goes back to the last checkpoint, and the digest of its rows must be the same
as before.
"""

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from benchmarks.processes import own_process
from infra.base.errors import FreshetError
from infra.base.process import Stop
from infra.base.storage import Storage
from infra.base.wire import NO_ARRAYS, NO_I64, Arrays, Codec, Header, Refused, connected, receive, send
from ps.checkpoints.manifest import CheckpointManifest, ShardPart, write_manifest
from ps.config import PsConfig, RowConfig
from ps.fingerprints import fingerprint
from ps.main import ShardJob, run_shard
from ps.phases import FLUSH, TRAIN
from ps.protocol import (
    FROM_SHARD,
    GO_ON,
    TO_SHARD,
    Announce,
    AnnounceArrays,
    CheckpointCommitted,
    CheckpointSaved,
    Count,
    Digest,
    FilePart,
    Open,
    Peek,
    PeekArrays,
    Push,
    PushArrays,
)

RUN = "bench"
SEED = 1
CREATED = 65536
"""Rows that one announcement creates."""
PING_SECONDS = 0.0005
"""Time between two requests: without a pause they would slow the checkpoint down."""
BLOCK_BYTES = 16 << 20
"""Bytes that the plain loop writes at a time."""
NO_FILE = FilePart("none", 0, "0" * 32)


@dataclass(frozen=True)
class CheckpointResult:
    """Medians over the checkpoints unless named otherwise."""

    rows: int
    dim: int
    changed: int
    """Rows changed before each checkpoint."""
    checkpoints: int
    pause_ms: float
    """Longest answer while a checkpoint is taken."""
    worst_pause_ms: float
    """Longest answer of all checkpoints."""
    quiet_ms: float
    """Longest answer while nothing happens, in as long a time."""
    checkpoint_ms: float
    """Time from the announcement until the shard's part is durable."""
    plain_ms: float
    """Time for a plain loop to write and sync as many bytes."""
    ratio: float
    """Ratio of these two, within each checkpoint."""
    changed_bytes: int
    """Bytes of the changed rows: key, last step, value and state."""
    written_bytes: int
    written_ratio: float
    first_checkpoint_ms: float
    """Time of the checkpoint that holds every row."""
    first_pause_ms: float
    first_plain_ms: float
    restore_ms: float
    """Time until the shard is back at the last checkpoint, with every row."""


@dataclass(frozen=True)
class TakenCheckpoint:
    """One checkpoint as observed from outside."""

    seconds: float
    pause_seconds: float
    quiet_seconds: float
    plain_seconds: float
    nbytes: int


def run_checkpoint(folder: Path, rows: int, dim: int, share: float, checkpoints: int) -> CheckpointResult:
    """Takes that many checkpoints of a shard in which a share of the rows changes before each."""
    config = RowConfig(dim=dim)
    changed = max(1, int(rows * share))
    with _client(config, folder) as shard:
        shard.create(rows)
        first = _take_checkpoint(shard, folder, 1)
        taken = []
        for checkpoint in range(2, checkpoints + 2):
            shard.change(np.sort(np.random.default_rng(checkpoint).choice(rows, changed, replace=False)))
            taken.append(_take_checkpoint(shard, folder, checkpoint))
        restore_seconds = _go_back(shard, checkpoints + 1)
    row_bytes = config.shape().total * np.dtype(config.float_dtype).itemsize + 8 + 8  # with its key and its last step
    return _result((rows, dim, changed), row_bytes, first, taken, restore_seconds)


def _result(
    sizes: tuple[int, int, int],
    row_bytes: int,
    first: TakenCheckpoint,
    taken: list[TakenCheckpoint],
    restore_seconds: float,
) -> CheckpointResult:
    rows, dim, changed = sizes
    written = int(statistics.median(checkpoint.nbytes for checkpoint in taken))
    return CheckpointResult(
        rows=rows,
        dim=dim,
        changed=changed,
        checkpoints=len(taken),
        pause_ms=1000 * statistics.median(checkpoint.pause_seconds for checkpoint in taken),
        worst_pause_ms=1000 * max(checkpoint.pause_seconds for checkpoint in taken),
        quiet_ms=1000 * statistics.median(checkpoint.quiet_seconds for checkpoint in taken),
        checkpoint_ms=1000 * statistics.median(checkpoint.seconds for checkpoint in taken),
        plain_ms=1000 * statistics.median(checkpoint.plain_seconds for checkpoint in taken),
        ratio=statistics.median(checkpoint.seconds / checkpoint.plain_seconds for checkpoint in taken),
        changed_bytes=changed * row_bytes,
        written_bytes=written,
        written_ratio=written / (changed * row_bytes),
        first_checkpoint_ms=1000 * first.seconds,
        first_pause_ms=1000 * first.pause_seconds,
        first_plain_ms=1000 * first.plain_seconds,
        restore_ms=1000 * restore_seconds,
    )


def _take_checkpoint(shard: "_Client", folder: Path, checkpoint: int) -> TakenCheckpoint:
    shard.ask(Count(**shard.at))  # what was pushed before has been applied
    began = time.perf_counter()
    saved, pause_seconds = shard.take_checkpoint(checkpoint)
    seconds = time.perf_counter() - began
    newest = saved.parts[-1]
    return TakenCheckpoint(
        seconds, pause_seconds, shard.watch(seconds), _write_plainly(folder, newest.nbytes), newest.nbytes
    )


def _write_plainly(folder: Path, nbytes: int) -> float:
    """Seconds to write and sync as many bytes one after the other, including their folder."""
    block = os.urandom(min(nbytes, BLOCK_BYTES))
    path = folder / "plain"
    began = time.perf_counter()
    with path.open("wb") as file:
        for start in range(0, nbytes, len(block)):
            file.write(block[: nbytes - start])
        file.flush()
        os.fsync(file.fileno())
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    seconds = time.perf_counter() - began
    path.unlink()
    return seconds


def _go_back(shard: "_Client", checkpoint: int) -> float:
    """Seconds until the shard has the model of a checkpoint again; raises FreshetError if it is another one."""
    before = shard.ask(Digest(**shard.at)).digest
    shard.change(np.arange(1))  # not in any checkpoint
    began = time.perf_counter()
    shard.open(restore=checkpoint)
    seconds = time.perf_counter() - began
    if (after := shard.ask(Digest(**shard.at)).digest) != before:
        raise FreshetError(f"rows after a restore have digest {after}; expected {before}; see the shard's log")
    return seconds


# ── the shard ─────────────────────────────────────────────────────────────────────────────────────────────────────────
@dataclass
class _Client:
    """The dispatcher and the only worker of one shard."""

    config: RowConfig
    storage: Storage
    socket: "zmq.Socket[bytes]"
    """The dispatcher's socket."""
    pings: "zmq.Socket[bytes]"
    generation: int = 0
    step: int = 0
    _sends: Codec = field(default_factory=lambda: Codec(*TO_SHARD))
    _receives: Codec = field(default_factory=lambda: Codec(*FROM_SHARD))

    @property
    def at(self) -> dict[str, Any]:
        return {"run": RUN, "generation": self.generation, "step": self.step}

    def open(self, restore: int = GO_ON) -> None:
        """Begins a generation, with the model of a checkpoint or the current one of the shard."""
        self.generation += 1
        self.ask(Open(**self.at, workers=1, restore=restore))

    def create(self, rows: int) -> None:
        for first in range(0, rows, CREATED):
            self.step += 1
            numbers = np.arange(first, min(first + CREATED, rows))
            steps = np.full_like(numbers, self.step)
            arrays = AnnounceArrays(numbers, numbers.astype(np.uint64), changed=numbers, changed_steps=steps)
            self._send(Announce(**self.at, phase=TRAIN, pushers=[]), arrays)

    def change(self, numbers: NDArray[np.int64]) -> None:
        """Pushes new values of these rows."""
        self.step += 1
        pushed = np.array([fingerprint(numbers, NO_I64)], np.uint64)
        steps = np.full_like(numbers, self.step)
        arrays = AnnounceArrays(changed=numbers, changed_steps=steps, pushed=pushed)
        self._send(Announce(**self.at, phase=TRAIN, pushers=[0]), arrays)
        draw = np.random.default_rng(self.step)
        rows = draw.random(len(numbers) * self.config.shape().total, np.float32)
        self._send(Push(**self.at, phase=TRAIN, worker=0), PushArrays(numbers, rows, NO_I64, rows[:0]))

    def take_checkpoint(self, checkpoint: int) -> tuple[CheckpointSaved, float]:
        """Returns when it is saved, with the longest answer meanwhile; then commits it."""
        self._send(Announce(**self.at, phase=FLUSH, pushers=[], checkpoint=checkpoint), AnnounceArrays())
        longest = 0.0
        while not self.socket.poll(0):
            longest = max(longest, self.ping())
        saved = self._answer(self.socket)
        if not isinstance(saved, CheckpointSaved):
            raise FreshetError(
                f"the shard could not take checkpoint {checkpoint}; {saved}; expected it saved; see the disk"
            )
        part = ShardPart(0, saved.rows, tuple(saved.parts))
        fields: dict[str, Any] = {
            "number": checkpoint,
            "at_seconds": time.time(),
            "shards": (part,),
            "dispatcher": NO_FILE,
        }
        write_manifest(self.storage, CheckpointManifest(**self.at, **fields))
        self._send(CheckpointCommitted(**self.at, checkpoint=checkpoint))
        return saved, longest

    def watch(self, seconds: float) -> float:
        """The longest answer within that time."""
        end = time.perf_counter() + seconds
        longest = 0.0
        while time.perf_counter() < end:
            longest = max(longest, self.ping())
        return longest

    def ping(self) -> float:
        """Seconds until one row has arrived."""
        time.sleep(PING_SECONDS)
        began = time.perf_counter()
        send(self.pings, self._sends, Peek(**self.at), PeekArrays(np.zeros(1, np.int64)))
        self._answer(self.pings)
        return time.perf_counter() - began

    def ask(self, header: Header) -> Any:
        self._send(header)
        return self._answer(self.socket)

    def _send(self, header: Header, arrays: Arrays = NO_ARRAYS) -> None:
        send(self.socket, self._sends, header, arrays)

    def _answer(self, socket: "zmq.Socket[bytes]") -> Any:
        header, _ = receive(socket, self._receives)
        if isinstance(header, Refused):
            raise FreshetError(f"the shard refused a message of the benchmark: {header.reason}")
        return header


@contextmanager
def _client(config: RowConfig, folder: Path) -> Iterator[_Client]:
    with ExitStack() as resources:
        endpoint = resources.enter_context(own_process(_serve, config, str(folder / "checkpoints")))
        context = resources.enter_context(zmq.Context())
        dispatcher, pings = (
            resources.enter_context(connected(context, endpoint, options={zmq.SNDHWM: 0})) for _ in range(2)
        )
        client = _Client(config, Storage.at(folder / "checkpoints"), dispatcher, pings)
        client.open()
        yield client


def _serve(config: RowConfig, storage: str, stop: Stop, ready: Connection) -> None:
    fields: dict[str, Any] = {
        "number": 0,
        "run": RUN,
        "seed": SEED,
        "endpoint": "tcp://127.0.0.1:*",
        "storage": storage,
    }
    run_shard(ShardJob(config=PsConfig(shards=1), rows=config, **fields), stop, ready.send)
