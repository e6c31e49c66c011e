import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dispatch.placement.capacity.elastic import fill
from dispatch.placement.capacity.level import level


def trained(time: float, workers: list[tuple[float, float, int, int]]) -> float:
    return sum(min(max((time - fixed) / sample, least), most) for fixed, sample, least, most in workers)


WORKERS = st.lists(
    st.tuples(st.floats(0.0, 50.0), st.floats(1e-4, 50.0), st.integers(0, 20), st.integers(20, 80)),
    min_size=1,
    max_size=8,
)


FLAT = [
    *((0.0, 1.0, 0, 20), (0.0, 4.0, 12, 49), (0.0, 5.0, 9, 20), (0.0, 12.0, 4, 20)),
    *((0.0, 23.0, 2, 20), (0.0, 23.0, 2, 20), (0.0, 2.21875, 0, 20), (0.0, 0.125, 0, 20)),
]
"""after 44.375 nobody trains more until 45, and the sum up to there is a hair too small"""


@given(workers=WORKERS, share=st.floats(0.0, 1.0))
@example(workers=FLAT, share=0.375)
@settings(max_examples=200, deadline=None)
def test_at_the_level_all_samples_are_trained_and_not_much_sooner(
    workers: list[tuple[float, float, int, int]], share: float
) -> None:
    fixed, sample, least, most = (np.array(column) for column in zip(*workers, strict=True))
    samples = int(least.sum() + share * (most.sum() - least.sum()))
    time = level(samples, fixed, sample, least, most)
    assert trained(time * (1 + 1e-9) + 1e-9, workers) >= samples - 1e-6
    assert samples == least.sum() or trained(time * (1 - 1e-6) - 1e-6, workers) < samples


def test_bounds_that_cannot_hold_all_samples_have_no_level() -> None:
    ones = np.ones(2)
    assert level(11, ones, ones, np.zeros(2, np.int64), np.full(2, 5)) == float("inf")


@given(
    shares=st.lists(st.floats(1e-3, 8.0), min_size=1, max_size=8), total=st.integers(0, 600), most=st.integers(0, 200)
)
@settings(max_examples=200, deadline=None)
def test_parts_add_up_in_proportion_to_the_shares(shares: list[float], total: int, most: int) -> None:
    n, share_n = len(shares), np.array(shares)
    total = min(total, n * most)
    parts = fill(share_n, total, np.zeros(n, np.int64), np.full(n, most))
    assert parts.sum() == pytest.approx(total, abs=1e-6)
    below = parts < most - 1e-6
    assert np.ptp((parts / share_n)[below]) < 1e-6 if below.any() else True
