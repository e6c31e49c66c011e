import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dispatch.placement.rows.index import Index, resolve_reference

KEYS = st.integers(0, 40).map(lambda small: small * (2**64 - 1) // 40)


@given(batches=st.lists(st.lists(KEYS, min_size=1, max_size=60), min_size=1, max_size=8))
def test_any_batches_get_the_rows_of_the_reference(batches: list[list[int]]) -> None:
    index, known = Index(capacity=4), dict[int, int]()
    for keys in batches:
        keys_BF = np.array(keys, np.uint64).reshape(-1, 1)
        before = len(known)
        expected = resolve_reference(known, keys_BF)
        batch = index.resolve(keys_BF)
        np.testing.assert_array_equal(batch.rows_U[batch.local_BF], expected)
        assert batch.first_new == before
        assert batch.new_keys.tolist() == list(known)[before:]
        assert len(set(batch.rows_U.tolist())) == batch.rows_U.size
    assert index.keys.tolist() == list(known)


def test_keys_that_share_a_hash_place_get_rows_of_their_own() -> None:
    index = Index()
    keys = np.arange(100_000, dtype=np.uint64).reshape(-1, 10) << np.uint64(20)
    assert index.resolve(keys).rows_U.tolist() == list(range(100_000))
    assert index.resolve(keys).new_keys.size == 0
