"""Reply memory: used again, but never while it may still be on its way."""

import numpy as np
import zmq

from ps.buffers import KEPT, ReplyBuffers


def test_sent_buffer_is_used_again() -> None:
    buffers = ReplyBuffers(np.float32)
    first = buffers.take_buffer(1000)
    first.sent([])
    assert buffers.take_buffer(900) is first


def test_buffer_on_loan_is_not_handed_out() -> None:
    buffers = ReplyBuffers(np.float32)
    assert buffers.take_buffer(1000) is not buffers.take_buffer(1000)


def test_buffer_on_its_way_is_not_handed_out() -> None:
    buffers = ReplyBuffers(np.float32)
    first = buffers.take_buffer(100_000)
    frame = zmq.Frame(first.array.data, copy=False, track=True)
    assert frame.tracker is not None
    first.sent([frame.tracker])
    assert buffers.take_buffer(100_000) is not first
    del frame


def test_small_buffer_is_not_given_for_a_large_reply() -> None:
    buffers = ReplyBuffers(np.float64)
    buffers.take_buffer(10).sent([])
    assert buffers.take_buffer(1000).array.size >= 1000


def test_idle_buffers_do_not_pile_up() -> None:
    buffers = ReplyBuffers(np.float32)
    for power in range(KEPT + 5):
        buffers.take_buffer(1 << power).sent([])
    assert len(buffers._buffers) <= KEPT
