"""Recorded and made-up readings, played back through the controller.

``cpu_loaded`` and ``cpu_quiet`` were recorded by tests/dispatch/alpha/record.py on a core that the decisions had for
themselves, but for the load; the rest of the machine was busy, which the pressure shows. Those of a GPU are made up.
"""

from itertools import pairwise

import pytest

from dispatch.alpha.controller import DWELL_SECONDS, cpu_verdict, gpu_verdict
from tests.dispatch.alpha.trace import TRACES, Trace, play, read_trace

NAMES = sorted(file.stem for file in TRACES.glob("*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_changes_are_apart(name: str) -> None:
    changes = play(read_trace(name))
    assert all(later - earlier >= DWELL_SECONDS for (earlier, _), (later, _) in pairwise(changes))


def test_a_quiet_machine_keeps_its_alpha() -> None:
    trace = read_trace("cpu_quiet")
    assert trace.is_recorded
    assert trace.readings[-1].at - trace.readings[0].at > 150
    assert play(trace) == []


def test_a_quiet_machine_with_noise_of_its_own_keeps_it_although_others_wait_for_processors() -> None:
    pressures = [reading.read.pressure for reading in read_trace("cpu_quiet").readings]
    assert max(pressure for pressure in pressures if pressure is not None) > 0.5


def test_alpha_falls_under_load_on_the_cpu_and_rises_after() -> None:
    trace = read_trace("cpu_loaded")
    assert trace.is_recorded
    changes = [(at, change.alpha) for at, change in play(trace)]
    falls = [at for at, alpha in changes if at < trace.load_to]
    assert trace.load_from < falls[0] < trace.load_from + 10
    assert [alpha for _, alpha in changes] == [0.5, 0.25, 0.125, 0.0, 0.125, 0.25, 0.5, 1.0]
    assert trace.load_to < changes[4][0] < trace.load_to + 30


def test_the_load_is_felt_by_every_sensor_of_the_cpu() -> None:
    trace = read_trace("cpu_loaded")
    under = [reading.read for reading in trace.readings if trace.load_from + 3 < reading.at < trace.load_to - 1]
    after = [reading.read for reading in trace.readings if reading.at > trace.load_to + 3]
    assert {cpu_verdict(read) for read in under} == {"contended"}
    assert min(read.wait_share or 0.0 for read in under) > max(read.wait_share or 0.0 for read in after)
    assert max(read.decide_cpu_share for read in under) < min(read.decide_cpu_share for read in after)


def moves(trace: Trace) -> list[tuple[str, float]]:
    return [(change.backend, change.alpha) for _, change in play(trace)]


def test_exact_assignment_leaves_a_loaded_gpu_and_comes_back() -> None:
    trace = read_trace("gpu_loaded_made_up")
    assert not trace.is_recorded
    assert moves(trace) == [("cpu", 1.0), ("cuda", 1.0)]
    assert any(gpu_verdict(reading.read) == "contended" for reading in trace.readings)


def test_alpha_falls_where_the_cpu_beside_a_loaded_gpu_is_loaded_too() -> None:
    alphas = [0.5, 0.25, 0.125, 0.0, 0.125, 0.25, 0.5, 1.0]
    assert moves(read_trace("both_loaded_made_up")) == [("cuda", alpha) for alpha in alphas]
