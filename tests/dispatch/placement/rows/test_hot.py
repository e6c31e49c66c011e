import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.placement.capacity.room import check_hot_set, hot_rows
from dispatch.placement.errors import CacheTooSmall
from dispatch.placement.rows.hot import Profile, most_frequent, worthwhile_uses
from dispatch.placement.rows.index import Index
from infra.base.distinct import number_keys


def keys(*samples: list[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    return np.array(samples, np.uint64)


def test_the_hot_set_is_chosen_once_after_the_profile() -> None:
    index, profile = Index(), Profile(steps=2, most=2, workers=1)
    batches = [keys([10, 10], [11, 12]), keys([12, 12], [10, 13]), keys([13, 13], [13, 13]), keys([13, 13])]
    chosen = [profile.count_batch(index.resolve(number_keys(batch))) for batch in batches]
    assert [None if rows is None else rows.tolist() for rows in chosen] == [None, None, [0, 2], None]


@given(st.lists(st.integers(0, 6), max_size=30), st.integers(1, 8), st.integers(0, 4))
def test_the_most_frequent_rows_are_those_a_sort_finds(uses: list[int], most: int, least: int) -> None:
    ranked = sorted((-count, row) for row, count in enumerate(uses) if count >= max(least, 1))
    expected = sorted(row for _, row in ranked[:most])
    assert most_frequent(np.array(uses, np.int64), most, float(least)).tolist() == expected


@pytest.mark.parametrize("workers", [2, 3, 8, 64])
def test_a_worthwhile_row_is_used_by_all_workers_but_one_on_average(workers: int) -> None:
    uses = worthwhile_uses(workers)
    assert workers * (1 - (1 - 1 / workers) ** uses) == pytest.approx(workers - 1)


def test_rows_used_too_rarely_to_be_worth_an_all_reduce_stay_cold() -> None:
    index, profile = Index(), Profile(steps=1, most=9, workers=8)
    assert 15 < worthwhile_uses(8) < 16
    profile.count_batch(index.resolve(number_keys(keys([1] * 16, [2] * 15 + [3]))))
    chosen = profile.count_batch(index.resolve(number_keys(keys([4]))))
    assert chosen is not None
    assert chosen.tolist() == [0]


def test_a_literal_hot_set_takes_the_most_frequent_rows_whatever_they_cost() -> None:
    index, profile = Index(), Profile(steps=1, most=2, workers=8, only_worthwhile=False)
    profile.count_batch(index.resolve(number_keys(keys([1] * 16, [2] * 15 + [3]))))
    chosen = profile.count_batch(index.resolve(number_keys(keys([4]))))
    assert chosen is not None
    assert chosen.tolist() == [0, 1]


@pytest.mark.parametrize(("share", "rows"), [(0.25, 25), (0.1, 10), (0.0, 0)])
def test_the_hot_set_may_fill_its_share_of_the_cache(share: float, rows: int) -> None:
    assert hot_rows(share, 100) == rows


def test_a_hot_set_without_a_row_is_refused() -> None:
    with pytest.raises(CacheTooSmall, match=r"hot set is empty; its share is 0\.1 of 9 cached rows"):
        hot_rows(0.1, 9)


def test_a_hot_set_that_leaves_no_room_for_a_micro_batch_is_refused() -> None:
    check_hot_set(0.5, cache_rows=100, needed=50)
    with pytest.raises(CacheTooSmall, match=r"leave 50 of 100 slots; .* 51 rows .*below 0\.49"):
        check_hot_set(0.5, cache_rows=100, needed=51)
