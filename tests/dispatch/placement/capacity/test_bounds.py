import numpy as np
import pytest

from dispatch.config import DispatchConfig
from dispatch.placement.capacity.bounds import ShareBounds
from dispatch.placement.capacity.elastic import Elastic
from dispatch.placement.capacity.room import check_cache
from dispatch.placement.errors import CacheTooSmall
from infra.base.errors import ConfigError


def test_one_bound_is_that_of_every_worker() -> None:
    least_n, largest_n = ShareBounds((0.5,), (1.0, 1.0, 2.0)).of(3)
    assert (least_n.tolist(), largest_n.tolist()) == ([0.5] * 3, [1.0, 1.0, 2.0])


def test_bounds_of_another_number_of_workers_are_loosened() -> None:
    least_n, largest_n = ShareBounds((0.5, 0.1), (1.0, 2.0)).of(3)
    assert (least_n.tolist(), largest_n.tolist()) == ([0.1] * 3, [2.0] * 3)


@pytest.mark.parametrize(
    ("least", "largest"),
    [
        ((0.1, 0.1), (4.0,)),
        ((-0.1,), (4.0,)),
        ((0.1,), (float("nan"),)),
        ((0.1,), (float("inf"),)),
        ((1.1,), (4.0,)),
        ((0.1,), (0.9,)),
        ((0.5, 0.1, 0.1), (0.4, 4.0, 4.0)),
        ((2.0, 2.0, 0.0), (4.0,)),
        ((), (4.0,)),
    ],
)
def test_bounds_that_cannot_hold_the_batch_are_refused(least: tuple[float, ...], largest: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match=r"cannot hold the batch.*expected.*correct dispatch\.least_share"):
        ShareBounds(least, largest).check(3)


def test_settings_check_their_bounds() -> None:
    settings = DispatchConfig.model_validate({"workers": 2, "least_share": "0.25", "largest_share": "0.5,1.5"})
    assert settings.share_bounds == ShareBounds((0.25,), (0.5, 1.5))
    with pytest.raises(ValueError, match="cannot hold the batch"):
        DispatchConfig(workers=2, largest_share=(0.5, 1.4))


@pytest.mark.parametrize("least_share", ["0", "0,0.5"])
def test_only_an_elastic_policy_may_be_told_to_park(least_share: str) -> None:
    told = {"workers": 2, "least_share": least_share}
    DispatchConfig.model_validate({**told, "policy": "joint:elastic"}).check_parking()
    DispatchConfig(policy="laia").check_parking()
    DispatchConfig(policy="laia", least_share=(0.5,)).check_parking()
    with pytest.raises(ConfigError, match=r"least_share is \(0\.0,.*policy 'laia'.*ends in :elastic; correct"):
        DispatchConfig.model_validate({**told, "policy": "laia"}).check_parking()


def test_each_worker_stays_within_its_own_bounds() -> None:
    bounds = ShareBounds((0.0, 0.5, 0.0), (1.25, 4.0, 0.25))
    elastic = Elastic(np.array([1.0, 100.0, 1.0]), np.full(3, 100_000), bounds)
    for _ in range(50):
        capacity_n = elastic.capacities(120, fields=4)
        elastic.shift_shares(capacity_n, capacity_n, capacity_n.astype(np.float64))
    assert capacity_n.tolist() == [50, 60, 10]


def test_a_worker_without_a_lower_bound_comes_back_when_it_is_early() -> None:
    elastic = Elastic(np.ones(2), np.full(2, 100_000), ShareBounds((0.0,), (4.0,)))
    for rows_a_sample, expected in (([1, 1000], 0), ([1, 1], 50)):
        for _ in range(400):
            capacity_n = elastic.capacities(100, fields=4)
            elastic.shift_shares(capacity_n, capacity_n, capacity_n * np.array(rows_a_sample))
        assert capacity_n[1] == pytest.approx(expected, abs=2)


def test_caches_without_room_for_the_batch_within_the_bounds_are_refused_at_the_start() -> None:
    bounds = ShareBounds((0.0,), (0.5, 4.0))
    check_cache(cache_rows=60, batch=20, workers=2, fields=4, shares=bounds)
    with pytest.raises(CacheTooSmall, match=r"at most \[5, 12\].*dispatch\.largest_share"):
        check_cache(cache_rows=48, batch=20, workers=2, fields=4, shares=bounds)


def test_equal_shares_are_tried_though_caches_may_not_hold_them() -> None:
    elastic = Elastic(np.ones(2), np.full(2, 30), ShareBounds())
    assert elastic.capacities(20, fields=4).tolist() == [10, 10]
