"""The controller: from readings to changes."""

import random
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.alpha.controller import (
    CPU_CONTENDED,
    DWELL_SECONDS,
    GPU_CONTENDED,
    SAVED_DWELLS,
    AlphaChange,
    ControllerState,
    control,
    give_and_take,
    halved,
    verdict,
)
from dispatch.alpha.readings import Readings
from dispatch.placement.assign.choices import Backend

CALM = Readings(
    decide_p95_ms=5.0,
    busy_ms=50.0,
    decide_cpu_share=0.98,
    wait_share=0.01,
    pressure=0.02,
    cpu_trial_ms=2.0,
    cpu_slowdown=1.1,
    workers_here=2,
    exact_ms=4.0,
    rows_ms=10.0,
    saved_share=0.04,
)
CALM_GPU = msgspec.structs.replace(CALM, gpu_trial_ms=0.5, gpu_slowdown=1.05)
ON_CPU = ControllerState(1.0, 1.0, "cpu", "cpu")
ON_GPU = ControllerState(1.0, 1.0, "cuda", "cuda")
Changes = list[tuple[float, AlphaChange]]


def changed(readings: Readings, **fields: float | None) -> Readings:
    return msgspec.structs.replace(readings, **fields)


def on_cpu(contention: float, readings: Readings = CALM) -> Readings:
    return changed(readings, decide_cpu_share=1.0 - contention, wait_share=contention, pressure=0.9)


def on_gpu(slowdown: float) -> Readings:
    return changed(CALM_GPU, gpu_slowdown=slowdown)


def play(state: ControllerState, readings: list[Readings], begin: float = 0.0) -> tuple[ControllerState, Changes]:
    """A reading a second."""
    changes: Changes = []
    for now, reading in enumerate(readings, start=int(begin)):
        state, change = control(state, reading, now)
        if change is not None:
            changes.append((now, change))
    return state, changes


def alphas(changes: Changes) -> list[float]:
    return [change.alpha for _, change in changes]


def test_two_contended_readings_are_not_enough_and_three_are() -> None:
    pattern = [on_cpu(0.5), on_cpu(0.5), CALM] * 40
    assert play(ON_CPU, pattern)[1] == []
    assert alphas(play(ON_CPU, [on_cpu(0.5)] * 3)[1]) == [0.5]


def test_alpha_halves_down_to_an_eighth_and_then_is_zero() -> None:
    _, changes = play(ON_CPU, [on_cpu(0.6)] * 600)
    assert alphas(changes) == [0.5, 0.25, 0.125, 0.0]
    assert [halved(alpha) for alpha in (1.0, 0.3, 0.2, 0.0)] == [0.5, 0.15, 0.0, 0.0]


def test_alpha_doubles_up_to_the_policys_own() -> None:
    state = ControllerState(0.0, 0.45, "cpu", "cpu")
    state, changes = play(state, [CALM] * 600)
    assert alphas(changes) == [0.125, 0.25, 0.45]
    assert min(later - earlier for (earlier, _), (later, _) in pairwise(changes)) >= DWELL_SECONDS


def test_between_the_thresholds_nothing_changes() -> None:
    for alpha in (1.0, 0.25):
        state = msgspec.structs.replace(ON_CPU, alpha=alpha)
        assert play(state, [on_cpu(0.28)] * 300)[1] == []


def test_a_contended_gpu_sends_exact_assignment_to_a_free_cpu_and_calm_brings_it_back() -> None:
    state, changes = play(ON_GPU, [on_gpu(5.0)] * 100)
    assert [(change.alpha, change.backend) for _, change in changes] == [(1.0, "cpu")]
    assert "5.0 times the usual time" in changes[0][1].reason
    assert "trial 2.0 ms of a step's 50 ms" in changes[0][1].reason
    state, changes = play(state, [on_gpu(1.1)] * 100, begin=100)
    assert [(change.alpha, change.backend) for _, change in changes] == [(1.0, "cuda")]


@pytest.mark.parametrize(
    "fields", [{"cpu_trial_ms": 40.0}, {"wait_share": 0.6, "decide_cpu_share": 0.4, "pressure": 0.8}]
)
def test_a_contended_gpu_lowers_alpha_where_the_cpu_is_slow_or_contended(fields: dict[str, float]) -> None:
    _, changes = play(ON_GPU, [changed(on_gpu(5.0), **fields)] * 3)
    assert [(change.alpha, change.backend) for _, change in changes] == [(0.5, "cuda")]


def test_alpha_falls_on_the_cpu_that_exact_assignment_moved_to() -> None:
    state, _ = play(ON_GPU, [on_gpu(5.0)] * 3)
    _, changes = play(state, [on_cpu(0.6, on_gpu(5.0))] * 15, begin=3)
    assert [(change.alpha, change.backend) for _, change in changes] == [(0.5, "cpu")]


def test_the_gpu_comes_back_before_alpha_rises() -> None:
    state = ControllerState(0.5, 1.0, "cpu", "cuda")
    _, changes = play(state, [on_gpu(1.0)] * 100)
    assert [(change.alpha, change.backend) for _, change in changes] == [(0.5, "cuda"), (1.0, "cuda")]


def test_nvml_says_whether_others_use_the_gpu_where_it_can_tell_and_the_trial_where_it_cannot() -> None:
    assert verdict(changed(on_gpu(1.1), gpu_others=0.95), "cuda") == "contended"
    assert verdict(changed(on_gpu(2.5), gpu_others=0.0), "cuda") == "calm"
    assert verdict(changed(on_gpu(1.6), gpu_others=0.3), "cuda") == "between"
    assert verdict(changed(on_gpu(2.5), gpu_others=0.3), "cuda") == "contended"
    assert verdict(on_gpu(2.5), "hungarian") == "contended"


def test_the_reason_names_what_the_gpu_was_judged_by() -> None:
    _, changes = play(ON_GPU, [changed(on_gpu(1.1), gpu_others=0.95)] * 3)
    assert changes[0][1].reason.startswith("GPU is contended: other programs keep it busy 95% of the time; exact")


def test_decisions_longer_than_steps_lower_alpha_on_a_free_machine() -> None:
    _, changes = play(ON_CPU, [changed(CALM, decide_p95_ms=60.0)] * 3)
    assert changes[0][1].reason == (
        "decisions are late: they take 120% of the 50 ms of a step; alpha falls from 1 to 0.5, "
        "which gives back 2.0 ms a step for 0.2 ms more on the links"
    )


def test_decisions_that_no_step_waits_for_keep_their_alpha() -> None:
    assert play(ON_CPU, [changed(CALM, decide_p95_ms=49.0)] * 300)[1] == []


def test_a_contended_processor_without_workers_keeps_alpha_as_long_as_decisions_are_in_time() -> None:
    elsewhere = changed(on_cpu(0.7), workers_here=0)
    assert play(ON_CPU, [elsewhere] * 300)[1] == []
    assert alphas(play(ON_CPU, [changed(elsewhere, decide_p95_ms=60.0)] * 3)[1]) == [0.5]


@pytest.mark.parametrize(("rows_ms", "falls"), [(10.0, True), (200.0, False)])
def test_alpha_falls_only_for_more_time_than_the_bytes_take(rows_ms: float, falls: bool) -> None:
    """4 ms of exact solving against 4 % of the cost: 0.4 ms on fast links, 8 ms on slow ones."""
    assert bool(play(ON_CPU, [changed(on_cpu(0.6), rows_ms=rows_ms)] * 100)[1]) == falls


@pytest.mark.parametrize("unknown", ["exact_ms", "rows_ms", "saved_share"])
def test_alpha_stays_while_it_is_not_known_what_it_is_worth(unknown: str) -> None:
    assert play(ON_CPU, [changed(on_cpu(0.6), **{unknown: None})] * 100)[1] == []


def test_a_shorter_decision_gives_back_no_more_than_steps_wait_for() -> None:
    worth = give_and_take(changed(CALM, decide_p95_ms=51.0, workers_here=0), "cpu", share=0.5)
    assert worth is not None
    assert worth.given_back == pytest.approx(1.0)
    assert worth.lost == pytest.approx(0.5 * 10 * 0.04 / 0.96)


@pytest.mark.parametrize("named", ["cuda", "hungarian"])
def test_a_gpu_that_a_person_named_is_never_left(named: Backend) -> None:
    state = ControllerState(1.0, 1.0, named, named, may_move=False)
    contended = [on_gpu(9.0)] * 100 + [changed(on_gpu(9.0), decide_p95_ms=90.0)] * 100
    _, changes = play(state, contended + [CALM_GPU] * 200)
    assert {change.backend for _, change in changes} == {named}
    assert min(alphas(changes)) == 0.0
    assert alphas(changes)[-1] == 1.0


def test_the_runs_own_load_on_the_gpu_moves_nothing() -> None:
    """The trial takes twice its idle best, which is what is usual in this run."""
    draw = random.Random(1)
    own = [changed(on_gpu(draw.uniform(0.5, 1.3)), decide_p95_ms=draw.uniform(3, 9)) for _ in range(3600)]
    assert play(ON_GPU, own)[1] == []
    assert play(ON_GPU, [changed(reading, gpu_slowdown=2.0, gpu_others=0.02) for reading in own])[1] == []


def test_three_foreign_loads_in_a_row_are_left_and_come_back_from_in_time() -> None:
    idle, loaded = [on_gpu(1.0)] * 30, [on_gpu(4.0)] * 20
    _, changes = play(ON_GPU, idle + (loaded + idle) * 3 + idle * 20)
    begins = [30, 80, 130]
    assert [change.backend for _, change in changes] == ["cpu", "cuda"] * 3
    assert all(begin < at <= begin + 10 for begin, (at, _) in zip(begins, changes[::2], strict=True))
    assert all(begin + 20 < at <= begin + 50 for begin, (at, _) in zip(begins, changes[1::2], strict=True))


def test_short_decisions_are_left_alone_however_contended_the_cpu_is() -> None:
    assert play(ON_CPU, [changed(on_cpu(0.7), decide_p95_ms=0.2)] * 100)[1] == []


def test_sensors_must_agree() -> None:
    assert verdict(changed(CALM, decide_cpu_share=0.3), "cpu") == "calm"  # waits for Python's lock, say
    assert verdict(changed(CALM, wait_share=0.7, pressure=0.9), "cpu") == "calm"
    assert verdict(changed(on_cpu(0.6), pressure=0.0), "cpu") == "calm"
    assert verdict(on_cpu(0.6), "cpu") == "contended"


def test_processor_time_alone_carries_it_where_the_kernel_says_nothing() -> None:
    assert verdict(changed(CALM, decide_cpu_share=0.4, wait_share=None, pressure=None), "cpu") == "contended"


def test_a_slow_trial_shows_what_a_hypervisor_takes() -> None:
    _, changes = play(ON_CPU, [changed(CALM, cpu_slowdown=4.0)] * 3)
    assert "its trial takes 4.0 times the usual time" in changes[0][1].reason


@pytest.mark.parametrize(("saved", "rises"), [(0.0, False), (-0.1, False), (0.01, True), (None, True)])
def test_alpha_rises_only_if_exactness_bought_something_at_the_ceiling(saved: float | None, rises: bool) -> None:
    state, _ = play(ON_CPU, [changed(CALM, saved_share=saved), *[changed(on_cpu(0.6), saved_share=saved or 0.0)] * 3])
    assert state.alpha == 0.5
    state = msgspec.structs.replace(state, saved_share=saved)
    assert bool(play(state, [CALM] * 100, begin=3)[1]) == rises


def test_what_a_lower_alpha_saves_does_not_keep_it_down() -> None:
    state, _ = play(ON_CPU, [changed(on_cpu(0.6), saved_share=0.18)] * 3)
    assert alphas(play(state, [changed(CALM, saved_share=-0.01)] * 100, begin=3)[1]) == [1.0]


def test_alpha_rises_again_after_a_while_to_see_what_exactness_buys_now() -> None:
    state, _ = play(ON_CPU, [changed(on_cpu(0.6), saved_share=0.0)] * 3)
    _, changes = play(state, [changed(CALM, saved_share=None)] * 2000, begin=3)
    assert changes[0][0] > SAVED_DWELLS * DWELL_SECONDS


def test_nothing_changes_before_the_busy_time_is_known() -> None:
    assert play(ON_CPU, [changed(on_cpu(0.9), busy_ms=None)] * 100)[1] == []


def test_a_policy_without_exact_solving_is_left_alone() -> None:
    assert play(ControllerState(0.0, 0.0, "cpu", "cpu"), [on_cpu(0.9), CALM] * 100 + [CALM] * 100)[1] == []


def test_rises_that_are_taken_back_become_rarer() -> None:
    """Contended whenever alpha is above a half: the controller tries less and less often."""
    state, at = ON_CPU, []
    for now in range(7200):
        state, change = control(state, on_cpu(0.6) if state.alpha > 0.5 else CALM, now)
        if change is not None and change.alpha > 0.5:
            at.append(now)
    waits = [later - earlier for earlier, later in pairwise(at)]
    assert waits[-1] > 3 * waits[0]


def test_reasons_and_readings_say_why() -> None:
    _, changes = play(ON_CPU, [on_cpu(0.52)] * 3)
    change = changes[0][1]
    assert change.reason == (
        "CPU is contended: decisions lose 52% of their time to other work; alpha falls from 1 to 0.5, "
        "which gives back 2.0 ms a step for 0.2 ms more on the links"
    )
    assert change.readings["wait_share"] == 0.52
    assert "gpu_slowdown" not in change.readings
    _, changes = play(msgspec.structs.replace(ON_CPU, alpha=0.5, saved_share=0.04), [CALM] * 3)
    assert changes[0][1].reason == (
        "CPU is free: decisions lose 1% of their time to other work; exact solving saved 4.0% of the cost at 1; "
        "alpha rises from 0.5 to 1"
    )


def check_pace(state: ControllerState, changes: Changes) -> None:
    times = [at for at, _ in changes]
    assert all(later - earlier >= DWELL_SECONDS for earlier, later in pairwise(times))
    assert all(0.0 <= change.alpha <= state.ceiling for _, change in changes)


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_noise_around_a_threshold_makes_no_more_changes_than_may_be(backend: Backend, fuzz_rounds: int) -> None:
    for seed in range(20 * fuzz_rounds):
        draw = random.Random(seed)
        spread = draw.choice([0.02, 0.1, 0.3])
        noisy = [
            on_cpu(
                min(1.0, max(0.0, draw.gauss(CPU_CONTENDED, spread))),
                on_gpu(max(1.0, draw.gauss(GPU_CONTENDED, 10 * spread))),
            )
            for _ in range(900)
        ]
        begun = ControllerState(1.0, 1.0, backend, backend)
        check_pace(begun, play(begun, noisy)[1])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(1, 9), st.floats(0, 80)), max_size=300))
def test_whatever_is_read_changes_are_apart(read: list[tuple[float, float, float, float]]) -> None:
    readings = [
        changed(CALM_GPU, decide_cpu_share=share, wait_share=wait, gpu_slowdown=slowdown, decide_p95_ms=p95, pressure=1)
        for share, wait, slowdown, p95 in read
    ]
    check_pace(ON_GPU, play(ON_GPU, readings)[1])
