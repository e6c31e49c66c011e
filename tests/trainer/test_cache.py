"""The cache moves rows between slots and messages and changes nothing else."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ps.protocol import RowShape
from trainer.cache import RowCache

SHAPE = RowShape(dim=2, wide=True, state=3)
SLOTS = 8


def filled() -> RowCache:
    cache = RowCache(SLOTS, SHAPE, torch.float32, torch.device("cpu"))
    cache.put_full(np.arange(SLOTS, dtype=np.int32), np.arange(SLOTS * 6, dtype=np.float32).reshape(SLOTS, 6))
    return cache


@given(st.lists(st.integers(0, SLOTS - 1), unique=True))
def test_rows_put_are_the_rows_taken(chosen: list[int]) -> None:
    cache, slots = filled(), np.array(chosen, np.int32)
    rows = np.random.default_rng(0).normal(size=(len(chosen), 6)).astype(np.float32)
    cache.put_full(slots, rows)
    assert np.array_equal(cache.take_full(slots), rows)
    others = np.setdiff1d(np.arange(SLOTS, dtype=np.int32), slots)
    assert np.array_equal(cache.take_full(others), filled().take_full(others))


def test_values_put_leave_the_state() -> None:
    cache, slots = filled(), np.array([5, 1], np.int32)
    cache.put_values(slots, np.full((2, 3), -1, np.float32))
    assert cache.take_parts(slots).tolist() == [[-1.0] * 3] * 2
    assert cache.take_full(slots)[:, 3:].tolist() == [[33.0, 34.0, 35.0], [9.0, 10.0, 11.0]]


def test_rows_taken_do_not_follow_the_cache() -> None:
    cache, slots = filled(), np.array([0], np.int32)
    taken, values = cache.take_full(slots), cache.take_parts(slots)
    cache.put_full(slots, np.zeros((1, 6), np.float32))
    assert taken[0, 5] == 5
    assert values[0, 2] == 2


def test_received_arrays_may_be_read_only() -> None:
    cache, slots = filled(), np.array([3], np.int32)
    received = np.frombuffer(np.arange(6, dtype=np.float32).tobytes(), np.float32)
    assert not received.flags.writeable
    cache.put_full(slots, received.reshape(1, 6))
    assert cache.take_full(slots)[0].tolist() == [0, 1, 2, 3, 4, 5]


def test_rows_without_state_fit() -> None:
    cache = RowCache(2, RowShape(dim=2, wide=False, state=0), torch.float64, torch.device("cpu"))
    cache.put_full(np.array([1], np.int32), np.array([[7.0, 8.0]]))
    assert cache.take_full(np.array([1, 0], np.int32)).tolist() == [[7.0, 8.0], [0.0, 0.0]]
