"""The pilot: reads the sensors once a second, asks the controller, and returns what to change.

It runs in the deciding thread and delays it for at most a hundredth of the time: one trial on the CPU, one on the GPU
if there is one, and a few small files. The dispatcher's loop carries out the changes, between two decisions.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dispatch.alpha.controller import USUAL, AlphaChange, ControllerState, Tempo, control
from dispatch.alpha.neighbours import NOT_KNOWN, GpuNeighbours, find_neighbours, own_processes
from dispatch.alpha.pressure import CpuPressure, pressure_source
from dispatch.alpha.readings import Readings
from dispatch.alpha.run_queue import RunQueue
from dispatch.alpha.trials import Trial
from dispatch.alpha.window import DecisionWindow, StepSeconds
from dispatch.placement.assign.backend import TRIAL_SAMPLES, TRIAL_WORKERS, trial_seconds, trial_situation, use_opt
from dispatch.placement.assign.choices import Backend
from dispatch.placement.assign.situation import Situation
from dispatch.placement.assign.worth import Worth
from infra.base.process import ProcessPlace, own_place

LOOK_SECONDS = 1.0
"""Time between two readings."""


def time_trial(backend: Backend, situation: Situation) -> Trial:
    """A trial of the solver that this process has for the backend."""
    return Trial(partial(trial_seconds, use_opt(backend), situation))


def own_neighbours() -> GpuNeighbours | None:
    """The neighbours on the GPU that exact assignment uses; None if NVML cannot be used."""
    import cupy

    bus_id: Any = cupy.cuda.runtime.deviceGetPCIBusId(cupy.cuda.Device().id)
    return find_neighbours(bus_id)


@dataclass(frozen=True)
class Sensors:
    """The sources of readings; tests replace them."""

    pressure: CpuPressure = field(default_factory=lambda: CpuPressure(pressure_source()))
    run_queue: RunQueue = field(default_factory=RunQueue)
    time_trial: Callable[[Backend, Situation], Trial] = time_trial
    neighbours: Callable[[], GpuNeighbours | None] = own_neighbours


class AlphaPilot:
    """Observes one run's decisions, from ``begin`` on."""

    def __init__(
        self,
        samples: int = TRIAL_SAMPLES,
        workers: int = TRIAL_WORKERS,
        sensors: Sensors | None = None,
        tempo: Tempo = USUAL,
    ) -> None:
        """samples, workers: size of the trial's batch; with those of the run it shows whether the CPU is fast enough
        for it.
        """
        self._situation = trial_situation(samples, workers)
        self._sensors = sensors or Sensors()
        self._tempo = tempo
        self._state: ControllerState | None = None
        self._window = DecisionWindow()
        self._trials: dict[Backend, Trial] = {}
        self._neighbours: GpuNeighbours | None = None
        self._own = own_processes(own_place(), ())
        self._next = 0.0
        self.last: Readings | None = None
        """The latest readings, for the status."""

    def train_with(self, workers: Iterable[ProcessPlace]) -> None:
        """Sets the run's workers from now on: what they use of this machine does not count as load of others."""
        self._own = own_processes(own_place(), workers)

    def begin(self, alpha: float, ceiling: float, backend: Backend, may_move: bool) -> None:
        """Starts again: at the start of a run, after a recovery, or when a person releases alpha.

        backend: where exact assignment runs now. may_move: whether it may move; what has run on a GPU before returns to
        it. The time since the last change is kept.
        """
        timed: set[Backend] = {"cpu"} if backend == "cpu" else {"cpu", "cuda"}
        for place in timed - self._trials.keys():
            self._trials[place] = self._sensors.time_trial(place, self._situation)
        if "cuda" in self._trials and self._neighbours is None:
            self._neighbours = self._sensors.neighbours()
        home: Backend = "cuda" if may_move and "cuda" in self._trials else backend
        changed_at = None if self._state is None else self._state.changed_at
        self._state = ControllerState(alpha, ceiling, backend, home, may_move, changed_at=changed_at)
        self._window = DecisionWindow()
        self._sensors.run_queue.read()

    def note(self, decision_seconds: float, cpu_seconds: float, step: StepSeconds, worth: Worth | None = None) -> None:
        """Records what one decision took, and what its exact part was worth if that was compared."""
        self._window.note(decision_seconds, cpu_seconds, step, worth)

    def sample_and_decide(self, now: float) -> AlphaChange | None:
        """At most once a second, and if anything was decided since: reads the sensors and asks the controller."""
        if self._state is None or now < self._next or self._window.is_empty:
            return None
        self._next = now + LOOK_SECONDS
        self.last = self._read(now)
        self._state, change = control(self._state, self.last, now, self._tempo)
        if change is not None and change.alpha == 0.0:
            self._window.forget_worth()
        return change

    def _read(self, now: float) -> Readings:
        wait_share = self._sensors.run_queue.read()  # first: the trials below wait, too
        for trial in self._trials.values():
            trial.run_if_due(now)
        cpu = self._trials["cpu"]
        gpu = self._trials.get("cuda")
        others = self._neighbours.read(self._own) if self._neighbours is not None else NOT_KNOWN
        window = self._window
        worth = self._window.worth
        return Readings(
            decide_p95_ms=window.p95_seconds() * 1000,
            busy_ms=_milliseconds(window.step.busy_seconds),
            decide_cpu_share=window.close(),
            wait_share=wait_share,
            pressure=self._sensors.pressure.read(now),
            cpu_trial_ms=_milliseconds(cpu.expected_seconds),
            cpu_slowdown=cpu.slowdown,
            gpu_trial_ms=None if gpu is None else _milliseconds(gpu.expected_seconds),
            gpu_slowdown=None if gpu is None else gpu.slowdown,
            gpu_others=others.utilisation,
            gpu_others_memory=others.memory,
            workers_here=self._own.workers,
            exact_ms=None if worth is None else worth.exact_seconds * 1000,
            rows_ms=_milliseconds(window.step.rows_seconds),
            saved_share=None if worth is None else worth.saved_share,
        )


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
