import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from pydantic import ValidationError

from dispatch.config import DispatchConfig
from dispatch.placement.assign.backend import Opt
from dispatch.placement.assign.cost import cost_matrix
from dispatch.placement.assign.hybrid import Esd, assign_hybrid, assign_literal
from dispatch.placement.assign.infrequency import (
    LOOKUP_NS,
    PROFILE_STEPS,
    count_infrequent,
    count_infrequent_reference,
    tables_within,
)
from dispatch.placement.assign.rows_held import laia_reference
from dispatch.placement.assign.situation import Situation
from dispatch.placement.assign.solver import solve_again, solve_transport
from dispatch.placement.errors import Infeasible
from dispatch.placement.policies.registry import SPECS as SPECS_BY_NAME
from dispatch.placement.policies.registry import build_policy, parse_spec
from dispatch.placement.policies.round_robin import round_robin_reference
from dispatch.placement.policies.spec import Needs
from dispatch.placement.rows.states import CLEAN, OWNED, SPLIT
from infra.base.errors import ConfigError
from tests.dispatch.placement.assign.situations import draw_situation

NORMAL_FORMS = [
    ("joint", "joint"),
    ("joint:8", "joint"),
    ("joint:02", "joint:2"),
    ("joint:4:elastic", "joint:4:elastic"),
    ("joint:elastic", "joint:elastic"),
    ("esd:elastic", "esd:1:elastic"),
    ("esd:0.5:mean:elastic", "esd:0.5:mean:elastic"),
    ("fae:.10:08", "fae"),
    ("fae:0.25", "fae:0.25"),
    ("fae:0.1:3", "fae:0.1:3"),
    ("esd:1:elastic:hot", "esd:1:elastic:hot"),
    ("joint:08:hot", "joint:hot"),
    ("joint:hot:full", "joint:hot:full"),
    ("fae:literal", "fae:literal"),
    ("fae:.1:08:literal", "fae:literal"),
    ("fae:0.25:literal", "fae:0.25:literal"),
    ("fae:0.1:3:literal", "fae:0.1:3:literal"),
    ("random:full", "random:full"),
    ("esd:full", "esd:1:full"),
    ("esd:.5:literal:elastic:full", "esd:0.5:literal:elastic:full"),
]
SPECS = (
    *("random", "round_robin", "laia", "laia_adaptive", "laia_adaptive:0.0004", "het", "fae"),
    *("esd:0", "esd:0.5", "esd:1", "esd:0.3:min3-min2", "joint", "joint:2:elastic"),
)


@pytest.mark.parametrize("spec", SPECS)
@given(seed=st.integers(0, 10_000), workers=st.integers(1, 6), samples=st.integers(0, 40))
@settings(max_examples=25, deadline=None)
def test_every_policy_keeps_to_the_capacities(spec: str, seed: int, workers: int, samples: int) -> None:
    places = np.random.default_rng(seed).multinomial(samples + seed % 5, np.full(workers, 1 / workers))
    situation = draw_situation(seed, samples, workers=workers, capacity_n=places.astype(np.int64))
    at_B = build_policy(spec, seed=1).assign(situation).worker_B
    assert at_B.shape == (samples,)
    assert at_B.dtype == np.int32
    assert (np.bincount(at_B, minlength=workers) <= situation.capacity_n).all()


@pytest.mark.parametrize("spec", SPECS)
@given(seed=st.integers(0, 10_000), workers=st.integers(1, 6), value_share=st.floats(0.1, 1), is_cold=st.booleans())
@settings(max_examples=15, deadline=None)
def test_sizes_of_one_change_no_assignment(
    spec: str, seed: int, workers: int, value_share: float, is_cold: bool
) -> None:
    drawn = draw_situation(seed, 24, workers=workers)
    links = np.random.default_rng(seed).random(workers) + 0.1
    situation = dataclasses.replace(drawn, value_share=value_share, row_cost_n=links, alpha=(seed % 5) / 4)
    if is_cold:
        clean_U = np.full_like(drawn.state_U, CLEAN)
        situation = dataclasses.replace(situation, state_U=clean_U, holders_UQ=np.zeros_like(drawn.holders_UQ))
    sized = dataclasses.replace(situation, size_U=np.ones(situation.state_U.size))
    one, other = (build_policy(spec, seed=1).assign(each).worker_B for each in (situation, sized))
    assert np.array_equal(one, other)


@pytest.mark.parametrize("spec", SPECS)
def test_equal_situations_get_equal_answers_from_fresh_policies(spec: str) -> None:
    first, second = (build_policy(spec, seed=7).assign(draw_situation(3)).worker_B for _ in range(2))
    assert np.array_equal(first, second)


@pytest.mark.parametrize("spec", SPECS)
def test_more_than_64_workers_are_assigned(spec: str) -> None:
    situation = draw_situation(4, samples=200, workers=100)
    at_B = build_policy(spec, seed=0).assign(situation).worker_B
    assert np.bincount(at_B, minlength=100).max() <= 2


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("capacity", [[11, 12, 12, 12], [50, 50, -1, 50]])
def test_capacities_that_cannot_hold_the_batch_are_refused(spec: str, capacity: list[int]) -> None:
    with pytest.raises(Infeasible, match="48 samples"):
        build_policy(spec, seed=0).assign(draw_situation(5, samples=48, capacity_n=np.array(capacity)))


def test_random_follows_seed_and_step() -> None:
    situation = draw_situation(6)
    later = dataclasses.replace(situation, step=situation.step + 1)
    first = build_policy("random", seed=1).assign(situation).worker_B
    assert not np.array_equal(first, build_policy("random", seed=2).assign(situation).worker_B)
    assert not np.array_equal(first, build_policy("random", seed=1).assign(later).worker_B)


@pytest.mark.parametrize("capacity", [[4, 4, 4], [1, 9, 2], [0, 20, 20], [12, 0, 0]])
def test_round_robin_equals_reference(capacity: list[int]) -> None:
    situation = draw_situation(7, samples=12, workers=3, capacity_n=np.array(capacity))
    expected = round_robin_reference(12, situation.capacity_n)
    assert np.array_equal(build_policy("round_robin", seed=0).assign(situation).worker_B, expected)


@given(st.integers(0, 10_000), st.sampled_from([1, 2, 5, 8, 65, 128]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_laia_equals_reference(seed: int, workers: int, parts: bool) -> None:
    situation = draw_situation(seed, samples=60, workers=workers)
    policy = build_policy("laia:parts" if parts else "laia", seed=0)
    assert np.array_equal(policy.assign(situation).worker_B, laia_reference(situation, parts))


def few_rows(step: int, state_U: list[int], holders: list[int], local: list[list[int]], capacity: int) -> Situation:
    return Situation(
        step=step,
        local_BF=np.array(local, np.int32),
        state_U=np.array(state_U, np.uint8),
        holders_UQ=np.array(holders, np.uint64)[:, None],
        row_cost_n=np.ones(3),
        capacity_n=np.full(3, capacity),
    )


def test_laia_takes_the_best_holder_with_room() -> None:
    situation = few_rows(1, [CLEAN, OWNED], [0b110, 0b100], [[0, 1], [0, 1], [0, 1]], capacity=1)
    assert build_policy("laia", seed=0).assign(situation).worker_B.tolist() == [2, 1, 0]


def test_laia_counts_no_part_of_a_split_row_as_held() -> None:
    situation = few_rows(3, [SPLIT, CLEAN], [0b110, 0b001], [[0, 1]] * 2, capacity=2)
    assert build_policy("laia", seed=0).assign(situation).worker_B.tolist() == [0, 0]


def test_laia_counts_parts_as_held_where_it_is_told_to() -> None:
    situation = few_rows(3, [SPLIT, SPLIT, CLEAN], [0b110, 0b010, 0b001], [[0, 1, 2]], capacity=2)
    assert build_policy("laia:parts", seed=0).assign(situation).worker_B.tolist() == [1]
    assert build_policy("laia", seed=0).assign(situation).worker_B.tolist() == [0]


def test_laia_counts_a_row_that_a_sample_names_twice_once() -> None:
    situation = few_rows(3, [CLEAN] * 3, [0b001, 0b010, 0b010], [[0, 0, 0, 1, 2]], capacity=1)
    assert build_policy("laia", seed=0).assign(situation).worker_B.tolist() == [1]


def test_strict_esd_counts_a_split_row_as_held_by_nobody() -> None:
    situation = draw_situation(8)
    strict = cost_matrix(dataclasses.replace(situation, parts_hold=False))
    expected = solve_transport(strict, situation.capacity_n)
    assert np.array_equal(build_policy("esd:1:strict", seed=0).assign(situation).worker_B, expected)


@pytest.mark.parametrize(("step", "expected"), [(0, [0, 1, 2, 0]), (1, [1, 2, 0, 1]), (2, [2, 0, 1, 2])])
def test_laia_scans_ties_from_the_number_of_the_sample(step: int, expected: list[int]) -> None:
    situation = few_rows(step, [CLEAN], [0], [[0]] * 4, capacity=2)
    assert build_policy("laia", seed=0).assign(situation).worker_B.tolist() == expected


def test_laia_adaptive_with_time_for_all_tables_is_laia() -> None:
    situation = draw_situation(9)
    assert np.array_equal(
        build_policy("laia_adaptive:10", seed=0).assign(situation).worker_B, laia_reference(situation)
    )


def test_laia_adaptive_scores_the_tables_with_the_highest_degree_of_infrequency() -> None:
    """Table 0 has one frequent row, held by worker 0; table 1 has rare rows, held by worker 1."""
    rows = [[0, 1 + i] for i in range(6)]
    situation = few_rows(1, [CLEAN] * 7, [0b001, *[0b010] * 6], rows, capacity=6)
    assert tables_within(0.00004, situation) == 1
    assert build_policy("laia_adaptive:0.00004", seed=0).assign(situation).worker_B.tolist() == [1] * 6
    assert build_policy("laia", seed=0).assign(situation).worker_B.tolist() != [1] * 6


def test_laia_adaptive_looks_at_the_tables_anew_every_few_steps() -> None:
    policy = build_policy("laia_adaptive:0.00004", seed=0)
    rare = [[0, 1 + i] for i in range(6)]
    swapped = [row[::-1] for row in rare]
    steps = [(1, rare), (2, swapped), (PROFILE_STEPS, swapped)]
    given = [few_rows(step, [CLEAN] * 7, [0b001, *[0b010] * 6], rows, capacity=6) for step, rows in steps]
    assert [policy.assign(situation).worker_B.tolist() for situation in given] == [[1] * 6, [0] * 6, [1] * 6]


@given(st.integers(0, 10_000), st.sampled_from([1, 4, 70]))
@settings(max_examples=40, deadline=None)
def test_counts_of_infrequent_rows_equal_reference(seed: int, workers: int) -> None:
    situation = draw_situation(seed, workers=workers)
    arguments = situation.local_BF, situation.holders_UQ, situation.workers
    assert np.array_equal(count_infrequent(*arguments), count_infrequent_reference(*arguments))


@pytest.mark.parametrize(("budget_ms", "tables"), [(1000.0, 5), (1e-9, 1), (48 * 4 * 3 * LOOKUP_NS / 1e6 + 1e-9, 3)])
def test_the_number_of_tables_follows_from_the_budget(budget_ms: float, tables: int) -> None:
    assert tables_within(budget_ms, draw_situation(1)) == tables


@pytest.mark.parametrize("spec", ["het", "fae:0.2:5"])
def test_full_synchronisation_assigns_as_random_does(spec: str) -> None:
    situation = draw_situation(10)
    expected = build_policy("random", seed=3).assign(situation).worker_B
    assert np.array_equal(build_policy(spec, seed=3).assign(situation).worker_B, expected)
    assert [parse_spec(other).needs.synchronisation for other in (spec, "random")] == ["full", "on_demand"]


@pytest.mark.parametrize("spec", ["random", "laia:parts", "esd:0.5", "joint:2"])
def test_a_policy_assigns_alike_under_full_synchronisation(spec: str) -> None:
    situation = draw_situation(10)
    expected = build_policy(spec, seed=3).assign(situation).worker_B
    assert np.array_equal(build_policy(f"{spec}:full", seed=3).assign(situation).worker_B, expected)
    assert [parse_spec(text).needs.synchronisation for text in (spec, f"{spec}:full")] == ["on_demand", "full"]


@pytest.mark.parametrize("share", ["0", "1", "-0.1", "1.5", "nan", "inf", "half", ""])
def test_a_hot_share_that_is_no_part_of_the_cache_is_refused(share: str) -> None:
    with pytest.raises(ConfigError, match="expected a number above 0 and below 1"):
        build_policy(f"fae:{share}", seed=0)


@pytest.mark.parametrize("steps", ["0", "-1", "2.5", "many", "", "10000000"])
def test_profile_steps_that_are_no_number_of_steps_are_refused(steps: str) -> None:
    with pytest.raises(ConfigError, match="expected a whole number from 1"):
        build_policy(f"fae:0.1:{steps}", seed=0)


def test_esd_is_hybrid_on_the_cost_matrix() -> None:
    situation = draw_situation(8)
    half = dataclasses.replace(situation, alpha=0.5)
    expected = assign_hybrid(cost_matrix(situation), situation.capacity_n, 0.5, "min3-min")
    literal = assign_literal(cost_matrix(situation), situation.capacity_n, 0.5, "min3-min")
    assert np.array_equal(build_policy("esd:0.5:min3-min", seed=0).assign(half).worker_B, expected)
    assert np.array_equal(build_policy("esd:0.5:min3-min:literal", seed=0).assign(half).worker_B, literal)
    assert not np.array_equal(expected, literal)


@pytest.mark.parametrize("spec", ["esd:0.25", "esd:0.25:mean:literal:elastic", "joint:8:0.25", "joint:4:0.25:elastic"])
def test_alpha_is_what_a_policy_begins_with(spec: str) -> None:
    assert parse_spec(spec).needs.alpha == 0.25


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("laia", "laia"),
        ("esd", "esd:1"),
        ("esd:.50", "esd:0.5"),
        ("esd:0:mean", "esd:0:mean"),
        ("esd:.5:min2-min:literal", "esd:0.5:literal"),
        ("esd:strict", "esd:1:strict"),
        ("laia:parts", "laia:parts"),
        ("joint:8:1", "joint"),
        ("joint:8:0.50", "joint:8:0.5"),
        ("laia_adaptive:0.10", "laia_adaptive"),
        ("laia_adaptive:.2", "laia_adaptive:0.2"),
        *NORMAL_FORMS,
    ],
)
def test_name_is_the_normal_form_of_the_spec(spec: str, name: str) -> None:
    assert str(parse_spec(spec)) == name


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "herald",
        "laia:1",
        "laia:strict",
        "esd:1:strict:literal",
        "random:3",
        "esd:1:regret",
        "esd:1:mean:2",
        "ESD",
        "het:1",
        "fae:0.1:8:2",
        "fae:elastic:2:3",
        "fae:0.1:8:2:literal",
        "laia_adaptive:1:2",
        "laia:elastic",
        "esd:1:mean:literally",
        "joint:2:0.5:3",
        "full",
        "het:full",
        "fae:full",
        "laia:full:full",
    ],
)
def test_unknown_policy_is_refused_with_the_choices(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"random, round_robin, laia.*esd\[:alpha"):
        build_policy(spec, seed=0)


@pytest.mark.parametrize("rounds", ["-1", "1.5", "many", "", "1001", "²", "9" * 5000])
def test_rounds_that_are_no_count_are_refused(rounds: str) -> None:
    with pytest.raises(ConfigError, match="whole number from 0"):
        build_policy(f"joint:{rounds}", seed=0)


def test_esd_does_less_by_opt_when_opt_took_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    now = [0.0]
    monkeypatch.setattr("dispatch.placement.assign.hybrid.perf_counter", lambda: now[0])

    def solve_slowly(
        cost_kn: NDArray[np.float64], capacity_n: NDArray[np.int64], price_n: NDArray[np.float64]
    ) -> NDArray[np.int32]:
        seen.append(len(cost_kn))
        now[0] += 0.02
        return solve_again(cost_kn, capacity_n, price_n)

    def assign_slowly(situation: Situation) -> NDArray[np.int32]:
        return solve_slowly(cost_matrix(situation), situation.capacity_n, np.zeros(situation.workers))

    policy = Esd(opt=Opt("cpu", assign_slowly, solve_slowly))
    situation = dataclasses.replace(draw_situation(9), budget_seconds=0.01)
    answers = [policy.assign(situation) for _ in range(2)]
    assert all((np.bincount(answer.worker_B) <= situation.capacity_n).all() for answer in answers)
    assert seen[1] < seen[0] == 48
    assert [answer.was_shortened for answer in answers] == [False, True]
    assert not policy.assign(dataclasses.replace(situation, budget_seconds=60.0)).was_shortened


@pytest.mark.parametrize("alpha", ["-0.1", "1.01", "nan", "inf", "half", ""])
def test_alpha_outside_0_to_1_is_refused(alpha: str) -> None:
    with pytest.raises(ConfigError, match="from 0"):
        build_policy(f"esd:{alpha}", seed=0)
    with pytest.raises(ConfigError, match="from 0"):
        build_policy(f"joint:8:{alpha}", seed=0)


@pytest.mark.parametrize("budget", ["0", "-1", "nan", "inf", "fast", ""])
def test_a_budget_that_is_no_time_is_refused(budget: str) -> None:
    with pytest.raises(ConfigError, match="milliseconds above 0"):
        build_policy(f"laia_adaptive:{budget}", seed=0)


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
    assert str(parse_spec(DispatchConfig().policy)) == "esd:1"


@pytest.mark.parametrize("name", SPECS_BY_NAME)
def test_every_spec_can_be_read_back_from_what_it_prints(name: str) -> None:
    spec = parse_spec(name)
    assert parse_spec(str(spec)) == spec
    assert SPECS_BY_NAME[name].form.startswith(name)


@pytest.mark.parametrize(
    ("text", "needs"),
    [
        ("laia", Needs()),
        ("het", Needs("full")),
        ("fae:0.2:5", Needs("full", hot_share=0.2, profile_steps=5)),
        ("fae:0.2:5:literal", Needs("full", hot_share=0.2, profile_steps=5, only_worthwhile=False)),
        ("joint:2", Needs()),
        ("joint:2:elastic", Needs(elastic=True)),
        ("esd:0.5:mean:elastic", Needs(elastic=True, alpha=0.5)),
        ("laia:full", Needs("full")),
        ("esd:0.5:elastic:full", Needs("full", elastic=True, alpha=0.5)),
    ],
)
def test_a_spec_says_what_its_policy_needs(text: str, needs: Needs) -> None:
    assert parse_spec(text).needs == needs


def test_reading_a_policy_loads_no_kernels() -> None:
    script = "import sys, dispatch.config, dispatch.placement.policies.registry; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=100).returncode == 0


@pytest.mark.parametrize("name", ["random", "fae", "laia", "laia:full", "esd:0", "esd:1:full", "joint:elastic"])
def test_alpha_matters_to_policies_that_solve_exactly(name: str) -> None:
    assert parse_spec(name).solves_exactly == name.startswith(("esd", "joint"))
