"""Reply memory: used again, but never while it may still be on its way."""

import numpy as np
import zmq

from ps.buffers import KEPT, KEPT_BYTES, ReplyBuffers


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


def test_large_idle_buffers_do_not_pile_up() -> None:
    buffers = ReplyBuffers(np.float32)
    size = 2 * KEPT_BYTES // KEPT // 4
    for place in range(KEPT + 5):
        buffers.take_buffer(size << place // KEPT).sent([])
    lent = [buffers.take_buffer(size) for _ in range(KEPT + 5)]
    for buffer in lent:
        buffer.sent([])
    buffers.take_buffer(4 * size)
    assert len(buffers._buffers) == 1


def test_small_idle_buffers_are_kept_for_the_next_peak() -> None:
    buffers = ReplyBuffers(np.float32)
    peak = [buffers.take_buffer(1000) for _ in range(2 * KEPT)]
    for buffer in peak:
        buffer.sent([])
    assert {id(buffers.take_buffer(1000)) for _ in peak} == {id(buffer) for buffer in peak}


def test_buffer_of_several_replies_is_in_use_until_all_are_sent() -> None:
    buffers = ReplyBuffers(np.float32)
    shared = buffers.take_buffer(1000)
    shared.lend()
    shared.sent([])
    assert not shared.idle
    shared.sent([])
    assert shared.idle
    assert buffers.take_buffer(1000) is shared
