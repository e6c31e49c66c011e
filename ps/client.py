"""A worker's side of the parameter server: pushes and pulls rows and dense weights over one socket a shard.

Rows are named by their global number; lists of them must be sorted by (row % shards, row), so that each shard's part is
one contiguous slice and arrays are sent and received without a copy. Arrays given to ``push`` may still be on
their way when it returns: give it fresh ones and do not change them. Not for use by several threads at once.

Legend: K rows, W columns of a value, T of value and state.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from infra.errors import Fenced, WireError
from infra.link import Link
from infra.wire import NO_F32, NO_I64, Codec, Curve, Refused, receive, send
from ps.config import RowConfig
from ps.errors import PsError, Unreachable
from ps.protocol import (
    FROM_SHARD,
    NO_DENSE,
    TO_SHARD,
    WHOLE,
    Done,
    Meet,
    Peek,
    PeekArrays,
    Pull,
    PullArrays,
    Push,
    PushArrays,
    Rows,
    RowsArrays,
    Terms,
)
from ps.timing import LinkTimer

POLL_MILLISECONDS = 100
"""how late a request to stop may be seen"""
OUTSIDE_STEPS = -1
"""step of a Peek, so that its answer cannot be taken for a pull's"""

_Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Pulled:
    """One shard's answer: rows for these slices of the lists asked for."""

    full: slice
    full_KT: NDArray[Any]
    values: slice
    values_KW: NDArray[Any]
    nbytes: int
    """of the rows"""
    shard: int
    dense: NDArray[Any]
    """the shard's range of the dense weights, in the form asked for"""


@dataclass(frozen=True)
class DenseRanges:
    """Dense weights or gradients on their way to the shards."""

    form: int = NO_DENSE
    ranges: Sequence[NDArray[Any]] = ()
    """of each shard, by shard; none without a form"""

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.ranges)


NO_RANGES = DenseRanges()


class ShardClient:
    """Connections of one worker to every shard."""

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
        self._endpoints = tuple(endpoints)
        self._shape = rows.shape()
        self._dtype = np.dtype(rows.float_dtype)
        self._run = run
        self._timeout = timeout_seconds
        self._generation = -1
        self._worker = -1
        self._requests = Codec(*TO_SHARD, float_dtype=self._dtype)
        self._replies = Codec(*FROM_SHARD, float_dtype=self._dtype)
        self._timer = LinkTimer()
        link = link or Link()
        self._sockets = [_connected(link, context, endpoint, curve) for endpoint in endpoints]

    @property
    def shards(self) -> int:
        return len(self._sockets)

    def meet(self, worker: str, settings: Mapping[str, str], goes_on: Callable[[], bool]) -> None:
        """Asks every shard whether it is the one this worker takes it for, with the same settings.

        Called before the worker joins: one that would spoil rows must not get that far. Raises PsError if a shard
        objects, Unreachable if one does not answer; waits no longer than ``goes_on`` allows.
        """
        count = len(self._sockets)
        for shard, socket in enumerate(self._sockets):
            terms = Terms(shard, count, dict(settings))
            send(socket, self._requests, Meet(**self._common(OUTSIDE_STEPS), worker=worker, terms=terms))
        deadline = time.monotonic() + self._timeout
        for shard, socket in enumerate(self._sockets):
            while not socket.poll(POLL_MILLISECONDS):
                if not goes_on():
                    return
                if time.monotonic() > deadline:
                    raise self._absent(shard)
            answer, _ = receive(socket, self._replies)
            if not isinstance(answer, Done):
                reason = answer.reason if isinstance(answer, Refused) else f"it answered {type(answer).__name__}"
                raise PsError(f"shard {shard} at {self._endpoints[shard]} refused worker {worker!r}: {reason}")

    def open(self, generation: int, worker: int) -> None:
        """Later messages carry this generation and worker number; answers to earlier ones are thrown away."""
        self._generation, self._worker = generation, worker
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
        part_KW: NDArray[Any],
        dense: DenseRanges = NO_RANGES,
    ) -> int:
        """Sends each shard its rows and its range of dense weights in one message, or none if it has neither.

        Returns the bytes that the rows take.
        """
        total = 0
        for shard, (owned, parts) in self._segments(bool(dense.form), owned_rows, part_rows):
            header = Push(**self._common(step), phase=phase, worker=self._worker, dense=dense.form)
            arrays = PushArrays(
                owned_numbers=self._numbers(owned_rows[owned]),
                owned_rows=owned_KT[owned].reshape(-1),
                part_numbers=self._numbers(part_rows[parts]),
                part_gradients=part_KW[parts].reshape(-1),
                dense=dense.ranges[shard] if dense.form else NO_F32,
            )
            nbytes = sum(array.nbytes for array in arrays)
            began = time.perf_counter()
            send(self._sockets[shard], self._requests, header, arrays)
            self._timer.pushed(shard, nbytes, began)
            total += nbytes - arrays.dense.nbytes
        return total

    def pull(self, step: int, full_rows: _Numbers, value_rows: _Numbers, dense: int = NO_DENSE) -> Iterator[Pulled]:
        """Asks every shard concerned at once, then yields each answer as it arrives; dense: the form wanted."""
        asked = {}
        for shard, (full, values) in self._segments(bool(dense), full_rows, value_rows):
            header = Pull(**self._common(step), worker=self._worker, dense=dense)
            arrays = PullArrays(
                full_numbers=self._numbers(full_rows[full]), value_numbers=self._numbers(value_rows[values])
            )
            nbytes = sum(array.nbytes for array in arrays)
            self._timer.asked(shard, nbytes)
            send(self._sockets[shard], self._requests, header, arrays)
            asked[shard] = (full, values)
        return self._pulled(step, asked)

    def take_link_time(self) -> tuple[int, float]:
        """Bytes that the link has carried since the last call, both directions, and the seconds that took."""
        return self._timer.take()

    def peek(self, rows: _Numbers) -> tuple[NDArray[Any], _Numbers]:
        """Value and state of rows as the shards have them now, and the step that last changed each. Any order."""
        rows_KT = np.empty((len(rows), self._shape.total), self._dtype)
        steps_K = np.empty(len(rows), np.int64)
        places = {}
        for shard in range(len(self._sockets)):
            (places[shard],) = np.nonzero(rows % len(self._sockets) == shard)
            arrays = PeekArrays(numbers=self._numbers(rows[places[shard]]))
            send(self._sockets[shard], self._requests, Peek(**self._common(OUTSIDE_STEPS)), arrays)
        for shard, _, answer in self._answers(OUTSIDE_STEPS, set(places)):
            self._check_answer(shard, answer, len(places[shard]), 0, len(places[shard]))
            rows_KT[places[shard]] = answer.full.reshape(-1, self._shape.total)
            steps_K[places[shard]] = answer.steps
        return rows_KT, steps_K

    def peek_dense(self) -> list[NDArray[Any]]:
        """The whole dense weights as the shards have them now: each shard's range, by shard."""
        for socket in self._sockets:
            header = Peek(**self._common(OUTSIDE_STEPS), dense=WHOLE)
            send(socket, self._requests, header, PeekArrays(numbers=NO_I64))
        ranges = {}
        for shard, _, answer in self._answers(OUTSIDE_STEPS, set(range(len(self._sockets)))):
            self._check_answer(shard, answer, 0, 0, 0)
            ranges[shard] = answer.dense
        return [ranges[shard] for shard in sorted(ranges)]

    def close(self) -> None:
        for socket in self._sockets:
            socket.close()

    def _pulled(self, step: int, asked: dict[int, tuple[slice, slice]]) -> Iterator[Pulled]:
        for shard, header, rows in self._answers(step, set(asked)):
            nbytes = rows.full.nbytes + rows.values.nbytes
            self._timer.answered(shard, nbytes + rows.dense.nbytes, header.held_seconds)
            full, values = asked[shard]
            self._check_answer(shard, rows, full.stop - full.start, values.stop - values.start, 0)
            full_KT, values_KW = rows.full.reshape(-1, self._shape.total), rows.values.reshape(-1, self._shape.value)
            yield Pulled(full, full_KT, values, values_KW, nbytes, shard, rows.dense)

    def _numbers(self, rows: _Numbers) -> _Numbers:
        """Row numbers as their shard counts them."""
        return rows // len(self._sockets)

    def _segments(self, all_shards: bool, *lists: _Numbers) -> Iterator[tuple[int, list[slice]]]:
        """Of each shard that has rows, or of all: the slice of each list that lives there."""
        shards = len(self._sockets)
        ends = [np.searchsorted(rows % shards, np.arange(shards + 1)).tolist() for rows in lists]
        for shard in range(shards):
            slices = [slice(end[shard], end[shard + 1]) for end in ends]
            if all_shards or any(part.stop > part.start for part in slices):
                yield shard, slices

    def _answers(self, step: int, waiting: set[int]) -> Iterator[tuple[int, Rows, RowsArrays]]:
        """Rows of each shard as they arrive; answers to requests given up earlier are passed over."""
        deadline = time.monotonic() + self._timeout
        poller = zmq.Poller()
        numbers = {self._sockets[shard]: shard for shard in waiting}
        for socket in numbers:
            poller.register(socket, zmq.POLLIN)
        while waiting:
            ready = poller.poll(max(0, math.ceil((deadline - time.monotonic()) * 1000)))
            if not ready:
                raise self._unreachable(step, waiting)
            for socket, _ in ready:
                header, arrays = self._replies.decode(socket.recv_multipart(copy=False))
                if isinstance(header, Refused):
                    raise self._refused(header, numbers[socket])
                if isinstance(header, Rows) and (header.generation, header.step) == (self._generation, step):
                    poller.unregister(socket)
                    waiting.remove(numbers[socket])
                    yield numbers[socket], header, arrays

    def _check_answer(self, shard: int, rows: RowsArrays, full: int, values: int, steps: int) -> None:
        """Raises WireError unless an answer has as many rows as were asked for; numpy would copy one to many places."""
        found = (rows.full.size, rows.values.size, rows.steps.size)
        expected = (full * self._shape.total, values * self._shape.value, steps)
        if found != expected:
            raise WireError(
                f"shard {shard} at {self._endpoints[shard]} answered with {found} floats of whole rows, floats of "
                f"values and steps; expected {expected}; give worker and shard the same settings"
            )

    def _common(self, step: int) -> dict[str, Any]:
        return {"run": self._run, "generation": self._generation, "step": step}

    def _unreachable(self, step: int, waiting: set[int]) -> Unreachable:
        names = ", ".join(f"{shard} at {self._endpoints[shard]}" for shard in sorted(waiting))
        return Unreachable(
            f"no rows for step {step} from shard {names} within {self._timeout:g} s; expected them after the other "
            "workers' pushes of that step; see whether the shard and every worker are alive"
        )

    def _absent(self, shard: int) -> Unreachable:
        return Unreachable(
            f"shard {shard} at {self._endpoints[shard]} did not answer within {self._timeout:g} s; expected an answer "
            "at once; see whether 'freshet ps' runs there and the CURVE keys match"
        )

    def _refused(self, refused: Refused, shard: int) -> Exception:
        text = f"shard {shard} at {self._endpoints[shard]} refused a message of worker {self._worker}: {refused.reason}"
        fenced = refused.run != self._run or refused.generation != self._generation
        return Fenced(text) if fenced else PsError(text)


def _connected(
    link: Link, context: "zmq.Context[zmq.Socket[bytes]]", endpoint: str, curve: Curve | None
) -> "zmq.Socket[bytes]":
    return link.connect(context, endpoint, curve, {zmq.SNDHWM: 0, zmq.RCVHWM: 0, zmq.LINGER: 0})
