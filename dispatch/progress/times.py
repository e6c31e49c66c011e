"""When steps ended, how long decisions took, and the resulting rates."""

from collections import deque
from statistics import median
from time import monotonic

import msgspec
import numpy as np

from dispatch.progress.status import DecisionStatus

RECENT_STEPS = 50
"""Steps over which timings are averaged."""
RECENT_SECONDS = 5.0
"""Seconds over which the rate of samples is measured."""
MARKED_STEPS = 10_000
"""Steps after the mark whose decision times are kept."""


class StepTimesState(msgspec.Struct, frozen=True):
    """Totals and latest times of steps."""

    steps: int
    samples: int
    seconds: float
    """Time from the beginning of the first step to the end of the last."""
    step_seconds: tuple[float, ...]
    """Seconds of the latest steps."""


class DecisionTimesState(msgspec.Struct, frozen=True):
    """Totals and times of decisions."""

    deadline_misses: int
    cut_short: int
    recent_seconds: tuple[float, ...]
    marked_seconds: tuple[float, ...] | None


class StepTimes:
    """Counts steps and samples, and times them."""

    def __init__(self) -> None:
        self.steps = 0
        self.samples = 0
        self.ended = 0.0
        """When the last step ended."""
        self._made = monotonic()
        self._began: float | None = None
        self._underway = 0
        """Steps that have begun and not ended."""
        self._step_seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        self._ends: deque[tuple[float, int]] = deque()
        """End of each recent step, and the samples trained by then."""

    def begin(self, idle: bool) -> None:
        """Begins a step; if no other was under way, its time counts from here and not from the last one's end."""
        self._began = self._began or monotonic()
        self._underway += 1
        if idle:
            self.ended = monotonic()

    def end(self, samples: int) -> float:
        """Ends a step of that many samples; returns the seconds since it began or the one before ended."""
        now = monotonic()
        self.steps += 1
        self._underway -= 1
        self.samples += samples
        self._step_seconds.append(now - self.ended)
        self.ended = now
        self._ends.append((now, self.samples))
        while len(self._ends) > 2 and now - self._ends[0][0] > RECENT_SECONDS:
            self._ends.popleft()
        return self._step_seconds[-1]

    def save(self) -> StepTimesState:
        """The counterpart of ``load``."""
        return StepTimesState(self.steps, self.samples, self.seconds, tuple(self._step_seconds))

    def load(self, state: StepTimesState) -> None:
        """Continues from a saved state: the time in between does not count."""
        self.steps = state.steps
        self.samples = state.samples
        self.ended = monotonic()
        self._began = self.ended - state.seconds if state.steps else None
        self._step_seconds = deque(state.step_seconds, maxlen=RECENT_STEPS)
        self._ends.clear()

    @property
    def seconds(self) -> float:
        """Time from the beginning of the first step to the end of the last."""
        return self.ended - self._began if self._began is not None else 0.0

    @property
    def idle_seconds(self) -> float:
        """Time since the last step ended, or, before the first, since the process began; 0 while one is under way."""
        return monotonic() - (self.ended if self.steps else self._made) if self._underway <= 0 else 0.0

    @property
    def step_ms(self) -> float:
        """Median of the latest steps."""
        return 1000 * median(self._step_seconds) if self._step_seconds else 0.0

    @property
    def samples_per_second(self) -> float:
        """Rate over the latest seconds; 0 if no step ended in them and none is under way."""
        if len(self._ends) < 2 or self.idle_seconds > RECENT_SECONDS:
            return 0.0
        (first_time, first_samples), (last_time, last_samples) = self._ends[0], self._ends[-1]
        return (last_samples - first_samples) / max(last_time - first_time, 1e-9)


class DecisionTimes:
    """How long decisions took, over the latest steps and since the mark."""

    def __init__(self) -> None:
        self.deadline_misses = 0
        self._cut_short = 0
        self._recent_seconds: deque[float] = deque(maxlen=RECENT_STEPS)
        self._marked_seconds: deque[float] | None = None

    def add(self, seconds: float, is_late: bool, is_shortened: bool) -> None:
        """Adds one decision: its time, whether that was too long, and whether it was shortened to be in time."""
        self._recent_seconds.append(seconds)
        self.deadline_misses += is_late
        self._cut_short += is_shortened
        if self._marked_seconds is not None:
            self._marked_seconds.append(seconds)

    def mark(self) -> None:
        """Begins to keep the times of which percentiles are taken."""
        self._marked_seconds = deque(maxlen=MARKED_STEPS)

    def status(self) -> DecisionStatus:
        recent = self._recent_seconds
        mean_ms = 1000 * sum(recent) / len(recent) if recent else 0.0
        return DecisionStatus(mean_ms=mean_ms, deadline_misses=self.deadline_misses, cut_short=self._cut_short)

    def save(self) -> DecisionTimesState:
        """The counterpart of ``load``."""
        marked = None if self._marked_seconds is None else tuple(self._marked_seconds)
        return DecisionTimesState(self.deadline_misses, self._cut_short, tuple(self._recent_seconds), marked)

    def load(self, state: DecisionTimesState) -> None:
        self.deadline_misses = state.deadline_misses
        self._cut_short = state.cut_short
        self._recent_seconds = deque(state.recent_seconds, maxlen=RECENT_STEPS)
        marked = state.marked_seconds
        self._marked_seconds = None if marked is None else deque(marked, maxlen=MARKED_STEPS)

    def percentiles_ms(self) -> tuple[float, float]:
        """The 50th and the 99th percentile since the mark."""
        decisions_ms = [1000 * seconds for seconds in self._marked_seconds or ()] or [0.0]
        p50, p99 = np.percentile(decisions_ms, [50, 99]).tolist()
        return p50, p99
