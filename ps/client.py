"""A worker's side of the parameter server: pushes and pulls rows and dense weights over one socket per shard.

Rows are named by their global number; lists of them must be sorted by (row % shards, row), so that each shard's part is
one contiguous slice and arrays are sent and received without a copy. Only ``answers`` waits: pushes and requests travel
while the caller does something else. Arrays given to a push may still be on their way when it returns: pass fresh ones
and do not change them. Not thread-safe.

Legend: K rows, W columns of a value, T of value and state, P of a part.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from infra.base.errors import Fenced, WireError
from infra.base.faults import reach
from infra.base.link import Link
from infra.base.wire import NO_ARRAYS, NO_I64, NO_U8, Arrays, Codec, Curve, Header, Refused, SocketOptions, send
from ps.columns import KeptColumns
from ps.config import RowConfig
from ps.dense.range import pieces_of
from ps.errors import PsError, Unreachable
from ps.packed import Packing
from ps.phases import TRAIN
from ps.protocol import (
    BARE,
    FROM_SHARD,
    NO_DENSE,
    TO_SHARD,
    WHOLE,
    Coming,
    DenseArrays,
    DensePieces,
    Peek,
    PeekArrays,
    Pull,
    PullArrays,
    PullDense,
    Push,
    PushArrays,
    PushDense,
    Rows,
    RowsArrays,
)
from ps.timing import LinkTimer, LinkTimes

POLL_MILLISECONDS = 100
"""How late an interrupt may be noticed."""
SOCKET_OPTIONS: SocketOptions = {zmq.SNDHWM: 0, zmq.RCVHWM: 0, zmq.LINGER: 0}
OUTSIDE_STEPS = -1
"""Step number of a Peek, so that its answer cannot be mistaken for a pull's."""

_Numbers = NDArray[np.int64]
_Question = tuple[int, int]
_DENSE = -1
"""Used instead of the phase for dense weights."""
_NO_ROWS = slice(0, 0)


@dataclass(frozen=True)
class Pulled:
    """One shard's answer: rows for these slices of the lists requested in a phase."""

    phase: int
    full: slice
    full_KT: NDArray[Any]
    values: slice
    values_KW: NDArray[Any]
    nbytes: int
    """Bytes that travelled."""


@dataclass(frozen=True)
class PulledDense:
    """Neighbouring pieces of a shard's range of the dense weights, or all of it."""

    shard: int
    form: int
    pieces: range
    floats: NDArray[Any]


@dataclass(frozen=True)
class DenseRanges:
    """Dense weights or gradients on their way to the shards."""

    form: int
    ranges: Sequence[NDArray[Any]]
    """The range of each shard, by shard number."""

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.ranges)


class ShardClient:
    """The connections of one worker to every shard."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        endpoints: Sequence[str],
        rows: RowConfig,
        run: str,
        link: Link | None = None,
        curve: Curve | None = None,
        timeout_seconds: float = 60.0,
    ) -> None:
        self.interrupt: Callable[[], None] = _nothing
        """Called while waiting for answers; an exception that it raises ends the wait."""
        self._rows = rows
        self._shape = rows.shape()
        self._packing = Packing(rows)
        self._dtype = np.dtype(rows.float_dtype)
        self._run = run
        self._timeout = timeout_seconds
        self._generation = -1
        self._worker = -1
        self._requests = Codec(*TO_SHARD, float_dtype=self._dtype)
        self._replies = Codec(*FROM_SHARD, float_dtype=self._dtype)
        self._timer = LinkTimer()
        self._asked: dict[_Question, tuple[slice, slice]] = {}
        """Unanswered pulls by (shard, phase), with the slices of the requested lists."""
        self._context = context
        self._link = link or Link()
        self._curve = curve
        self.endpoints: tuple[str, ...] = ()
        """Endpoints of the shards, by number."""
        self._sockets: list[zmq.Socket[bytes]] = []
        self.connect(endpoints)

    def keep_columns(self, kept: KeptColumns) -> None:
        """Sets which embedding columns rows have kept, empty if all; nothing may be under way."""
        self._packing = Packing(self._rows, kept)

    @property
    def shards(self) -> int:
        return len(self._sockets)

    def connect(self, endpoints: Sequence[str]) -> None:
        """Connects to the shards, by number; connections to unchanged addresses are kept."""
        known = dict(zip(self.endpoints, self._sockets, strict=True))
        self._sockets = [
            known.get(endpoint) or self._link.connect(self._context, endpoint, self._curve, SOCKET_OPTIONS)
            for endpoint in endpoints
        ]
        self.endpoints = tuple(endpoints)
        for socket in set(known.values()).difference(self._sockets):
            self._link.disconnect(socket)

    def open(self, generation: int, worker: int) -> None:
        """Sets the generation and worker number of later messages; answers to earlier ones are dropped.

        Times that were measured but not read yet are dropped as well, because the step may have been interrupted.
        """
        self._generation = generation
        self._worker = worker
        self._asked.clear()
        self._timer = LinkTimer()
        for socket in self._sockets:
            with suppress(zmq.Again):
                while True:
                    socket.recv_multipart(zmq.NOBLOCK)

    def push(
        self,
        step: int,
        phase: int,
        owned_rows: _Numbers,
        owned_KT: NDArray[Any],
        part_rows: _Numbers,
        part_KP: NDArray[Any],
    ) -> int:
        """Sends each shard that has rows one message with them; returns the number of bytes."""
        total = 0
        for shard, (owned, parts) in self._segments(owned_rows, part_rows):
            if total:
                reach("push_half_sent", step)
            masks = self._packing.masks_of(owned_KT[owned])
            arrays = PushArrays(
                owned_numbers=owned_rows[owned] // self.shards,
                owned_rows=self._packing.pack(owned_KT[owned], masks),
                part_numbers=part_rows[parts] // self.shards,
                part_gradients=part_KP[parts].reshape(-1),
                owned_masks=masks,
            )
            after_seconds = self._timer.since_asked((phase, shard))
            header = Push(**self._common(step), phase=phase, worker=self._worker, after_seconds=after_seconds)
            self._send(shard, header, arrays)
            total += sum(array.nbytes for array in arrays)
        return total

    def push_dense(self, step: int, phase: int, dense: DenseRanges) -> int:
        """Sends each shard its range: a gradient in pieces, the whole range at once; returns the number of bytes."""
        for shard, floats in enumerate(dense.ranges):
            places = pieces_of(floats.size, floats.itemsize) if dense.form == BARE else [slice(None)]
            for piece, place in enumerate(places):
                if shard or piece:
                    reach("dense_push_half_sent", step)
                fields: dict[str, Any] = {"phase": phase, "worker": self._worker, "form": dense.form, "piece": piece}
                header = PushDense(**self._common(step), **fields)
                self._send(shard, header, DenseArrays(floats=floats[place]))
        return dense.nbytes

    def ask(self, step: int, phase: int, full_rows: _Numbers, value_rows: _Numbers) -> None:
        """Requests rows from every shard concerned; ``answers`` returns them."""
        for shard, (full, values) in self._segments(full_rows, value_rows):
            header = Pull(**self._common(step), phase=phase, worker=self._worker)
            arrays = PullArrays(
                full_numbers=full_rows[full] // self.shards, value_numbers=value_rows[values] // self.shards
            )
            self._send(shard, header, arrays)
            self._timer.asked((phase, shard))
            self._asked[shard, phase] = (full, values)

    def ask_dense(self, step: int, form: int) -> None:
        """Requests from every shard its range of the dense weights; ``answers`` returns them."""
        for shard in range(self.shards):
            self._send(shard, PullDense(**self._common(step), worker=self._worker, form=form))
            self._asked[shard, _DENSE] = (_NO_ROWS, _NO_ROWS)

    def answers(self, step: int) -> Iterator[Pulled | PulledDense]:
        """Everything that was requested in this step and has not been answered yet, as it arrives."""
        for shard, header, arrays in self._messages(step):
            if isinstance(header, DensePieces):
                self._timer.passed((_DENSE, shard), arrays.floats.nbytes)
                self._timer.gave(header.pushed_bytes, header.pushed_seconds)
                if header.is_last:
                    del self._asked[shard, _DENSE]
                pieces = range(header.piece, header.piece + header.pieces)
                yield PulledDense(shard, header.form, pieces, arrays.floats)
                continue
            full, values = self._asked.pop((shard, header.phase))
            nbytes = arrays.full.nbytes + arrays.values.nbytes + arrays.full_masks.nbytes + arrays.value_masks.nbytes
            self._timer.answered((header.phase, shard), nbytes)
            self._timer.pushed(header.phase, header.pushed_bytes, header.pushed_seconds)
            self._check_answer(shard, arrays, full.stop - full.start, values.stop - values.start, 0)
            full_KT = self._packing.unpack(arrays.full, arrays.full_masks, with_state=True)
            values_KW = self._packing.unpack(arrays.values, arrays.value_masks, with_state=False)
            yield Pulled(header.phase, full, full_KT, values, values_KW, nbytes)

    def take_link_times(self) -> LinkTimes:
        """Bytes that the link has carried since the last call, and the seconds that it took."""
        return self._timer.take_times()

    def peek(self, rows: _Numbers) -> tuple[NDArray[Any], _Numbers]:
        """Value and state of rows as the shards have them now, in any order, and the step that last changed each."""
        rows_KT = np.empty((len(rows), self._shape.total), self._dtype)
        steps_K = np.empty(len(rows), np.int64)
        places = [np.flatnonzero(rows % self.shards == shard) for shard in range(self.shards)]
        for shard, _, answer in self._peeked([rows[place] // self.shards for place in places]):
            self._check_answer(shard, answer, len(places[shard]), 0, len(places[shard]))
            rows_KT[places[shard]] = self._packing.unpack(answer.full, answer.full_masks, with_state=True)
            steps_K[places[shard]] = answer.steps
        return rows_KT, steps_K

    def peek_dense(self) -> list[NDArray[Any]]:
        """The whole dense weights as the shards have them now: each shard's range, by shard."""
        ranges = {}
        for shard, _, answer in self._peeked([NO_I64] * self.shards, dense=WHOLE):
            self._check_answer(shard, answer, 0, 0, 0)
            ranges[shard] = answer.dense
        return [ranges[shard] for shard in sorted(ranges)]

    def time_link(self, nbytes: int) -> LinkTimes:
        """Fetches about so many bytes that mean nothing, then sends as many; returns how many, and their time.

        Moves none while answers are awaited, which would be lost.
        """
        if self._asked:
            return LinkTimes()
        floats = -(-nbytes // (4 * self.shards))
        down_bytes, down_seconds = self._time_peek(padding=floats)
        _, up_seconds = self._time_peek(ballast=np.zeros(4 * floats, np.uint8))
        return LinkTimes(down_bytes, down_seconds, up_bytes=4 * floats * self.shards, up_seconds=up_seconds)

    def _time_peek(self, padding: int = 0, ballast: NDArray[np.uint8] = NO_U8) -> tuple[int, float]:
        """Bytes of padding that were fetched, and the time of that and of the ballast on the links."""
        began = time.perf_counter()
        received, held_seconds = 0, 0.0
        for _, header, answer in self._peeked([NO_I64] * self.shards, padding=padding, ballast=ballast):
            received += answer.dense.nbytes
            held_seconds = max(held_seconds, header.held_seconds)
        return received, max(0.0, time.perf_counter() - began - held_seconds)

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()

    def _send(self, shard: int, header: Header, arrays: Arrays = NO_ARRAYS) -> None:
        """Sends a message. If the connection was refused, raises Unreachable, and reconnects."""
        if not send(self._sockets[shard], self._requests, header, arrays):
            endpoint = self.endpoints[shard]
            self._link.disconnect(self._sockets[shard])
            self._sockets[shard] = self._link.connect(self._context, endpoint, self._curve, SOCKET_OPTIONS)
            raise Unreachable(
                f"shard {shard} at {endpoint} does not take a {type(header).__name__} of step {header.step}: the "
                "connection was refused; expected a shard there; see whether another program has its port, and "
                "whether the CURVE keys match"
            )

    def _peeked(
        self,
        numbers: Sequence[_Numbers],
        dense: int = NO_DENSE,
        padding: int = 0,
        ballast: NDArray[np.uint8] = NO_U8,
    ) -> Iterator[tuple[int, Rows, RowsArrays]]:
        """Requests these rows from each shard; yields the answers."""
        for shard in range(self.shards):
            header = Peek(**self._common(OUTSIDE_STEPS), dense=dense, padding=padding)
            self._send(shard, header, PeekArrays(numbers=numbers[shard], ballast=ballast))
            self._asked[shard, TRAIN] = (_NO_ROWS, _NO_ROWS)
        for shard, answer, arrays in self._messages(OUTSIDE_STEPS):
            del self._asked[shard, TRAIN]
            yield shard, answer, arrays

    def _segments(self, *lists: _Numbers) -> Iterator[tuple[int, list[slice]]]:
        """For each shard that has rows: the slice of each list that belongs to it."""
        if not any(rows.size for rows in lists):
            return
        shards = len(self._sockets)
        ends = [np.searchsorted(rows % shards, np.arange(shards + 1)).tolist() for rows in lists]
        for shard in range(shards):
            slices = [slice(end[shard], end[shard + 1]) for end in ends]
            if any(part.stop > part.start for part in slices):
                yield shard, slices

    def _messages(self, step: int) -> Iterator[tuple[int, Any, Any]]:
        """Answers of this step as they arrive; others are skipped."""
        deadline = time.monotonic() + self._timeout
        poller = zmq.Poller()
        numbers = {self._sockets[shard]: shard for shard in {shard for shard, _ in self._asked}}
        for socket in numbers:
            poller.register(socket, zmq.POLLIN)
        while self._asked:
            was_awaited = not (ready := poller.poll(0))
            if not (ready or (ready := poller.poll(POLL_MILLISECONDS))):
                self.interrupt()
                if time.monotonic() < deadline:
                    continue
                waiting = sorted({shard for shard, _ in self._asked})
                names = ", ".join(f"{shard} at {self.endpoints[shard]}" for shard in waiting)
                raise unreachable(step, names, self._timeout)
            for socket, _ in ready:
                header, arrays = self._replies.decode(socket.recv_multipart(copy=False))
                shard = numbers[socket]
                if isinstance(header, Refused):
                    if header.generation < self._generation:  # answers a message that nobody waits for any more
                        continue
                    raise self._refused(header, shard)
                is_current = (header.generation, header.step) == (self._generation, step)
                if isinstance(header, Coming) and is_current:
                    self._timer.coming((_DENSE if header.is_dense else header.phase, shard), was_awaited)
                kind = header.phase if isinstance(header, Rows) else _DENSE
                if isinstance(header, Rows | DensePieces) and is_current and (shard, kind) in self._asked:
                    yield shard, header, arrays

    def _check_answer(self, shard: int, rows: RowsArrays, full: int, values: int, steps: int) -> None:
        """Raises WireError unless an answer has as many rows as requested; numpy would broadcast one row to many
        places.
        """
        found = (rows.full.size, rows.values.size, rows.steps.size)
        expected = (
            self._packing.floats(full, rows.full_masks, with_state=True),
            self._packing.floats(values, rows.value_masks, with_state=False),
            steps,
        )
        if found != expected:
            raise WireError(
                f"shard {shard} at {self.endpoints[shard]} answered with {found} floats of whole rows, floats of "
                f"values and steps; expected {expected}; give worker and shard the same settings"
            )

    def _common(self, step: int) -> dict[str, Any]:
        return {"run": self._run, "generation": self._generation, "step": step}

    def _refused(self, refused: Refused, shard: int) -> Exception:
        text = f"shard {shard} at {self.endpoints[shard]} refused a message of worker {self._worker}: {refused.reason}"
        fenced = refused.run != self._run or refused.current > self._generation
        return Fenced(text) if fenced else PsError(text)


def unreachable(step: int, names: str, seconds: float) -> Unreachable:
    return Unreachable(
        f"no rows for step {step} from shard {names} within {seconds:g} s; expected them after the other "
        "workers' pushes of that step; see whether the shard and every worker are alive"
    )


def _nothing() -> None:
    return None
