import pytest

from dispatch.decide import check_cache, equal_capacities, relative_row_costs
from dispatch.errors import CacheTooSmall
from infra.errors import ConfigError


def test_a_slower_link_makes_a_row_dearer_and_an_unknown_one_counts_as_fastest() -> None:
    assert relative_row_costs([5.0, 0.5, 0.0]).tolist() == [1.0, 10.0, 1.0]
    assert relative_row_costs([0.0, 0.0]).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("link", [float("nan"), float("inf"), -1.0])
def test_a_link_that_is_no_speed_is_refused(link: float) -> None:
    with pytest.raises(ConfigError, match="expected a positive number"):
        relative_row_costs([5.0, link])


@pytest.mark.parametrize(("samples", "workers", "capacity"), [(64, 4, 16), (65, 4, 17), (1, 3, 1)])
def test_capacities_are_the_smallest_that_hold_the_batch(samples: int, workers: int, capacity: int) -> None:
    assert equal_capacities(samples, workers).tolist() == [capacity] * workers


def test_a_cache_that_just_holds_the_largest_micro_batch_is_enough() -> None:
    check_cache(cache_rows=34, batch=65, workers=4, fields=2)
    with pytest.raises(CacheTooSmall, match="may use 34 rows"):
        check_cache(cache_rows=33, batch=65, workers=4, fields=2)
