"""Places for chunks: taken, given back, moved together, and their memory returned."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ps import pool as pools
from ps.errors import OutOfOrder
from ps.pool import Pool, move_reference


def content(pool: Pool) -> np.ndarray:
    return np.concatenate([pool.block(number) for number in range(len(pool.addresses))])


def filled(places: int) -> Pool:
    """A pool in which every place holds its own number."""
    pool = Pool(4, 2, np.float32)
    for place in pool.take(places):
        pool.block(place // 4)[place % 4] = place
    return pool


def test_new_places_are_taken_lowest_first_and_freed_ones_before_them() -> None:
    pool = Pool(4, 2, np.float32)
    assert pool.take(6).tolist() == [0, 1, 2, 3, 4, 5]
    assert (pool.live, pool.places, pool.nbytes) == (6, 8, 64)
    pool.give(np.array([1, 3], np.int32))
    assert sorted(pool.take(2).tolist()) == [1, 3]
    pool.give(np.array([2], np.int32))
    assert sorted(pool.take(5).tolist()) == [2, 6, 7, 8, 9], "free places of old blocks go first"


@given(st.integers(1, 30), st.data())
def test_compacting_keeps_what_is_live_in_the_lowest_places(places: int, data: st.DataObject) -> None:
    pool = filled(places)
    given = data.draw(st.lists(st.integers(0, places - 1), unique=True))
    pool.give(np.array(given, np.int32))
    left = sorted(set(range(places)) - set(given))
    before = content(pool)
    moved = pool.compact()
    now = [place if place < len(left) else int(moved[place - len(left)]) for place in left]
    assert sorted(now) == list(range(len(left)))
    assert pool.live == len(left)
    assert len(pool.addresses) == -(-len(left) // 4)
    expected = move_reference(before, np.array(left, int), np.array(now, int))
    assert np.array_equal(content(pool)[now], expected[now]) if left else pool.places == 0
    assert len(set(pool.take(9).tolist()) | set(now)) == len(left) + 9


def test_more_places_than_can_be_numbered_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "MOST_PLACES", 8)
    pool = filled(8)
    with pytest.raises(OutOfOrder, match="more shards"):
        pool.take(1)
    assert pool.live == 8
