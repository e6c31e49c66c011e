"""Reusable memory for replies.

A fresh buffer of some megabytes costs more in page faults than filling it, so buffers are used again once ZeroMQ has
sent them. A buffer is never handed out while ZeroMQ may still be reading it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import zmq
from numpy.typing import DTypeLike, NDArray

KEPT = 16
"""Idle buffers that are kept; a peak that needs more is rare."""


class ReplyBuffer:
    """A piece of memory that is on loan until it is ``sent``."""

    def __init__(self, size: int, dtype: DTypeLike) -> None:
        self.array: NDArray[Any] = np.empty(size, dtype)
        self._lent = True
        self._trackers: tuple[zmq.MessageTracker, ...] = ()

    @property
    def idle(self) -> bool:
        return not self._lent and all(tracker.done for tracker in self._trackers)

    def lend(self) -> None:
        self._lent = True

    def sent(self, trackers: Sequence[zmq.MessageTracker]) -> None:
        """To be called once the reply is handed to ZeroMQ, which needs the memory until these trackers are done."""
        self._trackers = tuple(trackers)
        self._lent = False


class ReplyBuffers:
    """Buffers of one floating-point type."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._buffers: list[ReplyBuffer] = []

    def take_buffer(self, size: int) -> ReplyBuffer:
        """A buffer of at least that many elements; its contents are undefined."""
        fitting = [buffer for buffer in self._buffers if buffer.array.size >= size and buffer.idle]
        if fitting:
            buffer = min(fitting, key=lambda each: each.array.size)
            buffer.lend()
            return buffer
        self._forget_idle()
        self._buffers.append(ReplyBuffer(1 << max(size - 1, 1).bit_length(), self._dtype))
        return self._buffers[-1]

    def _forget_idle(self) -> None:
        if len(self._buffers) >= KEPT:
            self._buffers = [buffer for buffer in self._buffers if not buffer.idle]
