"""The pilot, with sensors that answer as told."""

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dispatch.alpha.controller import Tempo
from dispatch.alpha.neighbours import GpuNeighbours, OtherUse, OwnProcesses
from dispatch.alpha.pilot import AlphaPilot, Sensors
from dispatch.alpha.pressure import CpuPressure
from dispatch.alpha.run_queue import RunQueue
from dispatch.alpha.trials import FIRST_LOOKS, Trial
from dispatch.alpha.window import StepSeconds
from dispatch.placement.assign.choices import Backend
from dispatch.placement.assign.situation import Situation
from dispatch.placement.assign.worth import Worth
from infra.base.process import own_place
from tests.dispatch.placement.assign.test_cuda import needs_gpu


class SetWait(RunQueue):
    """Says that the thread waited for the share that was set."""

    share = 0.0

    def read(self) -> float | None:
        return self.share


class SetNeighbours(GpuNeighbours):
    """Says what was set of others, or that nobody can be told apart."""

    def __init__(self) -> None:
        self.others: float | None = None

    def read(self, own: OwnProcesses) -> OtherUse:
        return OtherUse(self.others, 0.4)


STEP = StepSeconds(busy_seconds=0.1, rows_seconds=0.005)
WORTH = Worth(saved_share=0.05, exact_seconds=0.004)


@dataclass
class Bench:
    """A pilot and what its sensors say."""

    seconds: dict[Backend, float] = field(default_factory=lambda: {"cpu": 0.002, "cuda": 0.001})
    made: list[Backend] = field(default_factory=list)
    wait: SetWait = field(default_factory=SetWait)
    neighbours: SetNeighbours = field(default_factory=SetNeighbours)

    def pilot(self) -> AlphaPilot:
        return AlphaPilot(64, 4, self.sensors(), Tempo(readings=2, dwell_seconds=10.0))

    def sensors(self) -> Sensors:
        return Sensors(CpuPressure(None), self.wait, self._trial, lambda: self.neighbours)

    def _trial(self, backend: Backend, _: Situation) -> Trial:
        self.made.append(backend)
        return Trial(lambda: self.seconds[backend])


def test_it_looks_at_most_once_a_second_and_only_after_a_decision() -> None:
    pilot = Bench().pilot()
    pilot.begin(1.0, 1.0, "cpu", may_move=True)
    assert pilot.sample_and_decide(0.0) is None
    assert pilot.last is None
    pilot.note(0.01, 0.01, STEP)
    pilot.sample_and_decide(0.0)
    first = pilot.last
    assert first is not None
    pilot.note(0.01, 0.01, STEP)
    pilot.sample_and_decide(0.9)
    assert pilot.last is first
    pilot.sample_and_decide(1.0)
    assert pilot.last is not first


def test_alpha_falls_while_decisions_wait_beside_workers_and_rises_after() -> None:
    bench = Bench()
    pilot = bench.pilot()
    pilot.train_with([own_place()])
    pilot.begin(1.0, 1.0, "cpu", may_move=True)
    seen = []
    for now in range(50):
        bench.wait.share = 0.6 if 5 <= now < 20 else 0.0
        pilot.note(0.01, 0.01 * (1 - bench.wait.share), STEP, WORTH)
        change = pilot.sample_and_decide(now)
        if change is not None:
            seen.append((now, change.alpha, change.backend))
            assert change.readings["saved_share"] == 0.05
            assert change.readings["workers_here"] == 1
    assert seen == [(6, 0.5, "cpu"), (16, 0.25, "cpu"), (26, 0.5, "cpu"), (36, 1.0, "cpu")]


def test_a_gpu_is_timed_beside_the_cpu_and_its_neighbours_are_looked_at() -> None:
    bench = Bench()
    pilot = bench.pilot()
    pilot.begin(1.0, 1.0, "cuda", may_move=True)
    assert sorted(bench.made) == ["cpu", "cuda"]
    backends = []
    for now in range(FIRST_LOOKS + 5):
        bench.seconds["cuda"] = 0.001 if now < FIRST_LOOKS else 0.005
        pilot.note(0.01, 0.01, STEP)
        change = pilot.sample_and_decide(now)
        backends += [change.backend] if change is not None else []
    assert backends == ["cpu"]
    assert pilot.last is not None
    assert pilot.last.gpu_slowdown == pytest.approx(5.0)
    assert (pilot.last.gpu_others, pilot.last.gpu_others_memory) == (None, 0.4)


def test_the_papers_method_is_followed_on_the_gpu_by_the_trial_of_the_other_one() -> None:
    bench = Bench()
    pilot = bench.pilot()
    pilot.begin(1.0, 1.0, "hungarian", may_move=False)
    assert sorted(bench.made) == ["cpu", "cuda"]


@pytest.mark.parametrize("nvml_tells", [False, True])
def test_a_foreign_load_on_the_gpu_is_left_within_10_s_and_the_way_back_found_within_30_s(nvml_tells: bool) -> None:
    """The run's own workers make trials up to twice as slow as on an idle GPU, the foreign load three times more."""
    bench, draw = Bench(), random.Random(5)
    pilot = AlphaPilot(64, 4, bench.sensors())
    pilot.train_with([own_place(), own_place()])
    pilot.begin(1.0, 1.0, "cuda", may_move=True)
    loads = [(60, 80), (110, 130), (150, 170)]
    seen: list[tuple[int, str]] = []
    for now in range(800):
        has_load = any(begin <= now < end for begin, end in loads)
        bench.seconds["cuda"] = 0.001 * draw.uniform(1.0, 2.2) * (3.0 if has_load else 1.0)
        bench.neighbours.others = (0.9 if has_load else 0.0) if nvml_tells else None
        pilot.note(0.01, 0.01, STEP, WORTH)
        change = pilot.sample_and_decide(now)
        if change is not None:
            assert change.alpha == 1.0
            seen.append((now, change.backend))
    assert [backend for _, backend in seen] == ["cpu", "cuda"] * 3
    for (begin, end), (left, _), (back, _) in zip(loads, seen[::2], seen[1::2], strict=True):
        assert begin < left <= begin + 10
        assert end < back <= end + 30


def test_beginning_again_keeps_the_trials_and_forgets_the_rest() -> None:
    bench = Bench()
    pilot = bench.pilot()
    pilot.begin(1.0, 1.0, "cpu", may_move=True)
    pilot.note(0.01, 0.01, STEP)
    pilot.begin(0.5, 1.0, "cpu", may_move=True)
    assert bench.made == ["cpu"]
    assert pilot.sample_and_decide(0.0) is None
    assert pilot.last is None


def test_a_recovery_on_the_cpu_does_not_forget_the_gpu_nor_the_time_since_the_change() -> None:
    bench = Bench()
    pilot = bench.pilot()
    pilot.begin(1.0, 1.0, "cuda", may_move=True)
    seen = []
    for now in range(60):
        bench.seconds["cuda"] = 0.005 if 20 <= now < 30 else 0.001
        pilot.note(0.01, 0.01, STEP)
        change = pilot.sample_and_decide(now)
        if change is not None:
            seen.append((now, change.backend))
        if now == 25:
            assert seen[-1][1] == "cpu"
            pilot.begin(1.0, 1.0, "cpu", may_move=True)
    assert [backend for _, backend in seen] == ["cpu", "cuda"]
    assert seen[1][0] - seen[0][0] >= 10


def test_what_exactness_saves_is_not_known_at_alpha_zero() -> None:
    bench = Bench()
    pilot = bench.pilot()
    pilot.train_with([own_place()])
    pilot.begin(0.125, 1.0, "cpu", may_move=True)
    bench.wait.share = 0.6
    changes = []
    for now in range(4):
        pilot.note(0.01, 0.004, STEP, Worth(0.0, 0.001) if now == 0 else None)
        changes.append(pilot.sample_and_decide(now))
    assert [change.alpha for change in changes if change is not None] == [0.0]
    assert pilot.last is not None
    assert pilot.last.saved_share is None


def test_real_sensors_of_this_machine_can_be_read() -> None:
    figures = read_real_sensors("cpu")
    assert {"decide_p95_ms", "busy_ms", "decide_cpu_share", "cpu_trial_ms", "cpu_slowdown"} <= figures.keys()
    assert figures["cpu_slowdown"] > 0.0
    assert ("pressure" in figures) == Path("/proc/pressure/cpu").exists()


def read_real_sensors(backend: Backend) -> dict[str, float]:
    """Once it is known what is usual."""
    pilot = AlphaPilot(64, 4)
    pilot.train_with([own_place()])
    pilot.begin(1.0, 1.0, backend, may_move=True)
    for look in range(FIRST_LOOKS):
        pilot.note(0.01, 0.01, STEP)
        pilot.sample_and_decide(100.0 * look)
    assert pilot.last is not None
    return pilot.last.figures()


@pytest.mark.gpu
@needs_gpu
def test_real_sensors_of_a_gpu_can_be_read() -> None:
    figures = read_real_sensors("cuda")
    assert figures["gpu_trial_ms"] > 0.0
    assert figures["gpu_slowdown"] > 0.0
    assert figures.get("gpu_others", 0.0) <= 1.0
