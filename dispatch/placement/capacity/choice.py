"""Chooses who takes part, by the clock: the model proposes a set, and measured steps confirm or reject it.

A run begins with one worker, the fastest alone by its link: that is what a user would try first, its steps show how
long compute takes undisturbed, and no dense weights move. As soon as two steps are measured, other sets may be tried:
the 2, 4, 8 … fastest, all, and the best that the model knows. A set that was measured is judged by its measured time;
any other by the model's best case, plus the time that the current set takes beyond the model's expectation. A set is
tried if it could be clearly faster (MIN_IMPROVEMENT), and kept if it is.

All trials together may cost EXPLORED of the run's time, and the time of a few steps more at its beginning. A trial that
has used up its part ends at once. A set that was measured and left is tried again at intervals that double
(``set_times.py``), or when a link or the batch has changed.

Legend: n workers.
"""

from collections.abc import Sequence

import numpy as np

from dispatch.placement.arrays import Bool
from dispatch.placement.capacity.participation import MIN_IMPROVEMENT, Participation, SetChange
from dispatch.placement.capacity.set_times import LEFT_OUT, MEASURED, SetTime, SetTimes, Stay
from dispatch.placement.capacity.step_model import StepModel

EXPLORED = 0.01
"""Share of the run's time that trials of sets may cost; tries of parked workers may cost as much again."""
FIRST_STEPS = 8
"""Time, in steps, that they may cost beyond that, so that a run finds its set soon."""
TRIAL_STEPS = LEFT_OUT + MEASURED
"""Least number of steps of a trial."""
SETTLED_LOOK = 8
"""Steps between two comparisons of candidates, once the current set has won and its time has settled."""
TRY_DAMPING = 0.25
"""Weight of the newest step with tries in the cost of such a step."""
LONGEST_UNDER_WAY = 64
"""Most decided steps whose sets are remembered until they are measured."""


class MeasuredChoice(Participation):
    """Chooses who takes part, step after step, and learns how long steps took."""

    goes_by_clock = True
    try_cost = EXPLORED

    def __init__(self, may_park_n: Bool, names: Sequence[str], times: SetTimes) -> None:
        super().__init__(may_park_n)
        self._names = names
        self._times = times
        self._stay: Stay | None = None
        self._stay_of: dict[int, Stay] = {}
        """The stays of steps that were decided and are not measured yet."""
        self._tried: set[int] = set()
        """Those of them in which parked workers were tried."""
        self._looked = 0
        """The last step at which candidates were compared."""
        self._elapsed = self._lost = 0.0
        """Measured seconds, and the part of them that the set before a trial would not have taken."""

    def allow(self, may_park_n: Bool) -> None:
        """Sets who may be parked from now on; if others take part for that reason, their set is measured again."""
        super().allow(may_park_n)
        if self._stay is not None and self._names_of(self.taking_part_n) != self._stay.members:
            self._stay = None

    def choose(self, model: StepModel, step: int = 0) -> SetChange | None:
        """Decides about the next step; returns the change if there is one."""
        if not self._may_park_n.any() or not model.samples:
            return None
        change = self._choose(model, step)
        self._note(step)
        return change

    def may_skip(self, step: int) -> bool:
        """Once a set has won, candidates are compared only every few steps."""
        if self._stay is None or not self._stay.has_won or step % SETTLED_LOOK == 0 or self._tries_n.any():
            return False
        self.tried_n = np.full(self._may_park_n.size, False)
        self._note(step)
        return True

    def _note(self, step: int) -> None:
        """Remembers which stay a decided step belongs to, until it is measured."""
        if self._stay is not None:
            self._stay_of[step] = self._stay
        if self.tried_n.any():
            self._tried.add(step)
        while len(self._stay_of) > LONGEST_UNDER_WAY:
            forgotten = next(iter(self._stay_of))
            del self._stay_of[forgotten]
            self._tried.discard(forgotten)

    def measure(self, step: int, seconds: float) -> None:
        """Records how long a step took, from the end of the one before."""
        stay = self._stay_of.pop(step, None)
        has_tries = step in self._tried
        self._tried.discard(step)
        if stay is None or stay is not self._stay:
            return
        if has_tries:
            self._try_seconds += TRY_DAMPING * (max(0.0, seconds - stay.seconds) - self._try_seconds)
            return
        stay.add(step, seconds)
        self._elapsed += seconds
        self._lost += max(0.0, seconds - stay.rival)

    def _choose(self, model: StepModel, step: int) -> SetChange | None:
        self.tried_n = np.full(self._may_park_n.size, False)
        if self._stay is None:
            return self._begin(model, step)
        if model.time_of(self.taking_part_n) == float("inf"):
            best_n = model.best(self._may_park_n, self.taking_part_n)
            return self._move(model, step, best_n, model.time_of(best_n), "the batch did not fit into the caches")
        if not self._stay.is_known:
            return None
        now = self._remember(model, step)
        times = [(self._expect(model, step, members_n), members_n) for members_n in self._candidates(model)]
        expected, best_n = min(times, key=lambda one: one[0], default=(float("inf"), self.taking_part_n))
        if expected >= (1 - MIN_IMPROVEMENT) * self._stay.at_best:
            self._stay.win()
            self._idle_n[~self.taking_part_n] += max(0, step - self._looked - 1)
            self._looked = step
            self._try_parked(model, now)
            return None
        known = self._known(model, best_n)
        reason = "expected to be faster" if known is None or known.seconds > expected else "was faster when measured"
        return self._move(model, step, best_n, expected, reason)

    def _begin(self, model: StepModel, step: int) -> SetChange | None:
        """The first set of a generation: the fastest known one, or one worker, or the one that the model prefers."""
        known = self._times.within(self._names)
        first_n = model.best_sole(self._may_park_n, self.taking_part_n)
        reason = "one worker is measured first"
        if known:
            fastest = min(known, key=lambda members: known[members].seconds)
            first_n = self._set_of(fastest)
            reason = "was the fastest before"
        if first_n is None or model.time_of(first_n) == float("inf"):
            first_n = model.best(self._may_park_n, self.taking_part_n)
            reason = "expected to be the fastest"
        change = self._move(model, step, first_n, model.time_of(first_n), reason)
        assert self._stay is not None
        self._stay.is_first = True
        self._stay.rival = float("inf")
        return change if not self.taking_part_n.all() else None

    def _move(self, model: StepModel, step: int, members_n: Bool, expected: float, reason: str) -> SetChange:
        """Begins a stay with these members at this step."""
        before = float("inf")
        rival = float("inf")
        if self._stay is not None and self._stay.is_known:
            before = self._stay.at_best
            rival = min(before, self._fastest)
            self._times.leave(self._stay.members)
        may_lose = max(self._may_still_lose(), 0.0)
        self._stay = Stay(self._names_of(members_n), step, is_first=False, rival=rival, may_lose=may_lose)
        self.taking_part_n = members_n
        self._looked = step
        self._idle_n[:], self._tries_n[:] = 0, 0
        self.tried_n = np.full(members_n.size, False)
        return SetChange(~members_n, model, expected, before, reason)

    def _remember(self, model: StepModel, step: int) -> float:
        """Records how long the current set's steps take, and returns it."""
        assert self._stay is not None
        known = self._times.of(self._stay.members)
        seconds = self._stay.at_best
        beyond = max(0.0, seconds - model.at_most(self.taking_part_n))
        links = tuple(model.row_n[self.taking_part_n].tolist())
        leaves = 0 if known is None else known.leaves
        is_settled = self._stay.is_settled or (known is not None and known.is_settled)
        time = SetTime(seconds, beyond, links, model.samples, step, leaves, is_settled)
        self._times.put(self._stay.members, time)
        return seconds

    def _candidates(self, model: StepModel) -> list[Bool]:
        """Sets that might be faster than the current one.

        The best worker alone, the 2, 4, 8 … fastest, all, one more or less than now, the model's best, and those that
        were measured.
        """
        order = model.by_speed(self._may_park_n)
        now = int(self.taking_part_n.sum())
        sizes = {*(2**power for power in range(1, order.size.bit_length())), now - 1, now + 1, order.size}
        rank_n = np.empty(order.size, np.int64)
        rank_n[order] = np.arange(order.size)
        sets = [(rank_n < size) | ~self._may_park_n for size in sorted(sizes) if 1 < size <= order.size]
        sets.append(model.best(self._may_park_n, self.taking_part_n))
        if (alone_n := model.best_sole(self._may_park_n, self.taking_part_n)) is not None:
            sets.append(alone_n)
        sets.extend(self._set_of(members) for members in self._times.within(self._names))
        different = {each.tobytes(): each for each in sets if (each != self.taking_part_n).any()}
        return list(different.values())

    def _expect(self, model: StepModel, step: int, members_n: Bool) -> float:
        """Seconds of a step of these workers, including the hand-overs of the change."""
        expected = model.time_of(members_n)
        hand_over = model.time_after(self.taking_part_n, members_n) - expected
        if expected == float("inf"):
            return expected
        at_best = expected + self._beyond(members_n) + hand_over
        known = self._known(model, members_n)
        if known is None:
            return at_best if self._may_still_lose() > 0.0 else float("inf")
        may_try = self._may_lose_again(known) if known.is_settled else self._may_still_lose() > 0.0
        is_worth_it = known.is_due(step) and may_try
        return min(known.seconds, at_best) if is_worth_it else known.seconds

    def _known(self, model: StepModel, members_n: Bool) -> SetTime | None:
        """What was measured of these workers, if it is still valid."""
        known = self._times.of(self._names_of(members_n))
        holds = known is not None and known.holds(model.samples, model.row_n[members_n].tolist())
        return known if holds else None

    def _beyond(self, members_n: Bool) -> float:
        """Time of a step beyond the model's expectation: at least that of the largest known subset of the members."""
        wanted = self._names_of(members_n)
        inside = [time for members, time in self._times.within(self._names).items() if members < wanted]
        return max(inside, key=lambda time: len(time.row_seconds)).beyond if inside else 0.0

    @property
    def _fastest(self) -> float:
        """Seconds of a step of the fastest known set; infinite if none is known."""
        return min((time.seconds for time in self._times.within(self._names).values()), default=float("inf"))

    def _may_still_lose(self) -> float:
        """Seconds that trials of unknown sets may cost from now on."""
        at_first = FIRST_STEPS * self._fastest if self._fastest < float("inf") else 0.0
        return at_first + EXPLORED * self._elapsed - self._lost

    def _may_lose_again(self, known: SetTime) -> bool:
        """Whether there is time to retry a set that was slower when it was measured."""
        assert self._stay is not None
        cost = TRIAL_STEPS * max(0.0, known.seconds - self._stay.seconds)
        return cost <= EXPLORED * self._elapsed - self._lost

    def _set_of(self, members: frozenset[str]) -> Bool:
        """These workers, and those that must not be parked."""
        return np.array([name in members for name in self._names]) | ~self._may_park_n

    def _names_of(self, members_n: Bool) -> frozenset[str]:
        return frozenset(name for name, is_member in zip(self._names, members_n, strict=True) if is_member)
