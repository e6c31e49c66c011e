"""How long a step takes a set of workers, by a model of each worker's time.

A worker without samples moves no dense weights. One with samples moves all of them, and then a little more for every
sample. A step of worker w therefore takes fixed + sample · x: if the fixed part is large, it is faster to leave w out
than to give it few samples. A worker that takes part alone is *sole*: it owns the dense weights, so none of them move
and its fixed part is shorter (alone). It fetches them once, with their optimizer state, and returns them as a whole
when another worker takes part; each of these is a hand-over.

In a step of T seconds worker w can train (T − fixed) / sample samples, within its bounds, and nothing if its fixed part
is longer than T. The best T of several workers is the least in which all together can train the batch, and those take
part whose fixed part is shorter than it: of the workers sorted by their fixed part always the first few. The
alternative is the worker that is fastest alone, if it can hold the whole batch.

Legend: n workers.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from dispatch.placement.arrays import F64, I64, Bool
from dispatch.placement.capacity.level import level

HAND_OVER_STEPS = 64
"""Steps in which a hand-over of the dense weights must pay for itself: about as long as nobody is tried."""
LEAST_SAMPLE = 1e-9
"""Shortest time of a sample, as a share of the longest, or of the longest fixed part; avoids division by 0."""


@dataclass(frozen=True)
class DenseLoad:
    """The load of the dense weights on a link, in rows with state."""

    rows: float = 0.0
    """Rows in each direction, for a worker that takes part in a step with others."""
    whole_rows: float = 0.0
    """Rows of weights and optimizer state: what a sole worker fetches at first and returns at last."""


@dataclass(frozen=True)
class ServerLoad:
    """What a step moves over the link that all shards share. Members of a set use their own links at the same time, and
    this one together.
    """

    row: float = 0.0
    """Time of a row over it; 0: it does not limit."""
    sample_rows: float = 0.0
    """Rows that several workers move for each sample."""
    dense_rows: float = 0.0
    """Rows of dense weights, for each of several workers."""
    alone_rows: float = 0.0
    """Rows that a worker alone moves in a step."""

    def time(self, samples: int, workers: int) -> float:
        """How long a step of so many samples and workers keeps the link busy."""
        several = samples * self.sample_rows + workers * self.dense_rows
        return self.row * (self.alone_rows if workers == 1 else several)


@dataclass(frozen=True)
class StepModel:
    """How long a step of that many samples takes each worker, and how many it may get."""

    samples: int
    fixed_n: F64
    """Time of taking part with others."""
    alone_n: F64
    """Time of taking part alone."""
    hand_over_n: F64
    """Time of fetching the dense weights and their state; not part of any step's time."""
    sample_n: F64
    """Time that a further sample adds."""
    least_n: I64
    """Fewest samples if it takes part."""
    most_n: I64
    is_in_seconds: bool = False
    """Whether times are seconds; otherwise they are rows over the fastest link."""
    compute_n: F64 | None = None
    """Compute time that a further sample adds for a worker alone; None: sample_n, which includes its rows."""
    alone_rows_n: F64 = field(default_factory=lambda: np.zeros(0))
    """Time of all rows that a worker alone moves in a step, while the step before computes; given with compute_n."""
    row_n: F64 = field(default_factory=lambda: np.zeros(0))
    """Time of a row with its state over the slower direction of each link."""
    return_n: F64 | None = None
    """Time of returning the dense weights and their state; None: as long as fetching them."""
    taking_part: int = 0
    """Number of workers that took part when sample_n was measured; 0: it holds for any number."""
    quiet_sample_n: F64 | None = None
    """Time that a further sample adds while no other worker computes; given with taking_part."""
    decide_several: float = 0.0
    """Time of a decision about several workers, which is made while the step before is trained."""
    decide_alone: float = 0.0
    """Time of a decision about one worker."""
    server: ServerLoad = field(default_factory=ServerLoad)
    """Load of the link that all shards share."""

    def time_of(self, taking_part_n: Bool) -> float:
        """How long a step takes if these workers take part, all of them; infinite if they cannot hold the batch."""
        members = taking_part_n.tobytes()
        if members not in self._time_of:
            sample_n = self._sample_among(int(taking_part_n.sum()))
            self._time_of[members] = self._time_with(taking_part_n, sample_n)
        return self._time_of[members]

    def at_best(self, taking_part_n: Bool) -> float:
        """The same if fewer workers than take part now do not slow each other down at all."""
        if self.quiet_sample_n is None or int(taking_part_n.sum()) >= self.taking_part:
            return self.time_of(taking_part_n)
        return self._time_with(taking_part_n, self._quiet_n)

    def _time_with(self, taking_part_n: Bool, sample_n: F64) -> float:
        if (sole := sole_of(taking_part_n)) is not None:
            can_hold = self.most_n[sole] >= self.samples
            shared = self.server.time(self.samples, 1)
            return max(float(self._alone_time_n[sole]), shared, self.decide_alone) if can_hold else float("inf")
        first_n = self.fixed_n + self.least_n * sample_n
        slowest = float(first_n[taking_part_n].max(initial=0.0))
        shared = self.server.time(self.samples, int(taking_part_n.sum()))
        return max(self._level(taking_part_n, sample_n), slowest, shared, self.decide_several)

    def time_after(self, now_n: Bool, next_n: Bool) -> float:
        """The same for the next set, including its share of the hand-overs of the change."""
        next_sole = sole_of(next_n)
        given = self._given_back(now_n)
        hand_over = given if next_sole is None else float(self._to_sole_n(now_n)[next_sole])
        return self.time_of(next_n) + hand_over / HAND_OVER_STEPS

    def in_ring(self) -> "StepModel":
        """The same if dense gradients are summed in a ring: all workers send 2(n-1)/n of them at the speed of the
        slowest link, whoever takes part, and none of them cross the link of the shards.
        """
        n = self.fixed_n.size
        dense = self.server.dense_rows
        ring = 2 * (n - 1) / n * dense * float(self.row_n.max())
        server = replace(self.server, dense_rows=0.0)
        return replace(self, fixed_n=self.fixed_n - dense * self.row_n + ring, server=server)

    def is_like(self, other: "StepModel", within: float, step: float) -> bool:
        """Whether links differ by at most this share of them, and all times in a step by at most this share of a step,
        which takes so long.
        """
        if (self.samples, self.taking_part, self.server) != (other.samples, other.taking_part, other.server):
            return False
        if not np.allclose(self.row_n, other.row_n, rtol=within, atol=0.0):
            return False
        return bool(np.allclose(self._times_in_a_step, other._times_in_a_step, rtol=within, atol=within * step)) and (
            np.array_equal(self.least_n, other.least_n) and np.array_equal(self.most_n, other.most_n)
        )

    @cached_property
    def _times_in_a_step(self) -> F64:
        """Everything that takes time, each as it counts in a step, one after the other."""
        returning_n = self.hand_over_n if self.return_n is None else self.return_n
        sample_nS = [self.sample_n, *(each for each in (self.compute_n, self.quiet_sample_n) if each is not None)]
        return np.concatenate(
            [
                self.fixed_n,
                self.alone_n,
                self.hand_over_n / HAND_OVER_STEPS,
                returning_n / HAND_OVER_STEPS,
                self.alone_rows_n,
                *(self.samples * each for each in sample_nS),
                [self.decide_several, self.decide_alone],
            ]
        )

    def is_even(self, members_n: Bool, factor: float) -> bool:
        """Whether no member's link or processor is slower than another's by more than this factor."""
        return all(
            float(time_n[members_n].max()) <= factor * float(time_n[members_n].min())
            for time_n in (self.row_n, self.fixed_n, self.sample_n)
        )

    def evened(self) -> "StepModel":
        """The same if every worker took part with others as fast as the fastest does."""
        n = self.fixed_n.size
        return replace(
            self,
            fixed_n=np.full(n, self.fixed_n.min()),
            sample_n=np.full(n, self.sample_n.min()),
            quiet_sample_n=None if self.quiet_sample_n is None else np.full(n, self.quiet_sample_n.min()),
        )

    def by_speed(self, may_park_n: Bool) -> I64:
        """Numbers of the workers: first those that must not be parked, then the fastest at an equal share."""
        time_n = self.fixed_n + self.samples / self.fixed_n.size * self._divisor_n
        return np.lexsort((time_n, may_park_n)).astype(np.int64)

    def best(self, may_park_n: Bool, now_n: Bool) -> Bool:
        """The set with the least time after the current one; it includes those that must not be parked."""
        several_n = self._best_several(may_park_n)
        sole_n = self.best_sole(may_park_n, now_n)
        if sole_n is None or self.time_after(now_n, several_n) < self.time_after(now_n, sole_n):
            return several_n
        return sole_n

    def samples_in(self, time: float) -> F64:
        """How many samples each worker can train in that time."""
        return np.clip((time - self.fixed_n) / self._divisor_n, self.least_n, self.most_n)

    def _best_several(self, may_park_n: Bool) -> Bool:
        """The smallest set of at least two that is done soonest, if there are two."""
        several_n = ~may_park_n | (self.fixed_n < self._level(np.full(self.fixed_n.size, True), self._divisor_n))
        if sole_of(several_n) is not None:
            several_n[np.where(several_n, np.inf, self.fixed_n).argmin()] = True
        return several_n

    def best_sole(self, may_park_n: Bool, now_n: Bool, among_n: Bool | None = None) -> Bool | None:
        """The set of one with the least time after the current one; None if nobody may, or can hold the batch.

        among_n: who may be chosen; None: anyone.
        """
        must_n = ~may_park_n
        may_n = (must_n.sum() - must_n == 0) & (self.most_n >= self.samples)
        may_n &= True if among_n is None else among_n
        if not may_n.any():
            return None
        time_n = self._alone_time_n + self._to_sole_n(now_n) / HAND_OVER_STEPS
        return np.asarray(np.arange(may_n.size) == np.where(may_n, time_n, np.inf).argmin())

    def _to_sole_n(self, now_n: Bool) -> F64:
        """Hand-overs until each worker is the sole one."""
        now = sole_of(now_n)
        is_now_n = np.arange(now_n.size) == (-1 if now is None else now)
        return np.where(is_now_n, 0.0, self.hand_over_n + self._given_back(now_n))

    def _given_back(self, now_n: Bool) -> float:
        """The hand-over by which the current sole worker, if there is one, stops being sole."""
        now = sole_of(now_n)
        return 0.0 if now is None else self.returning(now)

    def returning(self, worker: int) -> float:
        """How long a worker takes to return the dense weights and their state."""
        return float((self.hand_over_n if self.return_n is None else self.return_n)[worker])

    def _level(self, members_n: Bool, sample_n: F64) -> float:
        """The least time in which the members can train the batch, where those without samples pay nothing."""
        return level(
            self.samples,
            self.fixed_n[members_n],
            sample_n[members_n],
            self.least_n[members_n],
            self.most_n[members_n],
        )

    def _sample_among(self, workers: int) -> F64:
        """What a further sample adds if so many take part.

        Workers that share a processor or a GPU slow each other down: fewer than were measured do so less.
        """
        if self.quiet_sample_n is None or workers >= self.taking_part:
            return self._divisor_n
        others = (workers - 1) / (self.taking_part - 1)
        return self._quiet_n + others * (self._divisor_n - self._quiet_n)

    def at_most(self, taking_part_n: Bool) -> float:
        """How long a step takes if nothing of it overlaps, for a worker alone; for several as ``time_of``."""
        sole = sole_of(taking_part_n)
        rows = 0.0 if sole is None or self.compute_n is None else float(self.alone_rows_n[sole])
        return self.time_of(taking_part_n) + rows

    @cached_property
    def _time_of(self) -> dict[bytes, float]:
        """Times that were asked for: candidates are compared with each other many times."""
        return {}

    @cached_property
    def _alone_time_n(self) -> F64:
        """How long a step takes each worker alone."""
        if self.compute_n is None:
            return self.alone_n + self.samples * self._divisor_n
        return self.alone_n + np.maximum(self.samples * self.compute_n, self.alone_rows_n)

    @cached_property
    def _divisor_n(self) -> F64:
        return np.maximum(self.sample_n, LEAST_SAMPLE * self._longest)

    @cached_property
    def _quiet_n(self) -> F64:
        assert self.quiet_sample_n is not None
        return np.clip(self.quiet_sample_n, LEAST_SAMPLE * self._longest, self._divisor_n)

    @cached_property
    def _longest(self) -> float:
        return max(float(self.sample_n.max()), float(self.fixed_n.max()) / max(1, self.samples), LEAST_SAMPLE)


def sole_of(taking_part_n: Bool) -> int | None:
    """The one worker that takes part; None if there are others."""
    return int(taking_part_n.argmax()) if int(taking_part_n.sum()) == 1 else None


def rows_of_dense(dense_bytes: int, row_bytes: int, state_copies: int) -> DenseLoad:
    """The dense weights that a worker moves to take part in a step; state_copies: copies in the optimizer's state.

    One direction counts: gradients go up while updated weights come down, so both together take as long as the slower.
    """
    rows = dense_bytes / row_bytes
    return DenseLoad(rows, rows * (1 + state_copies))
