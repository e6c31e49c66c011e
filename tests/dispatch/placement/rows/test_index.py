import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatch.placement.rows import index as index_module
from dispatch.placement.rows.index import DOUBLED_PER_KEY, LEAST_DOUBLED, Index, resolve_reference
from infra.base import growing
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


@pytest.fixture
def _doubles_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes even small tables double over several batches."""
    monkeypatch.setattr(index_module, "LEAST_DOUBLED", 1)
    monkeypatch.setattr(index_module, "DOUBLED_PER_KEY", 6)


@pytest.mark.usefixtures("_doubles_slowly")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), spread=st.sampled_from([1, 1 << 20, 2**40 + 1]), forgets=st.booleans())
def test_numbers_are_those_of_a_dictionary_while_the_table_doubles_and_doubles_again(
    seed: int, spread: int, forgets: bool
) -> None:
    draw = np.random.default_rng(seed)
    index, known, homes = Index(capacity=4), dict[int, int](), set[int]()
    for batch in range(60):
        keys = draw.integers(0, 10 * (batch + 1), 12, np.uint64) * np.uint64(spread)
        if forgets and batch % 7 == 6:
            rows = draw.permutation(sorted(known.values()))[: len(known) // 3]
            index.forget(np.sort(rows))
            known = {key: row for key, row in known.items() if row not in set(rows.tolist())}
        expected = resolve_reference(known, keys)
        found = index.resolve(number_keys(keys.reshape(-1, 1)))
        assert found.rows_U[found.local_BF].reshape(-1).tolist() == expected.tolist()
        assert index.knows(np.array(list(known), np.uint64)).all()
        assert index.known == len(known)
        homes.add(index.homes)
    assert len(homes) > 6, "the table grew in so many portions"


def test_a_batch_moves_a_bounded_part_of_the_table() -> None:
    draw = np.random.default_rng(5)
    index, homes = Index(), list[int]()
    for _ in range(400):
        index.resolve(number_keys(draw.integers(0, 2**64 - 1, (1000, 1), np.uint64)))
        homes.append(index.homes)
    moved = np.diff(homes)
    run = 1000  # more than any run of slots without an empty one, at which a portion ends
    assert moved.max() <= max(LEAST_DOUBLED, DOUBLED_PER_KEY * 1000) + run
    assert moved.max() < homes[-1] // 8, "a whole table would be more"
    assert np.count_nonzero(moved) >= (homes[-1] - 2 * LEAST_DOUBLED) // (LEAST_DOUBLED + run)


def test_a_table_that_was_doubling_is_restored_with_the_same_numbers() -> None:
    draw = np.random.default_rng(6)
    index = Index()
    while not (index.homes > 4 * LEAST_DOUBLED and index.homes & (index.homes - 1)):
        index.resolve(number_keys(draw.integers(0, 2**64 - 1, (1000, 1), np.uint64)))
    index.forget(np.arange(0, index.count, 3))
    again = Index.restore(index.keys.copy())
    more = np.concatenate((index.keys[1:2000:3], draw.integers(0, 2**64 - 1, 3000, np.uint64))).reshape(-1, 1)
    for _ in range(12):
        first, second = index.resolve(number_keys(more)), again.resolve(number_keys(more))
        assert first.rows_U.tolist() == second.rows_U.tolist()
        assert index.keys.tolist() == again.keys.tolist()
        more = np.concatenate((more[1000:], draw.integers(0, 2**64 - 1, (1000, 1), np.uint64)))


def test_numbers_are_the_same_if_no_addresses_may_be_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    reserving = Index()
    monkeypatch.setattr(growing, "reservable_bytes", lambda: 0)
    copying = Index()
    draw = np.random.default_rng(8)
    for _ in range(100):
        keys = number_keys(draw.integers(0, 100_000, (2000, 1), np.uint64))
        assert copying.resolve(keys).rows_U.tolist() == reserving.resolve(keys).rows_U.tolist()
    assert copying.keys.tolist() == reserving.keys.tolist()


def test_one_batch_may_have_more_keys_than_the_table() -> None:
    index = Index(capacity=4)
    keys = np.random.default_rng(7).integers(0, 2**64 - 1, (50_000, 1), np.uint64)
    assert index.resolve(number_keys(keys)).rows_U.tolist() == list(range(50_000))
    assert index.homes >= 50_000
