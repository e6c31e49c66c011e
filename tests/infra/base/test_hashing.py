import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.base.hashing import EMPTY, find, home, remove, vacancy

SIZE = 16
changes = st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60)


@given(st.lists(st.integers(0, 2**62), min_size=10, max_size=10, unique=True), changes)
def test_any_sequence_of_changes_leaves_what_a_dictionary_has(keys: list[int], changes: list[tuple[bool, int]]) -> None:
    table, stored = np.full(SIZE, EMPTY, np.int32), np.array(keys, np.int64)
    expected: dict[int, int] = {}
    for is_added, number in changes:
        key = keys[number]
        if is_added and key not in expected:
            table[vacancy(table, key)] = number
            expected[key] = number
        elif not is_added and key in expected:
            remove(table, stored, number)
            del expected[key]
        assert [int(table[find(table, stored, key)]) for key in keys] == [expected.get(key, EMPTY) for key in keys]


@pytest.mark.parametrize("first", [0, 1000, 123_456_789])
@pytest.mark.parametrize("size", [1 << 10, 1 << 16])
def test_numbers_that_follow_each_other_have_homes_of_their_own(first: int, size: int) -> None:
    homes = {int(home(first + number, size - 1)) for number in range(size // 4)}
    assert len(homes) == size // 4
    assert min(homes) >= 0
    assert max(homes) < size


def test_keys_of_one_home_are_told_apart() -> None:
    crowd = [key for key in range(1000) if home(key, SIZE - 1) == 3][:5]
    table, keys = np.full(SIZE, EMPTY, np.int32), np.array(crowd, np.int64)
    for number, key in enumerate(crowd):
        table[vacancy(table, key)] = number
    remove(table, keys, 1)
    assert [int(table[find(table, keys, key)]) for key in crowd] == [0, EMPTY, 2, 3, 4]
