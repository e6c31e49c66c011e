"""The pilot, with sensors that answer as told."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dispatch.alpha.controller import Backend, Tempo
from dispatch.alpha.neighbours import GpuNeighbours, OtherUse
from dispatch.alpha.pilot import AlphaPilot, Sensors
from dispatch.alpha.pressure import CpuPressure
from dispatch.alpha.run_queue import RunQueue
from dispatch.alpha.trials import Trial
from dispatch.assign.situation import Situation
from tests.dispatch.assign.test_cuda import needs_gpu


class SetWait(RunQueue):
    """Says that the thread waited for the share that was set."""

    share = 0.0

    def read(self) -> float | None:
        return self.share


class SetNeighbours(GpuNeighbours):
    def __init__(self) -> None:
        pass

    def read(self) -> OtherUse:
        return OtherUse(0.95, 0.4)


@dataclass
class Bench:
    """A pilot and what its sensors say."""

    seconds: dict[Backend, float] = field(default_factory=lambda: {"cpu": 0.002, "cuda": 0.001})
    made: list[Backend] = field(default_factory=list)
    wait: SetWait = field(default_factory=SetWait)

    def pilot(self) -> AlphaPilot:
        sensors = Sensors(CpuPressure(None), self.wait, self._trial, SetNeighbours)
        return AlphaPilot(64, 4, sensors, Tempo(readings=2, dwell_seconds=10.0))

    def _trial(self, backend: Backend, _: Situation) -> Trial:
        self.made.append(backend)
        return Trial(lambda: self.seconds[backend])


def test_it_looks_at_most_once_a_second_and_only_after_a_decision() -> None:
    pilot = Bench().pilot()
    pilot.begin(1.0, 1.0, "cpu")
    assert pilot.look(0.0) is None
    assert pilot.last is None
    pilot.note(0.01, 0.01, 0.1)
    pilot.look(0.0)
    first = pilot.last
    assert first is not None
    pilot.note(0.01, 0.01, 0.1)
    pilot.look(0.9)
    assert pilot.last is first
    pilot.look(1.0)
    assert pilot.last is not first


def test_alpha_falls_while_decisions_wait_and_rises_after() -> None:
    bench = Bench()
    pilot = bench.pilot()
    pilot.begin(1.0, 1.0, "cpu")
    seen = []
    for now in range(40):
        bench.wait.share = 0.6 if 5 <= now < 10 else 0.0
        pilot.note(0.01, 0.01 * (1 - bench.wait.share), 0.1, saved_share=0.05)
        change = pilot.look(now)
        if change is not None:
            seen.append((now, change.alpha, change.backend))
            assert change.readings["saved_share"] == 0.05
    assert seen == [(6, 0.5, "cpu"), (16, 0.625, "cpu"), (26, 0.75, "cpu"), (36, 0.875, "cpu")]


def test_a_gpu_is_timed_beside_the_cpu_and_its_neighbours_are_looked_at() -> None:
    bench = Bench()
    pilot = bench.pilot()
    pilot.begin(1.0, 1.0, "cuda")
    assert sorted(bench.made) == ["cpu", "cuda"]
    bench.seconds["cuda"] = 0.005
    backends = []
    for now in range(0, 50, 10):
        pilot.note(0.01, 0.01, 0.1)
        change = pilot.look(now)
        backends += [change.backend] if change is not None else []
    assert backends == ["cpu"]
    assert pilot.last is not None
    assert pilot.last.gpu_slowdown == pytest.approx(5.0)
    assert (pilot.last.gpu_others, pilot.last.gpu_others_memory) == (0.95, 0.4)


def test_beginning_again_keeps_the_trials_and_forgets_the_rest() -> None:
    bench = Bench()
    pilot = bench.pilot()
    pilot.begin(1.0, 1.0, "cpu")
    pilot.note(0.01, 0.01, 0.1)
    pilot.begin(0.5, 1.0, "cpu")
    assert bench.made == ["cpu"]
    assert pilot.look(0.0) is None
    assert pilot.last is None


def test_a_recovery_on_the_cpu_does_not_forget_the_gpu_nor_the_minute() -> None:
    bench = Bench()
    pilot = bench.pilot()
    pilot.begin(1.0, 1.0, "cuda")
    seen = []
    for now in range(40):
        bench.seconds["cuda"] = 0.005 if now < 10 else 0.001
        pilot.note(0.01, 0.01, 0.1)
        change = pilot.look(now)
        if change is not None:
            seen.append((now, change.backend))
        if now == 5:
            assert seen[-1][1] == "cpu"
            pilot.begin(1.0, 1.0, "cpu")
    assert [backend for _, backend in seen] == ["cpu", "cuda"]
    assert seen[1][0] - seen[0][0] >= 10


def test_what_exactness_saves_is_not_known_at_alpha_zero() -> None:
    bench = Bench()
    pilot = bench.pilot()
    pilot.begin(0.125, 1.0, "cpu")
    bench.wait.share = 0.6
    changes = []
    for now in range(4):
        pilot.note(0.01, 0.004, 0.1, saved_share=0.0 if now == 0 else None)
        changes.append(pilot.look(now))
    assert [change.alpha for change in changes if change is not None] == [0.0]
    assert pilot.last is not None
    assert pilot.last.saved_share is None


def test_real_sensors_of_this_machine_can_be_read() -> None:
    pilot = AlphaPilot(64, 4)
    pilot.begin(1.0, 1.0, "cpu")
    pilot.note(0.01, 0.01, 0.1)
    pilot.look(0.0)
    assert pilot.last is not None
    figures = pilot.last.figures()
    assert {"decide_p95_ms", "busy_ms", "decide_cpu_share", "cpu_trial_ms", "cpu_slowdown"} <= figures.keys()
    assert figures["cpu_slowdown"] >= 1.0
    assert ("pressure" in figures) == Path("/proc/pressure/cpu").exists()


@pytest.mark.gpu
@needs_gpu
def test_real_sensors_of_a_gpu_can_be_read() -> None:
    pilot = AlphaPilot(64, 4)
    pilot.begin(1.0, 1.0, "cuda")
    pilot.note(0.01, 0.01, 0.1)
    pilot.look(0.0)
    assert pilot.last is not None
    assert (pilot.last.gpu_trial_ms or 0.0) > 0.0
    assert (pilot.last.gpu_slowdown or 0.0) >= 1.0
