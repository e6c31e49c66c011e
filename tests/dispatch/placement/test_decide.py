import numpy as np
import pytest

from dispatch.placement.assign.improvement import Joint
from dispatch.placement.assign.situation import Assignment, Situation
from dispatch.placement.capacity.room import check_cache, equal_capacities
from dispatch.placement.decide import Decider, relative_row_costs
from dispatch.placement.errors import BadCost, CacheTooSmall
from dispatch.placement.policies.registry import parse_spec
from dispatch.placement.policies.spec import Needs
from dispatch.placement.rows.directory import Directory
from dispatch.placement.rows.index import Index
from dispatch.placement.rows.pruning import Pruner, PruneTerms
from infra.base.distinct import number_keys
from infra.base.errors import ConfigError


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


@pytest.mark.parametrize(("spec", "is_shortened"), [("joint:elastic", True), ("joint", True), ("laia", False)])
def test_a_shortened_decision_says_so(spec: str, is_shortened: bool) -> None:
    parsed = parse_spec(spec)
    policy = parsed.build(0, "cpu")
    decider = Decider(Index(), Directory(np.full(2, 64), "lru", 1), policy, parsed.needs, np.ones(2))
    keys_BF = np.arange(32, dtype=np.uint64).reshape(8, 4)
    assert decider.decide(1, number_keys(keys_BF), budget_seconds=1e-9).is_shortened is is_shortened
    assert not decider.decide(2, number_keys(keys_BF)).is_shortened


def test_a_decision_that_takes_too_long_is_late() -> None:
    decider = Decider(Index(), Directory(np.full(2, 64), "lru", 1), Joint(2, 0), Needs(), np.ones(2))
    keys_BF = np.arange(32, dtype=np.uint64).reshape(8, 4)
    assert decider.decide(1, number_keys(keys_BF), late_seconds=1e-9).is_late
    assert not decider.decide(2, number_keys(keys_BF), budget_seconds=1e-9, late_seconds=60.0).is_late
    assert not decider.decide(3, number_keys(keys_BF)).is_late


@pytest.mark.parametrize("costs", [[1.0, float("nan")], [1.0, 0.0], [1.0, float("inf")], [1.0], [1.0, -1.0]])
def test_costs_of_links_that_mean_nothing_are_refused(costs: list[float]) -> None:
    with pytest.raises(BadCost, match="row costs"):
        Decider(Index(), Directory(np.full(2, 64), "lru", 1), Joint(2, 0), Needs(), np.array(costs))


def test_alpha_may_change_between_two_decisions() -> None:
    seen: list[float] = []

    class Watching:
        def assign(self, situation: Situation) -> Assignment:
            seen.append(situation.alpha)
            return Assignment(np.arange(situation.samples, dtype=np.int32) % 2)

    directory = Directory(np.full(2, 64), "lru", 1)
    decider = Decider(Index(), directory, Watching(), parse_spec("esd:0.5").needs, np.ones(2))
    decider.decide(1, number_keys(np.arange(4, dtype=np.uint64).reshape(2, 2)))
    decider.alpha = 0.25
    decider.decide(2, number_keys(np.arange(4, dtype=np.uint64).reshape(2, 2)))
    assert seen == [0.5, 0.25]


def test_every_sixteenth_decision_is_compared_with_heu_where_that_is_asked_for() -> None:
    parsed = parse_spec("esd:1")
    decider = Decider(
        Index(), Directory(np.full(2, 64), "lru", 1), parsed.build(0, "cpu"), parsed.needs, np.array([1.0, 3.0])
    )
    keys_BF = np.arange(32, dtype=np.uint64).reshape(8, 4)
    assert decider.decide(16, number_keys(keys_BF)).worth is None
    decider.compares = True
    compared = {step: decider.decide(step, number_keys(keys_BF + np.uint64(step))).worth for step in range(17, 49)}
    assert [step for step, worth in compared.items() if worth is not None] == [32, 48]


def test_comparing_changes_no_decision() -> None:
    made = []
    for compares in (False, True):
        parsed = parse_spec("joint:2")
        directory = Directory(np.full(2, 64), "lru", 1)
        decider = Decider(Index(), directory, parsed.build(0, "cpu"), parsed.needs, np.array([1.0, 3.0]))
        decider.compares = compares
        draw = np.random.default_rng(5)
        made.append(
            [
                decider.decide(step, number_keys(draw.integers(0, 40, (8, 4), np.uint64))).assignment_B
                for step in range(40)
            ]
        )
    assert np.array_equal(made[0], made[1])


def test_processor_time_is_part_of_a_decisions_time() -> None:
    decider = Decider(Index(), Directory(np.full(2, 64), "lru", 1), Joint(2, 0), Needs(), np.ones(2))
    assert decider.decide(1, number_keys(np.arange(32, dtype=np.uint64).reshape(8, 4))).cpu_seconds > 0.0


def test_the_directory_knows_which_new_rows_got_chunks_and_the_pruner_what_was_forgotten() -> None:
    directory = Directory(np.full(2, 64), "lru", 1)
    pruner = Pruner(PruneTerms(2, budget=7))
    decider = Decider(Index(), directory, Joint(2, 0), Needs(), np.ones(2), pruner=pruner)
    decider.decide(1, number_keys(np.arange(4, dtype=np.uint64).reshape(2, 2)))
    assert directory.masks(np.arange(4)).tolist() == [0b11, 0b11, 0b11, 0]
    decider.repeat(2, number_keys(np.array([[0, 4]], np.uint64)), np.zeros(1, np.int32), chunked=1)
    assert (directory.masks(np.arange(5)).tolist(), pruner.state.live) == ([0b11, 0b11, 0b11, 0, 0b11], 8)
    decider.flush()
    decider.reshape(np.array([0, 3]), np.array([0b01, 0b10], np.uint8))
    # keys 1, 2 and 3 are forgotten, with five live chunks; three new rows of four get chunks
    decision = decider.decide(3, number_keys(np.array([[5, 6], [7, 8]], np.uint64)), forget_before=2)
    assert decision.forgotten.tolist() == [1, 2, 3]
    assert (decision.chunked, decision.bare.size) == (2, 2)
    assert pruner.state.live == 8 - 5 + 4
    assert directory.masks(np.arange(7)).tolist()[0] == 0b01


def test_rows_without_chunks_have_no_masks() -> None:
    directory = Directory(np.full(2, 64), "lru", 1)
    decider = Decider(Index(), directory, Joint(2, 0), Needs(), np.ones(2))
    assert decider.decide(1, number_keys(np.arange(4, dtype=np.uint64).reshape(2, 2))).bare.size == 0
    assert not directory.masks(np.arange(4)).any()


def test_a_policy_sees_the_sizes_of_rows() -> None:
    seen: list[list[float]] = []

    class Watching:
        def assign(self, situation: Situation) -> Assignment:
            assert situation.size_U is not None
            seen.append(situation.size_U.tolist())
            return Assignment(np.arange(situation.samples, dtype=np.int32) % 2)

    sizes = np.array([0.2, 0.6, 0.6, 1.0])
    directory, pruner = Directory(np.full(2, 64), "lru", 1), Pruner(PruneTerms(2, budget=6))
    decider = Decider(Index(), directory, Watching(), Needs(), np.ones(2), pruner=pruner, sizes=sizes)
    decider.decide(1, number_keys(np.arange(4, dtype=np.uint64).reshape(2, 2)))
    decider.flush()
    decider.reshape(np.array([0]), np.array([0b10], np.uint8))
    plan = decider.decide(2, number_keys(np.array([[0, 3], [1, 2]], np.uint64))).plan
    assert seen == [[1.0, 1.0, 1.0, 0.2], [0.6, 0.2, 1.0, 1.0]]
    # worker 0 pulls row 0 again, and row 3, which worker 1 had
    assert plan.traffic.whole_rows(1.0)[0] == pytest.approx(0.6 + 0.2)


def test_a_decision_names_its_parts() -> None:
    spec = parse_spec("esd:0.5")
    decider = Decider(Index(), Directory(np.full(2, 64), "lru", 1), spec.build(0, "cpu"), spec.needs, np.ones(2))
    decision = decider.decide(1, number_keys(np.arange(32, dtype=np.uint64).reshape(8, 4)))
    assert min(decision.parts) > 0.0
    assert sum(decision.parts) < decision.seconds
