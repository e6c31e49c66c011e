import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.placement.assign.improvement import Joint
from dispatch.placement.capacity.bounds import LARGEST_SHARE, ShareBounds
from dispatch.placement.capacity.elastic import Elastic
from dispatch.placement.capacity.knowledge import WorkerKnowledge
from dispatch.placement.capacity.participation import SETTLING_STEPS
from dispatch.placement.capacity.step_model import DenseLoad
from dispatch.placement.decide import Decider, relative_row_costs
from dispatch.placement.errors import CacheTooSmall, Infeasible
from dispatch.placement.policies.spec import Needs
from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.index import Index
from infra.base.distinct import number_keys

LEAST_SHARE = 1 / 16


@given(
    samples=st.integers(0, 500),
    links=st.lists(st.floats(0.01, 100), min_size=1, max_size=9),
    moved=st.lists(st.integers(0, 10_000), min_size=9, max_size=9),
)
@settings(max_examples=80, deadline=None)
def test_capacities_add_up_to_the_batch_within_bounds(samples: int, links: list[float], moved: list[int]) -> None:
    n = len(links)
    elastic = Elastic(relative_row_costs(links), np.full(n, 10_000), ShareBounds((LEAST_SHARE,)))
    for _ in range(3):
        capacity_n = elastic.capacities(samples, fields=4)
        assert capacity_n.sum() == samples
        assert (capacity_n >= int(samples / n * LEAST_SHARE)).all()
        assert (capacity_n <= np.ceil(samples / n * LARGEST_SHARE)).all()
        elastic.shift_shares(capacity_n, capacity_n * 3, np.array(moved[:n]))


@given(
    links=st.lists(st.floats(0.05, 10), min_size=2, max_size=6),
    dense_rows=st.floats(0, 3000),
    least=st.sampled_from([0.0, 0.4]),
    sizes=st.lists(st.integers(1, 300), min_size=100, max_size=120),
)
@settings(max_examples=20, deadline=None)
def test_capacities_add_up_whoever_is_parked_or_tried(
    links: list[float], dense_rows: float, least: float, sizes: list[int]
) -> None:
    n = len(links)
    bounds = ShareBounds((least, *[0.0] * (n - 1)))
    elastic = Elastic(relative_row_costs(links), np.full(n, 2_000), bounds, DenseLoad(dense_rows, 3 * dense_rows))
    for samples in sizes:
        elastic.choose_members(samples, fields=4)
        for capacity_n in (elastic.capacities(samples, fields=4), elastic.safe_capacities(samples, fields=4)):
            assert capacity_n.sum() == samples
            assert (capacity_n <= np.ceil(samples / n * LARGEST_SHARE)).all()
            assert capacity_n[0] >= int(samples / n * least)
        elastic.shift_shares(capacity_n, capacity_n * 3, 2 * capacity_n.astype(np.float64))


def test_without_measurements_shares_follow_the_links() -> None:
    elastic = Elastic(np.array([1.0, 1.0, 10.0]), np.full(3, 10_000), ShareBounds())
    assert elastic.capacities(210, fields=4).tolist() == [100, 100, 10]


def test_shares_follow_the_slower_direction_of_each_link() -> None:
    uplinks = np.array([1.0, 2.0, 10.0])
    elastic = Elastic(np.array([1.0, 2.0, 1.0]), np.full(3, 10_000), ShareBounds(), push_cost_n=uplinks)
    assert elastic.capacities(160, fields=4).tolist() == [100, 50, 10]
    assert elastic.push_ratio_n.tolist() == [1.0, 1.0, 10.0]


def test_uplinks_that_are_told_to_be_equal_change_no_share() -> None:
    links = np.array([1.0, 2.0**0.25, 2.0**3.25])
    dense = DenseLoad(40.0, 120.0)
    plain = Elastic(links, np.full(3, 10_000), ShareBounds(), dense, server_cost=0.7)
    told = Elastic(links, np.full(3, 10_000), ShareBounds(), dense, server_cost=0.7, push_cost_n=links.copy())
    for step in range(60):
        places_n = plain.capacities(300, fields=4)
        assert np.array_equal(told.capacities(300, fields=4), places_n)
        moved_n = places_n.astype(np.float64) * (2 + step % 3)
        plain.shift_shares(places_n, places_n * 3, moved_n)
        told.shift_shares(places_n, places_n * 3, moved_n, moved_n.copy())
        plain.choose_members(300, fields=4, step=step)
        told.choose_members(300, fields=4, step=step)


def test_dense_weights_take_the_slower_direction_and_are_fetched_and_returned_over_one_each() -> None:
    dense = DenseLoad(rows=100.0, whole_rows=300.0)
    known = WorkerKnowledge(np.array([1.0, 2.0]), np.full(2, 1000), dense, push_cost_n=np.array([5.0, 1.0]))
    model = known.model(64, 4, np.zeros(2, np.int64), np.full(2, 64), np.full(2, True))
    assert model.fixed_n.tolist() == [500.0, 200.0]
    assert model.hand_over_n.tolist() == [300.0, 600.0]
    assert [model.returning(worker) for worker in range(2)] == [1500.0, 300.0]
    assert model.row_n.tolist() == [5.0, 2.0]
    assert model.in_ring().fixed_n.tolist() == [500.0, 500.0]


def test_a_sample_takes_as_long_as_the_longer_of_its_pulls_and_pushes() -> None:
    known = WorkerKnowledge(np.ones(3), np.full(3, 1000), DenseLoad(), 0.5, np.array([1.0, 10.0, 2.0]))
    samples_n = np.array([10, 10, 0])
    known.learn_rows(samples_n, np.array([30.0, 200.0, 0.0]), np.array([30.0, 30.0, 0.0]))
    model = known.model(30, 4, np.zeros(3, np.int64), np.full(3, 30), np.full(3, True))
    assert model.sample_n.tolist() == [3.0, 20.0, 6.0], "the last one moves what is usual, twice as slowly"
    assert model.server.sample_rows == 3.0


def test_times_become_equal_when_links_are() -> None:
    elastic, rows_a_sample = Elastic(np.ones(2), np.full(2, 100_000), ShareBounds()), np.array([1, 3])
    for _ in range(200):
        capacity_n = elastic.capacities(400, fields=4)
        elastic.shift_shares(capacity_n, capacity_n, capacity_n * rows_a_sample)
    assert capacity_n.tolist() == pytest.approx([300, 100], abs=3)


def test_a_slow_processor_gets_fewer_samples_once_measured() -> None:
    elastic = Elastic(np.ones(2), np.full(2, 100_000), ShareBounds())
    for _ in range(200):
        capacity_n = elastic.capacities(400, fields=4)
        for worker, seconds in enumerate((1e-3, 4e-3)):
            samples = int(capacity_n[worker])
            elastic.measure(worker, samples, seconds * samples, row_seconds=1e-6)
        elastic.shift_shares(capacity_n, capacity_n, capacity_n.astype(np.float64))
    assert capacity_n.tolist() == pytest.approx([320, 80], abs=4)


def test_few_samples_without_rows_in_common_do_not_make_caches_look_small() -> None:
    elastic = Elastic(np.array([1.0, 50.0]), np.full(2, 300), ShareBounds())
    for _ in range(30):
        capacity_n = elastic.capacities(100, fields=4)
        elastic.shift_shares(capacity_n, np.minimum(capacity_n * 4, 120), capacity_n.astype(np.float64))
    assert capacity_n[0] > 90


def test_caches_that_cannot_hold_the_batch_are_refused() -> None:
    with pytest.raises(Infeasible, match="caches and bounds hold at most"):
        Elastic(np.ones(2), np.full(2, 30), ShareBounds()).safe_capacities(20, fields=4)


def test_a_batch_with_fewer_rows_in_common_than_expected_is_still_decided() -> None:
    keys, few = np.arange(4096, dtype=np.uint64), np.zeros((32, 4), np.uint64)
    policy, costs = Joint(8, 0), np.array([1.0, 9.0])
    decider = Decider(Index(), Directory(np.full(2, 80), "lru", 1), policy, Needs(elastic=True), costs)
    for step in range(1, 30):
        decider.decide(step, number_keys(few))
    assert np.bincount(decider.decide(30, number_keys(few)).assignment_B)[0] > 20
    apart = decider.decide(31, number_keys(keys[:128].reshape(32, 4)))
    assert np.bincount(apart.assignment_B).tolist() == [20, 12]


def test_equal_capacity_that_does_not_fit_is_an_error() -> None:
    decider = Decider(Index(), Directory(np.full(2, 8), "lru", 1), Joint(8, 0), Needs(), np.ones(2))
    with pytest.raises(CacheTooSmall):
        decider.decide(1, number_keys(np.arange(64, dtype=np.uint64).reshape(16, 4)))


def test_a_worker_called_back_beside_one_that_was_alone_gets_as_much_as_it() -> None:
    elastic = Elastic(np.array([1.0, 1.0, 50.0, 50.0]), np.full(4, 1000), ShareBounds(), DenseLoad(1000.0))
    elastic.choose_members(100, fields=4)
    alone_n = elastic.capacities(100, fields=4)
    elastic.shift_shares(alone_n, alone_n * 4, 4 * alone_n.astype(np.float64))
    for _ in range(SETTLING_STEPS):
        elastic.measure(0, 100, compute_seconds=10.0, row_seconds=1e-3)
        elastic.choose_members(100, fields=4)
    assert alone_n.tolist() == [100, 0, 0, 0]
    assert elastic.capacities(100, fields=4).tolist() == [50, 50, 0, 0]
