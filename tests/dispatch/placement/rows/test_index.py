import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dispatch.placement.rows.index import Index, resolve_reference
from infra.base.distinct import number_keys
from ps.keys import FREE

KEYS = st.integers(0, 40).map(lambda small: small * (2**64 - 2) // 40)
BATCHES = st.lists(st.lists(KEYS, min_size=1, max_size=60), min_size=1, max_size=8)


@given(batches=BATCHES)
def test_any_batches_get_the_rows_of_the_reference(batches: list[list[int]]) -> None:
    index, known = Index(capacity=4), dict[int, int]()
    for keys in batches:
        keys_BF = np.array(keys, np.uint64).reshape(-1, 1)
        before = len(known)
        expected = resolve_reference(known, keys_BF)
        batch = index.resolve(number_keys(keys_BF))
        np.testing.assert_array_equal(batch.rows_U[batch.local_BF], expected)
        assert batch.first_new == before
        assert batch.new_keys.tolist() == list(known)[before:]
        assert len(set(batch.rows_U.tolist())) == batch.rows_U.size
    assert index.keys.tolist() == list(known)


@given(batches=BATCHES, forgotten=st.lists(st.sets(st.integers(0, 40)), min_size=8, max_size=8))
def test_forgotten_keys_are_unknown_and_their_rows_are_assigned_again(
    batches: list[list[int]], forgotten: list[set[int]]
) -> None:
    index, known, assigned = Index(capacity=4), dict[int, int](), 0
    for keys, lost in zip(batches, forgotten, strict=False):
        rows = sorted(row for row in known.values() if row in lost)
        index.forget(np.array(rows, np.int64))
        known = {key: row for key, row in known.items() if row not in lost}
        assert index.known == len(known)
        before = set(known)
        expected = resolve_reference(known, np.array(keys, np.uint64))
        batch = index.resolve(number_keys(np.array(keys, np.uint64).reshape(-1, 1)))
        np.testing.assert_array_equal(batch.rows_U[batch.local_BF].reshape(-1), expected)
        new = {int(key): assigned + place for place, key in enumerate(batch.new_keys)}
        reused = dict(zip(batch.reused_keys.tolist(), batch.reused.tolist(), strict=True))
        assert new | reused == {key: row for key, row in known.items() if key not in before}
        assigned = max(assigned, max(known.values()) + 1)
        assert index.count == assigned
        again = Index.restore(index.keys)
        assert (again.known, again.count) == (index.known, index.count)
        index = again  # what follows does not depend on how the index came about
    by_row = {row: key for key, row in known.items()}
    assert index.keys.tolist() == [by_row.get(row, int(FREE)) for row in range(assigned)]


def test_the_value_that_stands_for_no_key_is_a_key_like_others() -> None:
    index = Index()
    first = index.resolve(number_keys(np.array([[FREE], [7]], np.uint64)))
    assert first.new_keys.tolist() == [int(FREE) - 1, 7]
    assert index.resolve(number_keys(np.array([[FREE]], np.uint64))).rows_U.tolist() == [0]
    both = index.resolve(number_keys(np.array([[7, FREE], [FREE - np.uint64(1), 7]], np.uint64)))
    assert (both.rows_U.tolist(), both.local_BF.tolist()) == ([1, 0], [[0, 1], [1, 0]])
    assert index.known == 2


def test_keys_that_share_a_hash_place_get_rows_of_their_own() -> None:
    index = Index()
    keys = np.arange(100_000, dtype=np.uint64).reshape(-1, 10) << np.uint64(20)
    assert index.resolve(number_keys(keys)).rows_U.tolist() == list(range(100_000))
    assert index.resolve(number_keys(keys)).new_keys.size == 0
