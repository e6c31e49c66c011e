import dataclasses
from time import sleep

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from dispatch.config import DispatchConfig
from dispatch.cost import cost_matrix
from dispatch.errors import Infeasible
from dispatch.hybrid import assign_hybrid
from dispatch.policies.esd import Esd
from dispatch.policies.laia import laia_reference
from dispatch.policies.registry import build_policy
from dispatch.policies.round_robin import round_robin_reference
from dispatch.situation import CLEAN, Situation
from dispatch.solver import solve_transport
from infra.errors import ConfigError
from tests.dispatch.situations import draw_situation

NORMAL_FORMS = [
    ("joint", "joint"),
    ("joint:8", "joint"),
    ("joint:02", "joint:2"),
    ("joint:4:elastic", "joint:4:elastic"),
    ("joint:elastic", "joint:elastic"),
    ("esd:elastic", "esd:1:elastic"),
    ("esd:0.5:mean:elastic", "esd:0.5:mean:elastic"),
]
SPECS = ("random", "round_robin", "laia", "esd:0", "esd:0.5", "esd:1", "esd:0.3:min3-min2", "joint", "joint:2:elastic")


@pytest.mark.parametrize("spec", SPECS)
@given(seed=st.integers(0, 10_000), workers=st.integers(1, 6), samples=st.integers(0, 40))
@settings(max_examples=25, deadline=None)
def test_every_policy_keeps_to_the_capacities(spec: str, seed: int, workers: int, samples: int) -> None:
    places = np.random.default_rng(seed).multinomial(samples + seed % 5, np.full(workers, 1 / workers))
    situation = draw_situation(seed, samples, workers=workers, capacity_n=places.astype(np.int64))
    at_B = build_policy(spec, seed=1).assign(situation)
    assert at_B.shape == (samples,)
    assert at_B.dtype == np.int32
    assert (np.bincount(at_B, minlength=workers) <= situation.capacity_n).all()


@pytest.mark.parametrize("spec", SPECS)
def test_equal_situations_get_equal_answers_from_fresh_policies(spec: str) -> None:
    first, second = (build_policy(spec, seed=7).assign(draw_situation(3)) for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("spec", SPECS)
def test_more_than_64_workers_are_assigned(spec: str) -> None:
    situation = draw_situation(4, samples=200, workers=100)
    at_B = build_policy(spec, seed=0).assign(situation)
    assert np.bincount(at_B, minlength=100).max() <= 2


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("capacity", [[11, 12, 12, 12], [50, 50, -1, 50]])
def test_capacities_that_cannot_hold_the_batch_are_refused(spec: str, capacity: list[int]) -> None:
    with pytest.raises(Infeasible, match="48 samples"):
        build_policy(spec, seed=0).assign(draw_situation(5, samples=48, capacity_n=np.array(capacity)))


def test_random_follows_seed_and_step() -> None:
    situation = draw_situation(6)
    later = dataclasses.replace(situation, step=situation.step + 1)
    first = build_policy("random", seed=1).assign(situation)
    assert not np.array_equal(first, build_policy("random", seed=2).assign(situation))
    assert not np.array_equal(first, build_policy("random", seed=1).assign(later))


@pytest.mark.parametrize("capacity", [[4, 4, 4], [1, 9, 2], [0, 20, 20], [12, 0, 0]])
def test_round_robin_equals_reference(capacity: list[int]) -> None:
    situation = draw_situation(7, samples=12, workers=3, capacity_n=np.array(capacity))
    expected = round_robin_reference(12, situation.capacity_n)
    assert np.array_equal(build_policy("round_robin", seed=0).assign(situation), expected)


@given(st.integers(0, 10_000), st.sampled_from([1, 2, 5, 8, 65, 128]))
@settings(max_examples=40, deadline=None)
def test_laia_equals_reference(seed: int, workers: int) -> None:
    situation = draw_situation(seed, samples=60, workers=workers)
    assert np.array_equal(build_policy("laia", seed=0).assign(situation), laia_reference(situation))


@pytest.mark.parametrize(("step", "expected"), [(0, [1, 0, 2]), (1, [1, 2, 0]), (2, [1, 2, 0])])
def test_laia_takes_the_best_holder_and_scans_ties_from_step_mod_workers(step: int, expected: list[int]) -> None:
    situation = Situation(
        step=step,
        local_BF=np.array([[0], [1], [1]], np.int32),
        state_U=np.full(2, CLEAN, np.uint8),
        holders_UQ=np.array([[0b010], [0b000]], np.uint64),
        row_cost_n=np.ones(3),
        capacity_n=np.ones(3, np.int64),
    )
    assert build_policy("laia", seed=0).assign(situation).tolist() == expected


def test_esd_is_hybrid_on_the_cost_matrix() -> None:
    situation = draw_situation(8)
    expected = assign_hybrid(cost_matrix(situation), situation.capacity_n, 0.5, "min3-min")
    assert np.array_equal(build_policy("esd:0.5:min3-min", seed=0).assign(situation), expected)


@pytest.mark.parametrize(
    ("spec", "name"),
    [("laia", "laia"), ("esd", "esd:1"), ("esd:.50", "esd:0.5"), ("esd:0:mean", "esd:0:mean"), *NORMAL_FORMS],
)
def test_name_is_the_normal_form_of_the_spec(spec: str, name: str) -> None:
    assert build_policy(spec, seed=0).name == name


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "herald",
        "laia:1",
        "random:3",
        "esd:1:regret",
        "esd:1:mean:2",
        "ESD",
        "laia:elastic",
        "joint:2:3",
        "joint:elastic:2",
    ],
)
def test_unknown_policy_is_refused_with_the_choices(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"random, round_robin, laia, esd\[:alpha"):
        build_policy(spec, seed=0)


@pytest.mark.parametrize("rounds", ["-1", "1.5", "many", "", "1001", "²"])
def test_rounds_that_are_no_count_are_refused(rounds: str) -> None:
    with pytest.raises(ConfigError, match="whole number from 0"):
        build_policy(f"joint:{rounds}", seed=0)


def test_esd_does_less_by_opt_when_opt_took_too_long() -> None:
    seen: list[int] = []

    def solve_slowly(cost_kn: NDArray[np.float64], capacity_n: NDArray[np.int64]) -> NDArray[np.int32]:
        seen.append(len(cost_kn))
        sleep(0.02)
        return solve_transport(cost_kn, capacity_n)

    policy = Esd(1.0, solve=solve_slowly)
    situation = dataclasses.replace(draw_situation(9), budget_seconds=0.01)
    for _ in range(2):
        assert (np.bincount(policy.assign(situation)) <= situation.capacity_n).all()
    assert seen[1] < seen[0] == 48


@pytest.mark.parametrize("alpha", ["-0.1", "1.01", "nan", "inf", "half", ""])
def test_alpha_outside_0_to_1_is_refused(alpha: str) -> None:
    with pytest.raises(ConfigError, match="from 0"):
        build_policy(f"esd:{alpha}", seed=0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": "esd:2"},
        {"workers": 0},
        {"cache_rows": 0},
        {"links_gbit": (5, 5, 0, 1)},
        {"links_gbit": (5, 5)},
        {"links_gbit": (5, 5, float("inf"), 1)},
        {"eviction": "fifo"},
        {"polcy": "laia"},
    ],
)
def test_wrong_setting_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        DispatchConfig.model_validate(wrong)


def test_default_settings_are_usable() -> None:
    assert build_policy(DispatchConfig().policy, seed=0).name == "esd:1"
