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
"""Buffers up to which idle ones are kept, however large they are."""
KEPT_BYTES = 64 << 20
"""Bytes of all buffers up to which idle ones are kept, however many they are."""


class ReplyBuffer:
    """A piece of memory that is on loan to one reply, or to several with the same content, until all are ``sent``."""

    def __init__(self, size: int, dtype: DTypeLike) -> None:
        self.array: NDArray[Any] = np.empty(size, dtype)
        self._loans = 0
        self._trackers: list[zmq.MessageTracker] = []

    @property
    def idle(self) -> bool:
        return not self._loans and all(tracker.done for tracker in self._trackers)

    def lend(self) -> None:
        """To be called for each reply."""
        if self.idle:
            self._trackers.clear()
        self._loans += 1

    def sent(self, trackers: Sequence[zmq.MessageTracker]) -> None:
        """To be called once a reply is handed to ZeroMQ, which needs the memory until these trackers are done."""
        self._trackers.extend(trackers)
        self._loans -= 1


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
        else:
            self._forget_idle()
            buffer = ReplyBuffer(1 << max(size - 1, 1).bit_length(), self._dtype)
            self._buffers.append(buffer)
        buffer.lend()
        return buffer

    def _forget_idle(self) -> None:
        if len(self._buffers) >= KEPT and sum(buffer.array.nbytes for buffer in self._buffers) > KEPT_BYTES:
            self._buffers = [buffer for buffer in self._buffers if not buffer.idle]
