"""A loop like the dispatcher's, without rows and workers: assigns made-up batches and asks the pilot."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from subprocess import PIPE, Popen
from time import monotonic, perf_counter, sleep, thread_time

import numpy as np

from dispatch.alpha.controller import AlphaChange
from dispatch.alpha.pilot import AlphaPilot
from dispatch.alpha.window import StepSeconds
from dispatch.placement.assign.backend import TRIAL_ROWS, trial_situation
from dispatch.placement.assign.choices import Backend
from dispatch.placement.assign.situation import Situation
from dispatch.placement.assign.worth import weigh
from dispatch.placement.policies.registry import parse_spec

COMPARED_STEPS = 16


class Looped:
    """Decides under one policy and does what its pilot says."""

    def __init__(self, policy: str, backend: Backend, pilot: AlphaPilot, busy_seconds: float) -> None:
        self.spec, self.backend, self._pilot, self._busy_seconds = parse_spec(policy), backend, pilot, busy_seconds
        self.alpha = self.spec.needs.alpha
        self._policy = self.spec.build(0, backend)
        self._draw = np.random.default_rng(1)
        self._step = 0
        self._policy.assign(self._batch())  # compiles
        pilot.begin(self.alpha, self.alpha, backend, may_move=True)

    def step(self) -> AlphaChange | None:
        """Decides one batch, and looks; a step keeps its workers busy for as long as it says."""
        self._step += 1
        situation, due = self._batch(), monotonic() + self._busy_seconds
        began, cpu_began = perf_counter(), thread_time()
        at_B = self._policy.assign(situation).worker_B
        took = perf_counter() - began, thread_time() - cpu_began
        worth = weigh(situation, at_B, took[0]) if self._step % COMPARED_STEPS == 0 else None
        self._pilot.note(*took, StepSeconds(self._busy_seconds), worth)
        change = self._pilot.sample_and_decide(monotonic())
        if change is not None:
            self.alpha, self.backend = change.alpha, change.backend
            self._policy = self.spec.build(0, self.backend)
        sleep(max(0.0, due - monotonic()))
        return change

    def _batch(self) -> Situation:
        made_up = trial_situation()
        local_BF = (self._draw.random(made_up.local_BF.shape) ** 3 * TRIAL_ROWS).astype(np.int32)
        return replace(made_up, step=self._step, local_BF=local_BF, alpha=self.alpha)


class Load:
    """Processes that do nothing but use what they can, from start to stop."""

    def __init__(self, program: str, processes: int = 1) -> None:
        self._program, self._processes = program, processes
        self._running: list[Popen[bytes]] = []

    def start(self) -> None:
        command = [sys.executable, "-c", self._program]
        self._running = [Popen(command, stdout=PIPE) for _ in range(self._processes)]

    def wait(self) -> None:
        """Until each has written a line: programs may take seconds to begin."""
        for process in self._running:
            assert process.stdout is not None
            assert process.stdout.readline(), "the load has ended"

    def stop(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()
        self._running = []


def loaded(
    looped: Looped, load: Load, seconds: float, load_from: float, load_to: float
) -> Iterator[tuple[float, bool, AlphaChange | None]]:
    """Runs the loop for so long, with the load between two times; yields each step's time, its load and its change."""
    began, has_load = monotonic(), False
    try:
        while (at := monotonic() - began) < seconds:
            if has_load != (load_from <= at < load_to):
                has_load = not has_load
                load.start() if has_load else load.stop()
            yield at, has_load, looped.step()
    finally:
        load.stop()
