"""Made-up workers whose steps take a known time, in which a choice by the clock has to find its way.

A step of one worker takes the longest of compute, cold rows and deciding; one of several, besides its compute and
deciding, rows that others trained the step before, and the dense weights over the slowest member's link. Workers may
share a processor. A set's caches are cold at first. What the choice is told is what a dispatcher would know: measured
compute, links, decision times.

Legend: n workers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dispatch.placement.arrays import F64, Bool
from dispatch.placement.capacity.choice import MeasuredChoice
from dispatch.placement.capacity.participation import SetChange
from dispatch.placement.capacity.set_times import SetTimes
from dispatch.placement.capacity.step_model import StepModel

SAMPLES = 4096
WARM_STEPS = 10.0
"""in which caches fill to two thirds"""
DRIFT_STEPS = 60.0
"""in which the machine's speed forgets two thirds of what it was"""


@dataclass
class World:
    """Times in seconds."""

    dense: tuple[float, ...]
    """over each worker's link, one way"""
    compute: float = 0.1
    """of one worker with the whole batch"""
    shared: float = 0.0
    """how far workers share a processor: 1: k of them compute no faster than one"""
    crowded: float = 0.0
    """of compute, for every worker beyond half of them: then there is no core left for other processes"""
    late: float = 0.0
    """of rows that two workers exchange between steps; more of them exchange more"""
    decide_alone: float = 0.0
    decide_several: float = 0.0
    cold: float = 0.0
    """of a batch's rows while caches are empty"""
    noise: float = 0.03
    """standard deviation of a step's time, as a share of it"""
    drift: float = 0.0
    """the same of the whole machine's speed, which wanders over DRIFT_STEPS"""
    odd: float = 0.0
    """share of steps of several workers that take up to four times as long, because one of them waits for a core"""
    change_over: float = 0.0
    """of the first two steps of another set, while orders and weights change hands"""
    seed: int = 0

    def __post_init__(self) -> None:
        self.workers = len(self.dense)
        self.links_n = np.array(self.dense)
        self.slowed_n = np.ones(self.workers)
        """factor by which steps with each worker are longer, which no model knows of"""
        self._known_links_n = self.links_n
        """as they were when each worker last had samples"""
        self._random = np.random.default_rng(self.seed)
        self._warm_n = np.zeros(self.workers)
        self._sample_n = np.full(self.workers, np.nan)
        self._least = np.inf
        self._pace = 0.0
        self._before: tuple[bool, ...] = ()
        self._since = 0
        """steps of the present set"""

    def seconds(self, members_n: Bool, coldness: float = 0.0) -> float:
        """Of a step of these workers, noise left out."""
        count, cold = int(members_n.sum()), self.cold * coldness
        compute = self._compute(count)
        slowed = float(self.slowed_n[members_n].max())
        if count == 1:
            return slowed * max(compute, cold, self.decide_alone)
        waits = self.late * float(np.log2(count)) + float(self.links_n[members_n].max())
        return slowed * max(compute, cold / count, self.decide_several) + waits

    def step(self, members_n: Bool) -> float:
        """Trains one; returns its seconds."""
        count = int(members_n.sum())
        seconds = self.seconds(members_n, self._coldness(members_n))
        self._warm_n[members_n] += 1
        self._known_links_n = np.where(members_n, self.links_n, self._known_links_n)
        self._sample_n[members_n] = self._compute(count) * count / SAMPLES
        self._least = min(self._least, self._compute(count) * count / SAMPLES)
        self._since = self._since + 1 if self._before == tuple(members_n) else 0
        seconds += self.change_over * (bool(self._before) and self._since < 2)
        self._before = tuple(members_n)
        kept = 1 - 1 / DRIFT_STEPS
        self._pace = kept * self._pace + (1 - kept**2) ** 0.5 * self.drift * self._random.normal()
        if self.odd and count > 1 and self._random.random() < self.odd:
            seconds *= 1 + 3 * self._random.random()
        return float(seconds * np.exp(self._pace + self.noise * self._random.normal()))

    def model(self, members_n: Bool) -> StepModel:
        """What a dispatcher knows while these take part."""
        known_n = ~np.isnan(self._sample_n)
        usual = float(self._sample_n[known_n].mean()) if known_n.any() else 0.0
        cold = self.cold * self._coldness(members_n)
        sample_n = np.maximum(np.where(known_n, self._sample_n, usual), cold / SAMPLES)
        n, nothing = self.workers, np.zeros(self.workers)
        return StepModel(
            SAMPLES,
            self._known_links_n,
            nothing,
            3 * self._known_links_n,
            sample_n,
            np.zeros(n, np.int64),
            np.full(n, SAMPLES),
            is_in_seconds=True,
            compute_n=np.full(n, self._least if known_n.any() else 0.0),
            alone_rows_n=np.full(n, cold),
            row_n=self._known_links_n / 1000 + 1e-9,
            taking_part=int(members_n.sum()),
            quiet_sample_n=np.full(n, max(self._least if known_n.any() else 0.0, cold / SAMPLES)),
            decide_several=self.decide_alone,
            decide_alone=self.decide_alone,
        )

    def fixed(self, count: int, steps: int) -> F64:
        """Seconds of each step of a run with the count fastest workers."""
        again = World(**{name: getattr(self, name) for name in self.__dataclass_fields__})
        members_n = np.arange(self.workers) < count
        return np.array([again.step(members_n) for _ in range(steps)])

    def best_fixed(self, steps: int) -> F64:
        """The same of the size whose later half is the fastest."""
        runs = [self.fixed(count, steps) for count in range(1, self.workers + 1)]
        return min(runs, key=lambda run: float(run[steps // 2 :].sum()))

    def _compute(self, count: int) -> float:
        crowd = max(0, count - self.workers // 2)
        return self.compute / count * (1 + self.shared * (count - 1)) + self.crowded * crowd

    def _coldness(self, members_n: Bool) -> float:
        return float(np.exp(-self._warm_n[members_n] / WARM_STEPS).max())


@dataclass
class ChosenRun:
    """What a choice by the clock made of a world."""

    seconds: list[float] = field(default_factory=list)
    sets: list[tuple[bool, ...]] = field(default_factory=list)
    """who took part in each step, those who were tried left out"""
    tries: list[int] = field(default_factory=list)
    """steps in which parked workers were tried"""
    changes: dict[int, SetChange] = field(default_factory=dict)
    """by step"""

    def settled(self, steps: int) -> tuple[bool, ...]:
        """The set of the most of the last steps."""
        last = self.sets[-steps:]
        return max({*last}, key=last.count)


def drive(
    world: World,
    steps: int,
    times: SetTimes | None = None,
    meanwhile: Callable[[World, int], None] = lambda world, step: None,
) -> ChosenRun:
    """Trains so many steps, each measured while the next is decided. meanwhile: changes the world before a step."""
    names = [f"worker-{number}" for number in range(world.workers)]
    choice, run = MeasuredChoice(np.full(world.workers, True), names, times or SetTimes()), ChosenRun()
    for step in range(1, steps + 1):
        meanwhile(world, step)
        if not choice.may_skip(step):
            change = choice.choose(world.model(choice.taking_part_n), step)
            if change is not None:
                run.changes[step] = change
        if step > 1:
            choice.measure(step - 1, run.seconds[-1])
        run.seconds.append(world.step(choice.taking_part_n | choice.tried_n))
        run.sets.append(tuple(choice.taking_part_n.tolist()))
        if choice.tried_n.any():
            run.tries.append(step)
    return run
